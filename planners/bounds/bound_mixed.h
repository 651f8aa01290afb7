/* A lower bound of the step over one-stage plans on devices of several types, with communication and memory.
 *
 * Proposition: type t takes t(o) seconds for the whole operator o on one device. Each device d has a weight
 * w(d) by its type, and all weights add up to 1. Let m(o) be the least w t(o) of all types, r the copies of a
 * label: the product of the sizes of the mesh axes that it does not split. b(p) are the bytes of a parameter
 * that is kept during the step, L those that plans may fill of all devices. c(e) is the cost of resharding
 * along edge e for equal shards, at the least rate of any group. Then for each plan of T seconds that fits,
 * with any shares, for 0 <= a <= 1 and g >= 0:
 *
 *     T >= a (sum over o of r(o) m(o) + g (sum over p of r(p) b(p) - L)) + (1 - a) (sum over e of c(e))
 *
 * Proof: computing: a device runs one operator at a time, so T is at least its computing C(d), and at least
 * the sum of w(d) C(d). Device d computes a part x(d) of operator o, 0 <= x(d) <= 1. The parts add up to at
 * least r(o), since all coordinates of an axis that o does not split compute all of it. Efficiency does not
 * fall with size, so the part takes at least x(d) t(o) seconds. The sum of w(d) x(d) t(o) is at least
 * r(o) m(o).
 * Communication: a device takes part in one collective at a time, so T is at least the mean over the devices
 * of their communication. A collective takes the time of its group's tensor with all shards as large as the
 * largest, so of no fewer bytes than the group has. Groups along some axes have equal numbers of devices.
 * Their tensors add up to the global one, times the copies on the other axes. So the mean over the groups is
 * at least that of equal shards. This holds for each step on the way from one state to the other, and the
 * shortest way is at most their sum.
 * Memory: the devices together keep r(p) b(p) bytes of each parameter, and no more than L. The term of g is
 * not positive for a plan that fits.
 *
 * The bound is the least of the right side over all labels, or a solution of the dual of it (graph_bound.h).
 * Parts that may take less than x(d) t(o) count with less. A reduction is a view where a device has one
 * element of each sum: at most n elements on n devices. Operators of partial sums may be omitted, but for
 * products. An operator whose shards read ranges of others may read nothing of its operands.
 */
#ifndef PLANNERS_BOUNDS_BOUND_MIXED_H
#define PLANNERS_BOUNDS_BOUND_MIXED_H

#include "planners/bounds/bound.h"

/* One-stage plans on meshes of all devices of a cluster. */
typedef struct BoundMixedSpace {
    const PlanContext *context;
    const Cluster *cluster;
    const BoundMeshes *meshes;
    const StopSignal *stop; /* the bound is weak after it; or NULL */
    bool recomputes;        /* plans have any number of micro-batches and any recomputation */
} BoundMixedSpace;

/* Checks the terms of the proposition on a plan that has been simulated: r(o) m(o) and c(e) of its labels are
 * not above its mean computing and communication. `mesh` is the plan's without shares. */
AmStatus bound_mixed_holds(bool *holds, const BoundMixedSpace *space, const Mesh *mesh, const Plan *plan,
                           AmError *error);

/* Finds the bound over all meshes; 0 without a claim. The meshes are bounded concurrently. */
AmStatus plan_bound_mixed(double *seconds, const BoundMixedSpace *space, AmError *error);

/* Finds a bound of one-stage plans in any number of micro-batches, with any recomputation, on all devices in
 * any order, over all meshes of two axes. Every device communicates at the rate of the device with the
 * fastest links, since the order decides which links a group has. `*seconds` is 0 without a claim, as where
 * collectives are measured or follow NCCL's model. */
AmStatus plan_bound_mixed_orders(double *seconds, const PlanContext *primary, const Cluster *cluster,
                                 const BoundMemory *memory, const StopSignal *stop, AmError *error);

#endif
