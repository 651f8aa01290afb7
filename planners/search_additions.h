/* Plans that a search may not lose to: baselines of several stages, and a given plan. */
#ifndef PLANNERS_SEARCH_ADDITIONS_H
#define PLANNERS_SEARCH_ADDITIONS_H

#include "planners/search_context.h"

/* Adds the baselines of several stages to a result with a plan: with one micro-batch, and with as many as the
 * plan has. They are not counted as evaluations. */
AmStatus search_add_pipeline_baselines(SearchResult *result, SearchContext *self,
                                       const SearchOptions *options, AmError *error);

/* Adds options->initial unchanged, if it has one stage and the options leave it as it is. */
AmStatus search_add_given(SearchContext *self, AmError *error);

/* AM_ERROR_INPUT if a plan to start from has devices that the cluster lacks, or lacks some. */
AmStatus search_check_given(const Plan *given, const Cluster *cluster, AmError *error);

#endif
