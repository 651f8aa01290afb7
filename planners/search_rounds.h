/* The search over plans of any number of stages: rounds of growing size, until the budget ends.
 *
 * A round adds pipelines, one-stage plans, baselines and local changes to the candidates. Small rounds come
 * first, then round 0 with the default budget, then rounds of twice the size each with restarts between them.
 */
#ifndef PLANNERS_SEARCH_ROUNDS_H
#define PLANNERS_SEARCH_ROUNDS_H

#include "planners/search_context.h"

/* Adds the candidates of rounds, restarts and baselines until the budget ends. AM_ERROR_INFEASIBLE: none
 * fits; the error is that of the last round. */
AmStatus search_stages(SearchContext *self, AmError *error);

#endif
