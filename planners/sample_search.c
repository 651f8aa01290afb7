/* The search on a sample of layers, the module with one or a few of its repeated layers. The best plans of
 * the sample are extended to all layers and simulated on the module, the fastest first.
 *
 * The forms of a module (planners/forms/module_forms.h) are searched one after another. The result is the
 * fastest plan of all, each simulated on its own form. A form after the first is left out only by its
 * baselines: if none fits on its sample in SKIP_FORM_ABOVE times the best step so far. Forms with loops of
 * which another one splits the layers have SKIP_LOOPS_ABOVE instead. These factors are no bounds: a form that
 * is left out may have the fastest plan. The search of loops has gained 2.3 % over its best baseline, and
 * steps of samples have differed from those of the module by up to 3.1 %. A sample that was searched and is
 * slower still gives its best plan to the module (is_slow_form()).
 */
#include "planners/sample_search.h"

#include <math.h>
#include <string.h>

#include "cost/simulate/simulate.h"
#include "planners/plan_search.h"
#include "planners/search_baselines.h"
#include "planners/search_bound.h"
#include "planners/single_stage/override_search.h"
#include "planners/single_stage/single_stage_search.h"
#include "propagation/plan/plan_sample.h"

/* Modules of fewer instructions are searched without a sample. Split layers also have a form with loops. */
#define LEAST_INSTRUCTIONS 30000
#define LEAST_OF_SPLIT     20000
enum { MOST_CANDIDATES = 48, MOST_MOVED = 6 };
/* Largest ratios to the best step time of plans that are simulated on the module, that get overrides there,
 * and of baselines, where the ratio exceeds the error of the sample. */
#define MOVED_WITHIN    1.1
#define REFINED_WITHIN  1.02
#define BASELINE_WITHIN 1.2
/* Plans that a climb on the module prices, times instructions. A climb over fewer plans than LEAST_CLIMB is
 * left out: each takes up to two derived modules, and the plan was improved on the sample. */
#define MOST_WORK 300000
enum { LEAST_CLIMB = 8 };
/* The same where no plan of the sample fits, so that the module itself is searched. A climb without a limit
 * takes minutes. */
#define MOST_WORK_ALONE 3000000
/* A form of the module is not searched if its best baseline is slower by this factor than the plan of another
 * form; by the second one where pipelines of that are about as fast as its one-stage plans. */
#define SKIP_FORM_ABOVE                  1.25
#define SKIP_FORM_BESIDE_PIPELINES_ABOVE 2
/* The same for a form that keeps its loops, where the layers of the other form are split: both have the same
 * shardings, and large models gain few percent over their best baseline. */
#define SKIP_LOOPS_ABOVE 1.08

bool sample_is_wanted(const PlanContext *primary) {
    return primary->rules->count > (primary->layer_map ? LEAST_OF_SPLIT : LEAST_INSTRUCTIONS);
}

AmStatus sample_is_possible(bool *is_possible, const PlanContext *primary, AmError *error) {
    PlanSample sample;
    TRY(plan_sample_make(&sample, primary, error));
    *is_possible = sample.context != NULL;
    plan_sample_free(&sample);
    return AM_OK;
}

bool sample_is_allowed(const SearchScope *scope, const PlanContext *primary) {
    const SearchRequest *request = scope->request;
    Target target = request->constraints.target;
    bool has_target = target != TARGET_AUTOMAP && (target != TARGET_JAX || !primary->layer_map);
    return request->constraints.pin_count == 0 && !request->constraints.kept && !request->space.initial &&
           !scope->placement && !request->method.no_seeds && !request->method.no_polish &&
           scope->purpose != PURPOSE_TRIAL && (scope->limits.evaluations == 0 || scope->limits.is_default) &&
           scope->limits.seconds == 0 && request->objective == OBJECTIVE_TIME && !has_target &&
           search_method_explores(scope->searcher);
}

