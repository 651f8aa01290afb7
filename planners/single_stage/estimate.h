/* Estimates: the cost of an axis plan by the sharding graph of a sample of the module
 * (cost/relaxation/sharding_graph.h), in about a hundredth of the time of its price. Seconds are computing
 * plus resharding, which respects the order of axes that split one dimension as programs do; memory covers
 * only parameters. Estimates select the axis plans to price; they are not prices. */
#ifndef PLANNERS_SINGLE_STAGE_ESTIMATE_H
#define PLANNERS_SINGLE_STAGE_ESTIMATE_H

#include "cost/relaxation/sharding_graph.h"
#include "planners/problem/problem.h"

typedef struct Estimator Estimator;

/* Returns the problem's estimator, which is made on first use in the problem's arena. `*estimator` NULL: the
 * model claims nothing of such a mesh or such devices. */
AmStatus estimator_of(Estimator **estimator, StageProblem *problem, AmError *error);

/* Fills compute_seconds, communication_seconds, seconds and excess of `price`; other fields are 0.
 * Results are cached. */
AmStatus estimate_axis_plan(PlanPrice *price, Estimator *estimator, const AxisPlan *axis_plan,
                            AmError *error);

/* Fills `price` as estimate_axis_plan() does, and `cost` with the parts of the estimate. */
AmStatus estimate_axis_plan_parts(ShardingGraphCost *cost, PlanPrice *price, Estimator *estimator,
                                  const AxisPlan *axis_plan, AmError *error);

/* The most plans that estimate_axis_plans() estimates. */
#define ESTIMATE_BATCH 24

/* Estimates the first ESTIMATE_BATCH of `count` plans at once, on several threads, so that the functions
 * above find them cached. Does nothing for small modules, whose estimates take less time than to start a
 * thread. */
AmStatus estimate_axis_plans(Estimator *estimator, const AxisPlan *const *axis_plans, int32_t count,
                             AmError *error);

#endif
