/* The search over one-stage plans on all meshes of a cluster. The table of searchers is in
 * searchers.c. */
#include <math.h>
#include <string.h>

#include "base/system/clock.h"
#include "ir/analysis/loops.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/bounds/bound.h"
#include "planners/improve/plan_climb.h"
#include "planners/improve/uneven_shares.h"
#include "planners/single_stage/override_search.h"
#include "planners/single_stage/single_stage_state.h"

/* Creates a problem of the search in a context of its module. */
static AmStatus make_problem(StageProblem **problem, const SingleStageSearch *self,
                             const PlanContext *context, const Mesh *mesh, int64_t limit, AmError *error) {
    const SearchScope *scope = self->scope;
    const ProblemSettings settings = {.space = self->space,
                                      .constraints = scope->request->constraints,
                                      .budget = {.limit = limit, .stop = self->budget.stop},
                                      .watch = scope->request->callbacks.watch,
                                      .scratch = self->scratch};
    return problem_create(problem, context, self->cluster, mesh, self->devices, &settings, error);
}

AmStatus single_stage_problem(StageProblem **problem, const SingleStageSearch *self, const Mesh *mesh,
                              int64_t limit, AmError *error) {
    return make_problem(problem, self, self->context, mesh, limit, error);
}

AmStatus single_stage_split(SingleStageSearch *self, const StageProblem *problem, int32_t *count,
                            AmError *error) {
    PlanContext *primary = self->scope->splits;
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS], number = 2 * plan_context_micro_batches(problem->context);
    bool is_there = false;
    *count = 0;
    if (!primary || self->other_count + 2 * self->problem_count > SEARCH_MOST_MESHES) return AM_OK;
    for (int32_t k = micro_batches_numbers(numbers, primary, 0) - 1; k >= 0; k--)
        is_there |= numbers[k] == number;
    if (!is_there) return AM_OK;
    MicroBatchSettings settings = search_micro_batching(self->request, number);
    const PlanContext *context;
    AmError refusal = {0};
    settings.stop = &self->budget.stop;
    AmStatus status = plan_context_for(&context, primary, &settings, &refusal);
    if (status == AM_ERROR_INFEASIBLE || status == AM_INTERRUPTED) return AM_OK;
    TRY(am_pass_error(status, &refusal, error));
    for (int32_t k = 0; k < self->problem_count; k++) {
        StageProblem **other = &self->others[self->other_count];
        status = make_problem(other, self, context, &self->problems[k]->mesh, self->budget.limit, &refusal);
        if (status == AM_ERROR_INFEASIBLE) continue; /* a pin does not hold there */
        TRY(am_pass_error(status, &refusal, error));
        self->other_count++;
        ++*count;
    }
    return AM_OK;
}

void single_stage_take_number(SingleStageSearch *self, const StageProblem *problem) {
    StageProblem *all[SEARCH_MOST_MESHES];
    int32_t count = 0;
    if (problem->context == self->context) return;
    for (int32_t k = 0; k < self->problem_count; k++) all[count++] = self->problems[k];
    for (int32_t k = 0; k < self->other_count; k++) all[count++] = self->others[k];
    self->context = problem->context;
    self->problem_count = self->other_count = 0;
    for (int32_t k = 0; k < count; k++) {
        if (all[k]->context == self->context) self->problems[self->problem_count++] = all[k];
        else self->others[self->other_count++] = all[k];
    }
}

static AmStatus add_problem(SingleStageSearch *self, const Mesh *mesh, AmError *error) {
    TRY(single_stage_problem(&self->problems[self->problem_count], self, mesh, self->budget.limit, error));
    self->problem_count++;
    return AM_OK;
}

/* Creates a problem for every ordered split of the devices into data x model on which the pins can hold, or
 * for the one requested mesh. */
