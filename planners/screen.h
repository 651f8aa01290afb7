/* Screening: annealing over a problem's genomes by estimates alone (estimate.h), of which the best few are
 * then priced. It is where every searcher starts from, beside the recipes: some hundred estimates take the
 * time of some ten prices, and see what no searcher comes across in so few. Estimates are no evaluations;
 * what is priced in the end is. */
#ifndef PLANNERS_SCREEN_H
#define PLANNERS_SCREEN_H

#include "planners/problem.h"

/* Does nothing where there are no estimates. Ends early when problem_must_stop(). */
AmStatus screen_search(Problem *problem, uint64_t seed, AmError *error);

#endif
