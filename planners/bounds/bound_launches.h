/* Kernel launches that no plan saves, for lower bounds of steps that are too small to fill a device.
 *
 * Every launched kernel takes the launch time of its device, whatever part of an operator it computes, and a
 * device runs one kernel at a time. Counted are products, sorts, scatters, reductions that no split makes
 * views, a fusion for each group of element-wise operators (cost/relaxation/fusion_groups.h), and what loops
 * without a plan run, trip by trip. A trip of another loop writes each loop-carried value by a step of its
 * own.
 *
 *   total  a stage of S runs total / S of them at least, since each operator is on some stage
 *   chain  the most launches that wait for one another: every micro-batch has to pass them, on any stages.
 * Between two steps on it that are no fusions, element-wise operators count as one launch.
 */
#ifndef PLANNERS_BOUNDS_BOUND_LAUNCHES_H
#define PLANNERS_BOUNDS_BOUND_LAUNCHES_H

#include "cost/cluster/cluster.h"
#include "propagation/plan/plan.h"

typedef struct BoundLaunches {
    double total, chain; /* launches of one step with one micro-batch */
    double
        seconds; /* of a launch on the quickest device type; 0: nothing is claimed, as steps are measured */
} BoundLaunches;

/* Counts for a context as read, or in micro-batches (then `total` covers all of them). */
AmStatus bound_launches_find(BoundLaunches *launches, const PlanContext *context, const Cluster *cluster,
                             AmError *error);

/* Returns seconds below which no plan of at most `most_stages` stages comes. */
double bound_launches_seconds(const BoundLaunches *launches, int32_t most_stages);

#endif
