/* Bounds of one-stage plans by the sharding graph.
 *
 * Proposition: for weights a, b >= 0 with a + b = 1 the step is at least
 *
 *     min over labels of a x computing + b x communication    in the sharding graph of its mesh
 *
 * since it is at least each of the two. A solution of the dual of that integer program bounds the minimum
 * (cost/relaxation/graph_bound.h). Without overlap of communication a = b = 1 holds.
 *
 * Method: the bound is a concave function of a, which is climbed. The plan's own mesh comes first. Another
 * mesh is finished when some weights give it a greater bound; the best weights of the plan's mesh come first.
 *
 * For any number of micro-batches, edges from the forward pass to other operators are free, and a forward
 * operator that fuses has the cost of its best label in all labels. Every mesh data x model of all devices
 * counts.
 */
#include "planners/bounds/bound.h"

#include <math.h>

#include "base/system/parallel.h"
#include "planners/bounds/bound_launches.h"
#include "planners/bounds/bound_mixed.h"
#include "planners/bounds/bound_of_work.h"
#include "planners/bounds/bound_pipelines.h"
#include "planners/bounds/work_items.h"

enum { SWEEPS = 40, MODEL_GAP_SWEEPS = 400, MOST_MESHES = 64, MOST_WEIGHTS = 8, FIRST_WEIGHTS = 2 };

static const double compute_weights[MOST_WEIGHTS] = {1, 0.85, 0.7, 0.55, 0.45, 0.35, 0.25, 0.1};

/* The graph and the simulator may round differently: largest relative difference. */
#define ROUNDING 1e-5

/* ---- what several bounds share ---- */

ShardingGraphCost plan_bound_simulated(const Plan *plan, int32_t first, int32_t end) {
    ShardingGraphCost cost = {0};
    for (int32_t d = first; d < end; d++) {
        cost.compute_seconds = fmax(cost.compute_seconds, plan->predicted[d].compute_seconds);
        cost.communication_seconds =
            fmax(cost.communication_seconds, plan->predicted[d].communication_seconds);
    }
    return cost;
}

bool plan_bound_holds(const ShardingGraphCost *graph, const ShardingGraphCost *simulated) {
    return graph->compute_seconds <= simulated->compute_seconds * (1 + ROUNDING) &&
           graph->communication_seconds <= simulated->communication_seconds * (1 + ROUNDING);
}

static double bound_by(ShardingGraphFold *fold, double compute) {
    return sharding_graph_bound(fold, &(ShardingGraphWeights){compute, 1 - compute}, SWEEPS);
}

double plan_bound_climb(ShardingGraphFold *fold, const BoundWeights *weights, double enough, int32_t *start) {
    double best = bound_by(fold, weights->compute[*start]);
    for (int32_t step = -1; step <= 1; step += 2) {
        int32_t before = *start;
        for (int32_t k = *start + step; k >= 0 && k < weights->count && best < enough; k += step) {
            double bound = bound_by(fold, weights->compute[k]);
            if (bound <= best) break;
            best = bound;
            *start = k;
        }
        if (*start != before) break;
    }
    return best;
}

/* The bound of one mesh, made by one thread. */
typedef struct MeshTask {
    BoundMeshFunction *bound;
    const void *user;
    double seconds;
    AmStatus status;
    AmError error;
} MeshTask;

static void mesh_task(void *user, int32_t k) {
    MeshTask *self = (MeshTask *)user + k;
    Arena arena = {0};
    self->status = self->bound(&self->seconds, self->user, &arena, k, &self->error);
    arena_free(&arena);
}

AmStatus plan_bound_meshes(double *least, int32_t count, BoundMeshFunction *bound, const void *user,
                           AmError *error) {
    Arena arena = {0};
    MeshTask *tasks = ARENA_ARRAY(&arena, MeshTask, count + 1);
    AmStatus status = tasks ? AM_OK : am_fail_memory(error, count);
    *least = INFINITY;
    for (int32_t k = 0; k < count && tasks; k++) tasks[k] = (MeshTask){.bound = bound, .user = user};
    if (status == AM_OK) parallel_for(count, 0, mesh_task, tasks);
    for (int32_t k = 0; k < count && status == AM_OK; k++) {
        status = am_pass_error(tasks[k].status, &tasks[k].error, error);
        *least = fmin(*least, tasks[k].seconds);
    }
    arena_free(&arena);
    return status;
}

/* ---- graphs ---- */

