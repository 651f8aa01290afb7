/* Shares by powers of speed; see hybrid_shares.h. */
#include "planners/hybrid_shares.h"

#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "cost/simulate.h"

enum { POWERS = HYBRID_SHARES_TRIED };
static const double powers[POWERS] = {0.4, 0.6, 0.8, 0.9, 1, 1.1, 1.25, 1.5};

static int32_t type_of(const Cluster *cluster, int32_t device) {
    return (int32_t)(cluster_device_type(cluster, device) - cluster->types);
}

/* The first axis with several places; the number of axes where there is none. */
static int32_t shared_axis(const Mesh *mesh) {
    int32_t axis = 0;
    while (axis < mesh->axis_count && mesh->axes[axis].size == 1) axis++;
    return axis;
}

static bool is_mixed(const PlanStage *stage, const Cluster *cluster) {
    const Mesh *mesh = &stage->mesh;
    int32_t axis = shared_axis(mesh);
    if (axis == mesh->axis_count || mesh->axes[axis].shares) return false;
    for (int32_t d = 1; d < mesh->device_count; d++)
        if (type_of(cluster, stage->devices[d]) != type_of(cluster, stage->devices[0])) return true;
    return false;
}

bool hybrid_shares_apply(const Plan *plan, const Cluster *cluster) {
    for (int32_t s = 0; s < plan->stage_count; s++)
        if (is_mixed(&plan->stages[s], cluster)) return true;
    return false;
}

/* Of each place on the first axis the slowest device's. */
static AmStatus set_shares(PlanStage *stage, Arena *arena, const Cluster *cluster, const double *speeds,
                           double power, AmError *error) {
    int32_t number = shared_axis(&stage->mesh);
    MeshAxis *axis = &stage->mesh.axes[number];
    double *shares = ARENA_ARRAY(arena, double, axis->size), sum = 0;
    if (!shares) return am_fail_memory(error, axis->size * 8);
    for (int32_t k = 0; k < axis->size; k++) shares[k] = INFINITY;
    for (int32_t d = 0; d < stage->mesh.device_count; d++) {
        int32_t k = mesh_coordinate(&stage->mesh, d, number);
        shares[k] = fmin(shares[k], pow(speeds[type_of(cluster, stage->devices[d])], power));
    }
    for (int32_t k = 0; k < axis->size; k++) sum += shares[k];
    for (int32_t k = 0; k < axis->size; k++) shares[k] /= sum;
    axis->shares = shares;
    return AM_OK;
}

typedef struct ShareTry {
    Plan plan;
    MemoryFit fit;
    AmStatus status;
    AmError error;
    Arena arena;
} ShareTry;

typedef struct Sharing {
    const Cluster *cluster;
    double memory_fraction;
    ShareTry tries[POWERS];
} Sharing;

static AmStatus simulate(const Sharing *self, ShareTry *try, AmError *error) {
    Simulation *simulation;
    TRY(simulate_plan(&simulation, &try->arena, try->plan.context, &try->plan, self->cluster,
                      self->memory_fraction, error));
    try->fit = simulation->fit;
    return simulation_predict(&try->plan, &try->arena, simulation, error);
}

static void simulate_task(void *user, int32_t k) {
    Sharing *self = user;
    ShareTry *try = &self->tries[k];
    try->status = simulate(self, try, &try->error);
}

static AmStatus begin(ShareTry *try, Arena *arena, const Plan *plan, const Cluster *cluster,
                      const double *speeds, double power, AmError *error) {
    PlanStage *stages = ARENA_ARRAY(arena, PlanStage, plan->stage_count);
    if (!stages) return am_fail_memory(error, plan->stage_count);
    memcpy(stages, plan->stages, sizeof *stages * (size_t)plan->stage_count);
    try->plan = *plan;
    try->plan.stages = stages;
    try->plan.bound = NULL;
    try->plan.bound_seconds = NAN;
    for (int32_t s = 0; s < plan->stage_count; s++)
        if (is_mixed(&stages[s], cluster)) TRY(set_shares(&stages[s], arena, cluster, speeds, power, error));
    return AM_OK;
}

/* The quickest that fits, with its prediction in the arena. */
static AmStatus choose(Plan **best, const Sharing *self, Arena *arena, const Plan *plan, AmError *error) {
    double least = plan->predicted_step_seconds;
    const ShareTry *found = NULL;
    for (int32_t k = 0; k < POWERS; k++) {
        const ShareTry *try = &self->tries[k];
        if (try->status != AM_OK && try->status != AM_ERROR_INFEASIBLE) {
            if (error && error->code == AM_OK) *error = try->error;
            return try->status;
        }
        if (try->status != AM_OK || !try->fit.fits || try->plan.predicted_step_seconds >= least) continue;
        least = try->plan.predicted_step_seconds;
        found = try;
    }
    if (!found) return AM_OK;
    size_t bytes = sizeof *found->plan.predicted * (size_t)found->plan.device_count;
    Plan *kept = ARENA_ARRAY(arena, Plan, 1);
    PlanDevicePrediction *predicted = arena_alloc(arena, bytes);
    if (arena->failed) return am_fail_memory(error, (int64_t)bytes);
    memcpy(predicted, found->plan.predicted, bytes);
    *kept = found->plan;
    kept->predicted = predicted;
    *best = kept;
    return AM_OK;
}

AmStatus hybrid_shares_find(Plan **best, int64_t *evaluations, Arena *arena, const Plan *plan,
                            const Cluster *cluster, const double *speeds, double memory_fraction,
                            AmError *error) {
    Sharing *self = ARENA_ARRAY(arena, Sharing, 1);
    AmStatus status = AM_OK;
    *best = NULL;
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->cluster = cluster;
    self->memory_fraction = memory_fraction;
    for (int32_t k = 0; k < POWERS && status == AM_OK; k++)
        status = begin(&self->tries[k], arena, plan, cluster, speeds, powers[k], error);
    if (status != AM_OK) return status;
    parallel_for(POWERS, 0, simulate_task, self);
    *evaluations += POWERS;
    status = choose(best, self, arena, plan, error);
    for (int32_t k = 0; k < POWERS; k++) arena_free(&self->tries[k].arena);
    return status;
}