static AmStatus create_problems(SingleStageSearch *self, AmError *error) {
    const SearchRequest *request = self->request;
    int32_t devices = self->cluster->device_count;
    if (request->space.mesh) {
        Mesh mesh;
        TRY(mesh_parse(&mesh, self->arena, request->space.mesh, error));
        if (mesh.axis_count > AXIS_PLAN_AXES)
            return am_fail(error, AM_ERROR_USAGE, "", "--mesh %s: at most %d axes can be searched",
                           request->space.mesh, AXIS_PLAN_AXES);
        if (mesh.device_count != devices)
            return am_fail(error, AM_ERROR_USAGE, "", "--mesh %s has %d devices, cluster %s has %d",
                           request->space.mesh, mesh.device_count, self->cluster->name, devices);
        return add_problem(self, &mesh, error);
    }
    if (!degrees_allow_stages(&request->constraints.degrees, 1))
        return single_stage_fail_degrees(self, error);
    AmError shown = {0};     /* of the last mesh left out; of those of two proper axes, if there are */
    int32_t shown_model = 0; /* its second axis */
    for (int32_t model = 1; model <= devices && self->problem_count < SEARCH_MOST_MESHES; model++) {
        if (devices % model != 0 || !degrees_allow_mesh(&request->constraints.degrees, devices, model))
            continue;
        if (self->problem_count > 0 && single_stage_must_end(self)) break;
        Mesh mesh = {.axis_count = 2,
                     .axes = {{.name = "data", .size = devices / model}, {.name = "model", .size = model}},
                     .device_count = devices};
        AmError refusal = {0};
        AmStatus status = add_problem(self, &mesh, &refusal);
        bool is_proper = model > 1 && model < devices;
        bool is_shown = is_proper || shown_model <= 1;
        if (status == AM_ERROR_INFEASIBLE && is_shown) {
            shown = refusal;
            shown_model = model;
        }
        if (status == AM_OK || status == AM_ERROR_INFEASIBLE) continue;
        return am_pass_error(status, &refusal, error);
    }
    if (self->problem_count > 0) return AM_OK;
    if (shown_model == 0) return single_stage_fail_degrees(self, error);
    return am_fail(error, AM_ERROR_INFEASIBLE, self->context->module->source,
                   "no mesh of data x model takes the pins; on data=%d,model=%d: %s", devices / shown_model,
                   shown_model, shown.text);
}

static bool single_stage_is_interrupted(const SingleStageSearch *self) {
    return stop_flag_is_set(self->request->callbacks.interrupted);
}

bool single_stage_must_end(const SingleStageSearch *self) {
    return stop_wanted(&self->budget.stop);
}

int64_t single_stage_evaluations(const SingleStageSearch *self) {
    int64_t total = self->budget.used;
    for (int32_t k = 0; k < self->problem_count; k++) total += self->problems[k]->budget.used;
    for (int32_t k = 0; k < self->other_count; k++) total += self->others[k]->budget.used;
    return total;
}

int64_t single_stage_left(const SingleStageSearch *self) {
    return self->budget.has_cap ? self->budget.cap - single_stage_evaluations(self) : INT64_MAX;
}

bool single_stage_cap(SingleStageSearch *self, StageProblem *problem) {
    int64_t left = single_stage_left(self);
    self->budget.is_cut |= left <= 0;
    budget_set_cap(&problem->budget, self->budget.has_cap ? problem->budget.used + left : 0);
    return !self->budget.is_cut;
}

void single_stage_sort(SingleStageSearch *self) {
    for (int32_t k = 1; k < self->problem_count; k++) {
        StageProblem *problem = self->problems[k];
        int32_t place = k;
        for (; place > 0; place--) {
            const StageProblem *other = self->problems[place - 1];
            bool better =
                problem->best.is_known &&
                (!other->best.is_known || plan_price_better(&problem->best.price, &other->best.price));
            if (!better) break;
            self->problems[place] = self->problems[place - 1];
        }
        self->problems[place] = problem;
    }
}

static bool has_plan(const SingleStageSearch *self) {
    for (int32_t k = 0; k < self->problem_count; k++)
        if (self->problems[k]->best.is_known && self->problems[k]->best.price.excess <= 0) return true;
    return false;
}

