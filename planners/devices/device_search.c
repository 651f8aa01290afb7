/* plan_search() on choices of devices.
 *
 * The first choice, all devices, is searched as a whole. Every other choice whose lower bound does not
 * exclude it is tried with few evaluations, and searched as a whole if that comes near the best plan. Pins of
 * device types may leave no operator to other types, so their choice gets half of a limit of evaluations.
 * With explored prices and a limit of evaluations, up to half of them price the baselines of the other
 * choices, one evaluation each. So small limits have a front, too. Where another choice has faster baselines
 * than all devices, it gets a fifth of a limit that would end before the trials.
 *
 *     time   a plan is better if its step is shorter, or as short on fewer devices
 *     cost   a plan is better if its step costs less: seconds times the price of its devices
 */
#include "planners/devices/device_search.h"

#include <math.h>
#include <string.h>

#include "planners/bounds/bound_pipelines.h"
#include "planners/devices/device_choice.h"
#include "planners/devices/device_order.h"
#include "planners/improve/uneven_shares.h"
#include "planners/pipeline/stage_dp.h"
#include "planners/search_baselines.h"
#include "planners/search_bound.h"
#include "planners/single_stage/single_stage_search.h"

enum { TRIAL = 48 /* evaluations */, BASELINES_ALONE = 1, MOST_SEARCHED = 12 /* choices after a trial */ };
/* Trials that come so near to the best plan are followed by a whole search. */
#define NEAR 1.1
/* A step that is longer by this part is as short. */
#define EQUAL 1e-3
/* The part of a time limit for the first choice where others are explored by price, or named by pins. */
#define FIRST_SHARE 0.4
/* The choice with the fastest baselines gets one of so many parts of a limit of evaluations. */
#define FAVOURITE_PART  5
#define SECONDS_IN_HOUR 3600.0

typedef struct DeviceSearch {
    SearchResult *result; /* the best so far */
    Arena *arena;
    PlanContext *primary;
    const Cluster *cluster;
    const SearchScope *scope;
    const SearchRequest *request; /* of the scope */
    DeviceChoices choices;
    int32_t best;        /* choice of the result */
    int32_t favourite;   /* choice with faster baselines than the first one; 0: none */
    int64_t reserved;    /* evaluations that the first choice leaves to others */
    double *seconds;     /* [choice] the shortest step so far; INFINITY: no plan, NAN: it was not tried */
    double *bounds;      /* [choice] of its plans, 0: none, NAN: it is not known yet */
    SearchBudget budget; /* search_user_budget() */
} DeviceSearch;

/* ---- one choice ---- */

/* Makes the cluster of a choice's devices. */
static AmStatus make_part(Cluster **part, const DeviceSearch *self, int32_t choice, AmError *error) {
    const DeviceChoice *devices = &self->choices.choices[choice];
    return cluster_part(part, self->arena, self->cluster, devices->devices, devices->count, error);
}

/* Searches with the devices of a choice, which are those of `part`; the result has the cluster's numbers. */
static AmStatus search_choice(SearchResult *result, const DeviceSearch *self, int32_t choice,
                              const Cluster *part, const SearchScope *scope, AmError *error) {
    const DeviceChoice *devices = &self->choices.choices[choice];
    SearchRequest request;
    const Plan *initial = scope->request->space.initial;
    bool is_whole = devices->count == self->cluster->device_count;
    if (initial && is_whole) TRY(search_check_given(initial, self->cluster, error));
    const SearchScope here = search_with_request(scope, &request);
    if (initial)
        TRY(device_order_place(&request.space.initial, self->arena, initial, devices->devices, devices->count,
                               error));
    AmStatus status = plan_search(result, self->arena, self->primary, part, &here, error);
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE) return status;
    TRY(device_order_translate(result, self->arena, devices->devices, error));
    return status;
}

static double price_of(const DeviceSearch *self, int32_t choice, double seconds) {
    return seconds * self->choices.choices[choice].price_per_hour / SECONDS_IN_HOUR;
}

/* Returns the objective: seconds or money. */
static double value_of(const DeviceSearch *self, int32_t choice, double seconds) {
    return self->request->objective == OBJECTIVE_COST ? price_of(self, choice, seconds) : seconds;
}

