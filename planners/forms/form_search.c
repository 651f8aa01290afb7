/* Searches the forms of a module one after another, and bounds the space of the best plan once, at the end.
 */
#include "planners/forms/form_search.h"

#include <math.h>

#include "base/system/clock.h"
#include "planners/devices/device_search.h"
#include "planners/problem/attention_choice.h"
#include "planners/sample_search.h"
#include "planners/search_bound.h"
#include "planners/single_stage/single_stage_search.h"

/* Returns the evaluations that are left for the search in work; INT64_MAX: there is no limit. */
static int64_t evaluations_left(const FormSearch *self) {
    if (!self->budget.has_cap) return INT64_MAX;
    int64_t cap = self->budget.cap, part = self->has_search_after ? 0 : cap;
    for (int32_t k = 0; k <= self->form && self->has_search_after; k++) part += (cap - part) / 2;
    return (part > 0 ? part : 1) - self->budget.used;
}

bool form_search_has_budget(const FormSearch *self) {
    return evaluations_left(self) > 0 && !budget_is_over(&self->budget);
}

void form_search_share(SearchScope *scope, const FormSearch *self) {
    int64_t left = evaluations_left(self);
    double seconds = self->scope.limits.seconds;
    scope->limits.evaluations = left == INT64_MAX ? self->scope.limits.evaluations : left;
    scope->limits.seconds = seconds;
    if (seconds > 0)
        scope->limits.seconds = fmax((self->budget.stop.deadline - clock_seconds()) / self->searches, 1e-3);
}

void form_search_spend(FormSearch *self, const SearchScope *scope, const SearchResult *found) {
    bool is_cut = self->budget.has_cap && found->is_cut;
    budget_return(&self->budget, is_cut ? scope->limits.evaluations : found->evaluations, false);
}

/* Returns whether bound and memory are computed once, after the searches of all forms of the module. */
static bool finishes_later(const FormSearch *self) {
    const SearchScope *scope = &self->scope;
    return scope->limits.seconds == 0 && self->cluster->type_count == 1 &&
           scope->request->devices.quota_count == 0 && !scope->request->explores_prices;
}

/* Searches a module. */
static AmStatus search_module(FormSearch *self, PlanContext *module, const SearchScope *of_form,
                              AmError *error) {
    SearchScope scope = *of_form;
    bool is_floor = scope.purpose == PURPOSE_FLOOR;
    form_search_share(&scope, self);
    if (is_floor) scope.limits.evaluations = 1; /* 0: without a limit */
    *self->result = (SearchResult){0};
    AmStatus status = device_search(self->result, self->arena, module, self->cluster, &scope, error);
    if (!is_floor) form_search_spend(self, &scope, self->result);
    return status;
}

/* Searches a form, whose module becomes self->primary. If nothing fits, the form with the other choice of
 * attention is searched, too. */
static AmStatus search_form(FormSearch *self, const ModuleForm *form, const SearchScope *scope,
                            AmError *error) {
    PlanContext *module = form->module, *other = form->other;
    AmError refusal = {0};
    if (!module) {
        PlanContext *first = self->forms.forms[0].module, *source = first->source ? first->source : first;
        TRY(plan_context_rewrite(&module, source, form->rewriting, error));
        if (!plan_rewriting_is_none(form->other_rewriting))
            TRY(plan_context_rewrite(&other, source, form->other_rewriting, error));
    }
    self->primary = module;
    if (form->attention == ATTENTION_AUTO)
        TRY(attention_choose(&self->primary, &other, self->cluster, error));
    if (form->attention == ATTENTION_FUSED) TRY(plan_context_fuse(&self->primary, self->primary, error));
    AmStatus status = search_module(self, self->primary, scope, error);
    /* A large module with a plan of another form is refused where that is faster by far. */
    const KnownSteps *known = &scope->known;
    bool is_refused = known->form_seconds > 0 && (known->form_is_split || sample_is_wanted(module));
    if (status != AM_ERROR_INFEASIBLE || !other || !form_search_has_budget(self) || is_refused) return status;
    const SearchResult result = *self->result;
    status = search_module(self, other, scope, &refusal);
    if (status == AM_ERROR_INFEASIBLE) *self->result = result;
    else self->primary = other;
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE && error) *error = refusal;
    return status;
}

