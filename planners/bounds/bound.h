/* A lower bound of the step over every one-stage plan of a space (docs/method.md).
 *
 * The space is every choice of states and factors, operator by operator, on every given mesh, in
 * the micro-batches of the context; it contains all axis priorities, with storage, pins and
 * overrides.
 *
 *   gap        the simulated step over the bound. The step is at least as long as any weighted mean of all
 *              computing and all communication, so that the best weights count; without overlap, their sum.
 *   model gap  the plan's computing and resharding in the sharding graph over the bound of their sum on the
 *              plan's mesh
 */
#ifndef PLANNERS_BOUNDS_BOUND_H
#define PLANNERS_BOUNDS_BOUND_H

#include "cost/cluster/cluster.h"
#include "cost/relaxation/graph_bound.h"
#include "propagation/plan/plan.h"

typedef struct PlanBound {
    double seconds;   /* no plan of the space takes less; NAN: nothing is claimed
                         (cost/relaxation/sharding_graph.h) */
    double model_gap; /* at least the distance to the exact optimum of the model on the plan's mesh; NAN */
} PlanBound;

/* The meshes of a space; mesh device d is cluster device devices[d]. */
typedef struct BoundMeshes {
    const Mesh *of; /* [count] without shares */
    int32_t count;
    const int32_t *devices;
    double memory_fraction;
} BoundMeshes;

/* `plan` has one stage, on one of the meshes, and has been simulated. If `stop` is set, the bound is weak or
 * 0. The meshes are bounded concurrently; the result does not depend on the number of threads.
 * AM_ERROR_INTERNAL: memory is exhausted. */
AmStatus plan_bound_find(PlanBound *bound, const PlanContext *context, const Cluster *cluster,
                         const BoundMeshes *meshes, const Plan *plan, const StopSignal *stop, AmError *error);

/* The best bound of a model over the weights of computing and communication, or the first that is `enough`;
 * of devices that do not overlap the two of their sum. `*start`: the weights to begin with (0 to 7, computing
 * alone first), then the best. */
double plan_bound_weighted(ShardingGraphFold *fold, bool overlaps, double enough, int32_t *start);

#endif