/* Takes the plan of a choice if it is better than the best so far. */
static void take_if_better(DeviceSearch *self, int32_t choice, const SearchResult *found) {
    SearchResult *best = self->result;
    const SearchResult before = *best;
    if (!found->plan) return;
    double seconds = found->plan->predicted_step_seconds;
    self->seconds[choice] = fmin(seconds, self->seconds[choice]);
    double value = value_of(self, choice, seconds);
    double least = before.plan ? value_of(self, self->best, before.plan->predicted_step_seconds) : INFINITY;
    bool is_smaller = self->choices.choices[choice].count < self->choices.choices[self->best].count;
    if (value >= least * (is_smaller ? 1 + EQUAL : 1 - EQUAL)) return;
    *best = *found;
    best->search_seconds = before.search_seconds;
    best->interrupted |= before.interrupted;
    for (int32_t e = 0; e < BASELINE_COUNT; e++) best->baselines[e] = before.baselines[e];
    if (before.plan && before.plan->bound) {
        best->plan->bound_seconds = fmin(best->plan->bound_seconds, before.plan->bound_seconds);
        if (!best->plan->bound) best->plan->bound = before.plan->bound;
    }
    self->best = choice;
}

/* ---- other choices ---- */

/* Returns whether pins may leave no operator to the types of the first choice that they do not name. */
static bool has_pins(const DeviceSearch *self) {
    return self->choices.count > 1 && self->request->constraints.pin_count > 0;
}

/* Returns whether evaluations and time are left. */
static bool has_budget(const DeviceSearch *self) {
    if (stop_flag_is_set(self->request->callbacks.interrupted) || self->result->interrupted) return false;
    return !budget_is_over(&self->budget);
}

/* Limits a search to the default budget and the remaining one. */
static void allow_default(SearchScope *part, const DeviceSearch *self) {
    int64_t left = budget_left(&self->budget) - self->reserved, size = 0;
    if (!self->budget.has_cap) return;
    if (!search_spans_stages(part))
        size = search_evaluations_for(part->searcher, plan_context_count(self->primary));
    part->limits.evaluations = size > 0 && size < left ? size : left;
    part->ends_at_default = true;
}

/* Returns whether no plan with a step of at least `bound` seconds can be the result. */
static bool is_excluded(const DeviceSearch *self, int32_t choice, double bound) {
    double price = price_of(self, choice, bound);
    for (int32_t k = 0; k < self->choices.count && self->request->explores_prices; k++)
        if (self->seconds[k] <= bound && price_of(self, k, self->seconds[k]) <= price) return true;
    if (self->request->explores_prices || !self->result->plan) return false;
    return bound >= (1 + EQUAL) * self->result->plan->predicted_step_seconds;
}

/* Returns whether the limit has cut the default budget of the first choice. */
static bool is_first_cut(const DeviceSearch *self) {
    const SearchScope *scope = self->scope;
    if (!self->budget.has_cap) return false;
    if (search_spans_stages(scope)) return self->result->is_cut;
    return scope->limits.evaluations - self->reserved <=
           search_evaluations_for(scope->searcher, plan_context_count(self->primary));
}

/* Searches a choice, whose cluster is `part`, and takes its evaluations from the budget. No plan is no error.
 */
static AmStatus search_within_budget(SearchResult *found, DeviceSearch *self, int32_t choice,
                                     const Cluster *part, const SearchScope *scope, AmError *error) {
    AmError refusal = {0};
    AmStatus status = search_choice(found, self, choice, part, scope, &refusal);
    budget_return(&self->budget, found->evaluations, false);
    if (status != AM_OK) found->plan = NULL;
    if (status == AM_OK || status == AM_ERROR_INFEASIBLE || status == AM_INTERRUPTED) return AM_OK;
    return am_pass_error(status, &refusal, error);
}

