/* Checks of the shardings of single tensors against a target. */
#ifndef PLANNERS_TARGETS_TARGET_CHECKS_H
#define PLANNERS_TARGETS_TARGET_CHECKS_H

#include "planners/targets/target.h"

/* Checks for equal shards. AM_ERROR_INFEASIBLE names the value whose shards would be uneven in that
 * state. */
AmStatus target_check_even(Target target, const Mesh *mesh, SbpState state, const IrInstruction *instruction,
                           AmError *error);

/* Refuses some pools: XLA's partitioner gives wrong gradients of max pools whose windows overlap and whose
 * positions are split: AM_ERROR_INFEASIBLE names one that the states [instruction] split so. */
AmStatus target_check_pools(Target target, const PlanContext *context, const SbpState *states,
                            AmError *error);

/* Returns the instruction whose state output k takes: the parameter that it updates, so that a step's result
 * can be passed to the next step unchanged; else its producer. */
int32_t target_output_source(const PlanContext *context, int32_t output);

#endif
