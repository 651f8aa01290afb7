/* From the axis plans of a round to candidates: plans, simulated in full, with overrides, unequal shares and
 * single changes; and the result, with its bound.
 */
#include <math.h>
#include <string.h>

#include "base/system/clock.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/bounds/bound.h"
#include "planners/single_stage/override_search.h"
#include "planners/single_stage/single_stage_state.h"

const PlanRecomputation *single_stage_recomputation(const SingleStageSearch *self) {
    const PlanContext *context = self->context;
    if (context->primary && context->micro_batches > 1) context = context->base;
    return context->recompute.range_count > 0 ? &context->recompute : NULL;
}

AmStatus single_stage_plan(SingleStageSearch *self, const StageProblem *problem, const AxisPlan *axis_plan,
                           Plan **plan, AmError *error) {
    *plan = ARENA_ARRAY(self->arena, Plan, 1);
    PlanStage *stage = ARENA_ARRAY(self->arena, PlanStage, 1);
    if (self->arena->failed) return am_fail_memory(error, (int64_t)sizeof **plan);
    problem_stage(problem, axis_plan, self->arena, stage);
    if (single_stage_recomputation(self)) stage->recompute = *single_stage_recomputation(self);
    search_describe_plan(*plan, self->context, self->cluster, self->scope);
    (*plan)->space = plan_space_name(self->space);
    (*plan)->seed = self->rounds.seed;
    (*plan)->stages = stage;
    (*plan)->predicted = ARENA_ARRAY(self->arena, PlanDevicePrediction, problem->mesh.device_count);
    if (self->arena->failed) return am_fail_memory(error, problem->mesh.device_count);
    return micro_batches_state_relaxations(*plan, self->arena, self->context, error);
}

AmStatus single_stage_simulate(const SingleStageSearch *self, Plan *plan, MemoryFit *fit, AmError *error) {
    Arena *scratch = scratch_take(self->scratch);
    PlanDevicePrediction *predicted = plan->predicted;
    Simulation *simulation;
    AmStatus status = simulate_plan(
        &simulation, scratch, self->context, plan, self->cluster,
        &(SimulationOptions){.memory_fraction = self->request->constraints.memory_fraction}, error);
    if (status == AM_OK) status = simulation_predict(plan, scratch, simulation, error);
    if (status == AM_OK) {
        memcpy(predicted, plan->predicted, sizeof *predicted * (size_t)plan->device_count);
        *fit = simulation->fit;
    }
    plan->predicted = predicted;
    scratch_give(self->scratch, scratch);
    return status;
}

/* ---- candidates ---- */

bool single_stage_has_baseline(const SingleStageSearch *self) {
    if (self->request->method.no_seeds || !search_method_takes_baselines(self->scope->searcher)) return false;
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        if (self->baselines[e].plan && !isnan(self->result->baselines[e].seconds)) return true;
    return false;
}

/* A plan that gets overrides. */
typedef struct OverrideStart {
    StageProblem *problem;
    Plan *plan; /* not simulated */
    PlanPrice price;
} OverrideStart;

enum { MOST_STARTS = 3 };

static AmStatus add_start(OverrideStart *starts, int32_t *count, SingleStageSearch *self,
                          StageProblem *problem, const AxisPlan *axis_plan, const PlanPrice *price,
                          AmError *error) {
    OverrideStart *start = &starts[(*count)++];
    *start = (OverrideStart){.problem = problem, .price = *price};
    return single_stage_plan(self, problem, axis_plan, &start->plan, error);
}

/* Lists at most `most` plans, since overrides may reverse their order: the best one of all meshes, the next
 * one of its mesh, and the best ones of other meshes, where they take little longer. */
