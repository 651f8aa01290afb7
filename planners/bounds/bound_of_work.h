/* Lower bound from work alone, of plans with any number of stages on devices of any types.
 *
 * Proposition: let t(n, k) be the least time of operator n on one device of type k, w(k) > 0 any weights of
 * the types, and W the sum of w over all devices. Every step takes at least
 *
 *     T = (sum over operators n of min over types k of w(k) t(n, k)) / W
 *
 * Proof: in T seconds, device d can compute operators with a sum of w(type of d) t(n, type of d) of at most
 * w(type of d) T, so all devices together at most W T. Each operator needs at least its minimum, since its
 * shards take at least as many seconds in total as the whole operator.
 *
 * T is the dual of the linear program that deals parts of the operators to the devices. The weights begin
 * with 1 / sum over n of t(n, k), and are climbed one after another. That finds the greatest T of two types,
 * and not always that of more.
 */
#ifndef PLANNERS_BOUNDS_BOUND_OF_WORK_H
#define PLANNERS_BOUNDS_BOUND_OF_WORK_H

#include "planners/bounds/bound.h"

/* The terms of T: min over types k of w(k) t(n, k) / W by the nodes n of any sharding graph of a context. */
typedef struct LeastWork {
    double *seconds; /* [count]; NULL: the efficiency of some type falls with size, or is not known */
    int32_t count;
    double *type_weights; /* [type]: w(k) / W */
} LeastWork;

/* Allocates in the arena. */
AmStatus least_work_find(LeastWork *work, Arena *arena, const PlanContext *context, const Cluster *cluster,
                         AmError *error);

/* Bounds every plan: any devices, meshes, axis priorities, cuts, micro-batches, schedule and recomputation.
 * `primary` is the context as read. The model gap is NAN. The bound is NAN if the efficiency of some device
 * type falls with size, which contradicts the proof. */
AmStatus plan_bound_of_work(PlanBound *bound, const PlanContext *primary, const Cluster *cluster,
                            AmError *error);

#endif
