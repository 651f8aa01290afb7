/* Islands and rings are looked for where the graph is not the tree of servers, in
 * groups of at most MOST_SEARCHED devices on one server.
 *
 * An island is a device and those that its fastest routes lead to (a route is as
 * fast as its slowest edge). Rings: a depth-first search for a way through all
 * devices and back over edges that still have `unit` bytes per second to give, the
 * rate of the slowest link between neighbours. What one ring takes is gone for the
 * next; the search goes for MOST_RINGS, then for fewer. Wider edges are tried first. NCCL's channels are
 * such rings: three on the hybrid cube of a DGX-1, so 6 x 20 GB/s both ways round.
 */
#include "cost/collective_group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SEARCHED = 16, MOST_RINGS = 6, MOST_TRIES = 5000 };

#define SLACK 1e-9 /* of rates that are subtracted and added again */

static int compare_devices(const void *a, const void *b) {
    const int32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The routes between all pairs of a small group. */
typedef struct Ways {
    const Topology *topology;
    int32_t count;          /* of devices */
    const int32_t *members; /* [count] */
    int32_t **edges;        /* [count * count] directed edges of a route */
    int32_t *lengths;       /* [count * count] */
    double *left;           /* [edge_count] bytes per second that no ring has taken */
} Ways;

/* Gives back what rings have taken. */
static void restore(Ways *self) {
    const Topology *topology = self->topology;
    for (int32_t e = 0; e < topology->edge_count; e++) self->left[e] = topology->edges[e].bytes_per_second;
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
                   .left = ARENA_ARRAY(arena, double, topology->edge_count)};
    int32_t *route = ARENA_ARRAY(arena, int32_t, topology->longest + 1);
    if (arena->failed) return am_fail_memory(error, topology->edge_count);
    restore(self);
    for (size_t pair = 0; pair < pairs; pair++) {
        int32_t a = members[pair / (size_t)count], b = members[pair % (size_t)count];
        topology_route(topology, a, b, route, &self->lengths[pair]);
        size_t bytes = sizeof *route * (size_t)self->lengths[pair];
        self->edges[pair] = (int32_t *)arena_copy_bytes(arena, (const char *)route, bytes);
        if (!self->edges[pair]) return am_fail_memory(error, (int64_t)bytes);
    }
    return AM_OK;
}

/* What the way from a to b can still carry; 0 from a device to itself. */
static double left_between(const Ways *self, int32_t a, int32_t b) {
    int32_t pair = a * self->count + b;
    double least = 0;
    for (int32_t k = 0; k < self->lengths[pair]; k++) {
        double left = self->left[self->edges[pair][k] / 2];
        if (k == 0 || left < least) least = left;
    }
    return least;
}