/* Searches a choice, whose cluster is `part`, with at most `evaluations` (0: the default budget). */
static AmStatus try_part(DeviceSearch *self, int32_t choice, const Cluster *part, int64_t evaluations,
                         AmError *error) {
    SearchScope scope = *self->scope;
    SearchResult found = {0};
    scope.skip_bound = evaluations == TRIAL || evaluations == BASELINES_ALONE;
    if (evaluations == TRIAL && cluster_is_mixed(part) && search_spans_stages(&scope))
        evaluations += UNEVEN_SHARES_TRIED; /* of baselines, before all else */
    if (evaluations > 0) {
        int64_t left = budget_left(&self->budget);
        scope.limits.evaluations = evaluations < left ? evaluations : left;
        scope.limits.is_default = false;
    } else {
        allow_default(&scope, self);
    }
    search_limit_seconds(&scope, &self->budget.stop);
    AmStatus status = search_within_budget(&found, self, choice, part, &scope, error);
    take_if_better(self, choice, &found);
    if (isnan(self->seconds[choice])) self->seconds[choice] = INFINITY;
    return status;
}

static AmStatus try_choice(DeviceSearch *self, int32_t choice, int64_t evaluations, AmError *error) {
    Cluster *part;
    TRY(make_part(&part, self, choice, error));
    AmStatus status = try_part(self, choice, part, evaluations, error);
    cluster_free(part);
    return status;
}

/* Finds the bound of a choice, whose cluster is `part`, once. */
static AmStatus find_bound(DeviceSearch *self, int32_t choice, const Cluster *part, AmError *error) {
    const BoundSpace space = {.most_stages = PIPELINE_MOST_STAGES};
    PlanBound bound;
    if (!isnan(self->bounds[choice])) return AM_OK;
    TRY(plan_bound_quickly(&bound, self->primary, part, &space, error));
    self->bounds[choice] = bound.seconds > 0 ? bound.seconds : 0;
    return AM_OK;
}

/* Finds the shortest step of the baselines of a choice, with shares of mixed devices; INFINITY: none fits. */
static AmStatus price_baselines(double *seconds, DeviceSearch *self, int32_t choice, AmError *error) {
    SearchScope scope = *self->scope;
    SearchResult found = {0};
    Cluster *part;
    scope.limits.evaluations = BASELINES_ALONE;
    scope.limits.is_default = false;
    scope.skip_bound = scope.finishes_later = true;
    search_limit_seconds(&scope, &self->budget.stop);
    TRY(make_part(&part, self, choice, error));
    AmStatus status = search_within_budget(&found, self, choice, part, &scope, error);
    cluster_free(part);
    *seconds = found.plan ? found.plan->predicted_step_seconds : INFINITY;
    return status;
}

/* Finds the choice with the fastest baselines, where a limit of evaluations may end before the trials. It
 * must be clearly faster than the first one, whose search loses its part. */
static AmStatus find_favourite(DeviceSearch *self, AmError *error) {
    enum { LEAST_PART = 8 /* evaluations */ };
    const double clearly = 0.92;
    double least = INFINITY;
    bool is_wanted = self->budget.has_cap && self->scope->purpose == PURPOSE_RESULT &&
                     !self->request->explores_prices && !has_pins(self) && !self->request->method.no_seeds &&
                     self->scope->limits.evaluations >= FAVOURITE_PART * LEAST_PART;
    for (int32_t k = 0; k < self->choices.count && is_wanted && has_budget(self); k++) {
        double seconds;
        TRY(price_baselines(&seconds, self, k, error));
        if (seconds >= least) continue;
        least = k == 0 ? clearly * seconds : seconds;
        self->favourite = k;
    }
    return AM_OK;
}

/* Reserves evaluations of the limit for other choices than the first one: half for the types that pins name,
 * one for the baselines of each choice on a front, a part for the favourite. */
static AmStatus reserve_evaluations(DeviceSearch *self, AmError *error) {
    const int64_t all = self->scope->limits.evaluations, others = self->choices.count - 1;
    if (has_pins(self)) self->reserved = all / 2;
    else if (self->request->explores_prices) self->reserved = all / 2 < others ? all / 2 : others;
    TRY(find_favourite(self, error));
    if (self->favourite > 0) self->reserved = all / FAVOURITE_PART - self->budget.used;
    return AM_OK;
}

/* Tries the choices that bounds do not exclude, with so many evaluations each. */
static AmStatus try_choices(DeviceSearch *self, int64_t evaluations, AmError *error) {
    for (int32_t k = 1; k < self->choices.count && has_budget(self); k++) {
        Cluster *part;
        TRY(make_part(&part, self, k, error));
        AmStatus status = find_bound(self, k, part, error);
        if (status == AM_OK && !is_excluded(self, k, self->bounds[k]))
            status = try_part(self, k, part, evaluations, error);
        cluster_free(part);
        TRY(status);
    }
    return AM_OK;
}

