/* The bound of one-stage plans by the sharding graph.
 *
 * Proposition: for weights a, b >= 0 with a + b = 1 the step is at least min over labels of a x computing +
 * b x communication in the sharding graph of each mesh, since it is at least each of the two. A solution of
 * the dual of that integer program bounds the minimum (cost/relaxation/graph_bound.h). Without overlap of
 * communication a = b = 1 holds.
 *
 * Method: the bound is a concave function of a, which is climbed. The plan's own mesh comes first. Another
 * mesh is finished when some weights give it a greater bound; the best weights of the plan's mesh come first.
 */
#include "planners/bounds/bound.h"

#include <math.h>

#include "base/system/parallel.h"
#include "planners/bounds/bound_launches.h"
#include "planners/bounds/bound_mixed.h"
#include "planners/bounds/bound_of_work.h"

enum { SWEEPS = 40, MODEL_GAP_SWEEPS = 400 };

static const double compute_weights[BOUND_MOST_WEIGHTS] = {1, 0.85, 0.7, 0.55, 0.45, 0.35, 0.25, 0.1};

/* The graph may round other than the simulator. */
#define ROUNDING 1e-5

typedef struct Bounding {
    const PlanContext *context;
    const Cluster *cluster;
    const int32_t *devices;
    const Mesh *meshes;
    const StopSignal *stop;
    double enough; /* a bound beyond this is as good as any */
    int32_t own;   /* the plan's mesh */
    int32_t start; /* weights to begin with */
} Bounding;

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

double plan_bound_weighted(ShardingGraphFold *fold, bool overlaps, double enough, int32_t *start) {
    const BoundWeights weights = {compute_weights, BOUND_MOST_WEIGHTS};
    if (!overlaps) return sharding_graph_bound(fold, &(ShardingGraphWeights){1, 1}, SWEEPS);
    return plan_bound_climb(fold, &weights, enough, start);
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

/* ---- the bound of one stage ---- */

static bool overlaps_of(const Bounding *self) {
    return cluster_device_type(self->cluster, self->devices[0])->overlaps_communication;
}

static AmStatus bound_mesh(double *seconds, const void *user, Arena *arena, int32_t k, AmError *error) {
    const Bounding *self = user;
    ShardingGraph *model;
    ShardingGraphFold *fold;
    int32_t start = self->start;
    if (k == self->own) {
        *seconds = self->enough;
        return AM_OK;
    }
    TRY(sharding_graph_create(&model, arena, self->context, &self->meshes[k], self->cluster, self->devices,
                              error));
    if (!model) return AM_OK;
    TRY(sharding_graph_fold(&fold, arena, model, error));
    sharding_graph_fold_watch(fold, self->stop);
    *seconds = plan_bound_weighted(fold, overlaps_of(self), self->enough, &start);
    return AM_OK;
}

/* The plan's mesh and its queries, bounded concurrently, each with messages of its own. */
typedef struct OwnBound {
    Bounding *bounding;
    ShardingGraphFold *folds[2];
    double seconds, sum; /* the bound of a step; the least sum of computing and resharding */
} OwnBound;

static void bound_own_task(void *user, int32_t k) {
    OwnBound *self = user;
    Bounding *bounding = self->bounding;
    if (k == 0)
        self->sum = sharding_graph_bound(self->folds[0], &(ShardingGraphWeights){1, 1}, MODEL_GAP_SWEEPS);
    else
        self->seconds =
            plan_bound_weighted(self->folds[1], overlaps_of(bounding), bounding->enough, &bounding->start);
}

/* The validity of the sharding graph on the plan's mesh. */
typedef enum Trust {
    TRUST_NONE,     /* it says more of the plan than the simulator */
    TRUST_NO_MODEL, /* the model does not support such devices */
    TRUST_HOLDS
} Trust;

/* Finds the bound and, if its model holds, the model gap on the plan's own mesh. */
static AmStatus bound_own(Bounding *self, Arena *arena, const Plan *plan, PlanBound *bound, Trust *trust,
                          AmError *error) {
    ShardingGraph *model;
    OwnBound own = {.bounding = self};
    Assignment *assignment;
    const ShardingGraphCost predicted = plan_bound_simulated(plan, 0, plan->device_count);
    *trust = TRUST_NO_MODEL;
    TRY(sharding_graph_create(&model, arena, self->context, &self->meshes[self->own], self->cluster,
                              self->devices, error));
    if (!model) return AM_OK;
    TRY(plan_assign(&assignment, arena, self->context, &plan->stages[0], error));
    const ShardingGraphCost cost = sharding_graph_cost(model, assignment);
    bool holds = plan_bound_holds(&cost, &predicted);
    *trust = holds ? TRUST_HOLDS : TRUST_NONE;
    if (!holds) return AM_OK;
    for (int32_t k = 0; k < 2; k++) {
        TRY(sharding_graph_fold(&own.folds[k], arena, model, error));
        sharding_graph_fold_watch(own.folds[k], self->stop);
    }
    parallel_for(2, 0, bound_own_task, &own);
    bound->seconds = own.seconds;
    bound->model_gap = fmax((cost.compute_seconds + cost.communication_seconds) / own.sum - 1, 0);
    return AM_OK;
}

/* Adds the launches: every one-stage plan launches at least as many kernels. */
static AmStatus bound_launching(PlanBound *bound, const PlanContext *context, const Cluster *cluster,
                                AmError *error) {
    BoundLaunches launches;
    if (isnan(bound->seconds)) return AM_OK;
    TRY(bound_launches_find(&launches, context, cluster, error));
    bound->seconds = fmax(bound->seconds, bound_launches_seconds(&launches, 1));
    return AM_OK;
}

/* Bounds by work, and on devices of several types by communication and memory. */
static AmStatus bound_without_model(PlanBound *bound, const Bounding *self, const BoundMeshes *meshes,
                                    const Plan *plan, AmError *error) {
    const BoundMixedSpace space = {self->context, self->cluster, meshes, self->stop};
    double seconds;
    bool holds;
    TRY(plan_bound_of_work(bound, plan_context_whole(self->context), self->cluster, error));
    if (!cluster_is_mixed(self->cluster) || isnan(bound->seconds)) return AM_OK;
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
    Bounding self = {.context = context,
                     .cluster = cluster,
                     .devices = meshes->devices,
                     .stop = stop,
                     .meshes = meshes->of,
                     .enough = INFINITY,
                     .own = -1,
                     .start = BOUND_FIRST_WEIGHTS};
    Trust trust = TRUST_NONE;
    *bound = (PlanBound){NAN, NAN};
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < meshes->count; k++)
        if (mesh_is_alike(&meshes->of[k], &plan->stages[0].mesh)) self.own = k;
    if (self.own >= 0) status = bound_own(&self, &arena, plan, bound, &trust, error);
    self.enough = bound->seconds;
    if (status == AM_OK && trust == TRUST_HOLDS)
        status = plan_bound_meshes(&bound->seconds, meshes->count, bound_mesh, &self, error);
    if (status == AM_OK && trust == TRUST_NO_MODEL && self.own >= 0)
        status = bound_without_model(bound, &self, meshes, plan, error);
    if (status == AM_OK) status = bound_launching(bound, context, cluster, error);
    if (bound->seconds > 0) bound->seconds = fmin(bound->seconds, plan->predicted_step_seconds);
    else bound->seconds = NAN;
    arena_free(&arena);
    return status;
}
