/* Loads are kept per directed edge with a list of those that have one, so that
 * forgetting costs as much as adding did. */
#include "cost/collective/edge_load.h"

AmStatus edge_loads_open(EdgeLoads *self, Arena *arena, const Cluster *cluster, AmError *error) {
    const Topology *topology = cluster->topology;
    size_t edges = 2 * (size_t)topology->edge_count;
    *self = (EdgeLoads){.cluster = cluster,
                        .arena = arena,
                        .load = ARENA_ARRAY(arena, double, edges + 1),
                        .members = ARENA_ARRAY(arena, int32_t, edges + 1),
                        .is_touched = ARENA_ARRAY(arena, bool, edges + 1),
                        .crossed = ARENA_ARRAY(arena, int32_t, edges + 1),
                        .touched = ARENA_ARRAY(arena, int32_t, edges + 1),
                        .route = ARENA_ARRAY(arena, int32_t, topology->longest + 1),
                        .terms = ARENA_ARRAY(arena, EdgeTerm, cluster->link_count + 1),
                        .term_of = ARENA_ARRAY(arena, int32_t, cluster->link_count + 1)};
    if (arena->failed) return am_fail_memory(error, (int64_t)edges);
    for (int32_t k = 0; k < cluster->link_count; k++) self->term_of[k] = -1;
    return AM_OK;
}

static void add_to_edge(EdgeLoads *self, int32_t edge, double bytes) {
    if (!self->is_touched[edge]) self->touched[self->touched_count++] = edge;
    self->is_touched[edge] = true;
    self->load[edge] += bytes;
}

static void follow_edge(EdgeLoads *self, int32_t edge) {
    const TopologyEdge *of = &self->cluster->topology->edges[edge / 2];
    if (self->term_of[of->link] < 0) {
        self->term_of[of->link] = self->term_count;
        self->terms[self->term_count++] = (EdgeTerm){.link = of->link, .edge = edge};
    }
    EdgeTerm *term = &self->terms[self->term_of[of->link]];
    double seconds_per_byte = self->load[edge] / of->bytes_per_second;
    if (seconds_per_byte <= term->seconds_per_byte) return;
    term->seconds_per_byte = seconds_per_byte;
    term->edge = edge;
}

/* Finds the way from a to b, in self->route. */
static double find_way(EdgeLoads *self, int32_t a, int32_t b, int32_t *count) {
    const Topology *topology = self->cluster->topology;
    double latency = 0;
    topology_route(topology, a, b, self->route, count);
    for (int32_t k = 0; k < *count; k++) latency += topology->edges[self->route[k] / 2].latency_seconds;
    return latency;
}

/* Keeps the way of a flow for later; false without memory. */
static bool keep_way(EdgeLoads *self, int32_t length, double latency) {
    ARENA_RESERVE(self->arena, self->ways, self->way_count, self->way_capacity);
    for (int32_t k = 0; k < length && !self->arena->failed; k++) {
        ARENA_RESERVE(self->arena, self->way_edges, self->way_edge_count, self->way_edge_capacity);
        if (!self->arena->failed) self->way_edges[self->way_edge_count++] = self->route[k];
    }
    if (self->arena->failed) return false;
    self->ways[self->way_count++] = (EdgeWay){latency, self->way_edge_count - length, length};
    return true;
}

double edge_loads_add(EdgeLoads *self, int32_t a, int32_t b, double bytes) {
    int32_t count;
    double latency = find_way(self, a, b, &count);
    if (!keep_way(self, count, latency)) return latency;
    for (int32_t k = 0; k < count; k++) add_to_edge(self, self->route[k], bytes);
    return latency;
}

double edge_loads_follow(EdgeLoads *self) {
    if (self->arena->failed || self->way_count == 0) return 0;
    const EdgeWay *way = &self->ways[self->next_way];
    self->next_way = (self->next_way + 1) % self->way_count;
    for (int32_t k = 0; k < way->length; k++) follow_edge(self, self->way_edges[way->first + k]);
    return way->latency;
}

