/* Ranks of a plan: the stages completed, then a rank's stage lowered for its device. */
#include "lowering/spmd/ranks.h"

#include <string.h>

#include "lowering/spmd/lower_chunks.h"

/* Returns whether two plans have the same parts of the model on stages of the same sizes. Changed plans share
 * unchanged arrays, so that pointers are compared. */
static bool have_same_parts(const Plan *a, const Plan *b) {
    if (a->stage_count != b->stage_count) return false;
    for (int32_t s = 0; s < a->stage_count; s++) {
        const PlanStage *x = &a->stages[s], *y = &b->stages[s];
        if (x->ranges != y->ranges || x->range_count != y->range_count) return false;
        if (x->mesh.device_count != y->mesh.device_count) return false;
    }
    return true;
}

AmStatus plan_ranks(PlanRanks *ranks, Arena *arena, const PlanContext *context, const Plan *plan,
                    AmError *error) {
    return plan_ranks_beside(ranks, arena, context, plan, NULL, NULL, error);
}

AmStatus plan_ranks_beside(PlanRanks *ranks, Arena *arena, const PlanContext *context, const Plan *plan,
                           const PlanRanks *known, const StopSignal *stop, AmError *error) {
    context = plan_context_used(plan, context);
    const Plan *parts = plan;
    bool in_chunks = plan_schedule(plan) == SCHEDULE_INTERLEAVED;
    if (in_chunks) TRY(plan_of_chunks(&parts, arena, plan, error));
    *ranks = (PlanRanks){.context = context,
                         .plan = plan,
                         .parts = parts,
                         .assignments = ARENA_ARRAY(arena, Assignment *, parts->stage_count),
                         .first_rank = ARENA_ARRAY(arena, int32_t, plan->stage_count + 1),
                         .stage_count = plan->stage_count,
                         .stop = stop};
    if (arena->failed) return am_fail_memory(error, plan->stage_count * 16);
    if (known && (known->context != context || !have_same_parts(parts, known->parts))) known = NULL;
    if (known && (plan_schedule(known->plan) == SCHEDULE_INTERLEAVED) != in_chunks) known = NULL;
    if (known) ranks->map = known->map;
    else if (plan->stage_count > 1) TRY(stages_assign(&ranks->map, arena, context, parts, error));
    for (int32_t p = 0; p < parts->stage_count; p++) {
        const PlanStage *stage = &parts->stages[p];
        if (stop && stop_wanted(stop))
            return am_fail(error, AM_INTERRUPTED, "", "interrupted while a plan was completed");
        bool is_known = known && memcmp(stage, &known->parts->stages[p], sizeof *stage) == 0;
        if (is_known) ranks->assignments[p] = known->assignments[p];
        else TRY(plan_assign_stage(&ranks->assignments[p], arena, context, stage, ranks->map, error));
    }
    for (int32_t s = 0; s < plan->stage_count; s++)
        ranks->first_rank[s + 1] = ranks->first_rank[s] + plan->stages[s].mesh.device_count;
    ranks->rank_count = ranks->first_rank[plan->stage_count];
    if (!in_chunks || known) return AM_OK;
    ranks->map->chunks = parts->stage_count / plan->stage_count;
    for (int32_t p = 0; p < parts->stage_count; p++)
        ranks->map->first_rank[p] = ranks->first_rank[p % plan->stage_count];
    return AM_OK;
}

int32_t plan_ranks_stage(const PlanRanks *ranks, int32_t rank) {
    int32_t stage = 0;
    while (rank >= ranks->first_rank[stage + 1]) stage++;
    return stage;
}

AmStatus plan_ranks_lower(Program **program, Arena *arena, const PlanRanks *ranks, int32_t rank,
                          AmError *error) {
    int32_t stage = plan_ranks_stage(ranks, rank), device = rank - ranks->first_rank[stage];
    if (!ranks->map)
        return plan_lower(program, arena, ranks->context, ranks->assignments[stage], device, error);
    if (ranks->map->chunks > 1)
        return plan_lower_chunks(program, arena, ranks->context, ranks->map, ranks->assignments, stage,
                                 device, plan_schedule(ranks->plan), error);
    return plan_lower_stage(program, arena, ranks->context, ranks->map, ranks->assignments, stage, device,
                            plan_schedule(ranks->plan), error);
}
