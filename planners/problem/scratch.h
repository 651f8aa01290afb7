/* Scratch memory for evaluations: as many arenas as plans are priced concurrently.
 *
 * Pricing a plan of a large module fills tens of megabytes for a few milliseconds. The problems of
 * a search share the arenas, at most parallel_threads(); further requests wait. An evaluation holds
 * one arena and requests no other meanwhile, so that no deadlock occurs.
 */
#ifndef PLANNERS_PROBLEM_SCRATCH_H
#define PLANNERS_PROBLEM_SCRATCH_H

#include <pthread.h>

#include "base/arena.h"

enum { SCRATCH_MOST = 64 };

typedef struct Scratch {
    pthread_mutex_t mutex;
    pthread_cond_t given;
    Arena arenas[SCRATCH_MOST];
    bool taken[SCRATCH_MOST];
    int32_t count; /* arenas that may be taken */
} Scratch;

/* Creates a set of arenas. NULL: no memory. */
Scratch *scratch_create(void);
void scratch_free(Scratch *scratch);

/* Returns an arena that is empty, until scratch_give(), which releases all that was allocated. */
Arena *scratch_take(Scratch *scratch);
void scratch_give(Scratch *scratch, Arena *arena);

#endif
