/* Bytes on the directed edges of a cluster's graph, and the busiest edge.
 *
 * Flows from device to device are added along their routes, for all groups. Then the flows of
 * interest are followed once more, in the same order. Each link that they cross is represented by
 * its busiest edge: seconds per byte at the link's full rate. Efficiency curves belong to links,
 * not to edges, so that these few terms give the time for any size:
 *     max over terms of  seconds_per_byte S / efficiency(S).
 */
#ifndef COST_COLLECTIVE_EDGE_LOAD_H
#define COST_COLLECTIVE_EDGE_LOAD_H

#include "cost/cluster/topology.h"

/* The busiest edge of a link. */
typedef struct EdgeTerm {
    int32_t link, edge; /* `edge` is directed */
    double seconds_per_byte;
} EdgeTerm;

/* Of one flow. */
typedef struct EdgeWay {
    double latency;
    int32_t first, length; /* in `way_edges` */
} EdgeWay;

typedef struct EdgeLoads {
    const Cluster *cluster;
    double *load;     /* [2 * edge_count] directed edges */
    int32_t *members; /* [2 * edge_count] scratch: how many send over an edge */
    bool *is_touched; /* [2 * edge_count] */
    int32_t *touched; /* [touched_count] those with a load */
    int32_t *crossed; /* [crossed_count] scratch: those with members */
    Arena *arena;
    EdgeWay *ways;      /* [way_count] of the flows, in the order in which they were added */
    int32_t *way_edges; /* [way_edge_count] */
    int32_t *route;     /* [longest] */
    EdgeTerm *terms;    /* [term_count] of the flows that were followed */
    int32_t *term_of;   /* [link_count] -1: not crossed */
    int32_t touched_count, crossed_count, term_count;
    int32_t way_count, way_capacity, way_edge_count, way_edge_capacity, next_way;
} EdgeLoads;

/* Begins without loads. Arrays live in the arena, and grow there. AM_ERROR_INTERNAL: no memory; so it is
 * where the arena has failed at the end. */
AmStatus edge_loads_open(EdgeLoads *self, Arena *arena, const Cluster *cluster, AmError *error);
/* Adds `bytes` to every edge from device a to device b; returns the latency of the way. */
double edge_loads_add(EdgeLoads *self, int32_t a, int32_t b, double bytes);
/* Looks for the busiest edges on the way of the next flow, the first one after the last; returns its
 * latency. */
double edge_loads_follow(EdgeLoads *self);
/* Adds, in a tree, pairs: each of `count` devices sends `bytes` to every other. An edge with c of them on one
 * side carries c (count - c) bytes each way, so that the routes to the first device suffice. Both functions
 * return the longest latency of those routes. */
double edge_loads_add_pairs(EdgeLoads *self, const int32_t *devices, int32_t count, double bytes);
double edge_loads_follow_pairs(EdgeLoads *self, const int32_t *devices, int32_t count);
/* Removes all terms; flows that are followed next create new ones. */
void edge_loads_forget(EdgeLoads *self);
/* Forgets everything. */
void edge_loads_clear(EdgeLoads *self);

/* Returns the seconds of the slowest term for `bytes`; `*worst` is its number (-1 without terms).
 * `tensor_bytes`: the size at which efficiencies are taken. */
double edge_terms_seconds(const EdgeTerm *terms, int32_t count, double bytes, double tensor_bytes,
                          const Cluster *cluster, int32_t *worst);

/* Ends a line with that: messages, their latency, the busiest link with its load, rate and efficiency. */
void edge_terms_describe(Text *text, const EdgeTerm *terms, int32_t count, int32_t messages, double latency,
                         double bytes, double tensor_bytes, const Cluster *cluster);

#endif
