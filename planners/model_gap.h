/* How far a plan is from the best choice of states and factors of the additive model (method, section 6). */
#ifndef PLANNERS_MODEL_GAP_H
#define PLANNERS_MODEL_GAP_H

#include "base/stop.h"
#include "cost/cluster.h"
#include "propagation/plan.h"

/* Computing plus boxing of the plan in the additive model over a lower bound of the least that any choice of
 * labels comes to, less 1; of several stages the sums of both over all stages, each with what it holds, on
 * its own mesh. `plan` has been simulated. `*gap` NAN: nothing is claimed of one of the meshes
 * (cost/additive.h), or the model says more of a stage than the simulator does, or `stop` is wanted.
 * AM_ERROR_INTERNAL: no memory.
 */
AmStatus plan_model_gap(double *gap, const PlanContext *whole, const Cluster *cluster, const Plan *plan,
                        const StopSignal *stop, AmError *error);

#endif
