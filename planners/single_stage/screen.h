/* Screening: annealing over a problem's axis plans by estimates alone (estimate.h), whose best few are
 * then priced: by the sum of computing and communication, and by the rest if most of the shorter of
 * the two is hidden. Every searcher starts from it, besides the baselines: some hundred estimates
 * take the time of some ten prices, and find plans that searchers do not find in so few. Estimates
 * do not count as evaluations; final prices do. */
#ifndef PLANNERS_SINGLE_STAGE_SCREEN_H
#define PLANNERS_SINGLE_STAGE_SCREEN_H

#include "planners/problem/problem.h"

enum { SCREEN_MOST_OF_SCORE = 6, SCREEN_MOST_KEPT = 2 * SCREEN_MOST_OF_SCORE };

typedef struct Screened {
    AxisPlan axis_plan;
    PlanPrice estimate;
} Screened;

/* The best axis plans by screening, best first. Empty without estimates. */
typedef struct Screening {
    Screened kept[SCREEN_MOST_KEPT];
    int32_t count;
} Screening;

/* Ends early when problem_must_stop(). */
AmStatus screen_search(Screening *screening, StageProblem *problem, uint64_t seed, AmError *error);

/* Prices the kept axis plans, until problem_must_stop(). */
AmStatus screen_price(const Screening *screening, StageProblem *problem, AmError *error);

#endif