static AmStatus list_starts(OverrideStart *starts, int32_t *count, int32_t most, SingleStageSearch *self,
                            AmError *error) {
    const double near = 1.01, near_of_mesh = 1.002; /* times the best step */
    StageProblem *best = self->problems[0];
    const double seconds = best->best.price.seconds;
    AxisPlan fastest[2];
    PlanPrice price;
    *count = 0;
    TRY(add_start(starts, count, self, best, &best->best.axis_plan, &best->best.price, error));
    if (most == 1 || best->best.price.excess > 0) return AM_OK;
    if (problem_fastest(fastest, best, 2) == 2 && problem_known(best, &fastest[1], &price) &&
        price.seconds <= near_of_mesh * seconds)
        TRY(add_start(starts, count, self, best, &fastest[1], &price, error));
    for (int32_t k = 1; k < self->problem_count && *count < most; k++) {
        StageProblem *other = self->problems[k];
        bool is_near = other->best.is_known && other->best.price.excess <= 0 &&
                       other->best.price.seconds <= near * seconds;
        if (is_near)
            TRY(add_start(starts, count, self, other, &other->best.axis_plan, &other->best.price, error));
    }
    return AM_OK;
}

/* Gives a plan overrides of single operators (override_search.h), with at most `*left` evaluations, which are
 * taken off. */
static AmStatus add_overrides(SingleStageSearch *self, OverrideStart *start, int64_t most, int64_t *left,
                              AmError *error) {
    StageProblem *problem = start->problem;
    int64_t before = problem->budget.used;
    if (most > *left) most = *left;
    if (most == 0 || self->budget.is_cut || single_stage_must_end(self)) return AM_OK;
    if (!single_stage_cap(self, problem)) return AM_OK;
    problem->budget.limit = before + most;
    search_watch_phase(self->request->callbacks.watch, SEARCH_PHASE_OVERRIDES);
    AmStatus status =
        stage_add_overrides(start->plan->stages, &start->price, self->arena, problem, OVERRIDES_ALL, error);
    self->budget.is_cut |= problem->budget.is_cut;
    *left -= problem->budget.used - before;
    return status;
}

/* Adds the plan of a round; that of a named baseline is the baseline. */
static void add_plan(SingleStageSearch *self, Plan *plan, const MemoryFit *fit, PlanOrigin origin) {
    bool is_baseline = self->scope->searcher == SEARCHER_BASELINE;
    const char *note = is_baseline ? baseline_name(self->scope->baseline) : NULL;
    if (search_check_plan(self->scope, plan, &self->refusal) != AM_OK) return;
    pool_add(&self->result->pool, plan, fit, is_baseline ? PLAN_ORIGIN_BASELINE : origin, note);
}

/* Climbs by single changes of the plan. */
static AmStatus climb_plan(SingleStageSearch *self, Plan **plan, AmError *error) {
    PlanClimb *climb = &self->climbs.climb;
    if (!self->scope->climbs || self->budget.is_cut || !plan_climb_applies(self->scope)) return AM_OK;
    bool is_same = (*plan)->predicted_step_seconds == self->climbs.from;
    if (single_stage_left(self) <= 0 || is_same) return AM_OK;
    self->climbs.from = (*plan)->predicted_step_seconds;
    climb->primary = self->scope->climbs;
    climb->cluster = self->cluster;
    climb->scope = self->scope;
    climb->request = self->request;
    climb->keeps_micro_batches = true;
    climb->budget = (SearchBudget){.stop = self->budget.stop};
    if (self->budget.has_cap) budget_set_cap(&climb->budget, single_stage_left(self));
    TRY(plan_climb_open(climb, self->arena, error));
    AmStatus status = plan_climb(plan, climb, 0, self->arena, error);
    self->climbs.used += climb->budget.used;
    budget_return(&self->budget, climb->budget.used, climb->budget.is_cut);
    return status;
}

