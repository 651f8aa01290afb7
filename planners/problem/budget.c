/* Budgets: how many of the next evaluations a cap allows, and whether it has left out any. */
#include "planners/problem/budget.h"

#include "base/system/clock.h"

SearchBudget budget_begin(const SearchLimits *limits, double share,
                          const volatile sig_atomic_t *interrupted) {
    double seconds = share * limits->seconds;
    return (SearchBudget){.cap = limits->cap,
                          .has_cap = limits->has_cap,
                          .stop = {interrupted, seconds > 0 ? clock_seconds() + seconds : 0}};
}

void budget_share(SearchLimits *part, const SearchBudget *budget) {
    int64_t left = budget_left(budget);
    part->has_cap = budget->has_cap;
    part->cap = !budget->has_cap || left < 0 ? 0 : left;
}

void budget_set_cap(SearchBudget *budget, int64_t cap) {
    budget->has_cap = cap > 0;
    budget->cap = cap;
}

int64_t budget_left(const SearchBudget *budget) {
    return budget->has_cap ? budget->cap - budget->used : INT64_MAX;
}

int64_t budget_take(SearchBudget *budget, int64_t wanted) {
    int64_t left = budget_left(budget);
    if (budget->is_cut) return 0;
    if (left >= wanted) return wanted;
    budget->is_cut = true;
    return left > 0 ? left : 0;
}

bool budget_try_take(SearchBudget *budget, int64_t wanted) {
    return budget_take(budget, wanted) == wanted;
}

bool budget_is_over(const SearchBudget *budget) {
    return budget->is_cut || budget_left(budget) <= 0 || stop_wanted(&budget->stop);
}

SearchBudget budget_part(const SearchBudget *budget) {
    SearchLimits left = {0};
    budget_share(&left, budget);
    return (SearchBudget){.has_cap = left.has_cap, .cap = left.cap, .stop = budget->stop};
}

void budget_return(SearchBudget *budget, int64_t used, bool is_cut) {
    budget->used += used;
    budget->is_cut |= is_cut;
}
