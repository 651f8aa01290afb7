/* Searches for a target with and without its restrictions, and takes the best plan that it can run. */
#include "planners/forms/target_search.h"

#include <math.h>
#include <string.h>

#include "base/system/parallel.h"
#include "cost/simulate/simulate.h"
#include "planners/devices/device_search.h"
#include "planners/export/export_check.h"
#include "planners/single_stage/single_stage_search.h"

/* Returns the fastest candidate of a pool that a target can run; NULL: none. `*why`: the first refusal. */
static PlanCandidate *fastest_on(Target target, CandidatePool *pool, const PlanContext *primary,
                                 AmError *why) {
    for (int32_t k = 0; k < POOL_OF_TARGET && pool->on[target][k].plan; k++)
        if (export_check(target, primary, pool->on[target][k].plan, why) == AM_OK)
            return &pool->on[target][k];
    return NULL;
}

/* The best plan of each target, found side by side until an interrupt: the plan of the search is there. */
typedef struct TargetTasks {
    TargetPlans *plans;
    const FormSearch *search;
} TargetTasks;

static void find_plan(void *user, int32_t target) {
    const TargetTasks *tasks = user;
    const FormSearch *self = tasks->search;
    if (self->primary->unfused && target_is_xla((Target)target)) return; /* it has no fused attention */
    if (stop_flag_is_set(self->scope.request->callbacks.interrupted)) return;
    const PlanCandidate *best = fastest_on((Target)target, &self->result->pool, self->primary, NULL);
    if (best) tasks->plans->on[target] = best->plan;
}

/* Searches without the target, where limits allow it: further candidates and the price of the restriction. */
static AmStatus search_freely(FormSearch *self, SearchResult *found, TargetPlans *plans,
                              const SearchScope *free, AmError *error) {
    Target target = self->scope.request->constraints.target;
    SearchScope scope = *free;
    AmError refusal = {0}, lack = {0};
    *found = (SearchResult){0};
    scope.skip_bound = true;
    self->has_search_after = false;
    self->searches = 1;
    if (!search_method_explores(scope.searcher) || !form_search_has_budget(self)) return AM_OK;
    if (stop_flag_is_set(scope.request->callbacks.interrupted)) return AM_OK;
    form_search_share(&scope, self);
    if (!self->budget.has_cap) scope.limits.evaluations = free->limits.evaluations; /* not those of a stage */
    AmStatus status = device_search(found, self->arena, self->primary, self->cluster, &scope, &refusal);
    form_search_spend(self, &scope, found);
    found->interrupted |= status == AM_INTERRUPTED;
    if (status == AM_ERROR_INFEASIBLE || status == AM_INTERRUPTED) return AM_OK;
    TRY(am_pass_error(status, &refusal, error));
    plans->free_seconds = found->plan->predicted_step_seconds;
    if (export_check(target, self->primary, found->plan, &lack) == AM_OK) return AM_OK;
    char *remedy = strstr(lack.text, "; search --for"); /* this is the search that it names */
    if (remedy) *remedy = '\0';
    plans->lack = arena_copy_string(self->arena, lack.text);
    return AM_OK;
}

/* Prices a candidate of the search without the target as a plan for JAX, whose memory is another. It has no
 * plan afterwards if that does not fit. */
static AmStatus price_for_jax(const FormSearch *self, PlanCandidate *candidate, AmError *error) {
    Plan *plan = ARENA_ARRAY(self->arena, Plan, 1);
    const SimulationOptions options = {.memory_fraction = self->scope.request->constraints.memory_fraction};
    Simulation *simulation;
    if (!plan) return am_fail_memory(error, (int64_t)sizeof *plan);
    *plan = *candidate->plan;
    plan->is_for_jax = true;
    TRY(simulate_plan(&simulation, self->arena, plan_context_used(plan, self->primary), plan, self->cluster,
                      &options, error));
    TRY(simulation_predict(plan, self->arena, simulation, error));
    candidate->plan = simulation->fit.fits ? plan : NULL;
    candidate->seconds = simulation->step_seconds;
    candidate->fit = simulation->fit;
    return AM_OK;
}

/* Makes a candidate the result. The bound holds for all plans; the model gap is that of one. */
static void choose(SearchResult *result, const PlanCandidate *candidate) {
    const Plan *before = result->plan;
    Plan *plan = candidate->plan;
    if (plan != before) {
        bool has_bound = before && before->bound;
        plan->bound = has_bound ? before->bound : NULL;
        plan->bound_seconds = has_bound ? fmin(before->bound_seconds, plan->predicted_step_seconds) : NAN;
        result->model_gap = NAN;
    }
    result->pool.best = *candidate;
    search_result_choose(result);
    pool_record(&result->pool);
}

AmStatus target_search(FormSearch *self, TargetPlans *plans, const SearchScope *free, AmError *error) {
    Target target = self->scope.request->constraints.target;
    SearchResult found, *result = self->result;
    AmError refusal = {0}, why = {0};
    *plans = (TargetPlans){0};
    self->budget = search_user_budget(&self->scope);
    self->primary = self->forms.chosen;
    if (target == TARGET_AUTOMAP) {
        TRY(form_search(self, error));
        TargetTasks tasks = {plans, self};
        parallel_for(TARGET_COUNT, 0, find_plan, &tasks);
        return AM_OK;
    }
    TRY(target_check_module(target, self->primary, error));
    self->has_search_after = true;
    AmStatus status = form_search(self, &refusal);
    TRY(search_freely(self, &found, plans, free, error));
    PlanCandidate *own = fastest_on(target, &result->pool, self->primary, &why);
    PlanCandidate *other = fastest_on(target, &found.pool, self->primary, NULL), priced;
    if (other && target == TARGET_JAX) {
        priced = *other;
        TRY(price_for_jax(self, &priced, error));
        other = priced.plan ? &priced : NULL;
    }
    const PlanCandidate *best = own;
    if (other && (!own || candidate_is_better(other, own))) best = other;
    if (!best) {
        if (error) *error = status == AM_OK ? why : refusal;
        return status == AM_OK ? why.code : status;
    }
    result->evaluations += found.evaluations;
    result->search_seconds += found.search_seconds;
    result->interrupted |= found.interrupted;
    choose(result, best);
    return AM_OK;
}

bool target_may_take(const FormSearch *self, const PlanCandidate *candidate) {
    if (search_check_plan(&self->scope, candidate->plan, NULL) != AM_OK) return false;
    return self->scope.request->constraints.target == TARGET_AUTOMAP ||
           export_check(self->scope.request->constraints.target, self->primary, candidate->plan, NULL) ==
               AM_OK;
}

void target_take(SearchResult *result, const PlanCandidate *candidate) {
    const Plan *before = result->plan;
    candidate->plan->evaluations = before->evaluations;
    candidate->plan->space = before->space;
    choose(result, candidate);
}