/* Adds a candidate of the sample to a list, fastest first, unless it is there. */
static void add_candidate(PlanCandidate *list, int32_t *count, const PlanCandidate *candidate) {
    if (!candidate->plan || !candidate->fit.fits || *count == MOST_CANDIDATES) return;
    for (int32_t k = 0; k < *count; k++)
        if (list[k].plan == candidate->plan) return;
    int32_t at = (*count)++;
    for (; at > 0 && candidate_is_better(candidate, &list[at - 1]); at--) list[at] = list[at - 1];
    list[at] = *candidate;
}

static int32_t list_candidates(PlanCandidate *list, const CandidatePool *pool) {
    int32_t count = 0;
    add_candidate(list, &count, &pool->best);
    for (int32_t k = 0; k < PLAN_ORIGIN_COUNT; k++) add_candidate(list, &count, &pool->of[k]);
    for (int32_t k = 0; k < POOL_SHAPES; k++) add_candidate(list, &count, &pool->shapes[k]);
    for (int32_t t = 0; t < TARGET_COUNT; t++) add_candidate(list, &count, &pool->on[t][0]);
    return count;
}

/* Joins the recomputation of all stages. */
static AmStatus join_recomputation(PlanRecomputation *all, Arena *arena, const PlanStage *stages,
                                   int32_t count, AmError *error) {
    int32_t ranges = 0, saved = 0;
    for (int32_t s = 0; s < count; s++) {
        ranges += stages[s].recompute.range_count;
        saved += stages[s].recompute.saved_count;
    }
    *all = (PlanRecomputation){.ranges = arena_alloc(arena, sizeof *all->ranges * (size_t)(ranges + 1)),
                               .saved = ARENA_ARRAY(arena, int32_t, saved + 1)};
    if (arena->failed) return am_fail_memory(error, ranges);
    for (int32_t s = 0; s < count; s++) {
        const PlanRecomputation *own = &stages[s].recompute;
        for (int32_t r = 0; r < own->range_count; r++, all->range_count++) {
            all->ranges[all->range_count][0] = own->ranges[r][0];
            all->ranges[all->range_count][1] = own->ranges[r][1];
        }
        for (int32_t k = 0; k < own->saved_count; k++) all->saved[all->saved_count++] = own->saved[k];
    }
    return AM_OK;
}

/* State of the plans moved so far. */
typedef struct MovedPlans {
    const Plan *plans[MOST_MOVED];
    int32_t count;
    double seconds; /* of the fastest one that does not fit: less memory may make it fit */
    double share;   /* the part of the memory limit that this one may use on the sample */
} MovedPlans;

/* Translates a plan of the sample into one of the module, and simulates it. AM_ERROR_INFEASIBLE: the module
 * has no such plan. */
static AmStatus move_plan(SearchContext *self, MovedPlans *moved, const PlanSample *sample,
                          const PlanCandidate *candidate, AmError *error) {
    const Plan *from = candidate->plan;
    const PlanContext *context, *used = plan_context_used(from, sample->context);
    MicroBatchSettings settings = search_micro_batching(self->request, from->micro_batches);
    Simulation *simulation;
    Arena scratch = {0};
    Plan *plan = ARENA_ARRAY(self->arena, Plan, 1);
    PlanStage *stages = ARENA_ARRAY(self->arena, PlanStage, from->stage_count);
    if (!plan || !stages) return am_fail_memory(error, from->stage_count);
    TRY(plan_sample_cut(stages, self->arena, sample, from, error));
    settings.separate_backward = used->primary && used->separate_backward;
    settings.stop = self->result->pool.best.plan ? &self->budget.stop : NULL;
    TRY(join_recomputation(&settings.recomputed, self->arena, stages, from->stage_count, error));
    TRY(plan_context_for(&context, self->primary, &settings, error));
    TRY(plan_sample_decide(stages, self->arena, sample, from, context, error));
    search_describe_plan(plan, context, self->cluster, self->scope);
    plan->stages = stages;
    plan->stage_count = from->stage_count;
    plan->micro_batches = from->micro_batches;
    plan->schedule = from->schedule;
    TRY(micro_batches_state_relaxations(plan, self->arena, context, error));
    TRY(search_check_plan(self->scope, plan, error));
    const SimulationOptions options = {.memory_fraction = self->request->constraints.memory_fraction,
                                       .in_parallel = true};
    AmStatus status = simulate_plan(&simulation, &scratch, context, plan, self->cluster, &options, error);
    if (status == AM_OK) status = simulation_predict(plan, self->arena, simulation, error);
    if (status == AM_OK) {
        self->budget.used++;
        moved->plans[moved->count++] = plan;
        if (!simulation->fit.fits && simulation->step_seconds < moved->seconds) {
            moved->seconds = simulation->step_seconds;
            moved->share = (double)simulation->fit.limit_bytes / (double)simulation->fit.needed_bytes;
        }
        pool_add(&self->result->pool, plan, &simulation->fit, candidate->origin, candidate->note);
    }
    arena_free(&scratch);
    return status;
}