typedef struct GraphBound {
    const PlanContext *context;
    const Cluster *cluster;
    const int32_t *devices;
    const Mesh *meshes;
    const StopSignal *stop;
    bool recomputes; /* in any number of micro-batches, with any recomputation */
    double enough;   /* a bound beyond this is as good as any */
    int32_t own;     /* the plan's mesh, whose bound is `enough`; -1: none */
    int32_t start;   /* weights to begin with */
} GraphBound;

/* Bounds a graph, over the weights on devices that overlap computing and communication. */
static double bound_weighted(const GraphBound *self, ShardingGraphFold *fold, int32_t *start) {
    const BoundWeights weights = {compute_weights, MOST_WEIGHTS};
    if (!cluster_device_type(self->cluster, self->devices[0])->overlaps_communication)
        return sharding_graph_bound(fold, &(ShardingGraphWeights){1, 1}, SWEEPS);
    return plan_bound_climb(fold, &weights, self->enough, start);
}

AmStatus plan_bound_free_recomputed(ShardingGraph *graph, Arena *arena, AmError *error) {
    const PlanContext *primary = graph->context;
    const IrPhase *phases = primary->roles->phases;
    for (int32_t e = 0; e < graph->edge_count; e++) {
        ShardingGraphEdge *edge = &graph->edges[e];
        if (phases[graph->nodes[edge->producer].instruction] == IR_PHASE_FORWARD &&
            phases[graph->nodes[edge->reader].instruction] != IR_PHASE_FORWARD)
            edge->scale = 0;
    }
    for (int32_t n = 0; n < graph->node_count; n++) {
        ShardingGraphNode *node = &graph->nodes[n];
        if (!node->seconds || node->is_tensor || phases[node->instruction] != IR_PHASE_FORWARD) continue;
        IrOpcode opcode = primary->canonical->instructions[node->instruction].opcode;
        if (ir_is_product(opcode) || opcode == IR_REDUCE) continue; /* it is not fused */
        float *seconds = ARENA_ARRAY(arena, float, node->label_count);
        const float least = (float)bound_least_seconds(node);
        if (!seconds) return am_fail_memory(error, node->label_count);
        for (int32_t label = 0; label < node->label_count; label++) seconds[label] = least;
        node->seconds = seconds;
    }
    return AM_OK;
}

static AmStatus bound_mesh(double *seconds, const void *user, Arena *arena, int32_t k, AmError *error) {
    const GraphBound *self = user;
    ShardingGraph *graph;
    ShardingGraphFold *fold;
    int32_t start = self->start;
    if (k == self->own) {
        *seconds = self->enough;
        return AM_OK;
    }
    TRY(sharding_graph_create(&graph, arena, self->context,
                              &(PlacedMesh){&self->meshes[k], self->cluster, self->devices}, error));
    if (!graph) return AM_OK;
    if (self->recomputes) TRY(plan_bound_free_recomputed(graph, arena, error));
    TRY(sharding_graph_fold(&fold, arena, graph, error));
    sharding_graph_fold_watch(fold, self->stop);
    *seconds = bound_weighted(self, fold, &start);
    return AM_OK;
}

/* ---- a one-stage plan ---- */

/* The plan's mesh and its queries, bounded concurrently, each with messages of its own. */
typedef struct OwnBound {
    GraphBound *bound;
    ShardingGraphFold *folds[2];
    double seconds, sum; /* the bound of a step; the least sum of computing and resharding */
} OwnBound;

static void bound_own_task(void *user, int32_t k) {
    OwnBound *self = user;
    if (k == 0)
        self->sum = sharding_graph_bound(self->folds[0], &(ShardingGraphWeights){1, 1}, MODEL_GAP_SWEEPS);
    else self->seconds = bound_weighted(self->bound, self->folds[1], &self->bound->start);
}

/* Finds the bound and the model gap on the plan's own mesh, unless the graph's cost of the plan is above the
 * simulated one. */
static AmStatus bound_own(GraphBound *self, Arena *arena, const Plan *plan, PlanBound *bound, bool *has_graph,
                          AmError *error) {
    ShardingGraph *graph;
    OwnBound own = {.bound = self};
    Assignment *assignment;
    const ShardingGraphCost predicted = plan_bound_simulated(plan, 0, plan->device_count);
    TRY(sharding_graph_create(&graph, arena, self->context,
                              &(PlacedMesh){&self->meshes[self->own], self->cluster, self->devices}, error));
    *has_graph = graph != NULL;
    if (!graph) return AM_OK;
    TRY(plan_assign(&assignment, arena, self->context, &plan->stages[0], error));
    const ShardingGraphCost cost = sharding_graph_cost(graph, assignment);
    if (!plan_bound_holds(&cost, &predicted)) return AM_OK;
    for (int32_t k = 0; k < 2; k++) {
        TRY(sharding_graph_fold(&own.folds[k], arena, graph, error));
        sharding_graph_fold_watch(own.folds[k], self->stop);
    }
    parallel_for(2, 0, bound_own_task, &own);
    bound->seconds = own.seconds;
    bound->model_gap = fmax((cost.compute_seconds + cost.communication_seconds) / own.sum - 1, 0);
    return AM_OK;
}

