/* Bounds over meshes; see bound.h. The best bound is a concave function of the weights, which is climbed. The
 * plan's own mesh comes first; another one is done with as soon as some weights give it a greater bound, for
 * which those that were best on the plan's mesh are tried first. */
#include "planners/bound.h"

#include <math.h>

#include "base/parallel.h"

enum { SWEEPS = 40, MODEL_GAP_SWEEPS = 400, MOST_WEIGHTS = 8, FIRST_WEIGHT = 2 };

/* Of computing; the rest is communication's. */
static const double compute_weights[MOST_WEIGHTS] = {1, 0.85, 0.7, 0.55, 0.45, 0.35, 0.25, 0.1};

/* The model may round other than the simulator. */
#define ROUNDING 1e-5

typedef struct MeshBound {
    double seconds;
    AmStatus status;
    AmError error;
    bool is_known;
} MeshBound;

typedef struct Bounding {
    const PlanContext *context;
    const Cluster *cluster;
    const int32_t *devices;
    const Mesh *meshes;
    const StopSignal *stop;
    double enough; /* a bound beyond this is as good as any */
    int32_t own;   /* the plan's mesh */
    int32_t start; /* weights to begin with */
    MeshBound *found;
} Bounding;

static bool overlaps_of(const Bounding *self) {
    return cluster_device_type(self->cluster, self->devices[0])->overlaps_communication;
}

static double bound_by(AdditiveFold *fold, int32_t k) {
    AdditiveWeights weights = {.compute = compute_weights[k], .communication = 1 - compute_weights[k]};
    return additive_bound(fold, &weights, SWEEPS);
}

double plan_bound_weighted(AdditiveFold *fold, bool overlaps, double enough, int32_t *start) {
    if (!overlaps) return additive_bound(fold, &(AdditiveWeights){1, 1}, SWEEPS);
    double best = bound_by(fold, *start);
    for (int32_t step = -1; step <= 1; step += 2) {
        int32_t before = *start;
        for (int32_t k = *start + step; k >= 0 && k < MOST_WEIGHTS && best < enough; k += step) {
            double bound = bound_by(fold, k);
            if (bound <= best) break;
            best = bound;
            *start = k;
        }
        if (*start != before) break;
    }
    return best;
}

static AmStatus bound_mesh(const Bounding *self, Arena *arena, int32_t k, MeshBound *found, AmError *error) {
    AdditiveModel *model;
    AdditiveFold *fold;
    TRY(additive_create(&model, arena, self->context, &self->meshes[k], self->cluster, self->devices, error));
    found->is_known = model != NULL;
    if (!model) return AM_OK;
    TRY(additive_fold(&fold, arena, model, error));
    additive_fold_watch(fold, self->stop);
    int32_t start = self->start;
    found->seconds = plan_bound_weighted(fold, overlaps_of(self), self->enough, &start);
    return AM_OK;
}

static void bound_task(void *user, int32_t k) {
    const Bounding *self = user;
    MeshBound *found = &self->found[k];
    Arena arena = {0};
    if (k == self->own) return;
    found->status = bound_mesh(self, &arena, k, found, &found->error);
    arena_free(&arena);
}

/* What the plan is predicted to compute and communicate, of the device that does most. */
static AdditiveCost predicted_cost(const Plan *plan) {
    AdditiveCost cost = {0};
    for (int32_t d = 0; d < plan->device_count; d++) {
        cost.compute_seconds = fmax(cost.compute_seconds, plan->predicted[d].compute_seconds);
        cost.communication_seconds =
            fmax(cost.communication_seconds, plan->predicted[d].communication_seconds);
    }
    return cost;
}

/* The plan's mesh, and what is asked about it: side by side, each with messages of its own. */
typedef struct OwnBound {
    Bounding *bounding;
    AdditiveFold *folds[2];
    double seconds, sum; /* the bound of a step; the least sum of computing and boxing */
} OwnBound;

static void bound_own_task(void *user, int32_t k) {
    OwnBound *self = user;
    Bounding *bounding = self->bounding;
    if (k == 0) self->sum = additive_bound(self->folds[0], &(AdditiveWeights){1, 1}, MODEL_GAP_SWEEPS);
    else
        self->seconds =
            plan_bound_weighted(self->folds[1], overlaps_of(bounding), bounding->enough, &bounding->start);
}

/* The plan's mesh: its bound and its model gap. `*holds` false: the model says more of the plan than the
 * simulator, and is not to be trusted. */
static AmStatus bound_own(Bounding *self, Arena *arena, const Plan *plan, PlanBound *bound, bool *holds,
                          AmError *error) {
    AdditiveModel *model;
    OwnBound own = {.bounding = self};
    Completion *completion;
    const AdditiveCost predicted = predicted_cost(plan);
    *holds = false;
    TRY(additive_create(&model, arena, self->context, &self->meshes[self->own], self->cluster, self->devices,
                        error));
    if (!model) return AM_OK;
    TRY(plan_complete(&completion, arena, self->context, &plan->stages[0], error));
    const AdditiveCost cost = additive_cost(model, completion);
    *holds = cost.compute_seconds <= predicted.compute_seconds * (1 + ROUNDING) &&
             cost.communication_seconds <= predicted.communication_seconds * (1 + ROUNDING);
    if (!*holds) return AM_OK;
    for (int32_t k = 0; k < 2; k++) {
        TRY(additive_fold(&own.folds[k], arena, model, error));
        additive_fold_watch(own.folds[k], self->stop);
    }
    parallel_for(2, 0, bound_own_task, &own);
    bound->seconds = own.seconds;
    bound->model_gap = fmax((cost.compute_seconds + cost.communication_seconds) / own.sum - 1, 0);
    return AM_OK;
}

AmStatus plan_bound_find(PlanBound *bound, const PlanContext *context, const Cluster *cluster,
                         const int32_t *devices, const Mesh *meshes, int32_t mesh_count, const Plan *plan,
                         const StopSignal *stop, AmError *error) {
    Arena arena = {0};
    Bounding self = {.context = context,
                     .cluster = cluster,
                     .devices = devices,
                     .stop = stop,
                     .meshes = meshes,
                     .enough = INFINITY,
                     .own = -1,
                     .start = FIRST_WEIGHT,
                     .found = ARENA_ARRAY(&arena, MeshBound, mesh_count + 1)};
    bool holds = false;
    *bound = (PlanBound){NAN, NAN};
    AmStatus status = self.found ? AM_OK : am_fail_memory(error, mesh_count);
    for (int32_t k = 0; k < mesh_count; k++)
        if (mesh_is_alike(&meshes[k], &plan->stages[0].mesh)) self.own = k;
    if (status == AM_OK && self.own >= 0) status = bound_own(&self, &arena, plan, bound, &holds, error);
    if (status == AM_OK && holds) {
        self.enough = bound->seconds;
        parallel_for(mesh_count, 0, bound_task, &self);
        for (int32_t k = 0; k < mesh_count && status == AM_OK; k++) {
            const MeshBound *found = &self.found[k];
            if (k == self.own) continue;
            status = found->status;
            if (status != AM_OK && error) *error = found->error;
            bound->seconds = found->is_known ? fmin(bound->seconds, found->seconds) : NAN;
        }
        bound->seconds = fmin(bound->seconds, plan->predicted_step_seconds);
    }
    arena_free(&arena);
    return status;
}
