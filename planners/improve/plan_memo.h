/* The simulated steps of plans, by a hash of their decisions.
 *
 * A climb that reaches a plan again reads its step, so that the plan takes no evaluation. The hash has 64
 * bits of the micro-batches, the schedule and all stages; names, predictions and bounds of a plan are no part
 * of it.
 */
#ifndef PLANNERS_IMPROVE_PLAN_MEMO_H
#define PLANNERS_IMPROVE_PLAN_MEMO_H

#include "planners/problem/price_memo.h"
#include "propagation/plan/plan.h"

uint64_t plan_memo_key(const Plan *plan);
/* Returns whether the plan of a key is known to be refused, too large, or no faster than `seconds`. */
bool plan_memo_excludes(const PriceMemo *memo, uint64_t key, double seconds);
/* Adds a plan's step, or a lower bound of it; NAN: it has none or does not fit. False without memory. */
bool plan_memo_add(PriceMemo *memo, uint64_t key, double seconds);

#endif
