/* The memory of each rank if the shards of a stage differ in size.
 *
 * A stage of equal shares is priced by its first device, whose shards are the largest; it
 * determines the time and the fit. The memory of the other ranks needs a lowering for each, which
 * is done for the final plan and not for candidates.
 */
#ifndef COST_STEP_RANK_MEMORY_H
#define COST_STEP_RANK_MEMORY_H

#include "cost/step/memory.h"
#include "lowering/spmd/ranks.h"

/* [rank_count]; in the arena. Ranks are lowered side by side. */
AmStatus rank_memory(MemoryUse **uses, Arena *arena, const PlanRanks *ranks, AmError *error);

/* Writes the values to plan->predicted, for all the plan's devices; other predictions are
 * unchanged. Allocates in the arena. */
AmStatus rank_memory_predict(Plan *plan, Arena *arena, const PlanContext *whole, AmError *error);

#endif
