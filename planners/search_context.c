/* Common work of the parts of a search: shares of the budget, the merge of results by one order, and climbs
 * over single changes of the best plan.
 */
#include "planners/search_context.h"

#include <math.h>

#include "base/system/clock.h"
#include "planners/improve/plan_restarts.h"
#include "planners/pipeline/order_rivals.h"

SearchContext search_context(SearchResult *result, Arena *arena, PlanContext *primary, const Cluster *cluster,
                             const SearchScope *scope) {
    bool is_capped = search_spans_stages(scope) && scope->purpose != PURPOSE_TRIAL;
    SearchBudget budget = budget_begin(&scope->limits, 1, scope->request->callbacks.interrupted);
    budget_set_cap(&budget, is_capped ? scope->limits.evaluations : 0);
    return (SearchContext){.result = result,
                           .arena = arena,
                           .primary = primary,
                           .cluster = cluster,
                           .scope = scope,
                           .micro_batches = scope->micro_batches,
                           .budget = budget,
                           .climb = {.primary = primary,
                                     .cluster = cluster,
                                     .scope = scope,
                                     .keeps_micro_batches = scope->micro_batches > 0}};
}

/* ---- the budget ---- */

void search_spend(SearchContext *self, const SearchResult *found) {
    budget_return(&self->budget, found->evaluations, found->is_cut);
}

/* ---- results ---- */

void search_result_clear(SearchResult *result) {
    *result = (SearchResult){.model_gap = NAN};
}

AmStatus search_check_part(AmStatus status, const AmError *failure, AmError *error) {
    return status == AM_ERROR_INFEASIBLE ? AM_OK : am_pass_error(status, failure, error);
}

static bool has_baselines(const SearchResult *result) {
    return result->baselines[0].seconds != 0 || result->baselines[0].reason;
}

void search_result_merge(SearchResult *result, const SearchResult *found) {
    const SearchResult kept = *result;
    if (candidate_is_better(&found->pool.best, &kept.pool.best)) *result = *found;
    result->pool = kept.pool;
    pool_merge(&result->pool, &found->pool);
    search_result_choose(result);
    result->evaluations = kept.evaluations + found->evaluations;
    result->search_seconds = kept.search_seconds + found->search_seconds;
    result->interrupted = kept.interrupted || found->interrupted;
    result->is_cut = kept.is_cut || found->is_cut;
    result->has_baselines = kept.has_baselines || found->has_baselines;
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        const BaselineResult *old = &kept.baselines[e], *now = &found->baselines[e];
        bool is_faster = baseline_is_faster(now->seconds, old);
        bool is_reason = isnan(old->seconds) && isnan(now->seconds) && now->reason;
        bool is_new = !has_baselines(&kept) || is_faster || is_reason;
        result->baselines[e] = has_baselines(found) && is_new ? *now : *old;
        bool has_estimate = found->estimates[e].micro_batches > 0;
        result->estimates[e] = has_estimate ? found->estimates[e] : kept.estimates[e];
    }
}

void search_result_add(SearchResult *result, Plan *plan, PlanOrigin origin, const char *note) {
    const MemoryFit fits = {.fits = true};
    pool_add(&result->pool, plan, &fits, origin, note);
    search_result_choose(result);
}

/* ---- local improvement ---- */

/* Prepares climbs with the remaining budget; `is_allowed` is false if it is used up, or if the options
 * exclude them. */
static AmStatus begin_climb(bool *is_allowed, const SearchResult *result, SearchContext *self,
                            AmError *error) {
    PlanClimb *climb = &self->climb;
    *is_allowed = result->plan && !budget_is_over(&self->budget) && plan_climb_applies(climb->scope);
    if (!*is_allowed) return AM_OK;
    climb->budget = budget_part(&self->budget);
    search_watch_phase(climb->scope->request->callbacks.watch, SEARCH_PHASE_CHANGES);
    return plan_climb_open(climb, self->arena, error);
}

/* Counts the evaluations of the climb and adds its plan. */
static void end_climb(SearchResult *result, SearchContext *self, Plan *plan) {
    budget_return(&self->budget, self->climb.budget.used, self->climb.budget.is_cut);
    if (plan != result->plan) search_result_add(result, plan, PLAN_ORIGIN_IMPROVEMENT, NULL);
}

