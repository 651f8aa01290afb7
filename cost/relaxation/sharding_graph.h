/* The sharding graph: the cost of a one-stage plan as a sum over operators and edges
 * (docs/method.md).
 *
 * A node is an operator or a tensor. The labels of an operator are the ways
 * to split it: on each mesh axis a factor, replication, or operands that stay partial. A tensor is
 * a node if it is a parameter or has several readers; its labels are the states in which it is
 * kept. A label costs seconds of computing. An edge costs seconds of resharding from the state that
 * one end produces to the state that the other needs. Each instruction chooses its label freely, so
 * that every assignment of every plan, with any overrides, is one choice of labels.
 *
 * Both costs are lower bounds of the price of the lowered program:
 *   products, reductions   local FLOPs and bytes by the roofline of cost/operator/operator.c
 *   element-wise operators the cost that no fusion avoids: one launch for each group
 *                          (fusion_groups.h); a result that is needed outside is written once, and each
 *                          group reads it as often as its readers must be in different fusions, at
 *                          the memory rate for the most bytes that one fusion can move
 *   data movement          concatenations and similar steps: local bytes and a launch
 *   other operators        zero
 *   resharding             reshard_costs.h; the readers of a tensor share the cost of resharding it from
 *                          the state in which it is kept, so that it is paid once if all need it
 * Operators in a loop count once per trip.
 */
#ifndef COST_RELAXATION_SHARDING_GRAPH_H
#define COST_RELAXATION_SHARDING_GRAPH_H

#include "cost/relaxation/reshard_costs.h"
#include "lowering/spmd/lower.h"

typedef struct ShardingGraphNode {
    int32_t instruction;
    bool is_tensor;
    int32_t label_count;
    const float *seconds; /* [label_count] of computing, in a step; NULL: 0 */
    double launches; /* of fusions that end with it, in `seconds` of every label; not of ranges made there */
} ShardingGraphNode;

/* From the node that produces a value to a node that reads it. */
typedef struct ShardingGraphEdge {
    int32_t producer, reader; /* nodes */
    const ReshardState *produced_states,
        *needed_states; /* [labels of the producer], [labels of the reader] */
    float scale;        /* bytes of the global tensor, times runs */
    float share;        /* fraction of that cost, if other readers share it; 1: the only reader */
    bool is_f32_sum;    /* sums are moved in elements of twice the size */
} ShardingGraphEdge;

typedef struct ShardingGraph {
    const PlanContext *context;
    const Mesh *mesh;
    const ReshardCosts *reshards;
    ShardingGraphNode *nodes;
    ShardingGraphEdge *edges; /* by `reader` */
    int32_t node_count, edge_count;
    struct ShardingGraphParts *parts; /* sharding_graph.c's: what plans are looked up with */
} ShardingGraph;

/* Creates the graph of `context` on a mesh of devices of one type; everything lives in the arena, and the
 * mesh outlives it. `*graph` NULL: the mesh splits along more than two axes, has unequal shares, devices of
 * several types, or of a type whose operators were measured one by one: then nothing is claimed. */
AmStatus sharding_graph_create(ShardingGraph **graph, Arena *arena, const PlanContext *context,
                               const PlacedMesh *on, AmError *error);

/* Creates an estimate on a mesh of devices of any types with any shares: the graph of equal shares, with the
 * computing seconds of the slowest type. It bounds no plan of unequal shares. `*graph` NULL: the mesh splits
 * along more than two axes, or operators of a type were measured one by one. */
AmStatus sharding_graph_create_estimate(ShardingGraph **graph, Arena *arena, const PlanContext *context,
                                        const PlacedMesh *on, AmError *error);

/* Creates the graph without seconds of computing, on a mesh of devices of any types with any shares. The
 * costs of edges are lower bounds of the mean over the devices. `*graph` NULL: more than two axes split. */
AmStatus sharding_graph_create_mixed(ShardingGraph **graph, Arena *arena, const PlanContext *context,
                                     const PlacedMesh *on, AmError *error);

/* The kinds of tensors that are resharded. */
typedef enum ShardingGraphPurpose {
    SHARDING_GRAPH_VALUES,  /* of the forward and backward pass: the step waits for them */
    SHARDING_GRAPH_WEIGHTS, /* weights and other parameters, before they are read */
    SHARDING_GRAPH_UPDATES, /* gradients and updated weights */
    SHARDING_GRAPH_PURPOSES
} ShardingGraphPurpose;

/* Resharding along one axis. A tensor that is resharded along both axes gives each one half. */
typedef struct ShardingGraphTraffic {
    double seconds, messages;
} ShardingGraphTraffic;

typedef struct ShardingGraphCost {
    double compute_seconds, communication_seconds;
    double kept_bytes; /* of parameters that the step updates: a device has no less than these all the time */
    double saved_bytes;  /* of a device's forward values that the backward pass reads */
    double widest_bytes; /* of a device's largest value */
    ShardingGraphTraffic traffic[SHARDING_GRAPH_PURPOSES]
                                [RESHARD_AXES]; /* the parts of communication_seconds */
} ShardingGraphCost;

/* Returns the cost of an assignment on the graph's mesh; resharding is paid once for each tensor and
 * needed state. */
ShardingGraphCost sharding_graph_cost(const ShardingGraph *graph, const Assignment *assignment);

/* Computes the label of each node in an assignment: labels [node], in the arena. */
AmStatus sharding_graph_labels(int32_t **labels, Arena *arena, const ShardingGraph *graph,
                               const Assignment *assignment, AmError *error);
/* Computes the factors that a label of an operator splits on the mesh's axes, -1 for none. Returns
 * false if the label has partial operands, which no plan can request. */
bool sharding_graph_label_factors(const ShardingGraph *graph, int32_t node, int32_t label,
                                  int32_t factors[MESH_MAX_AXES]);
/* Returns the state in which a label of a tensor keeps it. False: it has any state, or it is partial. */
bool sharding_graph_label_state(const ShardingGraph *graph, int32_t node, int32_t label, SbpState *state);
/* Finds the intermediate state through which the only reader of operator i's result reshards it. Returns
 * false without an intermediate state, or if it is partial. */
bool sharding_graph_wanted_state(const ShardingGraph *graph, const Assignment *assignment, int32_t i,
                                 SbpState *state);

/* A representative sample of the instructions: one of each kind with its neighbours,
 * weighted by the number of instructions of the kind. The cost of an assignment of the sample
 * approximates the cost of the module in a fraction of the time; it is not a bound. */
typedef struct ShardingGraphSample ShardingGraphSample;
/* Samples the graph, in the arena. The graph's arena outlives it. */
AmStatus sharding_graph_sample(ShardingGraphSample **sample, Arena *arena, const ShardingGraph *graph,
                               AmError *error);
/* Returns the graph's context, in which assignments cover the sample alone. */
const PlanContext *sharding_graph_sample_context(const ShardingGraphSample *sample);
ShardingGraphCost sharding_graph_sample_cost(const ShardingGraphSample *sample, const Assignment *assignment);

#endif
