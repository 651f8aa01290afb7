/* Baselines outside of the rounds of a search. */
#ifndef PLANNERS_SEARCH_FLOOR_H
#define PLANNERS_SEARCH_FLOOR_H

#include "planners/search_context.h"

/* Gives the fastest baselines of one stage unequal shares on mixed devices, before all other plans. One
 * evaluation is left for a given plan. */
AmStatus search_share_baselines(SearchContext *search, AmError *error);

/* Adds the plans that every budget has: the baselines of one stage, each with its best number of
 * micro-batches, or the unsplit plan, and, if the module is small, those of several stages with the least
 * number. They depend on the module, the cluster and the options alone, and take no evaluation. */
AmStatus search_add_floor(SearchContext *self, AmError *error);

/* Prices the baselines of one stage although the time is up, until one fits: a search without any other plan
 * returns it rather than none. */
AmStatus search_add_late_baselines(SearchContext *self, AmError *error);

#endif