/* Finds a plan for a search that is ended at once: the first baseline that fits, those with the
 * least memory first, or the unsplit plan. */
static AmStatus find_any_plan(SingleStageSearch *self, AmError *error) {
    AxisPlan axis_plan = {0};
    PlanPrice price;
    for (int32_t e = BASELINE_COUNT - 1; e >= 0; e--)
        for (int32_t k = self->problem_count - 1; k >= 0; k--) {
            const char *reason;
            if (has_plan(self)) return AM_OK;
            TRY(baseline_axis_plan(self->problems[k], (Baseline)e, &axis_plan, &reason, error));
            if (!reason) TRY(problem_price(self->problems[k], &axis_plan, &price, error));
        }
    if (has_plan(self)) return AM_OK;
    axis_plan = (AxisPlan){0};
    TRY(problem_price(self->problems[0], &axis_plan, &price, error));
    if (price.excess <= 0 || !single_stage_is_interrupted(self)) return AM_OK;
    return am_fail(error, AM_INTERRUPTED, "", "interrupted before a plan was found that fits");
}

/* The fraction of a time limit for the search; the rest is for the bound. */
#define SEARCHING_SHARE 0.75
/* A round that prices no more than this part of its size has exhausted the space. */
enum { LEAST_NEW = 16 };
/* Rounds grow up to this size. */
#define MOST_SIZE ((int64_t)1 << 40)

/* Runs one round after the other until the cap ends them or a round finds few new plans; without a cap, one
 * round. */
static AmStatus run_rounds(SingleStageSearch *self, AmError *error) {
    const SearchScope *scope = self->scope;
    for (int32_t round = 0;; round++) {
        int64_t before = single_stage_evaluations(self) - self->climbs.used;
        /* A round has as many evaluations as all before together, whatever the cap is. */
        int64_t size = self->rounds.size;
        for (int32_t k = 1; k < round && size < MOST_SIZE; k++) size *= 2;
        self->rounds.seed = self->scope->seed + (uint64_t)round * SEARCH_SEED_STEP;
        self->rounds.for_overrides = override_evaluations(self->scope, size);
        self->shares.left = single_stage_share_evaluations(self, size - self->rounds.for_overrides);
        self->shares.are_wanted = self->shares.left > 0;
        self->budget.limit =
            single_stage_evaluations(self) + size - self->rounds.for_overrides - self->shares.left;
        int64_t wanted =
            (self->budget.limit + self->rounds.for_overrides - before - self->climbs.used) / LEAST_NEW;
        if (round == 0) TRY(single_stage_share_baselines(self, 1, error));
        TRY(search_method_run(self, error));
        self->result->interrupted = single_stage_is_interrupted(self);
        bool needs_plan = scope->known.rival_seconds == 0 && !single_stage_has_baseline(self);
        if (single_stage_must_end(self) && needs_plan) TRY(find_any_plan(self, error));
        TRY(baseline_price_all(self, error));
        TRY(single_stage_end_round(self, error));
        bool is_new = single_stage_evaluations(self) - self->climbs.used - before > wanted &&
                      search_method_has_rounds(scope->searcher);
        bool is_left =
            scope->purpose == PURPOSE_ALL_ROUNDS && !self->budget.is_cut && single_stage_left(self) > 0;
        if (!is_new || !is_left || single_stage_must_end(self)) return AM_OK;
    }
}

/* Allocates the memory of a search that has its context, cluster and options. The caller closes it, after
 * errors, too. */
static AmStatus open_search(SingleStageSearch *self, AmError *error) {
    int32_t count = self->cluster->device_count;
    self->devices = ARENA_ARRAY(self->arena, int32_t, count);
    if (!self->devices) return am_fail_memory(error, count);
    self->scratch = scratch_create();
    if (!self->scratch) return am_fail_memory(error, (int64_t)sizeof *self->scratch);
    for (int32_t d = 0; d < count; d++) self->devices[d] = d;
    return AM_OK;
}

