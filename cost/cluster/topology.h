/* Topology: the links of a cluster as a graph.
 *
 * Vertices 0..device_count-1 are the devices, the other vertices are switches of any kind
 * (NVSwitch, PCIe switch, network card, rail, upper level). An edge is a full-duplex link: it
 * carries bytes_per_second in each direction at once, shared by all flows. Edge e is the directed
 * edge 2e forwards (from -> to) and 2e+1 backwards.
 *
 * The keys `servers` and `between_servers` of a cluster file describe the tree
 *
 *     device -- (link of its server) -- serverS/switch -- (between_servers) -- network
 *
 * in which a server of one device has no switch. A link's latency is that of a whole message there,
 * so that a device's edge has half of its link's latency a_in, and a server's edge the missing part
 * of half of a_out: a route inside a server takes a_in and one between servers max(a_in, a_out), as
 * in the formulas of cost/collective/collective.c. The key `topology` adds edges and switches, each with its
 * link's whole latency (cost/cluster/topology_read.c; docs/cost-model.md).
 */
#ifndef COST_CLUSTER_TOPOLOGY_H
#define COST_CLUSTER_TOPOLOGY_H

#include "cost/cluster/cluster.h"

/* At most so many edges: four for each of as many devices as a mesh can have. */
#define TOPOLOGY_MOST_EDGES (1 << 18)

typedef struct TopologyEdge {
    int32_t from, to;        /* vertices */
    int32_t link;            /* of the cluster */
    double bytes_per_second; /* each way: the link's, times the number of parallel links */
    double latency_seconds;
} TopologyEdge;

typedef struct Topology {
    int32_t device_count, vertex_count, edge_count;
    bool is_derived; /* nothing but the tree that servers and between_servers give */
    bool is_tree;    /* one route between any two vertices */
    int32_t longest; /* no route has more edges */
    const TopologyEdge *edges;
    const int32_t *first_leaving; /* [vertex_count + 1] into `leaving` */
    const int32_t *leaving;       /* [2 * edge_count] directed edges by the vertex that they leave */
    const char *const *switches;  /* [vertex_count - device_count] names */
    struct TopologyRoutes *routes;
} Topology;

/* Builds the graph of a cluster whose links and servers are read; `description` is the value of the
 * key `topology`, or NULL. If the graph describes them, the slowest link becomes the link inside a
 * server and between servers. Allocates in the arena. AM_ERROR_INPUT: an edge is wrong (with its
 * JSON path), or two devices have no route between them. */
AmStatus topology_build(Topology **topology, Arena *arena, Cluster *cluster, json_t *description,
                        const char *source, AmError *error);

/* Makes the graph of a part of a cluster (cluster_part()): devices that are left out become switches. */
AmStatus topology_part(Topology **topology, Arena *arena, const Cluster *of, const int32_t *devices,
                       int32_t count, AmError *error);

/* Returns the bytes per second that the device with the fastest links sends over all of them. */
double topology_fastest_rate(const Topology *topology);

/* Finds the directed edges from device a to device b in order, at most `longest`; none if a == b. The route
 * has the least latency, then the fewest edges, then the lowest edge at a tie. In a tree the time is that of
 * the route; else that of a search through the graph, unless the cache has routes from `a`. Thread-safe. */
void topology_route(const Topology *topology, int32_t a, int32_t b, int32_t *edges, int32_t *count);

static inline int32_t topology_edge_start(const Topology *topology, int32_t directed) {
    const TopologyEdge *edge = &topology->edges[directed / 2];
    return directed % 2 ? edge->to : edge->from;
}

static inline int32_t topology_edge_end(const Topology *topology, int32_t directed) {
    return topology_edge_start(topology, directed ^ 1);
}

/* Appends "server0/device3", "server0/switch". */
void topology_append_vertex(Text *text, const Cluster *cluster, int32_t vertex);
/* Appends "server0/device3 -> server0/switch (nvlink)". */
void topology_append_edge(Text *text, const Cluster *cluster, int32_t directed);

/* A graph in the making: switches and edges in the order in which they are added. */
typedef struct TopologyDraft {
    Arena *arena;
    const Cluster *cluster;
    TopologyEdge *edges;
    const char **switches;
    int32_t edge_count, edge_capacity, switch_count, switch_capacity;
} TopologyDraft;

/* Returns the vertex of a new switch (the name is copied), -1 without memory. */
int32_t topology_add_switch(TopologyDraft *draft, const char *name);
/* Takes the link's bandwidth `width` times. */
void topology_add_edge(TopologyDraft *draft, int32_t from, int32_t to, int32_t link, double width,
                       double latency_seconds);
/* Adds the edges and switches of the key `topology`. */
AmStatus topology_read(TopologyDraft *draft, json_t *description, const char *source, AmError *error);

/* Makes routes findable; topology_build() ends with it. */
AmStatus topology_prepare_routes(Topology *topology, Arena *arena, AmError *error);

#endif
