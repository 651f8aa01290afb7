/* Profile graphs: the text format in which PipeDream and DAPPLE publish measured networks.
 *
 *   node1 -- Input -- forward_compute_time=0.000, backward_compute_time=0.000,
 *     activation_size=602112.0, parameter_size=0.000
 *   node2 -- Conv2d(3, 64) -- forward_compute_time=1.250, backward_compute_time=2.500,
 *     activation_size=..., parameter_size=...
 *   <tab>node1 -- node2
 *
 * A line (here broken) is a node: its name, its kind, and its figures: milliseconds of a
 * micro-batch, bytes of its result and of its weights (a list "[8.0; 16.0]" counts as its sum; a
 * last field "stage_id=N" is ignored). A line that begins with a tab is an edge from a producer to
 * a consumer. The order is free; names are arbitrary.
 *
 * For a pipeline the graph becomes a chain of places. If it has at most PROFILE_MOST_DOWNSETS
 * downsets, these are the places: a partition is then any sequence of stages of which none needs a
 * later one. Otherwise they form one topological order, ties by the order in the file, which can
 * miss better partitions; `space` names the choice.
 */
#ifndef PLANNERS_CUT_AGENT_PROFILE_GRAPH_H
#define PLANNERS_CUT_AGENT_PROFILE_GRAPH_H

#include "planners/cut_agent/chain.h"

#define PROFILE_MOST_DOWNSETS 1600
#define PROFILE_MOST_NODES    100000

typedef struct ProfileNode {
    const char *name, *description;
    double forward, backward;     /* seconds */
    double activation, parameter; /* bytes */
} ProfileNode;

typedef struct ProfileGraph {
    const char *source;
    int32_t node_count, edge_count;
    ProfileNode *nodes;
    int32_t *producers, *consumers; /* [edge_count], by edge */
    int32_t *order;                 /* [node_count] topological */
} ProfileGraph;

/* Reads text[0..length); all memory is the arena's. AM_ERROR_INPUT names the line: not of the form, a number
 * that is negative or not finite, a name twice or unknown, an edge twice or to itself, a cycle, no nodes. */
AmStatus profile_graph_parse(ProfileGraph *graph, Arena *arena, const char *source, const char *text,
                             int64_t length, AmError *error);

/* Finds the places of the graph; `*space` is "downsets" or "linear order". With `in_a_row` always the
 * latter. */
AmStatus profile_graph_chain(Chain *chain, const char **space, Arena *arena, const ProfileGraph *graph,
                             bool in_a_row, AmError *error);

#endif
