/* The search of a large module on a sample of its layers (propagation/plan/plan_sample.h): its cost grows
 * with distinct layers.
 */
#ifndef PLANNERS_SAMPLE_SEARCH_H
#define PLANNERS_SAMPLE_SEARCH_H

#include "planners/search_context.h"

/* Searches on a sample where the module is large and repeats a layer, and where the options leave the plan to
 * the search. Adds the best plans, simulated on the module itself, to the result. `*is_done` is false, and
 * the result without a plan, where there is no such sample, or where its best plans do not fit or take much
 * longer on the module. AM_ERROR_INFEASIBLE: so it is, and a plan of another form (options->form_seconds) is
 * faster. */
AmStatus sample_search(SearchContext *self, bool *is_done, AmError *error);

#endif
