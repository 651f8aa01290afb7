/* Exports a plan for JAX: one PartitionSpec for each entry parameter and output, and the order of passes of
 * each stage. A weight f32[4096,14336] whose columns are split over "model" has [null, ["model"]].
 */
#ifndef PLANNERS_EXPORT_EXPORT_JAX_H
#define PLANNERS_EXPORT_EXPORT_JAX_H

#include <jansson.h>

#include "propagation/plan/plan.h"

/* Writes "automap-jax-1", and of several stages or micro-batches "automap-jax-2", which automap_jax.run()
 * reads; the caller's reference. AM_ERROR_INFEASIBLE, with the reason, where JAX could not hold the same
 * plan: uneven shards, split windows of pools. */
AmStatus export_jax(json_t **root, const PlanContext *context, const Plan *plan, AmError *error);

#endif