/* Returns whether a pipeline is about as fast as the plan. */
static bool has_pipelines(const SearchResult *result) {
    const double near = 1.25; /* times the best step */
    for (int32_t k = 0; k < POOL_SHAPES; k++) {
        const Plan *plan = result->pool.shapes[k].plan;
        bool is_pipeline = plan && plan->stage_count > 1;
        if (is_pipeline && result->pool.shapes[k].seconds <= near * result->plan->predicted_step_seconds)
            return true;
    }
    return false;
}

/* Returns the step of the fastest baseline; INFINITY: none fits. */
static double fastest_baseline(const SearchResult *result) {
    double fastest = INFINITY;
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        if (result->baselines[e].seconds > 0) fastest = fmin(fastest, result->baselines[e].seconds);
    return fastest;
}

/* Searches one more form and keeps the better plan. `*status` and `*refusal` are those of the forms before
 * it, then of all. */
static void add_form(FormSearch *self, const ModuleForm *form, const SearchScope *scope, AmStatus *status,
                     AmError *refusal) {
    PlanContext *primary = self->primary;
    const SearchResult before = *self->result;
    SearchResult *result = self->result;
    SearchScope of_form = *scope;
    KnownSteps *known = &of_form.known;
    AmError own = {0};
    if (*status == AM_OK) known->form_seconds = before.plan->predicted_step_seconds;
    if (*status == AM_OK) known->form_has_pipelines = has_pipelines(&before);
    known->form_is_split = primary->layer_map && sample_is_wanted(primary);
    AmStatus found = search_form(self, form, &of_form, &own);
    const SearchResult after = *result;
    self->fastest_baseline = fastest_baseline(result);
    bool is_interrupted = result->interrupted;
    int64_t evaluations = before.evaluations + result->evaluations;
    double seconds = before.search_seconds + result->search_seconds;
    if (*status == AM_OK && (found != AM_OK || candidate_is_better(&before.pool.best, &result->pool.best))) {
        *result = before;
        self->primary = primary;
        search_result_add_form(result, &after);
    } else {
        search_result_add_form(result, &before);
        /* The reason of a form that was searched says more than that of baselines alone. */
        bool keeps_refusal = found == AM_ERROR_INFEASIBLE && of_form.purpose == PURPOSE_FLOOR;
        *status = found;
        if (!keeps_refusal) *refusal = own;
    }
    if (*status != AM_OK) return;
    result->interrupted |= is_interrupted;
    result->evaluations = result->plan->evaluations = evaluations;
    result->search_seconds = seconds;
}

/* A plan needs little memory if its fullest device uses less than this part of the usable memory. */
#define LITTLE_MEMORY 0.5

static bool needs_much_memory(const FormSearch *self, const Plan *plan) {
    double fraction = self->scope.request->constraints.memory_fraction;
    int32_t next = 0;
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t k = 0; k < plan->stages[s].mesh.device_count; k++, next++) {
            double usable = memory_usable(self->cluster, &plan->stages[s].devices[k], 1, fraction);
            if ((double)plan->predicted[next].peak_bytes > LITTLE_MEMORY * usable) return true;
        }
    return false;
}

/* Returns whether a form may be searched after others with the best plan `found` (NULL: nothing fits). */
static bool is_wanted(const FormSearch *self, const ModuleForm *form, const Plan *found) {
    if (!found || form->condition == FORM_ALWAYS || form->condition == FORM_WHERE_BASELINES_ARE_NEAR)
        return true;
    if (form->condition == FORM_WHERE_ONE_STAGE) return found->stage_count == 1;
    return needs_much_memory(self, found);
}

