/* A barrier of threads, with an end by an error.
 *
 * A member increments the number of arrivals; the last one begins the next round, for which the
 * others poll. They poll for a limited time (spin_wait.h), since ranks with equal work
 * arrive at nearly the same time, and then sleep at a condition. The last member wakes the others
 * only if one sleeps: both sides read the other's variable after writing their own (sequentially
 * consistent), so that one of them sees the other.
 */
#include "executor/comm/rendezvous.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/process.h"
#include "executor/actors/spin_wait.h"

enum { SPINS = 2000, CACHE_LINE = 64 };

/* Variables written by arriving members are in another cache line than those polled by waiting
 * ones. */
typedef struct RendezvousBarrier {
    _Atomic int32_t arrived;
    char padding[CACHE_LINE];
    _Atomic uint64_t round;
    char more_padding[CACHE_LINE];
    _Atomic int32_t sleeping;
    pthread_mutex_t mutex;
    pthread_cond_t all_here;
} RendezvousBarrier;

struct Rendezvous {
    atomic_bool failed;
    int32_t spins;
    pthread_mutex_t mutex;   /* guards the list of groups */
    RendezvousGroup *groups; /* newest first; they stay where they are */
    int32_t group_count;
    RendezvousGroup *all_ranks;
};

static void free_group(RendezvousGroup *group) {
    if (!group) return;
    if (group->barrier) {
        pthread_mutex_destroy(&group->barrier->mutex);
        pthread_cond_destroy(&group->barrier->all_here);
    }
    free(group->barrier);
    free(group->letters);
    free(group->ranks);
    free(group->brought);
    free(group);
}

static AmStatus new_group(RendezvousGroup **result, const int32_t *ranks, int32_t count, AmError *error) {
    RendezvousGroup *group = calloc(1, sizeof *group);
    RendezvousBarrier *barrier = calloc(1, sizeof *barrier);
    if (group) {
        group->ranks = malloc(sizeof(int32_t) * (size_t)count);
        group->brought = calloc((size_t)count, sizeof *group->brought);
    }
    if (!group || !barrier || !group->ranks || !group->brought) {
        free(barrier);
        free_group(group);
        return am_fail_memory(error, count * 16);
    }
    pthread_mutex_init(&barrier->mutex, NULL);
    pthread_cond_init(&barrier->all_here, NULL);
    memcpy(group->ranks, ranks, sizeof(int32_t) * (size_t)count);
    group->count = count;
    group->barrier = barrier;
    *result = group;
    return AM_OK;
}

AmStatus rendezvous_join(Rendezvous *rendezvous, const int32_t *ranks, int32_t count, int32_t *name,
                         AmError *error) {
    AmStatus status = AM_OK;
    pthread_mutex_lock(&rendezvous->mutex);
    RendezvousGroup *group = rendezvous->groups;
    while (group &&
           (group->count != count || memcmp(group->ranks, ranks, sizeof(int32_t) * (size_t)count) != 0))
        group = group->next;
    if (!group) {
        status = new_group(&group, ranks, count, error);
        if (status == AM_OK) {
            group->next = rendezvous->groups;
            group->name = rendezvous->group_count++;
            rendezvous->groups = group;
        }
    }
    if (status == AM_OK) *name = group->name;
    pthread_mutex_unlock(&rendezvous->mutex);
    return status;
}

RendezvousGroup *rendezvous_group(Rendezvous *rendezvous, int32_t name) {
    pthread_mutex_lock(&rendezvous->mutex);
    RendezvousGroup *group = rendezvous->groups;
    while (group && group->name != name) group = group->next;
    pthread_mutex_unlock(&rendezvous->mutex);
    return group;
}

AmStatus rendezvous_open(Rendezvous **result, int32_t first, int32_t count, AmError *error) {
    Rendezvous *rendezvous = calloc(1, sizeof *rendezvous);
    int32_t *all_ranks = malloc(sizeof(int32_t) * (size_t)(count > 0 ? count : 1));
    int32_t name;
    if (!rendezvous || !all_ranks) {
        free(rendezvous);
        free(all_ranks);
        return am_fail_memory(error, count * 4);
    }
    atomic_init(&rendezvous->failed, false);
    rendezvous->spins = count <= process_processors() ? SPINS : 0;
    pthread_mutex_init(&rendezvous->mutex, NULL);
    for (int32_t r = 0; r < count; r++) all_ranks[r] = first + r;
    AmStatus status = rendezvous_join(rendezvous, all_ranks, count, &name, error);
    free(all_ranks);
    if (status != AM_OK) {
        rendezvous_close(rendezvous);
        return status;
    }
    rendezvous->all_ranks = rendezvous->groups;
    *result = rendezvous;
    return AM_OK;
}

