/* The parts of a sharding graph, which sharding_graph.c builds and plan_cost.c reads to find the labels of a
 * plan. */
#ifndef COST_RELAXATION_GRAPH_PARTS_H
#define COST_RELAXATION_GRAPH_PARTS_H

#include "cost/relaxation/sharding_graph.h"

enum { SHARDING_GRAPH_MOST_CARRYING = 3, SHARDING_GRAPH_NOWHERE = -1 };

/* A choice of an operator on one axis. */
typedef struct ShardingGraphOption {
    int8_t factor;   /* -1: none */
    uint8_t partial; /* operands (bits) that are read as partial sums */
} ShardingGraphOption;

typedef struct ShardingGraphPart {
    int32_t operator_node, tensor_node; /* SHARDING_GRAPH_NOWHERE: none */
    int32_t readers;
    bool is_written; /* some reader reads it from memory */
    int32_t option_count[RESHARD_AXES];
    ShardingGraphOption *options[RESHARD_AXES];
    const ReshardState *operator_states; /* [labels of the operator]: of its result */
    const ReshardState *produced_states; /* [labels of the node that readers have an edge from] */
} ShardingGraphPart;

static inline ShardingGraphOption sharding_graph_option(const ShardingGraphPart *part, int32_t label,
                                                        int32_t axis) {
    int32_t minor = part->option_count[1];
    return part->options[axis][axis == 0 ? label / minor : label % minor];
}

/* An edge before it is known how many others read the same. */
typedef struct ShardingGraphUse {
    int32_t source; /* instruction */
    int32_t reader; /* node */
    const ReshardState *needed_states;
    double times;
} ShardingGraphUse;

typedef struct ShardingGraphParts {
    ShardingGraphPart *parts; /* [instruction] */
    double *times;            /* [instruction]: runs in a step */
    bool *
        is_f32_sum; /* [instruction]: its partial sums are those of 16-bit products alone, which are in f32 */
    ShardingGraphUse *uses; /* by source */
    int32_t *first_use;     /* [instruction + 1] */
    bool *is_optimizer;     /* [instruction]: a parameter of role optimizer, which may be offloaded */
    double *kept_bytes;     /* [instruction]: of a parameter, which a device keeps all the time; else 0 */
} ShardingGraphParts;

#endif
