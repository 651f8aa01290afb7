/* The bound by work. The times of whole operators are those of the sharding graph on a mesh of one device of
 * each type; bound_of_work.h has the formula and its proof.
 */
#include "planners/bounds/bound_of_work.h"

#include <math.h>

#include "cost/relaxation/sharding_graph.h"
#include "planners/bounds/work_items.h"

/* Returns whether shards are at most as efficient as the whole operator. */
static bool is_rising(const ClusterCurve *curve) {
    for (int32_t k = 1; k < curve->count; k++)
        if (curve->fractions[k] < curve->fractions[k - 1]) return false;
    return true;
}

/* Finds the time of each whole operator on one device of a type: seconds[node]. NULL: the type supports no
 * claim. */
static AmStatus whole_seconds(double **seconds, int32_t *count, Arena *arena, const PlanContext *primary,
                              const Cluster *cluster, int32_t device, AmError *error) {
    const Mesh alone = {.axis_count = 1, .axes = {{.name = "data", .size = 1}}, .device_count = 1};
    const ClusterDeviceType *type = cluster_device_type(cluster, device);
    ShardingGraph *graph = NULL;
    Arena scratch = {0};
    AmStatus status = AM_OK;
    bool all_rise = is_rising(&type->memory);
    for (int32_t t = 0; t < DTYPE_COUNT; t++)
        all_rise = all_rise && is_rising(&type->dot[t]) && is_rising(&type->convolution[t]);
    *seconds = NULL;
    if (all_rise)
        TRY_OR_FAIL(
            sharding_graph_create(&graph, &scratch, primary, &(PlacedMesh){&alone, cluster, &device}, error));
    if (!graph) goto fail;
    *count = graph->node_count;
    *seconds = ARENA_ARRAY(arena, double, graph->node_count + 1);
    if (!*seconds) TRY_OR_FAIL(am_fail_memory(error, graph->node_count));
    for (int32_t n = 0; n < graph->node_count; n++)
        (*seconds)[n] = graph->nodes[n].seconds ? bound_least_seconds(&graph->nodes[n]) : 0;
fail:
    arena_free(&scratch);
    return status;
}

/* The work of all types, whose weights are chosen. */
typedef struct TypeWork {
    double **seconds; /* [type][node]; NULL: the cluster has no device of the type */
    int32_t count, types;
    int32_t *devices; /* [type] */
} TypeWork;

/* Returns the least time of a node by the weights [type]. */
static double least_of_node(const TypeWork *work, const double *weight, int32_t n) {
    double least = INFINITY;
    for (int32_t t = 0; t < work->types; t++)
        if (work->seconds[t]) least = fmin(least, weight[t] * work->seconds[t][n]);
    return least;
}

/* Returns the bound T of the proposition in bound_of_work.h for weights [type]. */
static double bound_by(const TypeWork *work, const double *weight) {
    double sum = 0, weights = 0;
    for (int32_t t = 0; t < work->types; t++) weights += work->devices[t] * weight[t];
    for (int32_t n = 0; n < work->count; n++) sum += least_of_node(work, weight, n);
    return sum / weights;
}

/* Climbs the weights one after another, by smaller and smaller factors: T is a concave function of them. */
static void climb_weights(const TypeWork *work, double *weight) {
    enum { MOST_PASSES = 24 };
    double best = bound_by(work, weight), step = 1.25;
    for (int32_t pass = 0; pass < MOST_PASSES; pass++) {
        double before = best;
        for (int32_t t = 0; t < work->types; t++)
            for (int32_t side = 0; side < 2 && work->seconds[t]; side++) {
                double kept = weight[t];
                weight[t] *= side == 0 ? step : 1 / step;
                double seconds = bound_by(work, weight);
                if (seconds > best) best = seconds;
                else weight[t] = kept;
            }
        if (best <= before * 1.0001) step = sqrt(step);
    }
}

AmStatus least_work_find(LeastWork *work, Arena *arena, const PlanContext *context, const Cluster *cluster,
                         AmError *error) {
    double *weight = ARENA_ARRAY(arena, double, cluster->type_count), weights = 0;
    TypeWork all = {.seconds = ARENA_ARRAY(arena, double *, cluster->type_count),
                    .types = cluster->type_count,
                    .devices = ARENA_ARRAY(arena, int32_t, cluster->type_count)};
    *work = (LeastWork){.type_weights = weight};
    if (arena->failed) return am_fail_memory(error, cluster->type_count);
    for (int32_t d = 0; d < cluster->device_count; d++) {
        int32_t t = (int32_t)(cluster_device_type(cluster, d) - cluster->types);
        if (!all.seconds[t])
            TRY(whole_seconds(&all.seconds[t], &all.count, arena, context, cluster, d, error));
        if (!all.seconds[t]) return AM_OK;
        all.devices[t]++;
    }
    for (int32_t t = 0; t < all.types; t++) {
        double sum = 0;
        for (int32_t n = 0; n < all.count && all.seconds[t]; n++) sum += all.seconds[t][n];
        weight[t] = sum > 0 ? 1 / sum : 1;
    }
    if (cluster_is_mixed(cluster)) climb_weights(&all, weight);
    for (int32_t t = 0; t < all.types; t++) weights += all.devices[t] * weight[t];
    work->seconds = ARENA_ARRAY(arena, double, all.count + 1);
    if (!work->seconds) return am_fail_memory(error, all.count);
    work->count = all.count;
    for (int32_t t = 0; t < all.types; t++) weight[t] /= weights;
    for (int32_t n = 0; n < all.count; n++) work->seconds[n] = least_of_node(&all, weight, n);
    return AM_OK;
}

AmStatus plan_bound_of_work(PlanBound *bound, const PlanContext *primary, const Cluster *cluster,
                            AmError *error) {
    Arena arena = {0};
    LeastWork work;
    *bound = (PlanBound){NAN, NAN};
    AmStatus status = least_work_find(&work, &arena, primary, cluster, error);
    if (status == AM_OK && work.seconds) bound->seconds = 0;
    for (int32_t n = 0; status == AM_OK && n < work.count; n++) bound->seconds += work.seconds[n];
    arena_free(&arena);
    return status;
}
