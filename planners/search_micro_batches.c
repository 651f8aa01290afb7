/* Searches with a fixed number of micro-batches, one after the other.
 *
 * More micro-batches keep fewer activations, at the cost of smaller kernels and more launches. So the fastest
 * number is usually the smallest that fits, or near to it. All numbers are searched in the same way.
 */
#include "planners/search_micro_batches.h"

#include <math.h>

#include "ir/analysis/loops.h"
#include "planners/bounds/bound_pipelines.h"
#include "planners/single_stage/single_stage_search.h"

/* Lists the numbers of micro-batches to search one by one: the first alone where the policy chooses among
 * them. */
static int32_t list_numbers(int32_t numbers[MICRO_BATCHES_MOST_NUMBERS], const SearchContext *self) {
    int32_t count = micro_batches_numbers(numbers, self->primary, self->micro_batches);
    return self->scope->splits ? 1 : count;
}

AmStatus search_add_each_number(SearchResult *result, double *bound, SearchContext *self,
                                const SearchScope *scope, const NumbersRound *round, AmError *error) {
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count = list_numbers(numbers, self);
    bool has_plan = false, is_baseline = scope->searcher == SEARCHER_BASELINE, is_slower = false;
    AmError first = {0};
    *bound = INFINITY;
    for (int32_t k = 0; k < count && (k == 0 || !budget_is_over(&self->budget)); k++) {
        int64_t share = round->size / count;
        SearchScope part = search_part(scope, &self->budget, share > 0 ? share : 1);
        part.seed += (uint64_t)round->number * SEARCH_SEED_STEP;
        if (count > 1 && scope->limits.seconds > 0) part.limits.seconds /= count - k;
        if (count == 1 && round->runs_all_rounds) {
            part.purpose = PURPOSE_ALL_ROUNDS;
            part.climbs = self->primary;
        }
        MicroBatchSettings here = search_micro_batching(scope->request, numbers[k]);
        here.separate_backward = search_has_stages(scope);
        const PlanContext *context;
        SearchResult found = {0};
        AmError failure = {0};
        AmStatus status = plan_context_for(&context, self->primary, &here, &failure);
        bool cannot_split = status == AM_ERROR_INFEASIBLE;
        if (status == AM_OK && search_has_stages(&part))
            status = pipeline_baseline_search(&found, self->arena, context, self->cluster, &part, &failure);
        else if (status == AM_OK)
            status = single_stage_search(&found, self->arena, context, self->cluster, &part, &failure);
        if (first.code == AM_OK) first = failure;
        search_spend(self, &found);
        TRY(search_check_part(status, &failure, error));
        if (is_baseline && has_plan) is_slower = !candidate_is_better(&found.pool.best, &result->pool.best);
        search_result_merge(result, &found);
        has_plan |= found.plan != NULL;
        bool is_known = found.plan && !isnan(found.plan->bound_seconds) && !isnan(*bound);
        if (!cannot_split) *bound = is_known ? fmin(*bound, found.plan->bound_seconds) : NAN;
        if (cannot_split || found.interrupted) break;
        bool leaves_out = is_slower || budget_is_over(&self->budget);
        if (k + 1 < count && leaves_out) *bound = NAN; /* of the others nothing is known */
        if (is_slower) break;
    }
    if (has_plan) return AM_OK;
    return am_pass_error(AM_ERROR_INFEASIBLE, &first, error);
}

AmStatus search_micro_batches(SearchContext *self, AmError *error) {
    enum { MOST_ROUNDS = 24 };
    const SearchScope *scope = self->scope;
    SearchResult *result = self->result;
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count = list_numbers(numbers, self);
    int64_t standard = search_evaluations_for(scope->searcher, ir_represented(self->primary->canonical));
    bool is_one = scope->searcher == SEARCHER_RANDOM && scope->limits.evaluations == 0;
    bool is_capped = (search_method_has_rounds(scope->searcher) || scope->searcher == SEARCHER_EXACT) &&
                     scope->purpose != PURPOSE_TRIAL && !is_one;
    double bound = NAN;
    AmError refusal = {0};
    NumbersRound round = {.size = scope->limits.evaluations, .runs_all_rounds = is_capped};
    if (is_capped) {
        round.size = standard - plan_climb_reserve(scope, standard);
        budget_set_cap(&self->budget, scope->limits.evaluations > 0 ? scope->limits.evaluations : standard);
    }
    for (;; round.number++, round.size *= 2) {
        SearchResult found = {.model_gap = NAN};
        AmError failure = {0};
        int64_t before = self->budget.used;
        double round_bound;
        AmStatus status = search_add_each_number(&found, &round_bound, self, scope, &round, &failure);
        TRY(search_check_part(status, &failure, error));
        if (round.number == 0) refusal = failure;
        if (isnan(bound) || round_bound > bound) bound = round_bound;
        if (count > 1) TRY(search_add_climb(&found, self, false, error));
        search_result_merge(result, &found);
        bool is_done =
            count == 1 || !self->budget.has_cap || self->budget.used == before || round.number == MOST_ROUNDS;
        if (is_done || budget_is_over(&self->budget) || found.interrupted) break;
    }
    result->evaluations = self->budget.used;
    if (!result->plan) return am_pass_error(AM_ERROR_INFEASIBLE, &refusal, error);
    Plan *plan = result->plan;
    bool is_wanted = search_method_takes_baselines(scope->searcher) && !scope->skip_bound &&
                     !stop_wanted(&self->budget.stop);
    bool is_baseline = !plan->bound && is_wanted; /* whose number of micro-batches was searched afterwards */
    if ((count > 1 || is_baseline) && !result->interrupted) {
        if (isnan(bound) && is_wanted) { /* for some number, as without a plan that fits */
            const BoundSpace space = {.most_stages = 1};
            PlanBound by_work;
            TRY(plan_bound_quickly(&by_work, self->primary, self->cluster, &space, error));
            if (by_work.seconds > 0) bound = by_work.seconds;
        }
        plan->bound_seconds = isnan(bound) ? NAN : fmin(bound, plan->predicted_step_seconds);
        plan->bound = isnan(bound) ? NULL : "lower";
    }
    plan->evaluations = self->budget.used;
    return AM_OK;
}