/* Returns whether a baseline of one stage does not fit, or has several micro-batches: it may be faster in a
 * form that needs less memory. */
static bool has_large_baseline(const SearchResult *result) {
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        const BaselineResult *baseline = &result->baselines[e];
        bool is_large = isnan(baseline->seconds) ? baseline->needed_bytes > 0 : baseline->micro_batches > 1;
        if (!baseline_has_stages((Baseline)e) && is_large) return true;
    }
    return false;
}

/* Returns whether the baselines of a form are priced before it is searched, or instead: every number of
 * evaluations has them, and others where they may be faster than those of the forms before. */
static bool has_floor(const FormSearch *self, const ModuleForm *form) {
    const SearchRequest *request = self->scope.request;
    bool may_be_faster = form->condition == FORM_WHERE_BASELINES_ARE_NEAR ||
                         (form->condition == FORM_WHERE_MEMORY_IS_SCARCE && self->scope.limits.seconds == 0 &&
                          has_large_baseline(self->result));
    return (self->budget.has_cap || may_be_faster) && !stop_wanted(&self->budget.stop) &&
           !request->method.no_seeds && request->constraints.target == TARGET_AUTOMAP &&
           search_method_explores(self->scope.searcher) && form->module && !sample_is_wanted(form->module);
}

/* Releases the large module of a form until the form before it is searched: each takes as much memory as a
 * plan that is priced. */
static void put_off(FormSearch *self) {
    ModuleForms *forms = &self->forms;
    for (int32_t k = 1; k < forms->count; k++) {
        ModuleForm *form = &forms->forms[k];
        PlanContext *module = form->module, *other = form->other;
        bool is_rewritten = module->source && (!other || other->source);
        if (module != forms->chosen || !is_rewritten || !sample_is_wanted(module)) continue;
        form->rewriting = module->rewriting;
        if (other) form->other_rewriting = other->rewriting;
        form->module = form->other = NULL;
        forms->chosen = self->primary = forms->forms[0].module;
        bool is_fused = module->unfused != NULL; /* it goes before the form from which it is made */
        if (is_fused) plan_context_forget(module);
        if (other) plan_context_forget(other);
        if (!is_fused) plan_context_forget(module);
    }
}

/* A form is not searched if its fastest baseline takes so many times as long as that of the forms before. */
#define SKIP_FORM_ABOVE 1.08

/* Adds form k, if its condition holds, or its baselines alone. `*status` and `*refusal`: add_form(). */
static void add_next_form(FormSearch *self, int32_t k, SearchScope *scope, AmStatus *status,
                          AmError *refusal) {
    const ModuleForm *form = &self->forms.forms[k];
    const SearchResult *result = self->result;
    self->form = k;
    self->searches = (k + 1 < self->forms.count ? 2 : 1) + self->has_search_after;
    bool has_plan = *status == AM_OK;
    bool is_next = form_search_has_budget(self) && is_wanted(self, form, has_plan ? result->plan : NULL);
    bool is_compared = is_next && has_plan && form->condition == FORM_WHERE_BASELINES_ARE_NEAR;
    if (k > 0 && (!is_next || is_compared) && has_floor(self, form)) {
        double before = fastest_baseline(result);
        scope->purpose = PURPOSE_FLOOR;
        add_form(self, form, scope, status, refusal);
        scope->purpose = self->scope.purpose;
        bool is_over = *status == AM_INTERRUPTED || result->interrupted;
        /* Without any baseline there is nothing to compare. */
        if (is_over || (isfinite(before) && self->fastest_baseline > SKIP_FORM_ABOVE * before)) return;
    }
    if (k == 0 || is_next) add_form(self, form, scope, status, refusal);
}