/* Replaces the quick bound of a choice by that of pipelines, where it would lower the bound of the result. */
static AmStatus raise_bound(DeviceSearch *self, int32_t choice, const Cluster *part, AmError *error) {
    const SearchRequest *request = self->request;
    const Plan *plan = self->result->plan;
    const BoundSpace space = {.most_stages = PIPELINE_MOST_STAGES,
                              .schedule = bound_schedule_of(search_bounded_schedules(request, plan)),
                              .memory = {.fraction = request->constraints.memory_fraction,
                                         .offloads_optimizer = request->constraints.offloads_optimizer}};
    PlanBound bound;
    if (self->bounds[choice] >= plan->bound_seconds || request->explores_prices || self->result->interrupted)
        return AM_OK;
    TRY(plan_bound_pipelines(&bound, self->primary, part, &space, error));
    self->bounds[choice] = fmax(self->bounds[choice], bound.seconds);
    return AM_OK;
}

/* Lowers the bound of the result to those of all other choices, whose plans are in the space, too. */
static AmStatus bound_choices(DeviceSearch *self, AmError *error) {
    Plan *plan = self->result->plan;
    bool is_lower = plan->bound && strcmp(plan->bound, "lower") == 0;
    for (int32_t k = 1; k < self->choices.count && is_lower; k++) {
        Cluster *part;
        TRY(make_part(&part, self, k, error));
        AmStatus status = find_bound(self, k, part, error);
        if (status == AM_OK) status = raise_bound(self, k, part, error);
        cluster_free(part);
        TRY(status);
        plan->bound_seconds = fmin(plan->bound_seconds, self->bounds[k]);
        is_lower = plan->bound_seconds > 0;
    }
    if (is_lower || !plan->bound || strcmp(plan->bound, "exact") == 0) return AM_OK;
    plan->bound = NULL;
    plan->bound_seconds = NAN;
    return AM_OK;
}

/* Searches the first choice, on the cluster itself where that has its devices in their order. */
static AmStatus search_first(DeviceSearch *self, const SearchScope *scope, AmError *error) {
    Cluster *part;
    if (self->choices.is_whole)
        return plan_search(self->result, self->arena, self->primary, self->cluster, scope, error);
    TRY(make_part(&part, self, 0, error));
    AmStatus status = search_choice(self->result, self, 0, part, scope, error);
    cluster_free(part);
    return status;
}

/* Returns whether no other choice has a plan that is as fast and as cheap. */
static bool is_on_front(const DeviceSearch *self, int32_t choice) {
    double seconds = self->seconds[choice], price = price_of(self, choice, seconds);
    if (!isfinite(seconds)) return false;
    for (int32_t k = 0; k < self->choices.count; k++) {
        double other = price_of(self, k, self->seconds[k]);
        bool is_equal = self->seconds[k] == seconds && other == price;
        if (k != choice && self->seconds[k] <= seconds && other <= price && (!is_equal || k < choice))
            return false;
    }
    return true;
}

/* Searches the choices that a trial found near the best, or on the front of seconds and money. */
static AmStatus search_near(DeviceSearch *self, AmError *error) {
    double least = self->result->plan ? value_of(self, self->best, self->result->plan->predicted_step_seconds)
                                      : INFINITY;
    int32_t searched = 0;
    for (int32_t k = 1; k < self->choices.count && searched < MOST_SEARCHED && has_budget(self); k++) {
        bool is_near = value_of(self, k, self->seconds[k]) < NEAR * least;
        if (!is_near && !(self->request->explores_prices && is_on_front(self, k))) continue;
        TRY(try_choice(self, k, 0, error));
        searched++;
    }
    return AM_OK;
}

/* ---- the front ---- */

