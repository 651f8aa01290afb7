/* Seconds of computing for the labels of a sharding graph's operators. sharding_graph.h lists the kinds of
 * operators and the cost of each. */
#ifndef COST_RELAXATION_NODE_COSTS_H
#define COST_RELAXATION_NODE_COSTS_H

#include "cost/cluster/cluster.h"
#include "cost/relaxation/fusion_groups.h"
#include "cost/relaxation/graph_parts.h"

typedef struct ShardingGraphComputing {
    const ShardingGraph *graph;     /* with all its nodes */
    const PlanContext *context;     /* of the graph */
    const ReshardCosts *reshards;   /* of the graph */
    const ShardingGraphPart *parts; /* [instruction] */
    const double *times;            /* [instruction]: runs in a step */
    const FusionGroups *fusion_groups;
    const ClusterDeviceType *type;
} ShardingGraphComputing;

/* Sets `seconds` of the operators' nodes, in the arena. AM_ERROR_INTERNAL: no memory. */
AmStatus sharding_graph_set_seconds(const ShardingGraphComputing *self, Arena *arena, AmError *error);

#endif
