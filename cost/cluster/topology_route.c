/* Routes through the graph of a cluster.
 *
 * In a tree the route is unique: both ends climb towards the root until they meet. Another graph is
 * searched from the device where the route starts (Dijkstra, by latency, then edges, then the
 * lowest edge). A search for one route leaves out vertices from which the rest of the way takes too long:
 *
 *     latency so far + least latency from the vertex to the target > latency of a known route
 *
 * The latency to the target is known for its neighbourhood: the nearest vertices, up to the nearest
 * switch with many edges. From other vertices it is at least that of this switch, whose edges are not
 * examined one by one where only those into the neighbourhood can be on the route.
 *
 * If these searches from a device have taken as long as one for the routes to all vertices, the last edges of
 * all these routes are cached, least recently used first out: memory grows with the vertices, not with the
 * pairs of devices. Latencies are compared as whole picoseconds, so that two routes over the same links in
 * another order are equal despite rounding.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cost/cluster/topology.h"

enum { MOST_KEPT_EDGES = 1 << 22 };         /* in all lists together, 16 MiB; one list is always kept */
enum { MANY_EDGES = 64, MOST_NEARBY = 64 }; /* edges of a switch that ends a neighbourhood; vertices of one */

/* How far a vertex is from the start of a search. */
typedef struct Distance {
    int64_t picoseconds;
    int32_t edges;
} Distance;

/* A vertex that was reached, waiting for its iteration. */
typedef struct Reached {
    Distance distance;
    int32_t vertex;
} Reached;

/* An edge in a search: its end and its cost. */
typedef struct SearchEdge {
    int64_t picoseconds;
    int32_t edge, end;
} SearchEdge;

typedef struct TopologyRoutes {
    /* A tree: the directed edge towards the root, -1 there, and the edges to it. */
    int32_t *upwards, *depth;
    /* A graph: `slot_count` lists of the last directed edge of the route to each vertex. */
    pthread_mutex_t lock;
    int32_t slot_count;
    int32_t *last;             /* [slot_count * vertex_count] */
    int32_t *start;            /* [slot_count] the device whose routes it holds, -1: none */
    int32_t *slot_of;          /* [device_count] -1: not kept */
    int64_t *work;             /* [device_count] edges that searches for single routes have examined */
    uint64_t *last_query, now; /* [slot_count] time of the last query */
    SearchEdge *crossings;     /* [2 * edge_count] in the order of `leaving` */
    int64_t *least;            /* [vertex_count] picoseconds of the fastest edge there */
    /* State of the current search: */
    Distance *distance; /* [vertex_count]; INT64_MAX between searches */
    int32_t *last_edge; /* [vertex_count] of the route to a vertex with another distance */
    int32_t *touched;   /* [touched_count] these vertices */
    Reached *heap;      /* [2 * edge_count + 1] nearest first; a vertex that got nearer is there again */
    int32_t touched_count, heap_count;
    /* The neighbourhood of the target: */
    int64_t *ahead;  /* [vertex_count] picoseconds to the target over vertices of it; INT64_MAX: unknown */
    int32_t *nearby; /* [nearby_count] the vertices of it, then the others that have a value in `ahead` */
    bool *is_nearby; /* [vertex_count] */
    int32_t nearby_count, ahead_count;
    int64_t beyond; /* the least picoseconds to the target from other vertices */
    int64_t most;   /* picoseconds of a route to the target; INT64_MAX: none is known */
} TopologyRoutes;

static bool is_nearer(const Distance *a, const Distance *b) {
    return a->picoseconds != b->picoseconds ? a->picoseconds < b->picoseconds : a->edges < b->edges;
}

static void heap_add(TopologyRoutes *routes, Distance distance, int32_t vertex) {
    int32_t at = routes->heap_count++;
    for (; at > 0 && is_nearer(&distance, &routes->heap[(at - 1) / 2].distance); at = (at - 1) / 2)
        routes->heap[at] = routes->heap[(at - 1) / 2];
    routes->heap[at] = (Reached){distance, vertex};
}

static Reached heap_take(TopologyRoutes *routes) {
    Reached taken = routes->heap[0], moved = routes->heap[--routes->heap_count];
    int32_t at = 0, child;
    while ((child = 2 * at + 1) < routes->heap_count) {
        if (child + 1 < routes->heap_count &&
            is_nearer(&routes->heap[child + 1].distance, &routes->heap[child].distance))
            child++;
        if (!is_nearer(&routes->heap[child].distance, &moved.distance)) break;
        routes->heap[at] = routes->heap[child];
        at = child;
    }
    routes->heap[at] = moved;
    return taken;
}

