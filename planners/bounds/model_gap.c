/* How far a plan is from the best choice of states and factors in the sharding graph, with its stages side
 * by side. */
#include "planners/bounds/model_gap.h"

#include <math.h>

#include "base/system/parallel.h"
#include "cost/relaxation/graph_bound.h"
#include "lowering/spmd/ranks.h"
#include "planners/bounds/bound.h"

enum { SWEEPS = 400 };

/* A stage, or a chunk of one. */
typedef struct StageGap {
    ShardingGraphCost cost;
    double least; /* of computing plus resharding; NAN: nothing is claimed */
    AmStatus status;
    AmError error;
} StageGap;

typedef struct Gaps {
    const PlanRanks *ranks;
    const Cluster *cluster;
    const StopSignal *stop;
    StageGap *stages; /* [parts] */
} Gaps;

/* Makes the context with the decisions that a stage holds alone. */
static AmStatus stage_context(PlanContext *part, SplitOptions *split_options, Arena *arena,
                              const PlanRanks *ranks, int32_t stage, AmError *error) {
    const SplitOptions *all = ranks->context->split_options;
    *part = *ranks->context;
    *split_options = *all;
    part->split_options = split_options;
    if (!ranks->map) return AM_OK;
    split_options->decided = ARENA_ARRAY(arena, int32_t, all->decided_count + 1);
    split_options->decided_count = 0;
    if (!split_options->decided) return am_fail_memory(error, all->decided_count);
    for (int32_t n = 0; n < all->decided_count; n++)
        if (stage_in(ranks->map->held[all->decided[n]], stage))
            split_options->decided[split_options->decided_count++] = all->decided[n];
    return AM_OK;
}

static AmStatus find_stage(StageGap *found, Arena *arena, const Gaps *self, int32_t p, AmError *error) {
    const PlanStage *stage = &self->ranks->parts->stages[p];
    PlanContext part;
    SplitOptions split_options;
    ShardingGraph *model;
    ShardingGraphFold *fold;
    TRY(stage_context(&part, &split_options, arena, self->ranks, p, error));
    TRY(sharding_graph_create(&model, arena, &part, &stage->mesh, self->cluster, stage->devices, error));
    if (!model) return AM_OK;
    TRY(sharding_graph_fold(&fold, arena, model, error));
    sharding_graph_fold_watch(fold, self->stop);
    found->cost = sharding_graph_cost(model, self->ranks->assignments[p]);
    found->least = sharding_graph_bound(fold, &(ShardingGraphWeights){1, 1}, SWEEPS);
    return AM_OK;
}

static void find_task(void *user, int32_t p) {
    const Gaps *self = user;
    StageGap *found = &self->stages[p];
    Arena arena = {0};
    found->least = NAN;
    found->status = find_stage(found, &arena, self, p, &found->error);
    arena_free(&arena);
}

/* Returns whether the model's cost of stage s, with all its chunks, is at most the predicted time
 * of its busiest devices.
 */
static bool holds(const Gaps *self, int32_t s) {
    const PlanRanks *ranks = self->ranks;
    const ShardingGraphCost simulated =
        plan_bound_simulated(ranks->plan, ranks->first_rank[s], ranks->first_rank[s + 1]);
    ShardingGraphCost model = {0};
    for (int32_t p = s; p < ranks->parts->stage_count; p += ranks->stage_count) {
        model.compute_seconds += self->stages[p].cost.compute_seconds;
        model.communication_seconds += self->stages[p].cost.communication_seconds;
    }
    return plan_bound_holds(&model, &simulated);
}

static AmStatus find_gap(double *gap, Gaps *self, AmError *error) {
    int32_t parts = self->ranks->parts->stage_count;
    double cost = 0, least = 0;
    parallel_for(parts, 0, find_task, self);
    for (int32_t p = 0; p < parts; p++) {
        const StageGap *stage = &self->stages[p];
        TRY(am_pass_error(stage->status, &stage->error, error));
        cost += stage->cost.compute_seconds + stage->cost.communication_seconds;
        least += stage->least;
    }
    for (int32_t s = 0; s < self->ranks->stage_count; s++)
        if (!holds(self, s)) return AM_OK;
    if (stop_wanted(self->stop)) return AM_OK;
    if (least > 0) *gap = fmax(cost / least - 1, 0);
    return AM_OK;
}

AmStatus plan_model_gap(double *gap, const PlanContext *whole, const Cluster *cluster, const Plan *plan,
                        const StopSignal *stop, AmError *error) {
    Arena arena = {0};
    PlanRanks ranks;
    *gap = NAN;
    AmStatus status = plan_ranks(&ranks, &arena, whole, plan, error);
    if (status == AM_OK) {
        Gaps self = {.ranks = &ranks,
                     .cluster = cluster,
                     .stop = stop,
                     .stages = ARENA_ARRAY(&arena, StageGap, ranks.parts->stage_count)};
        status = self.stages ? find_gap(gap, &self, error) : am_fail_memory(error, ranks.stage_count);
    }
    arena_free(&arena);
    return status;
}
