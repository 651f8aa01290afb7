/* The graph of a cluster: the tree that servers give, further edges, checks.
 *
 * Edges are kept in the order of the file, and indexed by the vertex that they
 * leave (a counting sort). So time and memory are proportional to the number of
 * devices and edges.
 */
#include "cost/cluster/topology.h"

#include <stdio.h>

enum { MOST_ROUTES = 64 };

int32_t topology_add_switch(TopologyDraft *draft, const char *name) {
    ARENA_RESERVE(draft->arena, draft->switches, draft->switch_count, draft->switch_capacity);
    const char *copy = arena_copy_string(draft->arena, name);
    if (draft->arena->failed) return -1;
    draft->switches[draft->switch_count] = copy;
    return draft->cluster->device_count + draft->switch_count++;
}

void topology_add_edge(TopologyDraft *draft, int32_t from, int32_t to, int32_t link, double width,
                       double latency_seconds) {
    ARENA_RESERVE(draft->arena, draft->edges, draft->edge_count, draft->edge_capacity);
    if (draft->arena->failed) return;
    draft->edges[draft->edge_count++] =
        (TopologyEdge){.from = from,
                       .to = to,
                       .link = link,
                       .bytes_per_second = draft->cluster->links[link].bytes_per_second * width,
                       .latency_seconds = latency_seconds};
}

/* Adds the devices of a server, joined by its switch. Returns the vertex by which the server is reached from
 * outside, -1 where it has no link of its own. */
static int32_t add_server(TopologyDraft *draft, int32_t index) {
    const ClusterServer *server = &draft->cluster->servers[index];
    if (server->device_count == 1) return server->first_device;
    if (server->link < 0) return -1;
    char name[32];
    snprintf(name, sizeof name, "server%d/switch", index);
    int32_t hub = topology_add_switch(draft, name);
    double latency = draft->cluster->links[server->link].latency_seconds / 2;
    for (int32_t k = 0; k < server->device_count; k++)
        topology_add_edge(draft, server->first_device + k, hub, server->link, 1, latency);
    return hub;
}

static void add_servers(TopologyDraft *draft) {
    const Cluster *cluster = draft->cluster;
    const int32_t link = cluster->between_servers;
    int32_t *gates = ARENA_ARRAY(draft->arena, int32_t, cluster->server_count);
    if (!gates) return;
    for (int32_t s = 0; s < cluster->server_count; s++) gates[s] = add_server(draft, s);
    if (link < 0 || cluster->server_count < 2) return;
    int32_t network = topology_add_switch(draft, "network");
    for (int32_t s = 0; s < cluster->server_count; s++) {
        const ClusterServer *server = &cluster->servers[s];
        double inside =
            server->device_count > 1 && server->link >= 0 ? cluster->links[server->link].latency_seconds : 0;
        double latency = (cluster->links[link].latency_seconds - inside) / 2;
        if (gates[s] >= 0) topology_add_edge(draft, gates[s], network, link, 1, latency > 0 ? latency : 0);
    }
}

/* Lists directed edges by the vertex that they leave, ascending. */
static void index_edges(Topology *self, int32_t *first, int32_t *leaving) {
    for (int32_t e = 0; e < 2 * self->edge_count; e++) first[topology_edge_start(self, e) + 1]++;
    for (int32_t v = 0; v < self->vertex_count; v++) first[v + 1] += first[v];
    for (int32_t e = 0; e < 2 * self->edge_count; e++) leaving[first[topology_edge_start(self, e)]++] = e;
    for (int32_t v = self->vertex_count; v > 0; v--) first[v] = first[v - 1];
    first[0] = 0;
}