/* Counts the devices that send over each edge towards the first one. */
static double count_members(EdgeLoads *self, const int32_t *devices, int32_t count) {
    double longest = 0;
    self->crossed_count = 0;
    for (int32_t k = 1; k < count; k++) {
        int32_t length;
        double latency = find_way(self, devices[k], devices[0], &length);
        if (latency > longest) longest = latency;
        for (int32_t e = 0; e < length; e++)
            if (self->members[self->route[e]]++ == 0) self->crossed[self->crossed_count++] = self->route[e];
    }
    return longest;
}

double edge_loads_add_pairs(EdgeLoads *self, const int32_t *devices, int32_t count, double bytes) {
    double longest = count_members(self, devices, count);
    for (int32_t k = 0; k < self->crossed_count; k++) {
        int32_t edge = self->crossed[k];
        double pairs = (double)self->members[edge] * (count - self->members[edge]);
        self->members[edge] = 0;
        add_to_edge(self, edge, pairs * bytes);
        add_to_edge(self, edge ^ 1, pairs * bytes);
    }
    return longest;
}

double edge_loads_follow_pairs(EdgeLoads *self, const int32_t *devices, int32_t count) {
    double longest = count_members(self, devices, count);
    for (int32_t k = 0; k < self->crossed_count; k++) {
        self->members[self->crossed[k]] = 0;
        follow_edge(self, self->crossed[k]);
        follow_edge(self, self->crossed[k] ^ 1);
    }
    return longest;
}

void edge_loads_forget(EdgeLoads *self) {
    for (int32_t k = 0; k < self->term_count; k++) self->term_of[self->terms[k].link] = -1;
    self->term_count = 0;
}

void edge_loads_clear(EdgeLoads *self) {
    edge_loads_forget(self);
    for (int32_t k = 0; k < self->touched_count; k++) {
        self->load[self->touched[k]] = 0;
        self->is_touched[self->touched[k]] = false;
    }
    self->touched_count = self->way_count = self->way_edge_count = self->next_way = 0;
}

double edge_terms_seconds(const EdgeTerm *terms, int32_t count, double bytes, double tensor_bytes,
                          const Cluster *cluster, int32_t *worst) {
    double slowest = 0;
    *worst = -1;
    for (int32_t k = 0; k < count; k++) {
        const ClusterLink *link = &cluster->links[terms[k].link];
        double seconds =
            terms[k].seconds_per_byte * bytes / cluster_efficiency(&link->efficiency, tensor_bytes);
        if (*worst >= 0 && seconds <= slowest) continue;
        slowest = seconds;
        *worst = k;
    }
    return slowest;
}

void edge_terms_describe(Text *text, const EdgeTerm *terms, int32_t count, int32_t messages, double latency,
                         double bytes, double tensor_bytes, const Cluster *cluster) {
    int32_t worst;
    double seconds = edge_terms_seconds(terms, count, bytes, tensor_bytes, cluster, &worst);
    text_append(text, ": %d message%s, ", messages, messages == 1 ? "" : "s");
    text_append_seconds(text, latency);
    if (worst >= 0) {
        const EdgeTerm *term = &terms[worst];
        double rate = cluster->topology->edges[term->edge / 2].bytes_per_second;
        text_append_string(text, "; busiest ");
        topology_append_edge(text, cluster, term->edge);
        text_append_string(text, ": ");
        text_append_bytes_size(text, term->seconds_per_byte * rate * bytes);
        text_append_string(text, " at ");
        text_append_bytes_size(text, rate);
        text_append(text, "/s x %.3g, ",
                    cluster_efficiency(&cluster->links[term->link].efficiency, tensor_bytes));
        text_append_seconds(text, seconds);
    }
    text_append_string(text, "\n");
}
