/* A plan as the module itself, in HLO text, with the shardings that the plan
 * decides: on parameters and outputs, and as "Sharding" custom calls after every
 * other array that it stores. */
#ifndef PLANNERS_EXPORT_EXPORT_HLO_H
#define PLANNERS_EXPORT_EXPORT_HLO_H

#include "propagation/plan/plan.h"
#include "propagation/propagate/sharding_message.h"

/* Writes the module with shardings. `text` NULL: only the checks. AM_ERROR_INFEASIBLE as target_check_plan()
 * and target_check_even(). */
AmStatus export_hlo(Text *text, const PlanContext *context, const Plan *plan, ShardingSpelling spelling,
                    AmError *error);

#endif