void rendezvous_close(Rendezvous *rendezvous) {
    if (!rendezvous) return;
    while (rendezvous->groups) {
        RendezvousGroup *next = rendezvous->groups->next;
        free_group(rendezvous->groups);
        rendezvous->groups = next;
    }
    pthread_mutex_destroy(&rendezvous->mutex);
    free(rendezvous);
}

AmStatus rendezvous_reserve_letters(Rendezvous *rendezvous, RendezvousGroup *group, int64_t bytes,
                                    AmError *error) {
    AmStatus status = AM_OK;
    bytes = (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    pthread_mutex_lock(&rendezvous->mutex);
    if (bytes > group->letter_bytes) {
        char *letters = aligned_alloc(CACHE_LINE, 2 * (size_t)group->count * (size_t)bytes);
        if (letters) {
            free(group->letters);
            group->letters = letters;
            group->letter_bytes = bytes;
        } else {
            status = am_fail_memory(error, 2 * group->count * bytes);
        }
    }
    pthread_mutex_unlock(&rendezvous->mutex);
    return status;
}

uint64_t rendezvous_round(const RendezvousGroup *group) {
    return atomic_load_explicit(&group->barrier->round, memory_order_relaxed);
}

char *rendezvous_letter(const RendezvousGroup *group, uint64_t round, int32_t position) {
    if (!group->letters) return NULL;
    int64_t number = (int64_t)(round % 2) * group->count + position;
    return group->letters + number * group->letter_bytes;
}

static void wake(RendezvousBarrier *barrier) {
    pthread_mutex_lock(&barrier->mutex);
    pthread_cond_broadcast(&barrier->all_here);
    pthread_mutex_unlock(&barrier->mutex);
}

AmStatus rendezvous_wait(Rendezvous *rendezvous, RendezvousGroup *group, int32_t rank, AmError *error) {
    RendezvousBarrier *barrier = group->barrier;
    uint64_t round = rendezvous_round(group);
    if (atomic_fetch_add_explicit(&barrier->arrived, 1, memory_order_acq_rel) + 1 == group->count) {
        atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
        atomic_store(&barrier->round, round + 1);
        if (atomic_load(&barrier->sleeping) > 0) wake(barrier);
        return AM_OK;
    }
    for (SpinWait wait = spin_wait_begin(rendezvous->spins); spin_wait_lasts(&wait);) {
        if (atomic_load_explicit(&barrier->round, memory_order_acquire) != round) return AM_OK;
        if (atomic_load_explicit(&rendezvous->failed, memory_order_relaxed)) break;
    }
    /* The rank sleeps until the round is over or a rank has failed. */
    pthread_mutex_lock(&barrier->mutex);
    atomic_fetch_add(&barrier->sleeping, 1);
    while (atomic_load(&barrier->round) == round && !atomic_load(&rendezvous->failed))
        pthread_cond_wait(&barrier->all_here, &barrier->mutex);
    atomic_fetch_sub(&barrier->sleeping, 1);
    pthread_mutex_unlock(&barrier->mutex);
    if (atomic_load_explicit(&barrier->round, memory_order_acquire) != round) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, "", "rank %d was stopped because another rank failed", rank);
}

AmStatus rendezvous_barrier(Rendezvous *rendezvous, int32_t rank, AmError *error) {
    return rendezvous_wait(rendezvous, rendezvous->all_ranks, rank, error);
}

void rendezvous_abort(Rendezvous *rendezvous) {
    atomic_store(&rendezvous->failed, true);
    pthread_mutex_lock(&rendezvous->mutex);
    for (RendezvousGroup *group = rendezvous->groups; group; group = group->next) wake(group->barrier);
    pthread_mutex_unlock(&rendezvous->mutex);
}