/* Lists the choices that are on the front of seconds and money, fastest first. */
static AmStatus list_front(DeviceSearch *self, AmError *error) {
    DeviceFront *front = ARENA_ARRAY(self->arena, DeviceFront, 1);
    if (!front) return am_fail_memory(error, (int64_t)sizeof *front);
    front->rows = ARENA_ARRAY(self->arena, DeviceFrontRow, self->choices.count);
    if (!front->rows) return am_fail_memory(error, self->choices.count);
    for (int32_t k = 0; k < self->choices.count; k++) {
        if (!is_on_front(self, k)) continue;
        int32_t at = front->count++;
        for (; at > 0 && front->rows[at - 1].seconds > self->seconds[k]; at--)
            front->rows[at] = front->rows[at - 1];
        front->rows[at] = (DeviceFrontRow){.of_type = self->choices.choices[k].of_type,
                                           .seconds = self->seconds[k],
                                           .price_per_step = price_of(self, k, self->seconds[k]),
                                           .is_chosen = k == self->best};
    }
    self->result->front = front;
    return AM_OK;
}

/* ---- all of it ---- */

AmStatus device_search(SearchResult *result, Arena *arena, PlanContext *primary, const Cluster *cluster,
                       const SearchScope *scope, AmError *error) {
    DeviceSearch self = {.result = result,
                         .arena = arena,
                         .primary = primary,
                         .cluster = cluster,
                         .scope = scope,
                         .request = scope->request,
                         .budget = search_user_budget(scope)};
    SearchScope first = *scope;
    AmError refusal = {0};
    for (int32_t t = 0; t < cluster->type_count && scope->request->explores_prices; t++)
        if (isnan(cluster->types[t].price_per_hour))
            return am_fail(error, AM_ERROR_USAGE, "",
                           "--%s: cluster %s has no price of %s (expected $.device_types.%s.price_per_hour)",
                           scope->request->objective == OBJECTIVE_COST ? "objective cost" : "pareto",
                           cluster->name, cluster->types[t].name, cluster->types[t].name);
    TRY(device_choices_list(&self.choices, arena, primary, cluster, scope, error));
    self.seconds = ARENA_ARRAY(arena, double, self.choices.count);
    self.bounds = ARENA_ARRAY(arena, double, self.choices.count);
    if (!self.seconds || !self.bounds) return am_fail_memory(error, self.choices.count);
    for (int32_t k = 0; k < self.choices.count; k++) self.seconds[k] = self.bounds[k] = NAN;
    bool has_others = self.choices.count > 1 && search_method_explores(scope->searcher);
    if (has_others && (scope->request->explores_prices || has_pins(&self)))
        first.limits.seconds *= FIRST_SHARE;
    if (has_others) TRY(reserve_evaluations(&self, error));
    if (has_others || scope->ends_at_default) allow_default(&first, &self);
    AmStatus status = search_first(&self, &first, &refusal);
    bool is_cut = is_first_cut(&self);
    budget_return(&self.budget, result->evaluations, false);
    self.seconds[0] = status == AM_OK ? result->plan->predicted_step_seconds : INFINITY;
    if (has_pins(&self) || self.favourite > 0) self.reserved = 0;
    bool may_go_on = has_others && (status == AM_OK || status == AM_ERROR_INFEASIBLE);
    bool has_favourite = self.favourite > 0 && is_cut && may_go_on && has_budget(&self);
    if (has_favourite) {
        TRY(try_choice(&self, self.favourite, 0, error));
        if (result->plan) status = AM_OK;
    }
    if (may_go_on && self.reserved > 0) {
        TRY(try_choices(&self, BASELINES_ALONE, error));
        if (result->plan) status = AM_OK;
    }
    bool has_baselines = has_others && self.reserved > 0;
    bool tries_others = has_others && (!is_cut || has_pins(&self));
    if (tries_others && may_go_on) {
        TRY(try_choices(&self, TRIAL, error));
        TRY(search_near(&self, error));
        int64_t left = budget_left(&self.budget);
        bool is_left = !scope->ends_at_default && self.budget.has_cap && left >= self.budget.used;
        if (is_left && has_budget(&self)) TRY(try_choice(&self, self.best, left, error));
        if (result->plan) status = AM_OK;
    }
    if (tries_others) is_cut = budget_left(&self.budget) < 1 || !scope->ends_at_default;
    result->is_cut = is_cut;
    if (status != AM_OK && error) *error = refusal;
    if (status == AM_OK && scope->request->explores_prices) TRY(list_front(&self, error));
    if (status == AM_OK && has_others) TRY(bound_choices(&self, error));
    if (status != AM_OK || !(tries_others || has_baselines || has_favourite)) return status;
    result->evaluations = result->plan->evaluations = self.budget.used;
    return AM_OK;
}
