/* A lower bound of the sharding graph over all choices of labels, in the memory of a few layers.
 *
 * The method is tree-reweighted message passing (Kolmogorov 2006) on the dual of the linear
 * relaxation. Repeated layers are folded: nodes with equal neighbourhoods up to a depth of several
 * edges share their messages. Any messages give a valid bound, and the bound is summed over the
 * unfolded graph, each folded node times its multiplicity. Folding can therefore weaken the bound
 * but never invalidate it.
 */
#ifndef COST_RELAXATION_GRAPH_BOUND_H
#define COST_RELAXATION_GRAPH_BOUND_H

#include "base/system/stop.h"
#include "cost/relaxation/sharding_graph.h"

typedef struct ShardingGraphFold ShardingGraphFold;

/* Folds the graph, in the arena. The graph's arena outlives it. */
AmStatus sharding_graph_fold(ShardingGraphFold **fold, Arena *arena, const ShardingGraph *graph,
                             AmError *error);
/* Makes sharding_graph_bound() stop early, with the bound proved so far, when `stop` requests it; NULL:
 * never.
 */
void sharding_graph_fold_watch(ShardingGraphFold *fold, const StopSignal *stop);
/* Finds which nodes are alike as far as `rounds` edges away and belong to instructions of equal looks
 * [instruction]: kinds [node], numbered in the order of the program. */
AmStatus sharding_graph_kinds(int32_t **kinds, int32_t *kind_count, Arena *arena, const ShardingGraph *graph,
                              const uint64_t *looks, int32_t rounds, AmError *error);

/* The weight of a second of each kind. Weights that add up to 1 bound a step in which computing and
 * resharding may overlap; weights 1 and 1 bound a step without overlap. */
typedef struct ShardingGraphWeights {
    double compute, communication;
} ShardingGraphWeights;

/* Returns at most the least, over all labels, of the weighted seconds; found in at most `sweeps` sweeps.
 * Messages are kept, so that a call with like weights goes on from the last one's; the first call starts them
 * at 0. */
double sharding_graph_bound(ShardingGraphFold *fold, const ShardingGraphWeights *weights, int32_t sweeps);

/* A node, and all that share its messages, with another label than a plan's. */
typedef struct ShardingGraphRelabel {
    int32_t node, label;
} ShardingGraphRelabel;

/* A proposed change of a plan. */
typedef struct ShardingGraphChange {
    const ShardingGraphRelabel *relabels; /* by node */
    int32_t count;
    double slack; /* of a single operator: seconds by which the plan is dearer, at these nodes and their
                     edges, than the bound says */
    double gain;  /* of a patch: seconds by which the graph's sum decreases */
} ShardingGraphChange;

/* Finds the two best other labels of every operator with slack, the most slack first. `labels`: those of a
 * plan (sharding_graph_labels()); the messages are those of the last bound, which was of `weights`. In the
 * arena. */
AmStatus sharding_graph_changes(ShardingGraphChange **changes, int32_t *count, Arena *arena,
                                ShardingGraphFold *fold, const int32_t *labels,
                                const ShardingGraphWeights *weights, AmError *error);
/* Proposes patches, each of several operators and tensors that share a class and gain by changing together
 * (graph_patches.c), with the arguments of sharding_graph_changes(). First are those that share no node
 * with one of more gain, then the others, each the most gain first. */
AmStatus sharding_graph_patches(ShardingGraphChange **patches, int32_t *count, Arena *arena,
                                ShardingGraphFold *fold, const int32_t *labels,
                                const ShardingGraphWeights *weights, AmError *error);
bool sharding_graph_share_a_node(const ShardingGraphChange *a, const ShardingGraphChange *b);
bool sharding_graph_is_alike(const ShardingGraphFold *fold, int32_t node, int32_t other);

#endif
