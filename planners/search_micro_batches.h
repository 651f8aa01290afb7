/* Searches over one-stage plans in each number of micro-batches, one after another. */
#ifndef PLANNERS_SEARCH_MICRO_BATCHES_H
#define PLANNERS_SEARCH_MICRO_BATCHES_H

#include "planners/search_context.h"

/* Adds the plans of one search for each number of micro-batches, `size` evaluations together. `*bound`: the
 * least bound of all numbers; NAN if one is unknown. AM_ERROR_INFEASIBLE if none has a plan. */
AmStatus search_add_each_number(SearchResult *result, double *bound, SearchContext *self,
                                const SearchOptions *options, int64_t size, AmError *error);

/* Rounds of twice the size each until the budget ends; of one number of micro-batches they are
 * single_stage_search()'s own. */
AmStatus search_micro_batches(SearchContext *self, AmError *error);

#endif