/* Returns whether the plans of this form of the module are slower than one of another form. */
static bool is_slow_form(const SearchContext *self, const SearchResult *found) {
    double other = self->scope->known.form_seconds;
    return other > 0 && found->plan->predicted_step_seconds > MOVED_WITHIN * other;
}

/* Releases contexts that no plan needs any more, since each takes much memory: those on the sample of plans
 * that were moved, and those that were made since `known` for plans that the pool did not keep. */
static void release_contexts(SearchContext *self, const MovedPlans *moved, const PlanContext *known,
                             const PlanSample *sample, const PlanCandidate *left, int32_t count) {
    const PlanContext *used[MOST_CANDIDATES];
    int32_t kept = 0;
    for (int32_t k = 0; k < count; k++) used[k] = plan_context_used(left[k].plan, sample->context);
    plan_context_keep_only(sample->context, NULL, used, count);
    for (int32_t k = 0; k < moved->count; k++)
        if (pool_has(&self->result->pool, moved->plans[k])) used[kept++] = moved->plans[k]->context;
    plan_context_keep_only(self->primary, known, used, kept);
}

/* Moves the best plans of the sample. */
static AmStatus move_plans(SearchContext *self, MovedPlans *moved, const PlanSample *sample,
                           const SearchResult *found, AmError *error) {
    PlanCandidate list[MOST_CANDIDATES];
    const PlanContext *known = self->primary->splits;
    int32_t count = list_candidates(list, &found->pool);
    int32_t most = is_slow_form(self, found) ? 1 : MOST_MOVED;
    *moved = (MovedPlans){.seconds = INFINITY};
    for (int32_t k = 0; k < count && moved->count < most; k++) {
        AmError refusal = {0};
        bool has_plan = self->result->pool.best.plan && self->result->pool.best.fit.fits;
        bool is_enough = list[k].seconds > MOVED_WITHIN * list[0].seconds || stop_wanted(&self->budget.stop);
        if (has_plan && is_enough) break;
        if (k > 0 && list[k - 1].seconds == list[k].seconds &&
            plan_has_same_shape(list[k - 1].plan, list[k].plan))
            continue; /* hardly another plan */
        release_contexts(self, moved, known, sample, &list[k], count - k);
        AmStatus status = move_plan(self, moved, sample, &list[k], &refusal);
        if (status == AM_ERROR_INFEASIBLE || status == AM_ERROR_INPUT)
            continue; /* overrides may exclude others */
        TRY(am_pass_error(status, &refusal, error));
    }
    release_contexts(self, moved, known, sample, NULL, 0);
    return AM_OK;
}

/* Searches the sample, `found`, and moves its best plans. If they need more memory than on the sample, and
 * are much faster than those that fit, it is searched once more with a lower limit. */
