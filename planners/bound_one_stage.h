/* How good a plan of one stage can be at best in any number of micro-batches and with any recomputation: a
 * lower bound of the step over all meshes of all devices, with their communication.
 *
 * It is the additive model's (cost/additive.h) of the module as it was read, and holds for turns as well:
 * products and reductions in M parts take no less in all where efficiencies rise with size; what passes
 * between devices is as many bytes in all, at the best rate; weights are brought to where they are read, and
 * their gradients added up, once at the least.
 *
 * A value that is made again may lie otherwise than at first. So what takes a forward value outside of the
 * forward pass takes it for nothing, and a forward operator that fuses counts as if it were split best.
 */
#ifndef PLANNERS_BOUND_ONE_STAGE_H
#define PLANNERS_BOUND_ONE_STAGE_H

#include "base/stop.h"
#include "cost/cluster.h"
#include "propagation/plan.h"

/* Of devices of one type whose efficiencies rise, in as many equal servers as may be. `enough`: a bound
 * beyond that is as good as any. `*seconds` is 0 where nothing is claimed. The meshes are bounded side by
 * side; the result does not depend on the number of threads. */
AmStatus plan_bound_one_stage(double *seconds, const PlanContext *whole, const Cluster *cluster,
                              double enough, const StopSignal *stop, AmError *error);

#endif