AmStatus single_stage_end_round(SingleStageSearch *self, AmError *error) {
    single_stage_sort(self);
    StageProblem *best = self->problems[0];
    Plan *plan;
    MemoryFit fit;
    if (!best->best.is_known) return AM_OK;
    /* Several plans get overrides: some each, then more the fastest of them. */
    enum { TRIAL_PARTS = 5, LEAST_TRIAL = 4 };
    OverrideStart starts[MOST_STARTS];
    int32_t count;
    int64_t left = self->rounds.for_overrides, trial = left / TRIAL_PARTS;
    TRY(list_starts(starts, &count, trial >= LEAST_TRIAL ? MOST_STARTS : 1, self, error));
    for (int32_t k = 0; k < count && count > 1; k++)
        TRY(add_overrides(self, &starts[k], trial, &left, error));
    OverrideStart *fastest = &starts[0];
    for (int32_t k = 1; k < count; k++)
        if (plan_price_better(&starts[k].price, &fastest->price)) fastest = &starts[k];
    plan = fastest->plan;
    TRY(add_overrides(self, fastest, left, &left, error));
    TRY(single_stage_simulate(self, plan, &fit, error));
    add_plan(self, plan, &fit, PLAN_ORIGIN_SINGLE_STAGE);
    const Plan *before = plan;
    if (!self->budget.is_cut && self->shares.left > 0) TRY(single_stage_share(self, &plan, &fit, error));
    if (fit.fits) TRY(climb_plan(self, &plan, error));
    if (plan != before) add_plan(self, plan, &fit, PLAN_ORIGIN_IMPROVEMENT);
    return AM_OK;
}

AmStatus single_stage_add(SingleStageSearch *self, const StageProblem *problem, const AxisPlan *axis_plan,
                          PlanOrigin origin, AmError *error) {
    Plan *plan;
    MemoryFit fit;
    TRY(single_stage_plan(self, problem, axis_plan, &plan, error));
    TRY(single_stage_simulate(self, plan, &fit, error));
    add_plan(self, plan, &fit, origin);
    return AM_OK;
}

void single_stage_add_baselines(SingleStageSearch *self) {
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        const MemoryFit fits = {.fits = true};
        bool has_plan = self->baselines[e].plan && !isnan(self->result->baselines[e].seconds);
        if (has_plan)
            pool_add(&self->result->pool, self->baselines[e].plan, &fits, PLAN_ORIGIN_BASELINE,
                     baseline_name((Baseline)e));
    }
}

/* ---- the result ---- */

/* Finds the bound of the plan over all meshes; a bound that is known already may be better. */
static AmStatus bound_plan(SingleStageSearch *self, Plan *plan, double start, AmError *error) {
    const SearchRequest *request = self->request;
    PlanBound bound;
    double seconds = self->scope->limits.seconds;
    const StopSignal stop = {.interrupted = request->callbacks.interrupted,
                             .deadline = seconds > 0 ? start + seconds : 0};
    Mesh meshes[SEARCH_MOST_MESHES];
    for (int32_t k = 0; k < self->problem_count; k++) meshes[k] = self->problems[k]->mesh;
    const BoundMeshes space = {meshes, self->problem_count, self->devices,
                               request->constraints.memory_fraction, request->constraints.offloads_optimizer};
    TRY(plan_bound_find(&bound, self->context, self->cluster, &space, plan, &stop, error));
    self->result->model_gap = bound.model_gap;
    if (!(bound.seconds > 0) || bound.seconds <= plan->bound_seconds) return AM_OK;
    plan->bound = "lower";
    plan->bound_seconds = bound.seconds;
    return AM_OK;
}

/* The time of a bound for a mesh, in evaluations. */
#define BOUND_EVALUATIONS 8

/* Returns whether a bound is computed: not after an interrupt, and not without time for it. */
static bool may_bound(const SingleStageSearch *self, double start) {
    const SearchScope *scope = self->scope;
    bool is_wanted = search_method_takes_baselines(scope->searcher) && !scope->skip_bound;
    if (!is_wanted || self->result->interrupted) return false;
    if (self->other_count > 0) return false; /* it would be that of one number of micro-batches */
    if (scope->limits.seconds == 0) return true;
    double now = clock_seconds(), plans = fmax((double)single_stage_evaluations(self), 1);
    double needed = BOUND_EVALUATIONS * self->problem_count * (now - start) / plans;
    return now + needed <= start + scope->limits.seconds;
}