static AmStatus search_sample(SearchContext *self, SearchResult *found, const PlanSample *sample,
                              const SearchScope *scope, AmError *error) {
    const PlanCandidate *best = &self->result->pool.best;
    SearchRequest request;
    SearchResult again = {0};
    MovedPlans moved;
    AmError refusal = {0};
    TRY(plan_search(found, self->arena, sample->context, self->cluster, scope, error));
    search_spend(self, found);
    if (!is_slow_form(self, found)) search_bound_begin(self, found->plan);
    TRY(move_plans(self, &moved, sample, found, error));
    bool has_fast = best->plan && best->fit.fits && best->seconds <= MOVED_WITHIN * moved.seconds;
    if (has_fast || isinf(moved.seconds) || is_slow_form(self, found)) return AM_OK;
    const SearchScope lower = search_with_request(scope, &request);
    request.constraints.memory_fraction *= moved.share;
    AmStatus status = plan_search(&again, self->arena, sample->context, self->cluster, &lower, &refusal);
    search_spend(self, &again);
    if (status == AM_ERROR_INFEASIBLE) return AM_OK;
    TRY(am_pass_error(status, &refusal, error));
    return move_plans(self, &moved, sample, &again, error);
}

/* Adds the baselines that are near the best plan, or that of the sample, priced on the module with their
 * numbers of micro-batches on the sample. */
static AmStatus add_baselines(SearchContext *self, const SearchResult *found, AmError *error) {
    SearchResult *result = self->result;
    double best = found->plan->predicted_step_seconds;
    int32_t only[BASELINE_COUNT] = {0};
    search_result_choose(result);
    if (result->plan) best = fmax(best, result->plan->predicted_step_seconds);
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        if (found->baselines[e].seconds <= BASELINE_WITHIN * best)
            only[e] = found->baselines[e].micro_batches;
    /* Baselines that do not fit are tried with up to four times as many micro-batches. */
    enum { MOST_DOUBLINGS = 2 };
    int32_t numbers[BASELINE_COUNT];
    memcpy(numbers, only, sizeof numbers);
    for (int32_t k = 0; k <= MOST_DOUBLINGS; k++) {
        TRY(search_add_stage_baselines(result, self, false, numbers, self->scope, error));
        for (int32_t e = 0; e < BASELINE_COUNT; e++)
            numbers[e] = isnan(result->baselines[e].seconds) ? 2 * numbers[e] : 0;
    }
    search_result_choose(result);
    if (result->plan && search_spans_stages(self->scope))
        TRY(search_add_pipeline_baselines(result, self, true, only, self->scope, error));
    memcpy(result->estimates, found->estimates, sizeof result->estimates);
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        const BaselineResult *on_sample = &found->baselines[e];
        const char *reason = isnan(on_sample->seconds) ? on_sample->reason : BASELINE_IS_FAR;
        if (only[e] == 0) result->baselines[e] = (BaselineResult){.seconds = NAN, .reason = reason};
    }
    return AM_OK;
}

/* Adds a one-stage plan of one micro-batch with overrides. */
static AmStatus add_overrides(SearchContext *self, const Plan *plan, AmError *error) {
    SearchBudget *budget = &self->budget;
    Plan *refined = ARENA_ARRAY(self->arena, Plan, 1);
    if (!refined) return am_fail_memory(error, (int64_t)sizeof *refined);
    *refined = *plan;
    SearchBudget part = {.limit = INT64_MAX, .stop = budget->stop};
    TRY(plan_add_overrides(refined, &part, self->arena, self->primary, self->cluster, self->scope,
                           OVERRIDES_AFTER_SAMPLE, error));
    budget_return(budget, part.used, part.is_cut);
    if (refined->stages != plan->stages)
        search_result_add(self->result, refined, PLAN_ORIGIN_IMPROVEMENT, NULL);
    return AM_OK;
}

/* Climbs from the best plan, if it has several stages: on the sample these have whole layers, which only a
 * climb on the module divides. */
static AmStatus climb_stages(SearchContext *self, AmError *error) {
    SearchResult *result = self->result;
    SearchBudget *budget = &self->budget;
    int64_t most = MOST_WORK / plan_context_count(self->primary);
    if (!result->plan || result->plan->stage_count == 1 || stop_wanted(&budget->stop)) return AM_OK;
    if (most < LEAST_CLIMB) return AM_OK;
    budget_set_cap(budget, budget->used + most);
    AmStatus status = search_add_climb(result, self, false, error);
    budget_set_cap(budget, 0);
    budget->is_cut = false;
    return status;
}

