/* How far a plan is from the best choice of states and factors of the sharding graph (docs/method.md,
 * section 7). */
#ifndef PLANNERS_MODEL_GAP_H
#define PLANNERS_MODEL_GAP_H

#include "base/system/stop.h"
#include "cost/cluster/cluster.h"
#include "propagation/plan/plan.h"

/* Finds the plan's computing plus resharding in the sharding graph over a lower bound of its minimum over
 * all labels, less 1. For several stages both sums are over all stages, each with its own values, on its own
 * mesh. `plan` has been simulated. `*gap` NAN: the model does not support one of the meshes
 * (cost/relaxation/sharding_graph.h), or exceeds the simulated time of a stage, or `stop` is set.
 * AM_ERROR_INTERNAL: memory is exhausted. */
AmStatus plan_model_gap(double *gap, const PlanContext *whole, const Cluster *cluster, const Plan *plan,
                        const StopSignal *stop, AmError *error);

#endif
