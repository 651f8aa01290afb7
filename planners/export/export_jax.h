/* A plan for JAX: one PartitionSpec per entry parameter and output. */
#ifndef PLANNERS_EXPORT_EXPORT_JAX_H
#define PLANNERS_EXPORT_EXPORT_JAX_H

#include <jansson.h>

#include "propagation/plan/plan.h"

/* "automap-jax-1"; the caller's reference. AM_ERROR_INFEASIBLE, with the
 * reason, where JAX could not hold the same plan: several stages, uneven
 * shards, more than one micro-batch, devices out of order. */
AmStatus export_jax(json_t **root, const PlanContext *context, const Plan *plan, AmError *error);

#endif
