/* A lower bound of the step over one-stage plans in any number of micro-batches and with any
 * recomputation: over all meshes of all devices, with their communication.
 *
 * It is the sharding graph's (cost/relaxation/sharding_graph.h) of the module as read, and holds for
 * micro-batches as well: products and reductions in M parts take at least as long in total if efficiencies
 * grow with size; resharding moves the same number of bytes in total, at the best rate; weights are gathered,
 * and their gradients reduced, at least once.
 *
 * A recomputed value may have another state than the original. Operators outside the forward pass
 * therefore use forward values for free, and a forward operator that fuses counts with its best
 * split.
 */
#ifndef PLANNERS_BOUNDS_BOUND_ONE_STAGE_H
#define PLANNERS_BOUNDS_BOUND_ONE_STAGE_H

#include "base/system/stop.h"
#include "cost/cluster/cluster.h"
#include "propagation/plan/plan.h"

/* Finds the bound for devices of one type with growing efficiencies, divided into the largest number of
 * equal servers. `enough`: a bound above which no improvement is needed. `*seconds` is 0 without a claim.
 * The meshes are bounded concurrently; the result does not depend on the number of threads. */
AmStatus plan_bound_one_stage(double *seconds, const PlanContext *whole, const Cluster *cluster,
                              double enough, const StopSignal *stop, AmError *error);

#endif
