/* Screening: annealing over a problem's genomes by estimates alone (estimate.h), of which the best few are
 * then priced: by the sum of computing and communication, and by what is left where most of the shorter of
 * the two is hidden. It is where every searcher starts from, beside the recipes: some hundred estimates take
 * the time of some ten prices, and see what no searcher comes across in so few. Estimates are no evaluations;
 * what is priced in the end is. */
#ifndef PLANNERS_SCREEN_H
#define PLANNERS_SCREEN_H

#include "planners/problem.h"

enum { SCREEN_MOST_OF_SCORE = 6, SCREEN_MOST_KEPT = 2 * SCREEN_MOST_OF_SCORE };

typedef struct Screened {
    Genome genome;
    PlanPrice estimate;
} Screened;

/* What screening thinks best of, best first. None where there are no estimates. */
typedef struct Screening {
    Screened kept[SCREEN_MOST_KEPT];
    int32_t count;
} Screening;

/* Ends early when problem_must_stop(). */
AmStatus screen_search(Screening *screening, Problem *problem, uint64_t seed, AmError *error);

/* Prices what it has kept, until problem_must_stop(). */
AmStatus screen_price(const Screening *screening, Problem *problem, AmError *error);

#endif