static void take_between(Ways *self, int32_t a, int32_t b, double rate) {
    int32_t pair = a * self->count + b;
    for (int32_t k = 0; k < self->lengths[pair]; k++) self->left[self->edges[pair][k] / 2] -= rate;
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

/* Ring `ring` has all devices: closes it and goes on with the next. */
static bool close_ring(RingSearch *self, int32_t ring) {
    Ways *ways = self->ways;
    int32_t last = self->order[ring][ways->count - 1];
    if (left_between(ways, last, 0) < self->unit * (1 - SLACK)) return false;
    take_between(ways, last, 0, self->unit);
    if (ring + 1 == self->wanted || extend_ring(self, ring + 1, 1)) return true;
    take_between(ways, last, 0, -self->unit);
    return false;
}

/* Places behind order[ring][length - 1]; what a hop takes is gone while those behind it are placed. */
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

/* The rate of the slowest link, of parallel ones each, that joins two of the devices without a stop on the
 * way; 0 where there is none. */
static double slowest_hop(const Ways *self, const Cluster *cluster) {
    double slowest = 0;
    for (int32_t pair = 0; pair < self->count * self->count; pair++) {
        if (self->lengths[pair] != 1) continue;
        const TopologyEdge *edge = &self->topology->edges[self->edges[pair][0] / 2];
        double rate = fmin(edge->bytes_per_second, cluster->links[edge->link].bytes_per_second);
        if (slowest == 0 || rate < slowest) slowest = rate;
    }
    return slowest;
}

/* Every ring takes two units from a device's edges. */
static int32_t most_rings(const Ways *self, double unit) {
    double most = MOST_RINGS;
    for (int32_t a = 0; a < self->count; a++) {
        double units = 0;
        for (int32_t b = 0; b < self->count; b++)
            if (self->lengths[a * self->count + b] == 1)
                units += floor(left_between(self, a, b) / unit + SLACK);
        if (units / 2 < most) most = floor(units / 2);
    }
    return (int32_t)most;
}

/* As many as there is room for. */
static AmStatus find_rings(CollectiveGroup *group, Arena *arena, const Cluster *cluster, Ways *ways,
                           AmError *error) {
    RingSearch search = {.ways = ways, .unit = slowest_hop(ways, cluster)};
    if (search.unit <= 0) return AM_OK;
    for (search.wanted = most_rings(ways, search.unit); search.wanted > 0; search.wanted--) {
        search.tries = 0;
        memset(search.is_used, 0, sizeof search.is_used);
        if (extend_ring(&search, 0, 1)) break;
        restore(ways);
    }
    int32_t count = search.wanted * ways->count, *rings = ARENA_ARRAY(arena, int32_t, count + 1);
    if (!rings) return am_fail_memory(error, count);
    for (int32_t k = 0; k < count; k++)
        rings[k] = ways->members[search.order[k / ways->count][k % ways->count]];
    group->ring_count = search.wanted;
    group->rings = rings;
    return AM_OK;
}

/* Puts devices that are closest next to each other and begins a part with each island. */
static void find_islands(CollectiveGroup *group, const Ways *ways, int32_t *members, int32_t *first) {
    int32_t count = ways->count, placed = 0, order[MOST_SEARCHED];
    bool is_placed[MOST_SEARCHED] = {false};
    group->parts = 0;
    for (int32_t a = 0; a < count; a++) {
        if (is_placed[a]) continue;
        double fastest = 0;
        for (int32_t b = 0; b < count; b++)
            if (left_between(ways, a, b) > fastest) fastest = left_between(ways, a, b);
        first[group->parts++] = placed;
        for (int32_t b = a; b < count; b++) {
            if (is_placed[b] || (b != a && left_between(ways, a, b) < fastest)) continue;
            is_placed[b] = true;
            order[placed++] = ways->members[b];
        }
    }
    first[group->parts] = placed;
    memcpy(members, order, sizeof *order * (size_t)count);
}

static void count_parts(CollectiveGroup *group) {
    group->least = group->devices;
    group->most = 0;
    for (int32_t p = 0; p < group->parts; p++) {
        int32_t here = group->first[p + 1] - group->first[p];
        if (here < group->least) group->least = here;
        if (here > group->most) group->most = here;
    }
}

AmStatus collective_group(CollectiveGroup *group, Arena *arena, const Cluster *cluster,
                          const int32_t *members, int32_t size, AmError *error) {
    int32_t *sorted = ARENA_ARRAY(arena, int32_t, size);
    int32_t *first = ARENA_ARRAY(arena, int32_t, size + 1);
    int32_t *column = ARENA_ARRAY(arena, int32_t, size);
    if (arena->failed) return am_fail_memory(error, size);
    const int32_t *server_of = cluster->server_of;
    memcpy(sorted, members, sizeof *sorted * (size_t)size);
    qsort(sorted, (size_t)size, sizeof *sorted, compare_devices);
    *group = (CollectiveGroup){.devices = size, .members = sorted, .first = first, .column = column};
    /* Devices are numbered server by server. */
    for (int32_t k = 0; k < size; k++)
        if (k == 0 || server_of[sorted[k]] != server_of[sorted[k - 1]]) first[group->parts++] = k;
    first[group->parts] = size;
    group->servers = group->parts;
    bool is_searched = !cluster->topology->is_derived && group->servers == 1 && size > 2;
    if (is_searched && size <= MOST_SEARCHED) {
        Ways ways;
        TRY(find_ways(&ways, arena, cluster, sorted, size, error));
        TRY(find_rings(group, arena, cluster, &ways, error));
        restore(&ways);
        find_islands(group, &ways, sorted, first);
    }
    count_parts(group);
    return AM_OK;
}
