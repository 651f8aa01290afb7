/* The search of a module for a target, and the fastest plans that each target can run.
 *
 * A search for a target covers the forms of the module with the target's restrictions. A second search
 * without them gives further candidates, and the price of the restrictions.
 */
#ifndef PLANNERS_FORMS_TARGET_SEARCH_H
#define PLANNERS_FORMS_TARGET_SEARCH_H

#include "planners/forms/form_search.h"

typedef struct TargetPlans {
    Plan *on[TARGET_COUNT]; /* of a search without target: the fastest plan of each; NULL: none was found */
    double free_seconds;    /* of a search for a target: the step without it; 0: not searched */
    const char *lack;       /* why that plan is not for the target; NULL: it is */
} TargetPlans;

/* Searches the forms for scope->request->constraints.target. `free` is the scope without the target.
 * AM_ERROR_INFEASIBLE as form_search(), or: the target can run no plan that was found. */
AmStatus target_search(FormSearch *self, TargetPlans *plans, const SearchScope *free, AmError *error);

/* Returns whether a candidate keeps the options of the search, and its target can run it. */
bool target_may_take(const FormSearch *self, const PlanCandidate *candidate);

/* Makes a candidate the plan of the result. It takes over the bound, which holds for all plans. */
void target_take(SearchResult *result, const PlanCandidate *candidate);

#endif
