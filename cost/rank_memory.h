/* What each rank's memory holds where the shards of a stage differ in size.
 *
 * A stage of equal shares is priced by its first device, whose shards are the largest: that decides its time
 * and whether it fits. What the others hold is only known by lowering them too, one by one, which is for the
 * plan that is shown and not for those that are tried.
 */
#ifndef COST_RANK_MEMORY_H
#define COST_RANK_MEMORY_H

#include "cost/memory.h"
#include "propagation/ranks.h"

/* [rank_count]; in the arena. Ranks are lowered side by side. */
AmStatus rank_memory(MemoryUse **uses, Arena *arena, const PlanRanks *ranks, AmError *error);

/* Writes them into plan->predicted, which is of all the plan's devices; what it predicts besides stays. In
 * the arena. */
AmStatus rank_memory_predict(Plan *plan, Arena *arena, const PlanContext *whole, AmError *error);

#endif