/* Checks that all devices can be reached from the first one. */
static AmStatus check_connected(const Topology *self, Arena *arena, const Cluster *cluster,
                                const char *source, AmError *error) {
    int32_t *queue = ARENA_ARRAY(arena, int32_t, self->vertex_count), count = 1;
    bool *seen = ARENA_ARRAY(arena, bool, self->vertex_count);
    if (arena->failed) return am_fail_memory(error, self->vertex_count);
    queue[0] = 0;
    seen[0] = true;
    for (int32_t k = 0; k < count; k++) {
        for (int32_t e = self->first_leaving[queue[k]]; e < self->first_leaving[queue[k] + 1]; e++) {
            int32_t next = topology_edge_end(self, self->leaving[e]);
            if (seen[next]) continue;
            seen[next] = true;
            queue[count++] = next;
        }
    }
    for (int32_t device = 1; device < self->device_count; device++) {
        if (seen[device]) continue;
        int32_t server = cluster->server_of[device];
        return am_fail(error, AM_ERROR_INPUT, source,
                       "$.topology: no route between server0/device0 and server%d/device%d", server,
                       device - cluster->servers[server].first_device);
    }
    return AM_OK;
}

/* Returns the slower of an edge and `slowest` (-1: none so far). */
static int32_t slower(const Topology *self, int32_t slowest, int32_t edge) {
    bool is_slower =
        slowest < 0 || self->edges[edge].bytes_per_second < self->edges[slowest].bytes_per_second;
    return is_slower ? edge : slowest;
}

/* Returns the slowest, over the server's devices, of the fastest edge of each. */
static int32_t slowest_inside(const Topology *self, const ClusterServer *server) {
    int32_t slowest = -1;
    for (int32_t k = 0; k < server->device_count; k++) {
        int32_t device = server->first_device + k, fastest = -1;
        for (int32_t e = self->first_leaving[device]; e < self->first_leaving[device + 1]; e++) {
            int32_t edge = self->leaving[e] / 2;
            if (fastest < 0 || self->edges[edge].bytes_per_second > self->edges[fastest].bytes_per_second)
                fastest = edge;
        }
        slowest = slower(self, slowest, fastest);
    }
    return slowest;
}

/* Names the one link inside a server and the one between servers that stand for those of the graph. */
static AmStatus name_links(const Topology *self, Arena *arena, Cluster *cluster, AmError *error) {
    ArenaMark mark = arena_mark(arena);
    int32_t *route = ARENA_ARRAY(arena, int32_t, self->longest);
    if (!route) return am_fail_memory(error, self->longest);
    for (int32_t s = 0; s < cluster->server_count; s++) {
        ClusterServer *server = &cluster->servers[s];
        if (server->link >= 0 || server->device_count < 2) continue;
        const TopologyEdge *edge = &self->edges[slowest_inside(self, server)];
        server->link = edge->link;
        server->width = edge->bytes_per_second / cluster->links[edge->link].bytes_per_second;
    }
    if (cluster->between_servers < 0 && cluster->server_count > 1) {
        /* The slowest edge on the routes from the first device to some other servers, evenly chosen. */
        int32_t slowest = -1, count, stride = (cluster->server_count + MOST_ROUTES - 1) / MOST_ROUTES;
        for (int32_t s = 1; s < cluster->server_count; s += stride) {
            topology_route(self, 0, cluster->servers[s].first_device, route, &count);
            for (int32_t k = 0; k < count; k++) slowest = slower(self, slowest, route[k] / 2);
        }
        cluster->between_servers = self->edges[slowest].link;
    }
    arena_release(arena, mark);
    return AM_OK;
}

