/* Random single changes of axis plans, the moves of annealing and of screening. A change inserts, removes,
 * replaces or moves a class set, or changes the storage in shards of an axis.
 */
#ifndef PLANNERS_PROBLEM_AXIS_PLAN_CHANGES_H
#define PLANNERS_PROBLEM_AXIS_PLAN_CHANGES_H

#include "base/random.h"
#include "planners/problem/problem.h"

/* Inserts, removes, replaces or moves a class set on a random axis, also to another axis, or
 * changes the storage in shards. Returns false if the drawn change is impossible; the axis plan may be
 * changed nevertheless. */
bool axis_plan_change(const StageProblem *problem, Random *random, AxisPlan *axis_plan);

#endif