/* Adds the best one-stage plan with one micro-batch with overrides, if it is near the best of all. */
static AmStatus add_overridden_plan(SearchContext *self, AmError *error) {
    static const PlanOrigin parts[] = {PLAN_ORIGIN_SINGLE_STAGE, PLAN_ORIGIN_IMPROVEMENT,
                                       PLAN_ORIGIN_BASELINE};
    enum { PARTS = sizeof parts / sizeof *parts };
    const PlanCandidate none = {0}, *start = &none;
    const Plan *best = self->result->plan;
    for (int32_t k = 0; best && k < PARTS; k++) {
        const PlanCandidate *candidate = &self->result->pool.of[parts[k]];
        const Plan *plan = candidate->plan;
        bool is_one = plan && plan->stage_count == 1 && plan->micro_batches == 1;
        bool is_near =
            is_one && plan->predicted_step_seconds <= REFINED_WITHIN * best->predicted_step_seconds;
        if (is_near && candidate_is_better(candidate, start)) start = candidate;
    }
    return start->plan && !stop_wanted(&self->budget.stop) ? add_overrides(self, start->plan, error) : AM_OK;
}

/* Compares the forms. AM_ERROR_INFEASIBLE: the best baseline of a form, or of its sample, takes more than
 * `most` seconds. */
static AmStatus compare_forms(const SearchContext *self, PlanContext *form, const SearchScope *scope,
                              double most, AmError *error) {
    SearchResult found;
    search_result_clear(&found);
    SearchContext on_form = search_context(&found, self->arena, form, self->cluster, scope);
    on_form.enough_seconds = most;
    TRY(search_add_stage_baselines(&found, &on_form, false, NULL, scope, error));
    const PlanCandidate *best = &found.pool.best;
    if (best->plan && best->fit.fits && best->seconds <= most) return AM_OK;
    return am_fail(error, AM_ERROR_INFEASIBLE, "", "another form of the module is faster");
}

AmStatus sample_search(SearchContext *self, bool *is_done, AmError *error) {
    PlanSample sample;
    const KnownSteps *known = &self->scope->known;
    SearchResult found = {0}, *result = self->result;
    AmError refusal = {0};
    *is_done = false;
    double seconds = known->form_seconds;
    double far = known->form_has_pipelines ? SKIP_FORM_BESIDE_PIPELINES_ABOVE : SKIP_FORM_ABOVE;
    if (seconds > 0 && known->form_is_split && !self->primary->layer_map)
        TRY(compare_forms(self, self->primary, self->scope, SKIP_LOOPS_ABOVE * seconds, error));
    bool is_sample = self->primary->primary || ir_is_sample(self->primary->canonical);
    if (is_sample || !sample_is_allowed(self->scope, self->primary) || !sample_is_wanted(self->primary))
        return AM_OK;
    TRY(plan_sample_make(&sample, self->primary, error));
    if (!sample.context) return AM_OK;
    self->most_climbed = MOST_WORK_ALONE / plan_context_count(self->primary) + LEAST_CLIMB;
    SearchScope on_sample = *self->scope; /* whose plan is not the result */
    on_sample.skip_bound = on_sample.finishes_later = true;
    AmStatus status = AM_OK;
    if (seconds > 0) status = compare_forms(self, sample.context, &on_sample, far * seconds, &refusal);
    bool is_far = status == AM_ERROR_INFEASIBLE;
    if (status == AM_OK) status = search_sample(self, &found, &sample, &on_sample, &refusal);
    bool is_slow = status == AM_OK && is_slow_form(self, &found);
    if (status == AM_OK && !is_slow) status = add_baselines(self, &found, &refusal);
    plan_sample_free(&sample);
    if (status == AM_ERROR_INFEASIBLE && !is_far) return AM_OK;
    TRY(am_pass_error(status, &refusal, error));
    search_result_choose(result);
    if (result->plan) self->most_climbed = 0;
    if (!is_slow) TRY(climb_stages(self, error));
    if (!is_slow) TRY(add_overridden_plan(self, error));
    result->interrupted = found.interrupted;
    *is_done = result->plan != NULL;
    if (result->plan) result->evaluations = result->plan->evaluations = self->budget.used;
    return AM_OK;
}
