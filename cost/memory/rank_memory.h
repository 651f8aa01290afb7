/* The memory of each rank if the shards of a stage differ in size.
 *
 * A stage of equal shares is priced by its first device, whose shards are the largest. Another one can still
 * need some percent more memory. That of the other ranks needs a lowering for each, which is done for
 * reports, for the final plan, and for candidates close to the limit. In a large module on many devices all
 * ranks of a stage have the memory of its first one.
 */
#ifndef COST_MEMORY_RANK_MEMORY_H
#define COST_MEMORY_RANK_MEMORY_H

#include "base/system/stop.h"
#include "cost/step/memory.h"
#include "lowering/spmd/ranks.h"

/* Finds the memory of ranks, [rank_count]; in the arena. Ranks are lowered side by side. The uses of ranks
 * that `stop` (or NULL) leaves out are zero. */
AmStatus rank_memory(MemoryUse **uses, Arena *arena, const PlanRanks *ranks, const Cluster *cluster,
                     const StopSignal *stop, AmError *error);

/* Writes the values to plan->predicted, for all the plan's devices; other predictions are
 * unchanged. A plan whose simulation found these values is left as it is. Devices that `stop`
 * (or NULL) leaves out keep the values of a simulation: the memory of the first device of their stage.
 * Allocates in the arena. */
AmStatus rank_memory_predict(Plan *plan, Arena *arena, const PlanContext *primary, const Cluster *cluster,
                             const StopSignal *stop, AmError *error);

#endif