/* Returns the picoseconds of an edge, at most those of ten seconds, so that sums over a route, which has
 * fewer than 2^19 edges, fit. */
static int64_t picoseconds(double seconds) {
    return (int64_t)((seconds < 10 ? seconds : 10) * 1e12 + 0.5);
}

/* Takes a crossing if it leads to its end on a better route than those before. */
static void cross(TopologyRoutes *routes, const Distance *from, const SearchEdge *crossing) {
    Distance further = {from->picoseconds + crossing->picoseconds, from->edges + 1};
    Distance *known = &routes->distance[crossing->end];
    bool is_new = is_nearer(&further, known);
    if (!is_new && (is_nearer(known, &further) || crossing->edge > routes->last_edge[crossing->end])) return;
    if (known->picoseconds == INT64_MAX) routes->touched[routes->touched_count++] = crossing->end;
    routes->last_edge[crossing->end] = crossing->edge;
    if (!is_new) return;
    *known = further;
    heap_add(routes, further, crossing->end);
}

/* Finds the latency to the target from the nearest vertices, up to the nearest switch of many edges. */
static void find_nearby(const Topology *self, TopologyRoutes *routes, int32_t target) {
    int32_t settled = 0;
    routes->nearby_count = routes->ahead_count = routes->heap_count = 0;
    routes->beyond = INT64_MAX / 4;
    routes->ahead[target] = 0;
    routes->nearby[routes->ahead_count++] = target;
    heap_add(routes, (Distance){0, 0}, target);
    while (routes->heap_count > 0) {
        Reached reached = heap_take(routes);
        int32_t v = reached.vertex, first = self->first_leaving[v], end = self->first_leaving[v + 1];
        if (reached.distance.picoseconds > routes->ahead[v]) continue; /* it got nearer */
        if (end - first > MANY_EDGES || settled++ == MOST_NEARBY) {
            routes->beyond = reached.distance.picoseconds;
            break;
        }
        routes->is_nearby[v] = true;
        for (int32_t k = first; k < end; k++) {
            const SearchEdge *crossing = &routes->crossings[k];
            int64_t further = reached.distance.picoseconds + crossing->picoseconds;
            if (further >= routes->ahead[crossing->end]) continue;
            if (routes->ahead[crossing->end] == INT64_MAX)
                routes->nearby[routes->ahead_count++] = crossing->end;
            routes->ahead[crossing->end] = further;
            heap_add(routes, (Distance){further, 0}, crossing->end);
        }
    }
    for (int32_t k = 0; k < routes->ahead_count; k++) {
        int32_t v = routes->nearby[k];
        if (!routes->is_nearby[v]) continue;
        routes->nearby[k] = routes->nearby[routes->nearby_count];
        routes->nearby[routes->nearby_count++] = v;
    }
}

/* Returns whether no route to the target that is as good as a known one has a vertex after so many
 * picoseconds. Notes the latency of a route over it. */
static bool is_too_far(TopologyRoutes *routes, int64_t picoseconds, int32_t vertex) {
    int64_t ahead = routes->ahead[vertex];
    if (ahead != INT64_MAX && picoseconds + ahead < routes->most) routes->most = picoseconds + ahead;
    int64_t rest = routes->is_nearby[vertex] ? ahead : routes->beyond;
    return routes->most != INT64_MAX && picoseconds + rest > routes->most;
}

/* Crosses the edges from a vertex that may be on the best route to the target. Returns the number of examined
 * edges. */
static int64_t cross_towards(const Topology *self, TopologyRoutes *routes, const Reached *from) {
    int32_t first = self->first_leaving[from->vertex], end = self->first_leaving[from->vertex + 1];
    int64_t next = from->distance.picoseconds + routes->least[from->vertex];
    if (end - first > MANY_EDGES && routes->most != INT64_MAX && next + routes->beyond > routes->most) {
        for (int32_t k = 0; k < routes->nearby_count; k++) {
            for (int32_t e = self->first_leaving[routes->nearby[k]];
                 e < self->first_leaving[routes->nearby[k] + 1]; e++) {
                SearchEdge crossing = routes->crossings[e];
                if (crossing.end != from->vertex) continue;
                crossing.edge ^= 1;
                crossing.end = routes->nearby[k];
                cross(routes, &from->distance, &crossing);
            }
        }
        return routes->nearby_count;
    }
    for (int32_t k = first; k < end; k++) {
        const SearchEdge *crossing = &routes->crossings[k];
        next = from->distance.picoseconds + crossing->picoseconds;
        if (!is_too_far(routes, next, crossing->end)) cross(routes, &from->distance, crossing);
    }
    return end - first;
}

