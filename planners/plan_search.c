/* The search over everything that the options leave open: spaces, and the number of micro-batches.
 *
 * plan_search() is the list of its steps. Every source of plans adds candidates to one pool; the best of
 * them is the result. The options select the source: rounds over any number of stages (search_rounds.h),
 * one-stage plans for each number of micro-batches (search_micro_batches.h), or strategies of a trainer
 * (search_strategies.h). Others are a sample of the layers of a large module (sample_search.h), and the
 * paper's own mode.
 */
#include "planners/plan_search.h"

#include <math.h>

#include "base/system/clock.h"
#include "base/system/parallel.h"
#include "cost/memory/rank_memory.h"
#include "planners/automap_paper/paper_search.h"
#include "planners/sample_search.h"
#include "planners/search_baselines.h"
#include "planners/search_bound.h"
#include "planners/search_micro_batches.h"
#include "planners/search_rounds.h"
#include "planners/search_strategies.h"
#include "planners/single_stage/assignment_search.h"
#include "planners/single_stage/single_stage_search.h"

/* The part of a time limit, and the most seconds, that a search keeps for the work in hand when its time is
 * up, for the bound and for the memory of the ranks. */
#define TAIL_SHARE 0.1
#define MOST_TAIL  0.5

/* ---- one-stage plans ---- */

/* Returns whether the search may choose the number of micro-batches if no plan with one fits. */
static bool may_add_micro_batches(const SearchScope *scope) {
    bool is_free = !scope->request->space.mesh && scope->request->constraints.pin_count == 0 &&
                   !scope->request->constraints.kept && scope->purpose != PURPOSE_TRIAL;
    return scope->request->space.may_add_micro_batches && scope->kind == SPACE_SINGLE_STAGE && is_free &&
           search_method_explores(scope->searcher);
}

/* Chooses the number of micro-batches of the fastest baseline that fits; unchanged where none fits. */
static AmStatus choose_number(SearchContext *self, AmError *error) {
    SearchResult *result = self->result;
    int32_t given = self->micro_batches;
    self->micro_batches = 0;
    AmStatus status = search_add_stage_baselines(result, self, false, NULL, self->scope, error);
    self->micro_batches = result->plan ? result->plan->micro_batches : given;
    return status;
}

/* Searches one-stage plans. For a large module, baselines choose the number of micro-batches before the
 * search; for others, only where no plan fits. Out of time, the fastest baseline is the result. */
static AmStatus search_one_stage(SearchContext *self, AmError *error) {
    bool may_add = may_add_micro_batches(self->scope);
    AmError failure = {0};
    if (may_add && search_module_is_large(self->primary)) TRY(choose_number(self, error));
    if (self->result->plan && stop_wanted(&self->budget.stop)) {
        self->result->plan->bound = NULL;
        self->result->plan->bound_seconds = NAN;
        return AM_OK;
    }
    AmStatus status = search_micro_batches(self, &failure);
    if (status == AM_ERROR_INFEASIBLE && may_add && !search_module_is_large(self->primary) &&
        self->result->nearest) {
        TRY(choose_number(self, error));
        if (self->result->plan) {
            failure = (AmError){0};
            status = search_micro_batches(self, &failure);
        }
    }
    return am_pass_error(status, &failure, error);
}

/* Adds the plans that every budget has, alone: with the given number of micro-batches, else with any. */
static AmStatus add_floor(SearchContext *self, AmError *error) {
    TRY(search_add_floor(self, error));
    if (!self->result->plan && may_add_micro_batches(self->scope)) {
        self->micro_batches = 0;
        TRY(search_add_floor(self, error));
    }
    return self->result->plan ? AM_OK : am_fail(error, AM_ERROR_INFEASIBLE, "", "no baseline fits");
}

/* ---- the steps ---- */