AmStatus single_stage_fail_degrees(const SingleStageSearch *self, AmError *error) {
    char text[DEGREES_TEXT_BYTES], label[PIN_LABEL_BYTES];
    const Placement *placement = self->scope->placement;
    for (int32_t i = 0; placement && i < placement->count; i++)
        for (int32_t d = 0; placement->devices[i] && d < self->cluster->device_count; d++)
            if (!placement->devices[i][d])
                return am_fail(error, AM_ERROR_INFEASIBLE, pin_file(placement->on_devices[i]),
                               "%s: a plan of one stage has all %d devices (expected more stages, or "
                               "--quota without the other devices)",
                               pin_place(label, placement->on_devices[i]), self->cluster->device_count);
    return am_fail(error, AM_ERROR_INFEASIBLE, "", "no one-stage plan on %d devices has %s",
                   self->cluster->device_count, degrees_text(text, &self->request->constraints.degrees));
}

AmStatus single_stage_finish(SingleStageSearch *self, double start, AmError *error) {
    const SearchRequest *request = self->request;
    const AxisPlan unsplit = {0};
    SearchResult *result = self->result;
    if (single_stage_has_baseline(self)) single_stage_add_baselines(self);
    /* The fastest plans of every mesh may be measured later. */
    enum { MOST_OF_MESH = 24 };
    AxisPlan fastest[MOST_OF_MESH];
    int32_t most = request->measures < MOST_OF_MESH ? request->measures : MOST_OF_MESH;
    for (int32_t k = 0; k < self->problem_count && most > 0; k++) {
        int32_t count = problem_fastest(fastest, self->problems[k], most);
        for (int32_t p = 0; p < count && !single_stage_must_end(self); p++)
            TRY(single_stage_add(self, self->problems[k], &fastest[p], PLAN_ORIGIN_SINGLE_STAGE, error));
    }
    bool may_share = self->shares.are_wanted;
    if (!result->pool.best.plan && self->scope->known.rival_seconds > 0 && single_stage_must_end(self))
        return am_fail(error, AM_ERROR_INFEASIBLE, "", "the search ended before a one-stage plan was priced");
    if (!result->pool.best.plan) /* a cap leaves no evaluation and no baseline fits */
        TRY(single_stage_add(self, self->problems[0], &unsplit, PLAN_ORIGIN_SINGLE_STAGE, error));
    bool is_pinned = self->refusal.code != AM_OK && degrees_are_free(&request->constraints.degrees);
    if (!result->pool.best.plan && is_pinned) return am_pass_error(self->refusal.code, &self->refusal, error);
    if (!result->pool.best.plan) return single_stage_fail_degrees(self, error);
    search_result_choose(result);
    if (!result->plan)
        return memory_fail(&result->nearest_fit, self->cluster, request->constraints.memory_fraction, error);
    Plan *plan = result->plan;
    if (may_share) { /* shares are not enumerated */
        result->is_exact = false;
        result->exact_space = NULL;
        result->bound_seconds = 0;
    }
    if (result->is_exact) {
        plan->bound = "exact";
        plan->bound_seconds = plan->predicted_step_seconds;
    } else if (result->bound_seconds > 0) {
        plan->bound = "lower";
        plan->bound_seconds = fmin(result->bound_seconds, plan->predicted_step_seconds);
    }
    if (may_bound(self, start)) {
        search_watch_phase(request->callbacks.watch, SEARCH_PHASE_BOUND);
        TRY(bound_plan(self, plan, start, error));
    }
    plan->evaluations = single_stage_evaluations(self);
    return AM_OK;
}
