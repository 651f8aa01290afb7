/* Lower bound from work alone: T = (sum over operators of the least weighted time on any device type) / (sum
 * of the weights of all devices), where a type's weight is one over the time of all operators on it. */
#include "planners/bounds/bound_of_work.h"

#include <math.h>

#include "cost/relaxation/sharding_graph.h"
#include "planners/bounds/bound_work.h"

/* Returns whether shards are at most as efficient as the whole operator. */
static bool is_rising(const ClusterCurve *curve) {
    for (int32_t k = 1; k < curve->count; k++)
        if (curve->fractions[k] < curve->fractions[k - 1]) return false;
    return true;
}

/* The time of each whole operator on one device of a type: seconds[node]. NULL without a claim. */
static AmStatus whole_seconds(double **seconds, int32_t *count, Arena *arena, const PlanContext *whole,
                              const Cluster *cluster, int32_t device, AmError *error) {
    const Mesh alone = {.axis_count = 1, .axes = {{.name = "data", .size = 1}}, .device_count = 1};
    const ClusterDeviceType *type = cluster_device_type(cluster, device);
    ShardingGraph *model = NULL;
    bool all_rise = is_rising(&type->memory);
    for (int32_t t = 0; t < DTYPE_COUNT; t++)
        all_rise = all_rise && is_rising(&type->dot[t]) && is_rising(&type->convolution[t]);
    *seconds = NULL;
    if (all_rise) TRY(sharding_graph_create(&model, arena, whole, &alone, cluster, &device, error));
    if (!model) return AM_OK;
    *count = model->node_count;
    *seconds = ARENA_ARRAY(arena, double, model->node_count + 1);
    if (!*seconds) return am_fail_memory(error, model->node_count);
    for (int32_t n = 0; n < model->node_count; n++)
        (*seconds)[n] = model->nodes[n].seconds ? bound_least_seconds(&model->nodes[n]) : 0;
    return AM_OK;
}

AmStatus least_work_find(LeastWork *work, Arena *arena, const PlanContext *context, const Cluster *cluster,
                         AmError *error) {
    double **seconds = ARENA_ARRAY(arena, double *, cluster->type_count);
    double *weight = ARENA_ARRAY(arena, double, cluster->type_count), weights = 0;
    int32_t count = 0;
    *work = (LeastWork){.type_weights = weight};
    if (arena->failed) return am_fail_memory(error, cluster->type_count);
    for (int32_t d = 0; d < cluster->device_count; d++) {
        int32_t t = (int32_t)(cluster_device_type(cluster, d) - cluster->types);
        if (!seconds[t]) TRY(whole_seconds(&seconds[t], &count, arena, context, cluster, d, error));
        if (!seconds[t]) return AM_OK;
        double all = 0;
        for (int32_t n = 0; n < count && weight[t] == 0; n++) all += seconds[t][n];
        if (weight[t] == 0) weight[t] = all > 0 ? 1 / all : 1;
        weights += weight[t];
    }
    work->seconds = ARENA_ARRAY(arena, double, count + 1);
    if (!work->seconds) return am_fail_memory(error, count);
    work->count = count;
    for (int32_t t = 0; t < cluster->type_count; t++) weight[t] /= weights;
    for (int32_t n = 0; n < count; n++) {
        double least = INFINITY;
        for (int32_t t = 0; t < cluster->type_count; t++)
            if (seconds[t]) least = fmin(least, weight[t] * seconds[t][n]);
        work->seconds[n] = least;
    }
    return AM_OK;
}

AmStatus plan_bound_of_work(PlanBound *bound, const PlanContext *whole, const Cluster *cluster,
                            AmError *error) {
    Arena arena = {0};
    LeastWork work;
    *bound = (PlanBound){NAN, NAN};
    AmStatus status = least_work_find(&work, &arena, whole, cluster, error);
    if (status == AM_OK && work.seconds) bound->seconds = 0;
    for (int32_t n = 0; status == AM_OK && n < work.count; n++) bound->seconds += work.seconds[n];
    arena_free(&arena);
    return status;
}
