/* Estimates of unpaid prices from paid ones.
 *
 * The increment of decision i is modelled as Bayesian linear regression with Gaussian priors (a
 * Gaussian process of the kernel below; Rasmussen and Williams 2006, chapter 2), each decision by
 * itself:
 *
 *     increment(k, a, b, ..) = mean + own(k) + sum over edges (from(a) + pair(a, k) + slope moved(a, k))
 *
 * where the slopes, seconds per byte and per reshard over each kind of link, are common to all
 * decisions. The posterior means of its terms form a decision problem of their own, on the same
 * graph and with the same bytes, in which the cheapest remainder can be computed (decisions_exact.h).
 * The searcher's estimate is that remainder. A second problem subtracts from every term a fraction
 * of its uncertainty.
 */
#ifndef BENCH_QUALITY_DECISIONS_ESTIMATE_H
#define BENCH_QUALITY_DECISIONS_ESTIMATE_H

#include "bench/quality/decisions_exact.h"

enum { ESTIMATE_PRICES = 3 };

typedef struct DecisionEstimate {
    const Decisions *decisions;
    Decisions likely, hopeful;
    DecisionBound likely_after[ESTIMATE_PRICES], hopeful_after[ESTIMATE_PRICES]; /* prices of a byte */
    double byte_price;                        /* at which `hopeful` is completed about within the memory */
    double unit;                              /* seconds of the best plan per decision; 1 before the first */
    double most;                              /* seconds of the best plan, INFINITY before the first */
    double seconds_per_load[DECISIONS_LOADS]; /* of resharding, as the increments say */
    double most_moved[DECISIONS_LOADS];       /* by one resharding, or 1 */
    struct DecisionSamples *samples;          /* [count] */
    int64_t sample_count;
    Arena arena;
} DecisionEstimate;

/* Fails with AM_ERROR_USAGE as decision_bound_create() does. */
AmStatus decision_estimate_create(DecisionEstimate *estimate, const Decisions *decisions, AmError *error);
void decision_estimate_free(DecisionEstimate *estimate);
/* Notes that decision i, whose earlier neighbours are taken as in `plan`, was paid this increment for. */
AmStatus decision_estimate_add(DecisionEstimate *estimate, const DecisionPlan *plan, int32_t i,
                               double increment, AmError *error);
/* Updates all estimates with the added samples; `best`: seconds of the best plan, or INFINITY. */
void decision_estimate_update(DecisionEstimate *estimate, double best);
/* Returns the increment of decision i of `plan` by one of the two problems. */
double decision_increment(const Decisions *decisions, const DecisionPlan *plan, int32_t i);
/* Returns a lower bound of the whole plan by one of the two problems and its bounds, with the decisions up to
 * i taken: their `seconds` before i, i's increment and the least remainder within the memory (by Lagrange's
 * bound). */
double decision_estimate_total(const Decisions *problem, const DecisionBound bounds[ESTIMATE_PRICES],
                               const DecisionPlan *plan, int32_t i, double seconds);
/* Returns the seconds of the resharding into decision i by the slopes alone. */
double decision_estimate_reshard(const DecisionEstimate *estimate, const DecisionPlan *plan, int32_t i);
/* Returns whether this very increment has been paid for. */
bool decision_estimate_knows(const DecisionEstimate *estimate, const DecisionPlan *plan, int32_t i);

#endif
