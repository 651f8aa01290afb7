/* Common code of all exports of shardings: the plans that they can represent, and the states of
 * outputs. */
#ifndef PLANNERS_EXPORT_EXPORT_H
#define PLANNERS_EXPORT_EXPORT_H

#include "propagation/plan/plan.h"

/* AM_ERROR_INFEASIBLE, with the reason, for a plan that one sharding per tensor cannot represent:
 * several stages, more than one micro-batch, unequal shares, devices out of mesh order. `form`
 * names the target in messages ("shardings for JAX"). */
AmStatus export_check_plan(const Plan *plan, const char *form, AmError *error);

/* The same for forms that hold stages and micro-batches: unequal shares alone. */
AmStatus export_check_stages(const Plan *plan, const char *form, AmError *error);

/* AM_ERROR_INFEASIBLE names the value whose shards would be uneven in that state. */
AmStatus export_check_even(const Mesh *mesh, SbpState state, const IrInstruction *instruction,
                           const char *form, AmError *error);

/* XLA's partitioner gives wrong gradients of max pools whose windows overlap and
 * whose positions are split: AM_ERROR_INFEASIBLE names one that the states
 * [instruction] split so. */
AmStatus export_check_pools(const PlanContext *context, const SbpState *states, const char *form,
                            AmError *error);

/* The instruction whose state output k takes: the parameter that it updates, so that a step's
 * result can be passed to the next step unchanged; else its producer. */
int32_t export_output_source(const PlanContext *context, int32_t output);

#endif
