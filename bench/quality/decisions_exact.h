/* Exact optimum of decision problems, and what open decisions cost at least.
 *
 * Decisions are eliminated from the last to the first: what those from p on cost
 * depends only on the earlier decisions that they exchange data with, p's
 * frontier, so that one table per p holds it exactly but for memory. Memory
 * enters with a price per byte (Lagrange): for every price >= 0,
 *
 *     seconds(plan) >= seconds(taken) + table_p(frontier) - price (memory - bytes(taken))
 *
 * where the table's entries count price times bytes too. Branch and bound with
 * this bound at several prices around the best one is exact.
 */
#ifndef BENCH_QUALITY_DECISIONS_EXACT_H
#define BENCH_QUALITY_DECISIONS_EXACT_H

#include "bench/quality/decisions.h"

enum { DECISIONS_MOST_FRONTIER = 5 };

typedef struct DecisionBound {
    int32_t count;
    int32_t width[DECISIONS_MOST + 1]; /* decisions in the frontier of p */
    int8_t frontier[DECISIONS_MOST + 1][DECISIONS_MOST_FRONTIER];
    double *table[DECISIONS_MOST + 1]; /* by the frontier's choices, three bits each */
    double byte_price;
} DecisionBound;

/* Finds the frontiers and allocates tables in the arena. AM_ERROR_USAGE: a frontier is wider than
 * DECISIONS_MOST_FRONTIER. */
AmStatus decision_bound_create(DecisionBound *bound, Arena *arena, const Decisions *decisions,
                               AmError *error);
/* Fills the tables. */
void decision_bound_fill(DecisionBound *bound, const Decisions *decisions, double byte_price);
/* Returns the least of decisions p and later in seconds plus byte_price times bytes, the choices before p
 * being those of `plan`. */
double decision_bound_after(const DecisionBound *bound, const DecisionPlan *plan, int32_t p);

/* Finds the cheapest plan that fits. AM_ERROR_INFEASIBLE: none fits. AM_ERROR_USAGE as above;
 * AM_ERROR_RUNTIME: not proven within `most_nodes` nodes of the search tree. */
AmStatus decisions_exact(DecisionPlan *plan, double *seconds, const Decisions *decisions, int64_t most_nodes,
                         AmError *error);

#endif
