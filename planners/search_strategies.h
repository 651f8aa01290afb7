/* The search over strategies, for a target whose plans are degrees of data, tensor and pipeline parallelism.
 */
#ifndef PLANNERS_SEARCH_STRATEGIES_H
#define PLANNERS_SEARCH_STRATEGIES_H

#include "planners/search_context.h"

/* Adds the fastest strategy that fits and that the target of the request can run. SEARCHER_RANDOM:
 * the best of as many random ones as limits.evaluations of the scope. AM_ERROR_INFEASIBLE: none fits. */
AmStatus search_strategies(SearchContext *self, AmError *error);

#endif
