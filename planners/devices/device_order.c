/* The order of servers by their devices, memory and links, and plans translated from one numbering of devices
 * to another.
 */
#include "planners/devices/device_order.h"

#include <stdlib.h>
#include <string.h>

#include "planners/pipeline/device_orders.h"
#include "planners/problem/placement.h"

typedef struct ServerKey {
    const Cluster *cluster;
    int32_t server;
} ServerKey;

static int compare_numbers(double a, double b) {
    return (a < b) - (a > b); /* the larger one first */
}

static int compare_servers(const void *x, const void *y) {
    const ServerKey *a = x, *b = y;
    const Cluster *cluster = a->cluster;
    const ClusterServer *first = &cluster->servers[a->server], *second = &cluster->servers[b->server];
    const ClusterDeviceType *type = &cluster->types[first->type], *other = &cluster->types[second->type];
    int order = 0;
    for (int32_t d = 0; d < DTYPE_COUNT && order == 0; d++)
        order = compare_numbers(type->flops_per_second[d], other->flops_per_second[d]);
    if (order == 0) order = compare_numbers(type->memory_bytes_per_second, other->memory_bytes_per_second);
    if (order == 0) order = compare_numbers((double)type->memory_bytes, (double)other->memory_bytes);
    if (order == 0) order = strcmp(type->name, other->name);
    if (order == 0) order = compare_numbers(first->device_count, second->device_count);
    if (order == 0 && first->link >= 0 && second->link >= 0) {
        const ClusterLink *link = &cluster->links[first->link], *others = &cluster->links[second->link];
        order =
            compare_numbers(link->bytes_per_second * first->width, others->bytes_per_second * second->width);
        if (order == 0) order = strcmp(link->name, others->name);
    }
    return order ? order : (a->server > b->server) - (a->server < b->server);
}

AmStatus device_order_list(int32_t *devices, bool *is_same, const Cluster *cluster, AmError *error) {
    Arena scratch = {0};
    ServerKey *keys = ARENA_ARRAY(&scratch, ServerKey, cluster->server_count);
    int32_t count = 0;
    *is_same = true;
    if (!keys) return am_fail_memory(error, cluster->server_count);
    for (int32_t s = 0; s < cluster->server_count; s++) keys[s] = (ServerKey){cluster, s};
    if (!device_orders_are_uniform(cluster))
        qsort(keys, (size_t)cluster->server_count, sizeof *keys, compare_servers);
    for (int32_t s = 0; s < cluster->server_count; s++) {
        const ClusterServer *server = &cluster->servers[keys[s].server];
        *is_same &= keys[s].server == s;
        for (int32_t d = 0; d < server->device_count; d++) devices[count++] = server->first_device + d;
    }
    arena_free(&scratch);
    return AM_OK;
}

/* Finds the first operator that pins of devices put on each device; -1: none. */
static void find_first_operators(int32_t *first, const Placement *placement, int32_t devices) {
    for (int32_t d = 0; d < devices; d++) {
        first[d] = -1;
        for (int32_t i = 0; i < placement->count && first[d] < 0; i++)
            if (placement->devices[i] && placement->devices[i][d]) first[d] = i;
    }
}

/* Returns whether the search does not try the orders of the devices by itself: pins put devices of one
 * server, or of one kind of servers, on different operators. */
static bool are_orders_needed(const int32_t *first, const Cluster *cluster) {
    if (device_orders_are_uniform(cluster)) return true;
    for (int32_t d = 1; d < cluster->device_count; d++)
        if (cluster->server_of[d] == cluster->server_of[d - 1] && first[d] != first[d - 1]) return true;
    return false;
}

AmStatus device_order_follow_pins(int32_t *devices, bool *is_same, const PlanContext *primary,
                                  const Cluster *cluster, const PlanConstraints *constraints,
                                  AmError *error) {
    Arena scratch = {0};
    const Placement *placement;
    AmError refusal = {0};
    int32_t count = cluster->device_count, *first = ARENA_ARRAY(&scratch, int32_t, count);
    AmStatus status = first ? placement_find(&placement, &scratch, primary, cluster, constraints->pins,
                                             constraints->pin_count, &refusal)
                            : am_fail_memory(&refusal, count);
    if (status == AM_OK && placement) {
        find_first_operators(first, placement, count);
        bool is_needed = are_orders_needed(first, cluster);
        for (int32_t end = 1; is_needed && end < count; end++) /* an insertion sort of the named devices */
            for (int32_t k = end, before = end - 1; before >= 0 && first[devices[k]] >= 0; before--) {
                if (first[devices[before]] < 0) continue;
                if (first[devices[before]] <= first[devices[k]]) break;
                int32_t kept = devices[k];
                devices[k] = devices[before];
                devices[before] = kept;
                k = before;
                *is_same = false;
            }
    }
    arena_free(&scratch);
    return status == AM_ERROR_INTERNAL ? am_pass_error(status, &refusal, error) : AM_OK;
}

