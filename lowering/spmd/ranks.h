/* From a plan to the program of each of its ranks.
 *
 * Ranks are numbered over the stages in order: mesh device d of stage s is rank first_rank[s] + d.
 * Data common to all ranks is computed once; then each rank is lowered separately, in any order and
 * in different threads, each with an arena of its own.
 */
#ifndef LOWERING_SPMD_RANKS_H
#define LOWERING_SPMD_RANKS_H

#include "base/system/stop.h"
#include "lowering/spmd/lower.h"

typedef struct PlanRanks {
    const PlanContext *context;
    const Plan *plan;
    const Plan *parts; /* the plan, or where its stages are in chunks one stage for each (lower_chunks.h) */
    StageMap *map;     /* of multiple stages or chunks; NULL: the only stage has everything */
    Assignment **assignments; /* [parts->stage_count] */
    int32_t *first_rank;      /* [stage_count + 1]; the last is the number of ranks */
    int32_t stage_count, rank_count;
    const StopSignal *stop; /* or NULL; where it is set, the rest need not be lowered */
} PlanRanks;

/* Assigns all stages; everything lives in the arena. */
AmStatus plan_ranks(PlanRanks *ranks, Arena *arena, const PlanContext *context, const Plan *plan,
                    AmError *error);
/* Assigns the stages of a plan beside another one. Stages that equal those of `known`, ranks of the same
 * context or NULL, borrow their assignments; `known` must outlive `ranks`. AM_INTERRUPTED where `stop` (or
 * NULL) is set before all stages are assigned. */
AmStatus plan_ranks_beside(PlanRanks *ranks, Arena *arena, const PlanContext *context, const Plan *plan,
                           const PlanRanks *known, const StopSignal *stop, AmError *error);
/* Returns the stage that has a rank. */
int32_t plan_ranks_stage(const PlanRanks *ranks, int32_t rank);
/* Groups the devices of a stage by the sizes of their shards: `group_of` [device] is numbered from 0 in the
 * order of the devices, `*count` is the number of groups. Programs of one group differ in offsets alone, so
 * that they have the same events and memory. Shards between two states of one reshard are not compared. The
 * result lives in the arena. */
AmStatus plan_ranks_group(int32_t **group_of, int32_t *count, Arena *arena, const PlanRanks *ranks,
                          int32_t stage, AmError *error);
/* Lowers the program of one rank. */
AmStatus plan_ranks_lower(Program **program, Arena *arena, const PlanRanks *ranks, int32_t rank,
                          AmError *error);

#endif
