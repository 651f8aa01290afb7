/* SearchLimits: the most that a search may use, in its scope. SearchBudget: the count of what it has used.
 *
 * Each search begins a budget from its limits, and each part gets limits from the rest of the budget:
 *
 *     SearchLimits -> budget_begin() -> SearchBudget -> budget_share() -> SearchLimits of a part -> ...
 *
 * A search prices plans in a sequence of parts. The size of each part depends on the module, the cluster and
 * the options, never on the cap. The cap only cuts the sequence: a search with a cap prices the first plans
 * of the search without it. So a larger cap prices all plans of a smaller one, and its result is at least as
 * good.
 *
 *     limit   where the part in work ends: a part that reaches it is complete
 *     cap     where the sequence is cut: is_cut is set, and no evaluation may follow
 *
 * A part without options of its own has a budget, so that parts can work side by side:
 *
 *     SearchBudget part = budget_part(&budget);               its cap is the remainder of the budget
 *     ...                                               budget_take() before, `used` after evaluations
 *     budget_return(&budget, part.used, part.is_cut);
 *
 * Exception: a search of forms or of devices gives each of its searches a share of the cap. One that reaches
 * the end of its share leaves the shares of the others, so that its cut is not passed on: budget_return()
 * gets false. A larger cap there divides into other shares.
 *
 * A zeroed budget has neither cap nor stop signal.
 */
#ifndef PLANNERS_PROBLEM_BUDGET_H
#define PLANNERS_PROBLEM_BUDGET_H

#include <stdint.h>

#include "base/system/stop.h"

/* The refusal of a search whose budget ended before its first price. */
#define BUDGET_CUT_TEXT "no plan was priced within the limit (expected more --evaluations or --seconds)"

typedef struct SearchLimits {
    /* Priced plans. Of the whole search: the most. Of a part: its size, on which its sequence of plans
     * depends. 0: the searcher's default. OBJECTIVE_PAPER: episodes. */
    int64_t evaluations;
    bool is_default; /* `evaluations` is a default */
    /* Of a part: the most priced plans, where the sequence is cut. A cap of 0: baselines alone. */
    int64_t cap;
    bool has_cap;   /* false: `cap` is 0 */
    double seconds; /* cap on time, 0: none */
} SearchLimits;

typedef struct SearchBudget {
    int64_t used;    /* evaluations so far */
    int64_t limit;   /* `used` at the end of the part in work */
    int64_t cap;     /* `used` at most, if has_cap */
    bool has_cap;    /* false: `cap` is 0 */
    bool is_cut;     /* the cap, or a part's stop signal, has left out an evaluation: none may follow */
    StopSignal stop; /* the deadline of --seconds, and interrupts */
} SearchBudget;

/* Returns the budget of a search that begins now: nothing used, the cap of the limits, and a deadline after
 * `share` of their time. `interrupted` ends it, too, or is NULL. */
SearchBudget budget_begin(const SearchLimits *limits, double share, const volatile sig_atomic_t *interrupted);
/* Sets the cap of a part's limits to the evaluations that a budget has left. */
void budget_share(SearchLimits *part, const SearchBudget *budget);
/* Sets a cap of evaluations; 0: none. */
void budget_set_cap(SearchBudget *budget, int64_t cap);
/* Returns the evaluations that the cap leaves: INT64_MAX without a cap, perhaps below 0 with one. */
int64_t budget_left(const SearchBudget *budget);
/* Returns how many of the next `wanted` evaluations the cap allows: none once the budget is cut. If they are
 * fewer than wanted, the budget is cut. The caller adds those that it makes to `used`. */
int64_t budget_take(SearchBudget *budget, int64_t wanted);
/* Returns whether the cap allows all of the next `wanted` evaluations; if not, the budget is cut. The caller
 * adds those that it makes to `used`. */
bool budget_try_take(SearchBudget *budget, int64_t wanted);
/* Returns whether the budget is cut or used up, or the stop signal is set. The limit of the part in work has
 * no effect. */
bool budget_is_over(const SearchBudget *budget);
/* Returns the budget of a part: nothing used, the cap that is left, the same stop signal, no limit. */
SearchBudget budget_part(const SearchBudget *budget);
/* Adds the evaluations of a part to those used, and its cut. */
void budget_return(SearchBudget *budget, int64_t used, bool is_cut);

#endif