/* Refuses more stages than the cluster has devices, where pins name them. */
static AmStatus check_pinned_stages(const Cluster *cluster, const SearchScope *scope, AmError *error) {
    const SearchRequest *request = scope->request;
    const PropagationPin *last;
    char label[PIN_LABEL_BYTES];
    int32_t stages = placement_stages(request->constraints.pins, request->constraints.pin_count, &last);
    if (stages <= cluster->device_count) return AM_OK;
    return am_fail(error, AM_ERROR_INFEASIBLE, pin_file(last),
                   "%s: cluster %s has %d device%s (expected at most as many stages, 0 to %d)",
                   pin_place(label, last), cluster->name, cluster->device_count,
                   cluster->device_count == 1 ? "" : "s", cluster->device_count - 1);
}

/* Restricts the options to the space that they leave, adds the degrees that the cluster implies, and finds
 * the stages of pinned scopes. */
static AmStatus narrow_options(SearchScope *narrowed, SearchRequest *request, const SearchScope *scope,
                               Arena *arena, PlanContext *primary, const Cluster *cluster, AmError *error) {
    const Placement **placement = &narrowed->placement;
    PlanConstraints *constraints = &request->constraints;
    *narrowed = search_with_request(scope, request);
    narrowed->limits.seconds -= fmin(TAIL_SHARE * scope->limits.seconds, MOST_TAIL);
    search_narrow(narrowed);
    bool chooses_number = narrowed->micro_batches == 0 || may_add_micro_batches(narrowed);
    bool is_by_policy = narrowed->searcher == SEARCHER_DQN && narrowed->kind == SPACE_SINGLE_STAGE;
    narrowed->splits = is_by_policy && chooses_number ? primary : NULL;
    TRY(check_pinned_stages(cluster, scope, error));
    TRY(degrees_complete(&constraints->degrees, cluster, error));
    TRY(placement_find(placement, arena, primary, cluster, constraints->pins, constraints->pin_count, error));
    constraints->degrees.excludes_one_stage =
        *placement && search_spans_stages(narrowed) &&
        !placement_allows_devices(*placement, 0, (*placement)->count, 0, cluster->device_count);
    return placement_check_numbers(*placement, constraints->degrees.stages, error);
}

/* Adds the candidates of all sources that the options allow. */
static AmStatus add_candidates(SearchContext *self, AmError *error) {
    const SearchScope *scope = self->scope;
    SearchResult *result = self->result;
    bool is_sampled = false;
    if (scope->purpose == PURPOSE_FLOOR) return add_floor(self, error);
    if (search_is_recomputed_baseline(scope)) return search_recomputed_baseline(self, error);
    TRY(sample_search(self, &is_sampled, error));
    if (scope->request->objective == OBJECTIVE_PAPER) {
        TRY(paper_search(result, self->arena, self->primary, self->cluster, scope, error));
        search_result_add(result, result->plan, PLAN_ORIGIN_PAPER, NULL);
    } else if (is_sampled) {
        result->is_cut = false;
    } else if (target_row(scope->request->constraints.target)->trainer) {
        TRY(search_strategies(self, error));
    } else if (search_spans_stages(scope)) {
        TRY(search_stages(self, error));
    } else {
        TRY(search_one_stage(self, error));
    }
    result->interrupted |= stop_flag_is_set(scope->request->callbacks.interrupted);
    return AM_OK;
}

/* Adds the bound over any number of stages, unless plan_search_finish() follows. */
static AmStatus add_bound(SearchContext *self, AmError *error) {
    const SearchScope *scope = self->scope;
    if (!search_bounds_stages(self->result, scope) || scope->skip_bound || scope->finishes_later)
        return AM_OK;
    return search_bound_plan(self->result, self->primary, self->cluster, scope, self->micro_batches,
                             &self->budget.stop, error);
}

