/* Slices of a one-stage plan in micro-batches, one micro-batch after another.
 *
 * The simulation runs each step of a loop over micro-batches once and counts it M times: all M
 * forward passes, then all M backward passes. The loop itself runs F B F B. The slices of such a
 * loop are kept until it ends and are passed on M times, each in 1 / M of the loop's time. Other
 * slices are passed on at once.
 */
#ifndef COST_SIMULATE_MICRO_BATCH_SLICES_H
#define COST_SIMULATE_MICRO_BATCH_SLICES_H

#include "cost/simulate/simulate.h"

typedef struct LoopRegion {
    const Program *program; /* body, condition, or a region inside them */
    int32_t loop;           /* the instruction of the rank's program */
} LoopRegion;

/* The slices of one rank in the loop that it is in. */
typedef struct KeptSlices {
    SimulatedSlice *slices;
    int32_t count, capacity;
    int32_t loop; /* of them */
} KeptSlices;

typedef struct MicroBatchSlices {
    const SimulationObserver *observer;
    Arena *arena;
    LoopRegion *regions;
    int32_t region_count, region_capacity;
    KeptSlices *ranks; /* [rank_count] */
    int32_t rank_count, micro_batches;
} MicroBatchSlices;

/* Opens the slices. Memory is the arena's. AM_ERROR_INTERNAL without memory. */
AmStatus micro_batch_slices_open(MicroBatchSlices *self, Arena *arena, const PlanCosts *costs,
                                 const PlanRanks *ranks, const SimulationObserver *observer, AmError *error);
/* Passes a slice to the observer, or keeps it. */
void micro_batch_slices_add(MicroBatchSlices *self, const SimulatedSlice *slice);
/* Passes on the kept slices. */
void micro_batch_slices_end(MicroBatchSlices *self);

#endif
