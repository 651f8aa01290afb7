/* The search of a large module on a sample of its layers (propagation/plan/plan_sample.h): its cost grows
 * with distinct layers.
 */
#ifndef PLANNERS_SAMPLE_SEARCH_H
#define PLANNERS_SAMPLE_SEARCH_H

#include "planners/search_context.h"

/* Searches on a sample where the module is large and repeats a layer, and where the options leave the plan to
 * the search. Adds the best plans, simulated on the module itself, to the result. `*is_done` is false, and
 * the result unchanged, where there is no such sample or none of its plans fits. */
AmStatus sample_search(SearchContext *self, bool *is_done, AmError *error);

#endif