AmStatus topology_build(Topology **topology, Arena *arena, Cluster *cluster, json_t *description,
                        const char *source, AmError *error) {
    TopologyDraft draft = {.arena = arena, .cluster = cluster};
    add_servers(&draft);
    if (description) TRY(topology_read(&draft, description, source, error));
    Topology *self = ARENA_ARRAY(arena, Topology, 1);
    int32_t vertices = cluster->device_count + draft.switch_count;
    int32_t *first = ARENA_ARRAY(arena, int32_t, vertices + 1);
    int32_t *leaving = ARENA_ARRAY(arena, int32_t, 2 * draft.edge_count);
    if (arena->failed) return am_fail_memory(error, vertices);
    *self = (Topology){.device_count = cluster->device_count,
                       .vertex_count = vertices,
                       .edge_count = draft.edge_count,
                       .is_derived = !description,
                       .edges = draft.edges,
                       .first_leaving = first,
                       .leaving = leaving,
                       .switches = draft.switches};
    index_edges(self, first, leaving);
    if (description) {
        ArenaMark mark = arena_mark(arena);
        AmStatus status = check_connected(self, arena, cluster, source, error);
        arena_release(arena, mark);
        TRY(status);
        /* A switch with one edge joins nothing: most likely its name is misspelt. */
        for (int32_t v = self->device_count; v < self->vertex_count; v++)
            if (self->first_leaving[v + 1] - self->first_leaving[v] < 2)
                return am_fail(error, AM_ERROR_INPUT, source,
                               "$.topology: the switch \"%s\" has fewer than two edges, so it joins nothing",
                               self->switches[v - self->device_count]);
    }
    TRY(topology_prepare_routes(self, arena, error));
    *topology = self;
    return description ? name_links(self, arena, cluster, error) : AM_OK;
}

AmStatus topology_part(Topology **topology, Arena *arena, const Cluster *of, const int32_t *devices,
                       int32_t count, AmError *error) {
    const Topology *from = of->topology;
    int32_t vertices = from->vertex_count, next = count;
    Topology *self = ARENA_ARRAY(arena, Topology, 1);
    int32_t *number = ARENA_ARRAY(arena, int32_t, vertices); /* [vertex of `of`] */
    TopologyEdge *edges = ARENA_ARRAY(arena, TopologyEdge, from->edge_count + 1);
    const char **switches = ARENA_ARRAY(arena, const char *, vertices - count + 1);
    int32_t *first = ARENA_ARRAY(arena, int32_t, vertices + 1);
    int32_t *leaving = ARENA_ARRAY(arena, int32_t, 2 * from->edge_count + 1);
    if (arena->failed) return am_fail_memory(error, vertices);
    for (int32_t v = 0; v < vertices; v++) number[v] = -1;
    for (int32_t k = 0; k < count; k++) number[devices[k]] = k;
    for (int32_t v = 0; v < vertices; v++) {
        if (number[v] >= 0) continue;
        Text name = {0};
        topology_append_vertex(&name, of, v);
        switches[next - count] = name.data ? arena_copy_string(arena, name.data) : NULL;
        text_free(&name);
        number[v] = next++;
    }
    for (int32_t e = 0; e < from->edge_count; e++) {
        edges[e] = from->edges[e];
        edges[e].from = number[edges[e].from];
        edges[e].to = number[edges[e].to];
    }
    *self = *from;
    self->device_count = count;
    self->edges = edges;
    self->first_leaving = first;
    self->leaving = leaving;
    self->switches = switches;
    index_edges(self, first, leaving);
    *topology = self;
    return topology_prepare_routes(self, arena, error);
}

void topology_append_vertex(Text *text, const Cluster *cluster, int32_t vertex) {
    const Topology *self = cluster->topology;
    if (vertex >= self->device_count) {
        text_append_string(text, self->switches[vertex - self->device_count]);
        return;
    }
    int32_t server = cluster->server_of[vertex];
    text_append(text, "server%d/device%d", server, vertex - cluster->servers[server].first_device);
}

void topology_append_edge(Text *text, const Cluster *cluster, int32_t directed) {
    const Topology *self = cluster->topology;
    topology_append_vertex(text, cluster, topology_edge_start(self, directed));
    text_append_string(text, " -> ");
    topology_append_vertex(text, cluster, topology_edge_end(self, directed));
    text_append(text, " (%s)", cluster->links[self->edges[directed / 2].link].name);
}
