/* Finds islands and rings in graphs other than the tree of servers, for groups of at most
 * MOST_SEARCHED devices on one server.
 *
 * Islands are the parts connected by routes up to some latency (then some number of edges, as
 * routes are chosen), for each value that occurs. Rings are found by a depth-first search for a
 * cycle through all devices over direct edges with a free link. The links of a ring are not
 * available to the next; the search tries MOST_RINGS, then fewer. Wider edges are tried first.
 * NCCL's channels are such rings: three on the hybrid cube of a DGX-1, so 6 x 20 GB/s in both
 * directions. Edges are weighted by their number of parallel links, not by rates, so that the rings
 * do not change if a link becomes faster.
 */
#include "cost/collective/collective_group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SEARCHED = 16, MOST_RINGS = 6, MOST_TRIES = 5000 };

#define SLACK 1e-9 /* of rates that are subtracted and added again */

/* A device and its number in the description of the cluster. */
typedef struct NumberedDevice {
    int32_t number, device;
} NumberedDevice;

static int compare_devices(const void *a, const void *b) {
    const NumberedDevice *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

/* The routes between all pairs of a small group. */
typedef struct Ways {
    const Topology *topology;
    int32_t count;          /* of devices */
    const int32_t *members; /* [count] */
    int32_t **edges;        /* [count * count] directed edges of a route */
    int32_t *lengths;       /* [count * count] */
    double *left;           /* [edge_count] parallel links that no ring has taken, of edges that join two */
} Ways;

/* Gives back what rings have taken. */
static void restore_ways(Ways *self, const Cluster *cluster) {
    for (int32_t pair = 0; pair < self->count * self->count; pair++) {
        if (self->lengths[pair] != 1) continue;
        int32_t e = self->edges[pair][0] / 2;
        const TopologyEdge *edge = &self->topology->edges[e];
        self->left[e] = edge->bytes_per_second / cluster->links[edge->link].bytes_per_second;
    }
}

static AmStatus find_ways(Ways *self, Arena *arena, const Cluster *cluster, const int32_t *members,
                          int32_t count, AmError *error) {
    const Topology *topology = cluster->topology;
    size_t pairs = (size_t)count * (size_t)count;
    *self = (Ways){.topology = topology,
                   .count = count,
                   .members = members,
                   .edges = ARENA_ARRAY(arena, int32_t *, pairs),
                   .lengths = ARENA_ARRAY(arena, int32_t, pairs),
                   .left = ARENA_ARRAY_RAW(arena, double, topology->edge_count)};
    int32_t *route = ARENA_ARRAY_RAW(arena, int32_t, topology->longest + 1);
    if (arena->failed) return am_fail_memory(error, topology->edge_count);
    for (size_t pair = 0; pair < pairs; pair++) {
        int32_t a = members[pair / (size_t)count], b = members[pair % (size_t)count];
        topology_route(topology, a, b, route, &self->lengths[pair]);
        size_t bytes = sizeof *route * (size_t)self->lengths[pair];
        self->edges[pair] = (int32_t *)arena_copy_bytes(arena, (const char *)route, bytes);
        if (!self->edges[pair]) return am_fail_memory(error, (int64_t)bytes);
    }
    restore_ways(self, cluster);
    return AM_OK;
}

/* Returns the free links of the edge between a and b; 0 without an edge. */
static double left_between(const Ways *self, int32_t a, int32_t b) {
    int32_t pair = a * self->count + b;
    return self->lengths[pair] == 1 ? self->left[self->edges[pair][0] / 2] : 0;
}

static void take_between(Ways *self, int32_t a, int32_t b, double links) {
    self->left[self->edges[a * self->count + b][0] / 2] -= links;
}

/* `wanted` rings in the making: numbers of devices in the group. */
typedef struct RingSearch {
    Ways *ways;
    double unit;
    int32_t wanted;
    int32_t order[MOST_RINGS][MOST_SEARCHED];
    bool is_used[MOST_RINGS][MOST_SEARCHED];
    int32_t tries;
} RingSearch;

static bool extend_ring(RingSearch *self, int32_t ring, int32_t length);

/* Closes ring `ring`, which has all devices, and goes on with the next. */
static bool close_ring(RingSearch *self, int32_t ring) {
    Ways *ways = self->ways;
    int32_t last = self->order[ring][ways->count - 1];
    if (left_between(ways, last, 0) < self->unit * (1 - SLACK)) return false;
    take_between(ways, last, 0, self->unit);
    if (ring + 1 == self->wanted || extend_ring(self, ring + 1, 1)) return true;
    take_between(ways, last, 0, -self->unit);
    return false;
}

/* Extends order[ring][0..length); the links of a hop are reserved while the later hops are placed. */
static bool extend_ring(RingSearch *self, int32_t ring, int32_t length) {
    Ways *ways = self->ways;
    int32_t at = self->order[ring][length - 1], count = ways->count;
    bool is_tried[MOST_SEARCHED] = {false}, *is_used = self->is_used[ring];
    if (length == count) return close_ring(self, ring);
    for (int32_t k = 1; k < count; k++) {
        int32_t next = -1;
        double widest = self->unit * (1 - SLACK);
        for (int32_t b = 1; b < count; b++) {
            if (is_used[b] || is_tried[b]) continue;
            double left = left_between(ways, at, b);
            if (left < widest || (next >= 0 && left == widest)) continue;
            widest = left;
            next = b;
        }
        if (next < 0 || ++self->tries > MOST_TRIES) return false;
        is_tried[next] = is_used[next] = true;
        self->order[ring][length] = next;
        take_between(ways, at, next, self->unit);
        if (extend_ring(self, ring, length + 1)) return true;
        take_between(ways, at, next, -self->unit);
        is_used[next] = false;
    }
    return false;
}

/* Returns one link, or the least width of an edge between two of the devices; 0 where there are no such
 * edges. */
static double narrowest_hop(const Ways *self) {
    double narrowest = 0;
    for (int32_t a = 0; a < self->count; a++)
        for (int32_t b = 0; b < self->count; b++) {
            double width = fmin(left_between(self, a, b), 1);
            if (width > 0 && (narrowest == 0 || width < narrowest)) narrowest = width;
        }
    return narrowest;
}

/* Returns the largest number of rings: every ring uses two units of a device's edges. */
static int32_t most_rings(const Ways *self, double unit) {
    double most = MOST_RINGS;
    for (int32_t a = 0; a < self->count; a++) {
        double units = 0;
        for (int32_t b = 0; b < self->count; b++) units += floor(left_between(self, a, b) / unit + SLACK);
        if (units / 2 < most) most = floor(units / 2);
    }
    return (int32_t)most;
}

/* Finds as many rings as there is room for, for all groupings. */
static AmStatus find_rings(CollectiveGroup *group, Arena *arena, const Cluster *cluster, Ways *ways,
                           AmError *error) {
    RingSearch search = {.ways = ways, .unit = narrowest_hop(ways)};
    if (search.unit <= 0) return AM_OK;
    for (search.wanted = most_rings(ways, search.unit); search.wanted > 0; search.wanted--) {
        search.tries = 0;
        memset(search.is_used, 0, sizeof search.is_used);
        if (extend_ring(&search, 0, 1)) break;
        restore_ways(ways, cluster);
    }
    int32_t count = search.wanted * ways->count, *rings = ARENA_ARRAY(arena, int32_t, count + 1);
    if (!rings) return am_fail_memory(error, count);
    for (int32_t k = 0; k < count; k++)
        rings[k] = ways->members[search.order[k / ways->count][k % ways->count]];
    group->ring_count = search.wanted;
    group->rings = rings;
    return AM_OK;
}

/* How near two devices are, as routes are chosen. */
typedef struct Nearness {
    int64_t picoseconds;
    int32_t edges;
} Nearness;

static int compare_nearness(const void *left, const void *right) {
    const Nearness *a = left, *b = right;
    if (a->picoseconds != b->picoseconds) return a->picoseconds < b->picoseconds ? -1 : 1;
    return (a->edges > b->edges) - (a->edges < b->edges);
}

/* Measures the nearness of each pair of devices: [count * count], in the arena. */
static Nearness *measure_nearness(const Ways *ways, Arena *arena) {
    int32_t pairs = ways->count * ways->count;
    Nearness *near = ARENA_ARRAY(arena, Nearness, pairs);
    for (int32_t pair = 0; near && pair < pairs; pair++) {
        near[pair].edges = ways->lengths[pair];
        for (int32_t k = 0; k < ways->lengths[pair]; k++)
            near[pair].picoseconds +=
                llrint(ways->topology->edges[ways->edges[pair][k] / 2].latency_seconds * 1e12);
    }
    return near;
}

/* Parts that hang together by pairs no farther than `farthest`, each listed from its first device on. */
static void find_islands(CollectiveGroup *group, const Ways *ways, const Nearness *near,
                         const Nearness *farthest, int32_t *members, int32_t *first) {
    int32_t count = ways->count, placed = 0, part_of[MOST_SEARCHED];
    for (int32_t a = 0; a < count; a++) part_of[a] = a;
    for (int32_t pair = 0; pair < count * count; pair++) {
        int32_t from = part_of[pair / count], into = part_of[pair % count];
        if (from == into || compare_nearness(&near[pair], farthest) > 0) continue;
        for (int32_t a = 0; a < count; a++)
            if (part_of[a] == (from > into ? from : into)) part_of[a] = from > into ? into : from;
    }
    group->parts = 0;
    for (int32_t part = 0; part < count; part++) {
        if (part_of[part] != part) continue;
        first[group->parts++] = placed;
        for (int32_t a = part; a < count; a++)
            if (part_of[a] == part) members[placed++] = ways->members[a];
    }
    first[group->parts] = placed;
}

/* Arrays of a group of `size` devices, which are listed server by server; false without memory. */
static bool open_group(CollectiveGroup *group, int32_t **members, int32_t **first, Arena *arena,
                       int32_t size) {
    *members = ARENA_ARRAY(arena, int32_t, size);
    *first = ARENA_ARRAY(arena, int32_t, size + 1);
    *group = (CollectiveGroup){
        .devices = size, .members = *members, .first = *first, .column = ARENA_ARRAY(arena, int32_t, size)};
    return !arena->failed;
}

/* Makes one grouping for each nearness that gives other islands than a smaller one, up to one island of
 * all. */
static AmStatus group_islands(CollectiveGroup *groups, int32_t *count, Arena *arena, const Ways *ways,
                              Arena *scratch, AmError *error) {
    int32_t pairs = ways->count * ways->count;
    Nearness *near = measure_nearness(ways, scratch), *levels = ARENA_ARRAY(scratch, Nearness, pairs);
    if (scratch->failed) return am_fail_memory(error, pairs);
    memcpy(levels, near, sizeof *levels * (size_t)pairs);
    qsort(levels, (size_t)pairs, sizeof *levels, compare_nearness);
    /* The first ones are those of devices to themselves. */
    for (int32_t k = ways->count; k < pairs && *count < COLLECTIVE_MOST_GROUPINGS; k++) {
        int32_t *members, *first, before = *count > 0 ? groups[*count - 1].parts : 0;
        if (k > ways->count && compare_nearness(&levels[k - 1], &levels[k]) == 0) continue;
        if (!open_group(&groups[*count], &members, &first, arena, ways->count))
            return am_fail_memory(error, ways->count);
        find_islands(&groups[*count], ways, near, &levels[k], members, first);
        if (groups[*count].parts != before && (groups[*count].parts > 1 || before == 0)) ++*count;
    }
    return AM_OK;
}

AmStatus collective_groupings(CollectiveGroup *groups, int32_t *count, Arena *arena, const Cluster *cluster,
                              const int32_t *members, int32_t size, AmError *error) {
    const int32_t *server_of = cluster->server_of;
    int32_t *sorted, *first;
    if (!open_group(&groups[0], &sorted, &first, arena, size)) return am_fail_memory(error, size);
    /* Devices are in the order of the description: a part of a cluster has the groups of the cluster. */
    ArenaMark mark = arena_mark(arena);
    NumberedDevice *devices = ARENA_ARRAY(arena, NumberedDevice, size);
    if (!devices) return am_fail_memory(error, size);
    for (int32_t k = 0; k < size; k++)
        devices[k] = (NumberedDevice){cluster_number(cluster, members[k]), members[k]};
    qsort(devices, (size_t)size, sizeof *devices, compare_devices);
    for (int32_t k = 0; k < size; k++) sorted[k] = devices[k].device;
    arena_release(arena, mark);
    for (int32_t k = 0; k < size; k++)
        if (k == 0 || server_of[sorted[k]] != server_of[sorted[k - 1]]) first[groups[0].parts++] = k;
    first[groups[0].parts] = size;
    int32_t servers = groups[0].parts;
    CollectiveGroup rings = groups[0];
    *count = 1;
    /* the rings and the islands of a small group on one server */
    if (!cluster->topology->is_derived && servers == 1 && size > 2 && size <= MOST_SEARCHED) {
        Arena scratch = {0};
        Ways ways;
        *count = 0;
        AmStatus status = find_ways(&ways, &scratch, cluster, sorted, size, error);
        if (status == AM_OK) status = find_rings(&rings, arena, cluster, &ways, error);
        if (status == AM_OK) status = group_islands(groups, count, arena, &ways, &scratch, error);
        arena_free(&scratch);
        TRY(status);
    }
    for (int32_t k = 0; k < *count; k++) {
        CollectiveGroup *group = &groups[k];
        group->servers = servers;
        group->ring_count = rings.ring_count;
        group->rings = rings.rings;
        group->least = group->devices;
        group->most = 0;
        for (int32_t p = 0; p < group->parts; p++) {
            int32_t here = group->first[p + 1] - group->first[p];
            if (here < group->least) group->least = here;
            if (here > group->most) group->most = here;
        }
    }
    return AM_OK;
}
