/* The search of a large module on a sample of its layers (propagation/plan/plan_sample.h): its cost grows
 * with distinct layers.
 */
#ifndef PLANNERS_SAMPLE_SEARCH_H
#define PLANNERS_SAMPLE_SEARCH_H

#include "planners/search_context.h"

/* Returns whether the module has so many instructions that a sample of it is searched. */
bool sample_is_wanted(const PlanContext *primary);

/* Returns whether the scope leaves the plan to a search on a sample: nothing of it is fixed, and no limit of
 * evaluations or time is given. For JAX only split layers have samples: without them the search finds faster
 * plans of unrolled layers. */
bool sample_is_allowed(const SearchScope *scope, const PlanContext *primary);

/* Sets whether such a module is searched on a sample: it repeats a layer often enough. */
AmStatus sample_is_possible(bool *is_possible, const PlanContext *primary, AmError *error);

/* Searches on a sample where the module is large and repeats a layer, and where the scope leaves the plan to
 * the search. Adds the best plans, simulated on the module itself, to the result. `*is_done` is false, and
 * the result unchanged, where there is no such sample or none of its plans fits. AM_ERROR_INFEASIBLE: the
 * plans of another form of the module are faster by far (scope->known.form_seconds). */
AmStatus sample_search(SearchContext *self, bool *is_done, AmError *error);

#endif