/* Finds last_edge on the route from `start` to `target`, or, where that is -1, to everything. Returns the
 * number of examined edges. A vertex is final once all nearer ones were taken from the heap: what leads to it
 * has less latency or fewer edges. */
static int64_t search_route(const Topology *self, TopologyRoutes *routes, int32_t start, int32_t target) {
    int64_t work = 0;
    if (target >= 0) find_nearby(self, routes, target);
    routes->most = target >= 0 ? routes->ahead[start] : INT64_MAX;
    routes->distance[start] = (Distance){0, 0};
    routes->touched[0] = start;
    routes->touched_count = 1;
    routes->last_edge[start] = -1;
    routes->heap_count = 0;
    heap_add(routes, routes->distance[start], start);
    while (routes->heap_count > 0) {
        Reached reached = heap_take(routes);
        int32_t first = self->first_leaving[reached.vertex], end = self->first_leaving[reached.vertex + 1];
        if (is_nearer(&routes->distance[reached.vertex], &reached.distance)) continue; /* it got nearer */
        if (target >= 0) {
            if (!is_nearer(&reached.distance, &routes->distance[target])) break;
            work += cross_towards(self, routes, &reached) + 1;
            continue;
        }
        for (int32_t k = first; k < end; k++) cross(routes, &reached.distance, &routes->crossings[k]);
        work += end - first + 1;
    }
    for (int32_t k = 0; k < routes->touched_count; k++)
        routes->distance[routes->touched[k]] = (Distance){INT64_MAX, 0};
    for (int32_t k = 0; k < routes->ahead_count && target >= 0; k++) {
        routes->ahead[routes->nearby[k]] = INT64_MAX;
        routes->is_nearby[routes->nearby[k]] = false;
    }
    return work;
}

/* Caches the last edges of the routes from a device to all vertices. */
static void keep_routes(const Topology *self, TopologyRoutes *routes, int32_t start) {
    int32_t slot = 0;
    for (int32_t k = 1; k < routes->slot_count; k++)
        if (routes->last_query[k] < routes->last_query[slot]) slot = k;
    if (routes->start[slot] >= 0) routes->slot_of[routes->start[slot]] = -1;
    routes->start[slot] = start;
    routes->slot_of[start] = slot;
    routes->work[start] = 0;
    search_route(self, routes, start, -1);
    memcpy(&routes->last[(size_t)slot * (size_t)self->vertex_count], routes->last_edge,
           sizeof *routes->last * (size_t)self->vertex_count);
}

/* Returns the last edges of the routes from `start`, the one to `target` among them; the lock is held. */
static const int32_t *routes_from(const Topology *self, TopologyRoutes *routes, int32_t start,
                                  int32_t target) {
    bool is_kept = routes->slot_of[start] >= 0;
    if (!is_kept && routes->work[start] > 2 * self->edge_count) {
        keep_routes(self, routes, start);
        is_kept = true;
    }
    if (!is_kept) {
        routes->work[start] += search_route(self, routes, start, target);
        return routes->last_edge;
    }
    int32_t slot = routes->slot_of[start];
    routes->last_query[slot] = ++routes->now;
    return &routes->last[(size_t)slot * (size_t)self->vertex_count];
}

static void route_in_tree(const Topology *self, int32_t a, int32_t b, int32_t *edges, int32_t *count) {
    const int32_t *upwards = self->routes->upwards, *depth = self->routes->depth;
    int32_t length = 0, down = 0, target = b;
    while (a != b) {
        if (depth[a] >= depth[b]) {
            edges[length++] = upwards[a];
            a = topology_edge_end(self, upwards[a]);
        } else {
            down++;
            b = topology_edge_end(self, upwards[b]);
        }
    }
    *count = length + down;
    for (int32_t k = *count; k-- > length; target = topology_edge_end(self, upwards[target]))
        edges[k] = upwards[target] ^ 1;
}

double topology_fastest_rate(const Topology *self) {
    double fastest = 0;
    for (int32_t d = 0; d < self->device_count; d++) {
        double rate = 0;
        for (int32_t k = self->first_leaving[d]; k < self->first_leaving[d + 1]; k++)
            rate += self->edges[self->leaving[k] / 2].bytes_per_second;
        fastest = rate > fastest ? rate : fastest;
    }
    return fastest;
}

void topology_route(const Topology *self, int32_t a, int32_t b, int32_t *edges, int32_t *count) {
    *count = 0;
    if (a == b) return;
    if (self->is_tree) {
        route_in_tree(self, a, b, edges, count);
        return;
    }
    TopologyRoutes *routes = self->routes;
    pthread_mutex_lock(&routes->lock);
    const int32_t *last = routes_from(self, routes, a, b);
    for (int32_t v = b; v != a; v = topology_edge_start(self, last[v])) edges[(*count)++] = last[v];
    pthread_mutex_unlock(&routes->lock);
    for (int32_t k = 0; k < *count / 2; k++) {
        int32_t swap = edges[k];
        edges[k] = edges[*count - 1 - k];
        edges[*count - 1 - k] = swap;
    }
}

