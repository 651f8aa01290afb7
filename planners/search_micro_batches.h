/* Searches over one-stage plans in each number of micro-batches, one after another. */
#ifndef PLANNERS_SEARCH_MICRO_BATCHES_H
#define PLANNERS_SEARCH_MICRO_BATCHES_H

#include "planners/search_context.h"

/* One round of searches, one for each number of micro-batches. */
typedef struct NumbersRound {
    int64_t size;         /* evaluations of all of them */
    int32_t number;       /* of the round, which decides the seed */
    bool runs_all_rounds; /* where there is one number, its search runs the further rounds, each with a climb
                           */
} NumbersRound;

/* Adds the plans of a round. A search for a baseline ends with the first larger number that is no faster.
 * `*bound`: the least bound of all numbers; NAN if one is unknown. AM_ERROR_INFEASIBLE if none has a plan. */
AmStatus search_add_each_number(SearchResult *result, double *bound, SearchContext *self,
                                const SearchScope *scope, const NumbersRound *round, AmError *error);

/* Rounds of twice the size each until the budget ends; of one number of micro-batches they are
 * single_stage_search()'s own. */
AmStatus search_micro_batches(SearchContext *self, AmError *error);

#endif
