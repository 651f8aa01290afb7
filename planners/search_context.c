/* Common work of the parts of a search: the budget, and climbs over single changes of the best plan. */
#include "planners/search_context.h"

#include <math.h>

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
                           .request = scope->request,
                           .micro_batches = scope->micro_batches,
                           .budget = budget,
                           .climb = {.primary = primary,
                                     .cluster = cluster,
                                     .scope = scope,
                                     .request = scope->request,
                                     .keeps_micro_batches = scope->micro_batches > 0}};
}

/* ---- the budget ---- */

void search_spend(SearchContext *self, const SearchResult *found) {
    budget_return(&self->budget, found->evaluations, found->is_cut);
}

AmStatus search_check_part(AmStatus status, const AmError *failure, AmError *error) {
    return status == AM_ERROR_INFEASIBLE ? AM_OK : am_pass_error(status, failure, error);
}

/* ---- climbs ---- */

/* The steps of plans to climb from, at most, over the step of the best plan: pipelines with another number of
 * stages or micro-batches, or on a sample the plan with the least memory; and pipelines with another order of
 * the devices. On samples 3 % is the known error of steps, too. */
#define NEAR_RIVAL 1.03
#define NEAR_ORDER 1.2
enum { MOST_RIVALS = 2 };

/* Prepares climbs with the remaining budget; `is_allowed` is false if it is used up, or if the options
 * exclude them. */
static AmStatus begin_climb(bool *is_allowed, const SearchResult *result, SearchContext *self,
                            AmError *error) {
    PlanClimb *climb = &self->climb;
    *is_allowed = result->plan && !budget_is_over(&self->budget) && plan_climb_applies(climb->scope);
    if (!*is_allowed) return AM_OK;
    climb->budget = budget_part(&self->budget);
    search_watch_phase(climb->request->callbacks.watch, SEARCH_PHASE_CHANGES);
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
    for (int32_t k = 0; k < POOL_SHAPES; k++) {
        Plan *plan = result->pool.shapes[k].plan;
        if (!plan || plan->predicted_step_seconds > NEAR_RIVAL * result->plan->predicted_step_seconds)
            return NULL;
        if (plan->stage_count == 1 || plan_has_same_shape(plan, result->plan)) continue;
        return plan;
    }
    return NULL;
}

/* Climbs from the fastest pipelines with other orders of the devices, and from the result's plan on other
 * orders, one after another. Each keeps its order, and only the fastest plan at the end swaps devices.
 * `*plan` becomes the fastest plan. */
static AmStatus climb_orders(Plan **plan, const SearchResult *result, SearchContext *self, AmError *error) {
    const Plan *first = result->plan, *climbed = *plan;
    Plan *rivals[ORDER_RIVALS_MOST];
    PlanClimb *climb = &self->climb;
    AmStatus status = AM_OK;
    int32_t count = 0;
    climb->keeps_devices = true;
    for (int32_t k = 0; k < POOL_ORDERS && result->pool.orders[k].plan; k++) {
        Plan *rival = result->pool.orders[k].plan;
        if (rival->predicted_step_seconds > NEAR_ORDER * first->predicted_step_seconds) break;
        if (rival->stage_count == 1 || plan_has_same_order(rival, first)) continue;
        if (climb->budget.is_cut) break;
        TRY_OR_FAIL(plan_climb_rivals(plan, rival, climb, false, self->arena, error));
    }
    if (first->stage_count > 1 && !climb->budget.is_cut && !self->request->devices.keeps_order)
        TRY_OR_FAIL(order_rivals_find(rivals, &count, result->plan, NEAR_ORDER, climb, self->arena, error));
    for (int32_t k = 0; k < count && !climb->budget.is_cut; k++)
        TRY_OR_FAIL(plan_climb_rivals(plan, rivals[k], climb, false, self->arena, error));
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
    Plan *plan = result->plan, *rivals[MOST_RIVALS] = {0};
    bool is_short = self->most_climbed > 0 && budget_left(&self->climb.budget) > self->most_climbed;
    if (is_short) budget_set_cap(&self->climb.budget, self->most_climbed);
    if (has_rival) rivals[0] = rival_of(result);
    if (ir_is_sample(self->primary->canonical)) rivals[1] = pool_leanest(&result->pool, NEAR_RIVAL);
    bool is_alone = !rivals[0] && !rivals[1];
    AmStatus status = is_alone ? plan_climb(&plan, &self->climb, 0, self->arena, error) : AM_OK;
    for (int32_t k = 0; k < MOST_RIVALS && status == AM_OK; k++)
        if (rivals[k]) /* on a sample the first changes tell which start is better */
            status = plan_climb_rivals(&plan, rivals[k], &self->climb, k == 1, self->arena, error);
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
