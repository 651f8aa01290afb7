/* The model gap: how far a plan is from the best choice of states and factors in the sharding graph
 * (docs/method.md, section 7), with its stages side by side. */
#include "planners/bounds/bound.h"

#include <math.h>

#include "base/system/parallel.h"
#include "cost/relaxation/graph_bound.h"
#include "lowering/spmd/ranks.h"

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

static AmStatus find_stage(StageGap *found, Arena *arena, const Gaps *self, int32_t p, AmError *error) {
    const PlanRanks *ranks = self->ranks;
    const Plan *parts = ranks->parts;
    const PlanStage *stage = &parts->stages[p];
    const StageMap *map = ranks->map;
    PlanContext part = *ranks->context;
    SplitOptions split_options = *part.split_options;
    ShardingGraph *graph;
    ShardingGraphFold *fold;
    if (map) { /* the decisions that the stage holds alone */
        const int32_t *decided = split_options.decided;
        int32_t count = split_options.decided_count;
        split_options.decided = ARENA_ARRAY(arena, int32_t, count + 1);
        split_options.decided_count = 0;
        if (!split_options.decided) return am_fail_memory(error, count);
        for (int32_t n = 0; n < count; n++)
            if (stage_in(map->held[decided[n]], p))
                split_options.decided[split_options.decided_count++] = decided[n];
    }
    part.split_options = &split_options;
    TRY(sharding_graph_create(&graph, arena, &part,
                              &(PlacedMesh){&stage->mesh, self->cluster, stage->devices}, error));
    if (!graph) return AM_OK;
    TRY(sharding_graph_fold(&fold, arena, graph, error));
    sharding_graph_fold_watch(fold, self->stop);
    found->cost = sharding_graph_cost(graph, self->ranks->assignments[p]);
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

AmStatus plan_model_gap(double *gap, const PlanContext *primary, const Cluster *cluster, const Plan *plan,
                        const StopSignal *stop, AmError *error) {
    Arena arena = {0};
    PlanRanks ranks;
    double cost = 0, least = 0;
    bool holds = true;
    AmStatus status;
    *gap = NAN;
    TRY_OR_FAIL(plan_ranks(&ranks, &arena, primary, plan, error));
    int32_t parts = ranks.parts->stage_count;
    Gaps self = {
        .ranks = &ranks, .cluster = cluster, .stop = stop, .stages = ARENA_ARRAY(&arena, StageGap, parts)};
    if (!self.stages) TRY_OR_FAIL(am_fail_memory(error, parts));
    parallel_for(parts, 0, find_task, &self);
    for (int32_t p = 0; p < parts; p++) {
        const StageGap *stage = &self.stages[p];
        TRY_OR_FAIL(am_pass_error(stage->status, &stage->error, error));
        cost += stage->cost.compute_seconds + stage->cost.communication_seconds;
        least += stage->least;
    }
    for (int32_t s = 0; s < ranks.stage_count; s++) { /* a stage with all its chunks */
        const ShardingGraphCost simulated =
            plan_bound_simulated(plan, ranks.first_rank[s], ranks.first_rank[s + 1]);
        ShardingGraphCost of_chunks = {0};
        for (int32_t p = s; p < parts; p += ranks.stage_count) {
            of_chunks.compute_seconds += self.stages[p].cost.compute_seconds;
            of_chunks.communication_seconds += self.stages[p].cost.communication_seconds;
        }
        holds = holds && plan_bound_holds(&of_chunks, &simulated);
    }
    if (holds && !stop_wanted(stop) && least > 0) *gap = fmax(cost / least - 1, 0);
fail:
    arena_free(&arena);
    return status;
}
