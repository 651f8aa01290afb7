/* Lower bounds of the step: no plan of a space takes fewer seconds.
 *
 *   bound        header             plans                  devices         seconds
 *   work         bound_of_work.h    all                    any             sum over n of min of w(k) t(n, k)
 *   launches     bound_launches.h   all, 1 to S stages     not measured    launch x max(chain, total / S)
 *   graph        bound.h            one stage              one type        a C + (1 - a) X
 *   any M        bound.h            one stage, any M       one type        the same, less recomputation
 *   mixed        bound_mixed.h      one stage, any M       several types   a (C + g (bytes - L)) + (1 - a) X
 *   pipelines    bound_pipelines.h  2 to S stages, any M   any             longest path of iterations
 *
 * M is the number of micro-batches. t(n, k) is the time of operator n on a device of type k. w(k) is a weight
 * of the type; the weights of all devices add up to 1. C is all computing and X all resharding of a device in
 * the sharding graph (cost/relaxation/sharding_graph.h), where each operator has a label: a split and states.
 *
 * Bounds by the graph are the least over meshes of the greatest over a and g of the least over labels. On
 * devices that do not overlap computing and communication, C + X replaces a C + (1 - a) X. The bound of
 * pipelines is the least over cuts and widths. It covers at most 256 devices of one type, or 256 choices of
 * devices of several types for a stage.
 *
 * Which one wins:
 *
 *   one stage     plan_bound_find()        max(graph, launches); else max(work, alone, mixed, launches)
 *   any stages    plan_bound_pipelines()   max(work, launches, min(pipelines, max(alone, any M or mixed)))
 *   quickly       plan_bound_quickly()     max(work, launches)
 *
 * "alone" is the work on one stage with the launches of each device, plan_bound_alone().
 *
 * A search reports at most the step of its own plan. The gap of a plan is its simulated step over the bound,
 * less 1. The model gap is its C + X over the bound of C + X on its mesh, less 1.
 *
 * This header declares the bounds by the graph. Their space is every choice of states and factors, operator
 * by operator, on every given mesh. It contains all axis priorities, with storage, pins and overrides.
 */
#ifndef PLANNERS_BOUNDS_BOUND_H
#define PLANNERS_BOUNDS_BOUND_H

#include "base/system/stop.h"
#include "cost/cluster/cluster.h"
#include "cost/relaxation/graph_bound.h"
#include "propagation/plan/plan.h"

typedef struct PlanBound {
    double seconds;   /* no plan of the space takes less; NAN: nothing is claimed
                         (cost/relaxation/sharding_graph.h) */
    double model_gap; /* at least the distance to the exact optimum of the graph on the plan's mesh; NAN */
} PlanBound;

/* The memory that plans may use. */
typedef struct BoundMemory {
    double fraction;         /* of each device's; 0: any */
    bool offloads_optimizer; /* all plans keep the optimizer's state in the host's memory */
} BoundMemory;

/* The meshes of a space; mesh device d is cluster device devices[d]. */
typedef struct BoundMeshes {
    const Mesh *of; /* [count] without shares */
    int32_t count;
    const int32_t *devices;
    double memory_fraction;
    bool offloads_optimizer; /* of all plans */
} BoundMeshes;

/* Finds the bound of a plan. `plan` has one stage, on one of the meshes, and has been simulated. If `stop`
 * is set, the bound is weak or 0. The meshes are bounded concurrently; the result does not depend on the
 * number of threads. AM_ERROR_INTERNAL: memory is exhausted. */
AmStatus plan_bound_find(PlanBound *bound, const PlanContext *context, const Cluster *cluster,
                         const BoundMeshes *meshes, const Plan *plan, const StopSignal *stop, AmError *error);

/* Finds a bound of one-stage plans in any number of micro-batches, with any recomputation, over all meshes of
 * all devices: of one type with growing efficiencies, divided into the largest number of equal servers.
 * `enough`: a bound above which no improvement is needed. `*seconds` is 0 without a claim.
 *
 * The sharding graph of the module as read holds for micro-batches as well. Products and reductions in M
 * parts take at least as long in total if efficiencies grow with size. Resharding moves the same number of
 * bytes in total, at the best rate. Weights are gathered, and their gradients reduced, at least once. A
 * recomputed value may have another state than the original: operators outside the forward pass use forward
 * values for free, and a forward operator that fuses counts with its best split. */
AmStatus plan_bound_one_stage(double *seconds, const PlanContext *primary, const Cluster *cluster,
                              double enough, const StopSignal *stop, AmError *error);

/* Finds the plan's computing plus resharding in the sharding graph over a lower bound of its minimum over
 * all labels, less 1. For several stages both sums are over all stages, each with its own values, on its own
 * mesh. `plan` has been simulated. `*gap` NAN: the graph does not support one of the meshes
 * (cost/relaxation/sharding_graph.h), or exceeds the simulated time of a stage, or `stop` is set.
 * AM_ERROR_INTERNAL: memory is exhausted. */
AmStatus plan_model_gap(double *gap, const PlanContext *primary, const Cluster *cluster, const Plan *plan,
                        const StopSignal *stop, AmError *error);

/* ---- what several bounds share ---- */

/* Makes the graph of a module as read hold for any recomputation: operands from the forward pass are free,
 * and a forward operator that fuses counts with its best label. */
AmStatus plan_bound_free_recomputed(ShardingGraph *graph, Arena *arena, AmError *error);

/* Weights of computing, descending; communication has the rest. */
typedef struct BoundWeights {
    const double *compute; /* [count] */
    int32_t count;
} BoundWeights;

/* Returns the greatest bound of a graph over the weights, or the first that is `enough`. The bound is a
 * concave function of the weights, which is climbed. `*start`: the weights to begin with, then the best. */
double plan_bound_climb(ShardingGraphFold *fold, const BoundWeights *weights, double enough, int32_t *start);

/* Bounds the plans on mesh k. `*seconds` is 0 at the call, and stays so without a claim. */
typedef AmStatus BoundMeshFunction(double *seconds, const void *user, Arena *arena, int32_t k,
                                   AmError *error);
/* Returns the least bound of all meshes in `*least`, INFINITY of none. They are bounded concurrently, each in
 * an arena of its own; the result does not depend on the number of threads. */
AmStatus plan_bound_meshes(double *least, int32_t count, BoundMeshFunction *bound, const void *user,
                           AmError *error);

/* Returns the simulated computing and communication of ranks [first, end), each of the busiest one. */
ShardingGraphCost plan_bound_simulated(const Plan *plan, int32_t first, int32_t end);
/* Returns whether a graph's cost of a plan is at most the simulated one, up to rounding. If not, bounds by
 * the graph are not trusted. */
bool plan_bound_holds(const ShardingGraphCost *graph, const ShardingGraphCost *simulated);

#endif