/* Walks from the last vertex; true where that reaches every vertex and no edge is left over. */
static bool root_tree(const Topology *self, TopologyRoutes *routes, int32_t *queue, int32_t *deepest) {
    int32_t count = 1;
    if (self->edge_count != self->vertex_count - 1) return false;
    for (int32_t v = 0; v < self->vertex_count; v++) routes->upwards[v] = routes->depth[v] = -1;
    queue[0] = self->vertex_count - 1;
    routes->depth[queue[0]] = 0;
    for (int32_t k = 0; k < count; k++) {
        for (int32_t e = self->first_leaving[queue[k]]; e < self->first_leaving[queue[k] + 1]; e++) {
            int32_t next = topology_edge_end(self, self->leaving[e]);
            if (routes->depth[next] >= 0) continue;
            routes->depth[next] = *deepest = routes->depth[queue[k]] + 1;
            routes->upwards[next] = self->leaving[e] ^ 1;
            queue[count++] = next;
        }
    }
    return count == self->vertex_count;
}

AmStatus topology_prepare_routes(Topology *self, Arena *arena, AmError *error) {
    TopologyRoutes *routes = self->routes = ARENA_ARRAY(arena, TopologyRoutes, 1);
    int32_t vertices = self->vertex_count, deepest = 0;
    if (arena->failed) return am_fail_memory(error, vertices);
    routes->upwards = ARENA_ARRAY(arena, int32_t, vertices);
    routes->depth = ARENA_ARRAY(arena, int32_t, vertices);
    int32_t *queue = ARENA_ARRAY(arena, int32_t, vertices);
    if (arena->failed) return am_fail_memory(error, vertices);
    self->is_tree = root_tree(self, routes, queue, &deepest);
    self->longest = self->is_tree ? 2 * deepest : vertices - 1;
    if (self->is_tree) return AM_OK;
    int32_t slots = MOST_KEPT_EDGES / vertices;
    if (slots < 1) slots = 1;
    if (slots > self->device_count) slots = self->device_count;
    routes->slot_count = slots;
    routes->last = ARENA_ARRAY(arena, int32_t, (int64_t)slots * vertices);
    routes->start = ARENA_ARRAY(arena, int32_t, slots);
    routes->last_query = ARENA_ARRAY(arena, uint64_t, slots);
    routes->slot_of = ARENA_ARRAY(arena, int32_t, self->device_count);
    routes->work = ARENA_ARRAY(arena, int64_t, self->device_count);
    routes->least = ARENA_ARRAY(arena, int64_t, vertices);
    routes->distance = ARENA_ARRAY(arena, Distance, vertices);
    routes->last_edge = ARENA_ARRAY(arena, int32_t, vertices);
    routes->touched = ARENA_ARRAY(arena, int32_t, vertices);
    routes->ahead = ARENA_ARRAY(arena, int64_t, vertices);
    routes->nearby = ARENA_ARRAY(arena, int32_t, vertices);
    routes->is_nearby = ARENA_ARRAY(arena, bool, vertices);
    routes->heap = ARENA_ARRAY(arena, Reached, 2 * self->edge_count + 1);
    routes->crossings = ARENA_ARRAY(arena, SearchEdge, 2 * self->edge_count);
    if (arena->failed) return am_fail_memory(error, vertices);
    for (int32_t k = 0; k < 2 * self->edge_count; k++) {
        int32_t edge = self->leaving[k];
        routes->crossings[k] = (SearchEdge){picoseconds(self->edges[edge / 2].latency_seconds), edge,
                                            topology_edge_end(self, edge)};
    }
    for (int32_t v = 0; v < vertices; v++) {
        routes->distance[v] = (Distance){INT64_MAX, 0};
        routes->ahead[v] = INT64_MAX;
        routes->least[v] = INT64_MAX / 4; /* without edges */
        for (int32_t k = self->first_leaving[v]; k < self->first_leaving[v + 1]; k++)
            if (routes->crossings[k].picoseconds < routes->least[v])
                routes->least[v] = routes->crossings[k].picoseconds;
    }
    for (int32_t k = 0; k < slots; k++) routes->start[k] = -1;
    for (int32_t k = 0; k < self->device_count; k++) routes->slot_of[k] = -1;
    pthread_mutex_init(&routes->lock, NULL);
    return AM_OK;
}
