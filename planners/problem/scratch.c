/* Arenas that several threads take and give back. One mutex guards a flag for each arena, and a condition
 * wakes a thread that waits for one. An evaluation takes milliseconds, taking an arena nanoseconds.
 */
#include "planners/problem/scratch.h"

#include <stdlib.h>

#include "base/system/parallel.h"

Scratch *scratch_create(void) {
    Scratch *self = calloc(1, sizeof *self);
    if (!self) return NULL;
    int32_t threads = parallel_threads();
    self->count = threads < SCRATCH_MOST ? threads : SCRATCH_MOST;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->given, NULL);
    return self;
}

void scratch_free(Scratch *self) {
    if (!self) return;
    for (int32_t k = 0; k < self->count; k++) arena_free(&self->arenas[k]);
    pthread_cond_destroy(&self->given);
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

Arena *scratch_take(Scratch *self) {
    pthread_mutex_lock(&self->mutex);
    for (;;) {
        for (int32_t k = 0; k < self->count; k++) {
            if (self->taken[k]) continue;
            self->taken[k] = true;
            pthread_mutex_unlock(&self->mutex);
            return &self->arenas[k];
        }
        pthread_cond_wait(&self->given, &self->mutex);
    }
}

void scratch_give(Scratch *self, Arena *arena) {
    arena_release(arena, (ArenaMark){0});
    arena->failed = false;
    pthread_mutex_lock(&self->mutex);
    self->taken[arena - self->arenas] = false;
    pthread_cond_signal(&self->given);
    pthread_mutex_unlock(&self->mutex);
}