/* Searches the forms, without a further attempt if nothing fits. */
static AmStatus search_forms(FormSearch *self, AmError *error) {
    const SearchResult *result = self->result;
    AmStatus status = AM_ERROR_INFEASIBLE;
    AmError refusal = {0};
    SearchScope scope = self->scope, whole = self->scope;
    BoundAhead ahead = {.cluster = self->cluster};
    scope.finishes_later = finishes_later(self);
    if (scope.finishes_later && !scope.skip_bound) scope.bound_ahead = whole.bound_ahead = &ahead;
    scope.ends_at_default = self->forms.count > 1 || self->forms.forms[0].other;
    put_off(self);
    for (int32_t k = 0; k < self->forms.count; k++) {
        add_next_form(self, k, &scope, &status, &refusal);
        if (status == AM_INTERRUPTED || result->interrupted) break;
    }
    bool may_go_on = scope.ends_at_default && !result->interrupted;
    int64_t left = evaluations_left(self);
    if (may_go_on && status == AM_OK && form_search_has_budget(self) && left != INT64_MAX &&
        left >= self->budget.used) {
        /* As many evaluations are left as all so far: the best form is searched again with them. */
        const ModuleForm best = {.module = self->primary, .attention = ATTENTION_UNFUSED};
        scope.ends_at_default = false;
        self->searches = 1 + self->has_search_after;
        search_bound_wait(&ahead);
        add_form(self, &best, &scope, &status, &refusal);
    }
    status = am_pass_error(status, &refusal, error);
    if (status == AM_OK && scope.finishes_later)
        status = plan_search_finish(self->result, self->arena, self->primary, self->cluster, &whole, error);
    search_bound_wait(&ahead);
    return status;
}

/* ---- optimizer state in the host's memory ---- */

/* Returns whether plans with optimizer state in the host's memory are searched after others. */
static bool may_offload(const FormSearch *self) {
    const SearchRequest *request = self->scope.request;
    const Cluster *cluster = self->cluster;
    bool has_state = false, has_hosts = true;
    for (int32_t p = 0; p < self->primary->roles->parameter_count; p++)
        has_state |= plan_context_parameter(self->primary, p)->role == IR_ROLE_OPTIMIZER;
    for (int32_t s = 0; s < cluster->server_count; s++)
        has_hosts &=
            cluster->servers[s].host_bytes_per_second > 0 && cluster->servers[s].host_memory_bytes > 0;
    return request->offload == OFFLOAD_AUTO && request->constraints.target == TARGET_AUTOMAP && has_state &&
           has_hosts && request->objective == OBJECTIVE_TIME && !request->explores_prices &&
           search_method_explores(self->scope.searcher) && !stop_wanted(&self->budget.stop);
}

AmStatus form_search(FormSearch *self, AmError *error) {
    AmError refusal = {0}, again = {0};
    PlanContext *primary = self->primary;
    AmStatus status = search_forms(self, &refusal);
    if (status != AM_ERROR_INFEASIBLE || !self->result->nearest || !may_offload(self))
        return am_pass_error(status, &refusal, error);
    const SearchResult failed = *self->result;
    const SearchScope scope = self->scope;
    SearchRequest *request = ARENA_ARRAY(self->arena, SearchRequest, 1);
    if (!request) return am_fail_memory(error, (int64_t)sizeof *request);
    self->scope = search_with_request(&scope, request);
    request->constraints.offloads_optimizer = true;
    request->space.initial = NULL;
    self->budget.used = 0;
    self->primary = primary;
    AmStatus second = search_forms(self, &again);
    if (second == AM_OK || second == AM_INTERRUPTED) {
        self->result->evaluations += failed.evaluations;
        self->result->search_seconds += failed.search_seconds;
        if (self->result->plan) self->result->plan->evaluations = self->result->evaluations;
        return am_pass_error(second, &again, error);
    }
    if (second != AM_ERROR_INFEASIBLE) return am_pass_error(second, &again, error);
    *self->result = failed;
    self->scope = scope;
    return am_pass_error(status, &refusal, error);
}