/* Returns the fastest pipeline with another number of stages or micro-batches than the result's plan, if it
 * is nearly as fast; or NULL. */
static Plan *rival_of(const SearchResult *result) {
    const double near = 1.03;
    for (int32_t k = 0; k < POOL_SHAPES; k++) {
        Plan *plan = result->pool.shapes[k].plan;
        if (!plan || plan->predicted_step_seconds > near * result->plan->predicted_step_seconds) return NULL;
        if (plan->stage_count == 1 || plan_has_same_shape(plan, result->plan)) continue;
        return plan;
    }
    return NULL;
}

/* Returns the plan from which to climb: on a sample, one that leaves memory for changes. */
static Plan *start_of(const SearchResult *result, const SearchContext *self) {
    bool is_best = result->pool.best.plan == result->plan;
    return is_best && search_module_is_sample(self->primary) ? pool_start(&result->pool) : result->plan;
}

/* Climbs from the fastest pipelines with other orders of the devices, and from the result's plan on other
 * orders, one after another. Each keeps its order, and only the fastest plan at the end swaps devices.
 * `*plan` becomes the fastest plan. */
static AmStatus climb_orders(Plan **plan, const SearchResult *result, SearchContext *self, AmError *error) {
    const double near = 1.2;
    const Plan *first = result->plan, *climbed = *plan;
    Plan *rivals[ORDER_RIVALS_MOST];
    PlanClimb *climb = &self->climb;
    AmStatus status = AM_OK;
    int32_t count = 0;
    climb->keeps_devices = true;
    for (int32_t k = 0; k < POOL_ORDERS && result->pool.orders[k].plan; k++) {
        Plan *rival = result->pool.orders[k].plan;
        if (rival->predicted_step_seconds > near * first->predicted_step_seconds) break;
        if (rival->stage_count == 1 || plan_has_same_order(rival, first)) continue;
        if (climb->budget.is_cut) break;
        TRY_OR_FAIL(plan_climb_rivals(plan, rival, climb, self->arena, error));
    }
    if (first->stage_count > 1 && !climb->budget.is_cut && !self->scope->request->devices.keeps_order)
        TRY_OR_FAIL(order_rivals_find(rivals, &count, result->plan, near, climb, self->arena, error));
    for (int32_t k = 0; k < count && !climb->budget.is_cut; k++)
        TRY_OR_FAIL(plan_climb_rivals(plan, rivals[k], climb, self->arena, error));
    climb->keeps_devices = false;
    if (*plan != climbed) status = plan_climb(plan, climb, 0, self->arena, error);
fail:
    climb->keeps_devices = false;
    return status;
}

AmStatus search_add_climb(SearchResult *result, SearchContext *self, bool has_rival, AmError *error) {
    bool is_allowed;
    TRY(begin_climb(&is_allowed, result, self, error));
    if (!is_allowed) return AM_OK;
    Plan *plan = start_of(result, self);
    bool is_short = self->most_climbed > 0 && budget_left(&self->climb.budget) > self->most_climbed;
    if (is_short) budget_set_cap(&self->climb.budget, self->most_climbed);
    Plan *rival = has_rival ? rival_of(result) : NULL;
    AmStatus status = rival ? plan_climb_rivals(&plan, rival, &self->climb, self->arena, error)
                            : plan_climb(&plan, &self->climb, 0, self->arena, error);
    if (status == AM_OK) status = climb_orders(&plan, result, self, error);
    if (is_short) self->climb.budget.is_cut = false; /* the budget of the search is not over */
    end_climb(result, self, plan);
    return status;
}

AmStatus search_add_restarts(SearchResult *result, SearchContext *self, int64_t size, uint64_t seed,
                             AmError *error) {
    bool is_allowed;
    Plan *plan = result->plan;
    TRY(begin_climb(&is_allowed, result, self, error));
    if (!is_allowed) return AM_OK;
    AmStatus status = plan_restarts(&plan, &self->climb, size, seed, self->arena, error);
    end_climb(result, self, plan);
    return status;
}