static void close_search(SingleStageSearch *self) {
    plan_climb_close(&self->climbs.climb);
    for (int32_t k = 0; k < self->problem_count; k++) problem_free(self->problems[k]);
    for (int32_t k = 0; k < self->other_count; k++) problem_free(self->others[k]);
    scratch_free(self->scratch);
}

/* Returns whether weights and optimizer state of a simulated plan exceed a device's limit. */
static bool is_hopeless(const SingleStageSearch *self, const Plan *plan) {
    for (int32_t d = 0; d < plan->device_count; d++) {
        const PlanDevicePrediction *device = &plan->predicted[d];
        MemoryFit fit =
            memory_fit(device->weights_bytes + device->optimizer_bytes, self->cluster,
                       &plan->stages[0].devices[d], 1, self->request->constraints.memory_fraction);
        if (!fit.fits) return true;
    }
    return false;
}

AmStatus single_stage_baselines(SearchResult *result, bool *is_left_out, Arena *arena,
                                const PlanContext *context, const Cluster *cluster, const SearchScope *scope,
                                double far, AmError *error) {
    const double near = 1.1; /* such a baseline may be the fastest with unequal shares */
    SingleStageSearch self = {.arena = arena,
                              .context = context,
                              .cluster = cluster,
                              .scope = scope,
                              .request = scope->request,
                              .space = SPACE_SINGLE_STAGE,
                              .rounds.seed = scope->seed,
                              .result = result,
                              .budget =
                                  budget_begin(&scope->limits, 1, scope->request->callbacks.interrupted)};
    AmStatus status = open_search(&self, error);
    for (int32_t e = 0; e < BASELINE_COUNT; e++) self.baselines[e].is_priced = is_left_out[e];
    if (status == AM_OK) status = create_problems(&self, error);
    if (status == AM_OK) status = baseline_price_all(&self, error);
    if (status == AM_OK) single_stage_add_baselines(&self);
    if (scope->purpose == PURPOSE_SHARED_BASELINES)
        self.shares.left = single_stage_share_evaluations(&self, self.budget.cap);
    if (self.shares.left > UNEVEN_SHARES_TRIED) self.shares.left = UNEVEN_SHARES_TRIED;
    if (status == AM_OK) status = single_stage_share_baselines(&self, near, error);
    result->evaluations = self.budget.used;
    for (int32_t e = 0; e < BASELINE_COUNT && status == AM_OK; e++) {
        const Plan *plan = self.baselines[e].plan;
        if (is_left_out[e]) result->baselines[e] = (BaselineResult){.seconds = NAN};
        bool is_refused =
            !plan &&
            context->primary; /* the module as read may have no such plan, and a rewritten one may have it */
        bool is_far =
            far > 0 && plan && isnan(result->baselines[e].seconds) && self.baselines[e].least_seconds > far;
        if (is_far) result->baselines[e].reason = BASELINE_IS_FAR;
        is_left_out[e] |=
            is_refused || is_far || (plan && isnan(result->baselines[e].seconds) && is_hopeless(&self, plan));
    }
    search_result_choose(result);
    close_search(&self);
    return status;
}

/* Empties a result: no baseline has a price. */
static void begin_result(SearchResult *result) {
    *result = (SearchResult){.model_gap = NAN};
    for (int32_t e = 0; e < BASELINE_COUNT; e++) result->baselines[e] = (BaselineResult){.seconds = NAN};
}

