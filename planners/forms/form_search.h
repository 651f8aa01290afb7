/* The search over the forms of a module (module_forms.h), one after another, under one budget.
 *
 * Of three forms the first may use half of the time, the second half of the rest, the last one all. Each form
 * has the default number of evaluations, and the best one has the remaining ones. So a limit of them cuts the
 * sequence of forms, and decides about none. Where a further search follows the forms, each form may use half
 * of the evaluations that are left, too: so the first form has the plans that it would have alone. Each later
 * form knows the best step so far, and is searched only if its condition holds. The better plan is kept, at a
 * tie that of the later form.
 */
#ifndef PLANNERS_FORMS_FORM_SEARCH_H
#define PLANNERS_FORMS_FORM_SEARCH_H

#include "planners/forms/module_forms.h"
#include "planners/problem/search_result.h"

typedef struct FormSearch {
    /* -- set by the caller -- */
    Arena *arena; /* of plans */
    const Cluster *cluster;
    SearchScope scope;
    ModuleForms forms;
    /* -- the search in work -- */
    bool has_search_after;   /* a further search, which keeps a share of the limits */
    int32_t form;            /* the form in work */
    int32_t searches;        /* that share the time that is left, the one in work among them */
    double fastest_baseline; /* the step of it in the form searched last; INFINITY: none fits */
    /* -- the result -- */
    SearchResult *result;
    PlanContext *primary; /* the module of its plan */
    /* search_user_budget(). A search that the limit of evaluations cut uses all that it might. */
    SearchBudget budget;
} FormSearch;

/* Searches the forms; if no plan fits, once more with optimizer state in the host's memory, in as many
 * evaluations, where the request leaves that open (OFFLOAD_AUTO). AM_ERROR_INFEASIBLE: no plan of any form
 * fits; the reason is that of the last one. */
AmStatus form_search(FormSearch *self, AmError *error);

/* Returns whether the limits allow a further search. */
bool form_search_has_budget(const FormSearch *self);
/* Limits the scope of the search in work to its share of the time and of the evaluations that are left. Both
 * grow with the limit of the user, so that no search has less of a larger one. */
void form_search_share(SearchScope *scope, const FormSearch *self);
/* Counts the evaluations of a search with such a scope. */
void form_search_spend(FormSearch *self, const SearchScope *scope, const SearchResult *found);

#endif
