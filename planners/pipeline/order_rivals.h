/* A pipeline on other orders of mixed servers: the same stages, one after another, on the devices of each
 * order. The dynamic program has one model of stages. A plan from another source, such as a baseline, may be
 * the best one to begin with on several orders.
 */
#ifndef PLANNERS_PIPELINE_ORDER_RIVALS_H
#define PLANNERS_PIPELINE_ORDER_RIVALS_H

#include "planners/improve/plan_climb.h"

enum { ORDER_RIVALS_MOST = 3 };

/* Simulates the plan on the orders of device_orders_list(), with the budget of the climb. `rivals` are the
 * fastest that fit and take at most `near` times as long as the plan, fastest first, made in the arena. */
AmStatus order_rivals_find(Plan *rivals[ORDER_RIVALS_MOST], int32_t *count, Plan *plan, double near,
                           PlanClimb *climb, Arena *arena, AmError *error);

#endif
