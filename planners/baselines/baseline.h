/* Baselines as axis plans: plans that an engineer would write without a search. */
#ifndef PLANNERS_BASELINES_BASELINE_H
#define PLANNERS_BASELINES_BASELINE_H

#include "planners/problem/problem.h"

/* Writes [batch] on the first axis of the problem's mesh: the class of the leading dimension that most data
 * inputs share. Returns false if no data input can be split. */
bool baseline_batch(const StageProblem *problem, int32_t axis, AxisPlan *axis_plan);

/* Finds the largest set of linkage groups that Auto-MAP's strict rules allow on an axis of this size: heads,
 * MLP width and vocabulary of a transformer (Megatron-LM), the fully connected head of VGG. False: the rules
 * allow no group. */
AmStatus baseline_megatron(const StageProblem *problem, int32_t axis, AxisPlan *axis_plan, bool *found,
                           AmError *error);

/* Appends to the axis priority the classes of the second dimension of data inputs: values that are
 * otherwise replicated are split by sequence (Megatron-LM's sequence parallelism). Feature classes
 * are excluded. False if the list already has all of them. */
bool baseline_sequence(const StageProblem *problem, int32_t axis, AxisPlan *axis_plan);

#endif
