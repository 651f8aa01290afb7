/* The search over plans of any number of stages. */
#ifndef PLANNERS_SEARCH_ROUNDS_H
#define PLANNERS_SEARCH_ROUNDS_H

#include "planners/search_context.h"

/* Adds the candidates of rounds, restarts and baselines until the budget ends. AM_ERROR_INFEASIBLE: none
 * fits; the error is that of the last round. */
AmStatus search_stages(SearchContext *self, AmError *error);

#endif
