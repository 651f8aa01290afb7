/* plan_search() on an order of the devices. */
#include "planners/devices/device_search.h"

#include "planners/devices/device_order.h"
#include "planners/search_additions.h"

/* Searches with the devices [count] in this order. */
static AmStatus search_on(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                          const SearchOptions *options, const MicroBatching *settings, const int32_t *devices,
                          int32_t count, AmError *error) {
    SearchOptions here = *options;
    Cluster *part;
    if (options->initial) TRY(search_check_given(options->initial, cluster, error));
    TRY(cluster_part(&part, arena, cluster, devices, count, error));
    AmStatus status = AM_OK;
    if (here.initial)
        status = device_order_place(&here.initial, arena, options->initial, devices, count, error);
    if (status == AM_OK) status = plan_search(result, arena, whole, part, &here, settings, error);
    cluster_free(part);
    if (status == AM_OK || status == AM_ERROR_INFEASIBLE) {
        AmStatus translated = device_order_translate(result, arena, devices, error);
        if (translated != AM_OK) return translated;
    }
    return status;
}

AmStatus device_search(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                       const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    bool is_same = true;
    int32_t *devices = ARENA_ARRAY(arena, int32_t, cluster->device_count);
    if (!devices) return am_fail_memory(error, cluster->device_count);
    if (!options->keeps_order) TRY(device_order_list(devices, &is_same, cluster, error));
    if (is_same) return plan_search(result, arena, whole, cluster, options, settings, error);
    return search_on(result, arena, whole, cluster, options, settings, devices, cluster->device_count, error);
}
