/* The lower bound on the step of every plan of a search over any number of stages (bounds/bound.h), and its
 * place in the plan and in the progress of the search.
 */
#ifndef PLANNERS_SEARCH_BOUND_H
#define PLANNERS_SEARCH_BOUND_H

#include "planners/search_context.h"

/* Gives the watch a bound that is quick to compute, until the search has its own. */
AmStatus search_show_bound(const SearchContext *self, AmError *error);

/* Returns whether the bound of a result is that over any number of stages. */
bool search_bounds_stages(const SearchResult *result, const SearchScope *scope);

/* Writes into the plan a lower bound on the step of every plan with the requested micro-batches and schedule,
 * and into the result how far the plan's stages are from the best of the sharding graph. */
AmStatus search_bound_plan(SearchResult *result, const PlanContext *primary, const Cluster *cluster,
                           const SearchScope *scope, int32_t micro_batches, const StopSignal *stop,
                           AmError *error);

#endif