/* Bounds by work, and on devices of several types by communication and memory. */
static AmStatus bound_without_graph(PlanBound *bound, const GraphBound *self, const BoundMeshes *meshes,
                                    const Plan *plan, AmError *error) {
    const BoundMixedSpace space = {self->context, self->cluster, meshes, self->stop, false};
    const PlanContext *primary = plan_context_primary(self->context);
    double seconds;
    bool holds;
    TRY(plan_bound_of_work(bound, primary, self->cluster, error));
    if (!cluster_is_mixed(self->cluster) || isnan(bound->seconds)) return AM_OK;
    TRY(plan_bound_alone(&seconds, primary, self->cluster, plan->micro_batches, error));
    bound->seconds = fmax(bound->seconds, seconds);
    TRY(bound_mixed_holds(&holds, &space, &meshes->of[self->own], plan, error));
    if (!holds) return AM_OK;
    TRY(plan_bound_mixed(&seconds, &space, error));
    bound->seconds = fmax(bound->seconds, seconds);
    return AM_OK;
}

AmStatus plan_bound_find(PlanBound *bound, const PlanContext *context, const Cluster *cluster,
                         const BoundMeshes *meshes, const Plan *plan, const StopSignal *stop,
                         AmError *error) {
    Arena arena = {0};
    GraphBound self = {.context = context,
                       .cluster = cluster,
                       .devices = meshes->devices,
                       .stop = stop,
                       .meshes = meshes->of,
                       .enough = INFINITY,
                       .own = -1,
                       .start = FIRST_WEIGHTS};
    BoundLaunches launches;
    bool has_graph = true;
    AmStatus status = AM_OK;
    *bound = (PlanBound){NAN, NAN};
    for (int32_t k = 0; k < meshes->count; k++)
        if (mesh_is_alike(&meshes->of[k], &plan->stages[0].mesh)) self.own = k;
    if (self.own < 0) return AM_OK;
    TRY_OR_FAIL(bound_own(&self, &arena, plan, bound, &has_graph, error));
    self.enough = bound->seconds;
    if (!has_graph) TRY_OR_FAIL(bound_without_graph(bound, &self, meshes, plan, error));
    else if (!isnan(bound->seconds))
        TRY_OR_FAIL(plan_bound_meshes(&bound->seconds, meshes->count, bound_mesh, &self, error));
    if (!isnan(bound->seconds)) { /* every one-stage plan launches at least as many kernels */
        TRY_OR_FAIL(bound_launches_find(&launches, context, cluster, error));
        bound->seconds = fmax(bound->seconds, bound_launches_seconds(&launches, 1));
    }
    bound->seconds = bound->seconds > 0 ? fmin(bound->seconds, plan->predicted_step_seconds) : NAN;
fail:
    arena_free(&arena);
    return status;
}

/* ---- all one-stage plans ---- */

AmStatus plan_bound_one_stage(double *seconds, const PlanContext *primary, const Cluster *cluster,
                              double enough, const StopSignal *stop, AmError *error) {
    Arena arena = {0};
    int32_t count = cluster->device_count, mesh_count = 0;
    int32_t *devices = ARENA_ARRAY(&arena, int32_t, count);
    Mesh meshes[MOST_MESHES];
    const GraphBound self = {.context = primary,
                             .cluster = cluster,
                             .devices = devices,
                             .meshes = meshes,
                             .stop = stop,
                             .recomputes = true,
                             .enough = enough,
                             .own = -1,
                             .start = FIRST_WEIGHTS};
    *seconds = 0;
    if (!devices) return am_fail_memory(error, count);
    for (int32_t d = 0; d < count; d++) devices[d] = d;
    for (int32_t inner = 1; inner <= count && mesh_count < MOST_MESHES; inner++)
        if (count % inner == 0)
            meshes[mesh_count++] =
                (Mesh){.axis_count = 2,
                       .axes = {{.name = "data", .size = count / inner}, {.name = "model", .size = inner}},
                       .device_count = count};
    AmStatus status = plan_bound_meshes(seconds, mesh_count, bound_mesh, &self, error);
    if (status != AM_OK || isinf(*seconds)) *seconds = 0;
    arena_free(&arena);
    return status;
}