/* ---- plans ---- */

/* Gives the stages of a plan new lists of devices; `map` [device]. */
static AmStatus renumber(Plan *plan, Arena *arena, const int32_t *map, AmError *error) {
    PlanStage *stages = ARENA_ARRAY(arena, PlanStage, plan->stage_count);
    if (!stages) return am_fail_memory(error, plan->stage_count);
    memcpy(stages, plan->stages, sizeof *stages * (size_t)plan->stage_count);
    for (int32_t s = 0; s < plan->stage_count; s++) {
        int32_t count = stages[s].mesh.device_count;
        stages[s].devices = ARENA_ARRAY(arena, int32_t, count);
        if (!stages[s].devices) return am_fail_memory(error, count);
        for (int32_t d = 0; d < count; d++) stages[s].devices[d] = map[plan->stages[s].devices[d]];
    }
    plan->stages = stages;
    return AM_OK;
}

enum {
    MOST_PLANS =
        3 + PLAN_ORIGIN_COUNT + TARGET_COUNT * POOL_OF_TARGET + POOL_SHAPES + POOL_ORDERS + POOL_STRUCTURES
};

typedef struct PlanSet {
    Plan *plans[MOST_PLANS];
    int32_t count;
} PlanSet;

static void add_plan(PlanSet *set, Plan *plan) {
    for (int32_t k = 0; k < set->count; k++)
        if (set->plans[k] == plan) return;
    if (plan) set->plans[set->count++] = plan;
}

AmStatus device_order_translate(SearchResult *result, Arena *arena, const int32_t *devices, AmError *error) {
    PlanSet set = {0};
    const CandidatePool *pool = &result->pool;
    add_plan(&set, result->plan);
    add_plan(&set, result->nearest);
    add_plan(&set, pool->best.plan);
    for (int32_t k = 0; k < PLAN_ORIGIN_COUNT; k++) add_plan(&set, pool->of[k].plan);
    for (int32_t k = 0; k < POOL_SHAPES; k++) add_plan(&set, pool->shapes[k].plan);
    for (int32_t k = 0; k < POOL_ORDERS; k++) add_plan(&set, pool->orders[k].plan);
    for (int32_t k = 0; k < POOL_STRUCTURES; k++) add_plan(&set, pool->structures[k].plan);
    for (int32_t target = 0; target < TARGET_COUNT; target++)
        for (int32_t k = 0; k < POOL_OF_TARGET; k++) add_plan(&set, pool->on[target][k].plan);
    for (int32_t k = 0; k < set.count; k++) TRY(renumber(set.plans[k], arena, devices, error));
    result->nearest_fit.device = result->nearest ? devices[result->nearest_fit.device] : 0;
    return AM_OK;
}

AmStatus device_order_place(const Plan **plan, Arena *arena, const Plan *given, const int32_t *devices,
                            int32_t count, AmError *error) {
    Plan *made = ARENA_ARRAY(arena, Plan, 1);
    int32_t most = 0;
    *plan = NULL;
    for (int32_t k = 0; k < count; k++)
        if (devices[k] > most) most = devices[k];
    int32_t *map = ARENA_ARRAY(arena, int32_t, most + 1);
    if (arena->failed) return am_fail_memory(error, most);
    for (int32_t d = 0; d <= most; d++) map[d] = -1;
    for (int32_t k = 0; k < count; k++) map[devices[k]] = k;
    for (int32_t s = 0; s < given->stage_count; s++)
        for (int32_t d = 0; d < given->stages[s].mesh.device_count; d++) {
            int32_t device = given->stages[s].devices[d];
            if (device > most || map[device] < 0) return AM_OK;
        }
    *made = *given;
    TRY(renumber(made, arena, map, error));
    *plan = made;
    return AM_OK;
}