AmStatus single_stage_search(SearchResult *result, Arena *arena, const PlanContext *context,
                             const Cluster *cluster, const SearchScope *scope, AmError *error) {
    const SearchRequest *request = scope->request;
    double start = clock_seconds();
    bool method_takes_baselines = search_method_takes_baselines(scope->searcher);
    bool is_repeated = scope->purpose == PURPOSE_FIRST_PLANS;
    begin_result(result);
    SingleStageSearch self = {
        .arena = arena,
        .context = context,
        .cluster = cluster,
        .scope = scope,
        .request = scope->request,
        .space = scope->kind == SPACE_AUTO ? SPACE_SINGLE_STAGE : scope->kind,
        .result = result,
        .rounds.size = scope->limits.evaluations > 0
                           ? scope->limits.evaluations
                           : search_evaluations_for(scope->searcher, ir_represented(context->canonical)),
        .rounds.seed = scope->seed,
        .budget = budget_begin(&scope->limits, scope->skip_bound ? 1 : SEARCHING_SHARE,
                               request->callbacks.interrupted)};
    AmStatus status;
    TRY_OR_FAIL(open_search(&self, error));
    TRY_OR_FAIL(create_problems(&self, error));
    search_watch_phase(request->callbacks.watch, SEARCH_PHASE_BASELINES);
    search_watch_expect(request->callbacks.watch, self.budget.cap > 0 ? self.budget.cap : self.rounds.size);
    for (int32_t e = 0; e < BASELINE_COUNT; e++) self.baselines[e].is_priced = is_repeated;
    if (method_takes_baselines) TRY_OR_FAIL(baseline_price_all(&self, error));
    search_watch_phase(request->callbacks.watch, SEARCH_PHASE_SINGLE_STAGE);
    if (budget_left(&self.budget) > 0) TRY_OR_FAIL(run_rounds(&self, error));
    else TRY_OR_FAIL(baseline_price_all(&self, error));
    result->has_baselines = method_takes_baselines && !is_repeated && !single_stage_must_end(&self);
    status = single_stage_finish(&self, start, error);
    result->evaluations = single_stage_evaluations(&self);
    result->is_cut = self.budget.is_cut;
    result->interrupted = single_stage_is_interrupted(&self); /* also during the bound, the last part */
    result->search_seconds = clock_seconds() - start;
fail:
    close_search(&self);
    return status;
}

AmStatus pipeline_baseline_search(SearchResult *result, Arena *arena, const PlanContext *context,
                                  const Cluster *cluster, const SearchScope *scope, AmError *error) {
    const SearchRequest *request = scope->request;
    double start = clock_seconds();
    BaselineResult *priced = &result->baselines[scope->baseline];
    const char *called = request->method.called;
    Plan *plan;
    begin_result(result);
    if (!search_is_pipeline_baseline(scope))
        return am_fail(
            error, AM_ERROR_USAGE, "",
            "--space pipeline: expected a baseline of several stages, such as --baseline even_pipeline, or "
            "--objective paper (--space hybrid searches pipelines)");
    SingleStageSearch self = {.arena = arena,
                              .context = context,
                              .cluster = cluster,
                              .scope = scope,
                              .request = scope->request,
                              .space = scope->kind,
                              .rounds.seed = scope->seed,
                              .result = result,
                              .budget = budget_begin(&scope->limits, scope->skip_bound ? 1 : SEARCHING_SHARE,
                                                     request->callbacks.interrupted)};
    AmStatus status;
    TRY_OR_FAIL(open_search(&self, error));
    if (!request->space.mesh) { /* which is that of a stage */
        TRY_OR_FAIL(create_problems(&self, error));
        TRY_OR_FAIL(baseline_price_all(&self, error));
    }
    TRY_OR_FAIL(even_pipeline_plan(&plan, &priced->reason, &result->evaluations, arena, context, cluster,
                                   scope, error));
    if (!plan)
        TRY_OR_FAIL(am_fail(error, AM_ERROR_INFEASIBLE, context->module->source, "--baseline %s: %s",
                            called ? called : baseline_name(scope->baseline), priced->reason));
    const MemoryFit fits = {.fits = true};
    priced->seconds = plan->predicted_step_seconds;
    plan->evaluations = result->evaluations;
    pool_add(&result->pool, plan, &fits, PLAN_ORIGIN_BASELINE, baseline_name(scope->baseline));
    search_result_choose(result);
    result->search_seconds = clock_seconds() - start;
fail:
    close_search(&self);
    return status;
}