/* Adds the memory of ranks that differ, unless plan_search_finish() follows or the time is up. */
static AmStatus add_rank_memory(SearchContext *self, const StopSignal *end, AmError *error) {
    const SearchScope *scope = self->scope;
    if (scope->purpose == PURPOSE_TRIAL || scope->finishes_later || self->result->interrupted ||
        stop_wanted(end))
        return AM_OK;
    return rank_memory_predict(self->result->plan, self->arena, self->primary, self->cluster, end, error);
}

AmStatus plan_search(SearchResult *result, Arena *arena, PlanContext *primary, const Cluster *cluster,
                     const SearchScope *scope, AmError *error) {
    SearchRequest request;
    SearchScope narrowed;
    double start = clock_seconds();
    const StopSignal end = {scope->request->callbacks.interrupted,
                            scope->limits.seconds > 0 ? start + scope->limits.seconds : 0};
    AmStatus status;
    TRY(narrow_options(&narrowed, &request, scope, arena, primary, cluster, error));
    const TargetRow *target = target_row(scope->request->constraints.target);
    primary->keeps_data_apart = target->has_leading_batch;
    primary->keeps_examples_apart = target->has_own_examples;
    search_result_clear(result);
    SearchContext self = search_context(result, arena, primary, cluster, &narrowed);
    TRY_OR_FAIL(target_check_module(scope->request->constraints.target, primary, error));
    TRY_OR_FAIL(search_check_given(scope->request->space.initial, cluster, error));
    TRY_OR_FAIL(assignment_search_check(self.scope, error));
    TRY_OR_FAIL(search_show_bound(&self, error));
    TRY_OR_FAIL(add_candidates(&self, error));
    if (!narrowed.finishes_later) TRY_OR_FAIL(search_add_recomputed_baselines(&self, error));
    TRY_OR_FAIL(add_bound(&self, error));
    TRY_OR_FAIL(search_add_given(&self, error));
    result->search_seconds = clock_seconds() - start;
    pool_record(&result->pool);
    status = add_rank_memory(&self, &end, error);
fail:
    plan_climb_close(&self.climb);
    return status;
}

/* The bound and the memory of the ranks, side by side: the memory is that of a copy of the plan. */
typedef struct FinishTasks {
    SearchContext *search;
    const StopSignal *stop;
    Plan copy;
    AmStatus status[2];
    AmError error[2];
} FinishTasks;

static void finish_task(void *user, int32_t k) {
    FinishTasks *self = user;
    const SearchContext *search = self->search;
    const SearchScope *scope = search->scope;
    SearchResult *result = search->result;
    if (k == 0 && search_bounds_stages(result, scope) && !scope->skip_bound)
        self->status[k] = search_bound_plan(result, search->primary, search->cluster, scope,
                                            search->micro_batches, self->stop, &self->error[k]);
    if (k == 1 && scope->purpose != PURPOSE_TRIAL && !result->interrupted)
        self->status[k] = rank_memory_predict(&self->copy, search->arena, search->primary, search->cluster,
                                              self->stop, &self->error[k]);
}

AmStatus plan_search_finish(SearchResult *result, Arena *arena, PlanContext *primary, const Cluster *cluster,
                            const SearchScope *scope, AmError *error) {
    SearchRequest request;
    SearchScope narrowed;
    const StopSignal stop = {scope->request->callbacks.interrupted, 0};
    double start = clock_seconds();
    TRY(narrow_options(&narrowed, &request, scope, arena, primary, cluster, error));
    SearchContext self = search_context(result, arena, primary, cluster, &narrowed);
    TRY(search_add_recomputed_baselines(&self, error));
    FinishTasks tasks = {.search = &self, .stop = &stop, .copy = *result->plan};
    parallel_for(2, 0, finish_task, &tasks);
    for (int32_t k = 0; k < 2; k++) TRY(am_pass_error(tasks.status[k], &tasks.error[k], error));
    result->plan->predicted = tasks.copy.predicted;
    result->search_seconds += clock_seconds() - start;
    return AM_OK;
}
