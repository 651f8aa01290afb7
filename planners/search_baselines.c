/* Plans that are known before a search: baselines of one and several stages, and the plan of --init-plan.
 *
 * A round prices the baselines itself (search_rounds.c). A cluster of mixed devices needs them before all
 * other plans, a budget that ends before the first round needs them without evaluations, and a deadline that
 * passes without a plan needs them after it.
 */
#include "planners/search_baselines.h"

#include <math.h>

#include "cost/simulate/simulate.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/bounds/model_gap.h"
#include "planners/search_micro_batches.h"
#include "planners/single_stage/single_stage.h"
#include "planners/strategy.h"

/* ---- baselines of one stage ---- */

/* Keeps the fastest step of each baseline, and leaves out those that became slower. */
static void leave_out_slower(bool *is_left_out, BaselineResult *best, const SearchResult *found) {
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        double seconds = found->baselines[e].seconds;
        if (isnan(seconds)) continue;
        if (baseline_is_faster(seconds, &best[e])) best[e] = found->baselines[e];
        else is_left_out[e] = true;
    }
}

static bool has_several_stages(Baseline baseline) {
    return baseline == BASELINE_EVEN_PIPELINE || baseline == BASELINE_MEGATRON_3D;
}

static bool has_price(const BaselineResult *best) {
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        if (!has_several_stages((Baseline)e) && !isnan(best[e].seconds)) return true;
    return false;
}

static bool has_all(const bool *is_left_out) {
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        if (!is_left_out[e]) return false;
    return true;
}

/* The one-stage baselines of a search, and the fastest step of each so far. */
typedef struct StageBaselines {
    SearchResult *result;
    SearchContext *search;
    const SearchOptions *options;
    const int32_t *only; /* [baseline] the only number of micro-batches to price; NULL: any */
    BaselineResult best[BASELINE_COUNT];
    bool is_scarce; /* none fits with the first number of micro-batches */
} StageBaselines;

/* Prices the baselines with each number of micro-batches from the one at `first` on, while one may get
 * faster or may fit. */
static AmStatus price_numbers(StageBaselines *self, int32_t first, const PlanRecomputation *recomputed,
                              AmError *error) {
    SearchContext *search = self->search;
    const int32_t *only = self->only;
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count = micro_batches_numbers(numbers, search->whole, search->settings->micro_batches);
    bool is_left_out[BASELINE_COUNT];
    for (int32_t e = 0; e < BASELINE_COUNT; e++) is_left_out[e] = has_several_stages((Baseline)e);
    if (first > 0) leave_out_slower(is_left_out, self->best, self->result);
    for (int32_t k = first; k < count && (only || !has_all(is_left_out)); k++) {
        SearchResult found = {.model_gap = NAN};
        MicroBatching here = *search->settings;
        const PlanContext *context;
        AmError refusal = {0};
        for (int32_t e = 0; only && e < BASELINE_COUNT; e++)
            is_left_out[e] = only[e] != numbers[k] || has_several_stages((Baseline)e);
        if (has_all(is_left_out)) continue;
        here.micro_batches = numbers[k];
        here.separate_backward = false;
        here.stop = &search->budget.stop;
        if (recomputed) here.recomputed = *recomputed;
        if (stop_wanted(&search->budget.stop)) return AM_OK;
        const SearchOptions part =
            search_part_options(search, self->options, self->options->limits.evaluations);
        AmStatus status = plan_context_for(&context, search->whole, &here, &refusal);
        if (stop_wanted(&search->budget.stop)) return AM_OK;
        if (status == AM_OK)
            status = single_stage_baselines(&found, is_left_out, search->arena, context, search->cluster,
                                            &part, &refusal);
        if (status == AM_ERROR_INFEASIBLE) return AM_OK; /* nor can it be split into more */
        TRY(am_pass_error(status, &refusal, error));
        leave_out_slower(is_left_out, self->best, &found);
        if (k == 0 && !recomputed) self->is_scarce = !has_price(self->best);
        if (found.plan) found.plan->space = plan_space_name(search->options->kind);
        search_result_merge(self->result, &found);
    }
    return AM_OK;
}

/* Prices the baselines with selective and full recomputation of their layers (Korthikanti et al. 2022). A
 * module without layers, or with layers without attention, has no such plans. */
static AmStatus price_recomputed(StageBaselines *self, AmError *error) {
    static const uint32_t modules[] = {LAYER_CORE_ATTENTION, 0};
    const PlanContext *whole = self->search->whole;
    for (size_t k = 0; k < sizeof modules / sizeof *modules; k++) {
        const Strategy strategy = {.stages = 1,
                                   .chunks = 1,
                                   .recomputed_layers = STRATEGY_ALL_LAYERS,
                                   .recomputed_modules = modules[k]};
        Arena scratch = {0};
        PlanRecomputation recomputed;
        AmError refusal = {0};
        AmStatus status = strategy_recomputation(&recomputed, &scratch, whole, &strategy, &refusal);
        bool is_possible = status == AM_OK && recomputed.range_count > 0;
        if (is_possible) status = price_numbers(self, 0, &recomputed, &refusal);
        arena_free(&scratch);
        TRY(search_check_part(status, &refusal, error));
    }
    return AM_OK;
}

AmStatus search_add_stage_baselines(SearchResult *result, SearchContext *self, bool is_first_done,
                                    const int32_t *only, const SearchOptions *options, AmError *error) {
    StageBaselines baselines = {.result = result, .search = self, .options = options, .only = only};
    baselines.is_scarce = is_first_done && !has_price(result->baselines);
    for (int32_t e = 0; e < BASELINE_COUNT; e++) baselines.best[e] = (BaselineResult){.seconds = NAN};
    TRY(price_numbers(&baselines, is_first_done, NULL, error));
    if (only || !baselines.is_scarce || (search_is_large(self) && result->plan)) return AM_OK;
    return price_recomputed(&baselines, error);
}

/* ---- baselines of several stages ---- */

/* Prices one baseline with one number of micro-batches. `*seconds`: NAN where none fits. */
static AmStatus add_pipeline(SearchResult *result, SearchContext *self, const SearchOptions *options,
                             int32_t micro_batches, double *seconds, AmError *error) {
    BaselineResult *baseline = &result->baselines[options->baseline];
    const PlanContext *context;
    Plan *plan = NULL;
    AmError refusal = {0};
    const char *reason = NULL;
    int64_t evaluations;
    MicroBatching here = *self->settings;
    here.micro_batches = micro_batches;
    here.separate_backward = true;
    here.stop = &self->budget.stop;
    *seconds = NAN;
    if (stop_flag_is_set(self->budget.stop.interrupted)) return AM_OK;
    AmStatus status = plan_context_for(&context, self->whole, &here, &refusal);
    if (status == AM_OK)
        status = even_pipeline_plan(&plan, &reason, &evaluations, self->arena, context, self->cluster,
                                    options, &refusal);
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE && status != AM_INTERRUPTED)
        return am_pass_error(status, &refusal, error);
    if (isnan(baseline->seconds))
        baseline->reason = status == AM_OK ? reason : arena_copy_string(self->arena, refusal.text);
    if (!plan) return AM_OK;
    if (search_check_plan(options, plan, NULL) != AM_OK) {
        if (isnan(baseline->seconds)) baseline->reason = "the pins exclude it";
        return AM_OK;
    }
    *seconds = plan->predicted_step_seconds;
    if (!baseline_is_faster(*seconds, baseline)) return AM_OK;
    *baseline = (BaselineResult){.seconds = *seconds, .micro_batches = micro_batches};
    plan->searcher = searcher_name(self->options->searcher);
    search_result_add(result, plan, PLAN_ORIGIN_BASELINE, baseline_name(options->baseline));
    return AM_OK;
}

/* The numbers of micro-batches of a search, and the place in them from which a baseline's are climbed. */
typedef struct Numbers {
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count, from;
} Numbers;

/* Prices larger (`step` 1) or smaller (-1) numbers as long as they are faster and may get as fast as the
 * best plan. A step with one micro-batch takes at most as many times as long as the pipeline has stages. */
static AmStatus climb_numbers(SearchResult *result, SearchContext *self, const SearchOptions *options,
                              const Numbers *numbers, int32_t step, AmError *error) {
    const double near = numbers->from == 0 ? EVEN_PIPELINE_MOST_STAGES : 1.3;
    double best = result->baselines[options->baseline].seconds, seconds;
    for (int32_t k = numbers->from + step; k > 0 && k < numbers->count; k += step) {
        if (isnan(best) || best >= near * result->plan->predicted_step_seconds) return AM_OK;
        TRY(add_pipeline(result, self, options, numbers->numbers[k], &seconds, error));
        if (!(seconds < best)) return AM_OK;
        best = seconds;
    }
    return AM_OK;
}

/* Prices a pipeline baseline that does not fit with the first number of micro-batches, from the largest
 * number on, which needs the least memory. */
static AmStatus climb_from_largest(SearchResult *result, SearchContext *self, const SearchOptions *options,
                                   const Numbers *numbers, AmError *error) {
    Numbers from_largest = *numbers;
    double seconds;
    from_largest.from = numbers->count - 1;
    if (from_largest.from <= numbers->from) return AM_OK;
    TRY(add_pipeline(result, self, options, numbers->numbers[from_largest.from], &seconds, error));
    return climb_numbers(result, self, options, &from_largest, -1, error);
}

AmStatus search_add_pipeline_baselines(SearchResult *result, SearchContext *self, bool is_large,
                                       const int32_t *only, const SearchOptions *options, AmError *error) {
    enum { LARGE_FROM = 3 /* eight micro-batches */ };
    static const Baseline pipelines[] = {BASELINE_EVEN_PIPELINE, BASELINE_MEGATRON_3D};
    Numbers numbers = {0};
    numbers.count = micro_batches_numbers(numbers.numbers, self->whole, self->settings->micro_batches);
    for (int32_t k = 0; k < numbers.count && result->plan; k++)
        if (numbers.numbers[k] == result->plan->micro_batches) numbers.from = k;
    if (is_large && numbers.from == 0)
        numbers.from = numbers.count > LARGE_FROM ? LARGE_FROM : numbers.count - 1;
    bool climbs = self->settings->micro_batches == 0;
    for (size_t r = 0; r < sizeof pipelines / sizeof *pipelines; r++) {
        SearchOptions part = *options;
        double seconds;
        part.searcher = SEARCHER_BASELINE;
        part.baseline = pipelines[r];
        part.nested.known.rival_seconds = result->plan ? result->plan->predicted_step_seconds : 0;
        result->baselines[pipelines[r]] = (BaselineResult){.seconds = NAN};
        if (only) {
            if (only[pipelines[r]] > 0)
                TRY(add_pipeline(result, self, &part, only[pipelines[r]], &seconds, error));
            continue;
        }
        if (!is_large || !climbs) TRY(add_pipeline(result, self, &part, numbers.numbers[0], &seconds, error));
        if (!climbs) continue;
        if (is_large || numbers.from > 0)
            TRY(add_pipeline(result, self, &part, numbers.numbers[numbers.from], &seconds, error));
        if (isnan(result->baselines[pipelines[r]].seconds)) {
            TRY(climb_from_largest(result, self, &part, &numbers, error));
            continue;
        }
        TRY(climb_numbers(result, self, &part, &numbers, 1, error));
        TRY(climb_numbers(result, self, &part, &numbers, -1, error));
    }
    return AM_OK;
}

bool search_may_price_pipelines(const SearchContext *search) {
    const SearchOptions *options = search->options;
    bool is_left_out = search_is_large(search) && options->nested.purpose == PURPOSE_TRIAL;
    return !is_left_out && options->limits.seconds == 0 && search->cluster->device_count > 1;
}

void search_leave_out_pipelines(SearchResult *result) {
    BaselineResult *baselines = result->baselines;
    baselines[BASELINE_EVEN_PIPELINE] =
        (BaselineResult){.seconds = NAN, .reason = "not priced here: --baseline even_pipeline does"};
    baselines[BASELINE_MEGATRON_3D] =
        (BaselineResult){.seconds = NAN, .reason = "not priced here: --baseline megatron_3d does"};
}

/* ---- baselines outside of the rounds ---- */

AmStatus search_share_baselines(SearchContext *search, AmError *error) {
    SearchOptions options = *search->options;
    SearchResult found = {.model_gap = NAN};
    int32_t numbers[BASELINE_COUNT], number = search->settings->micro_batches;
    const int64_t kept = options.request->space.initial ? 1 : 0;
    bool is_mixed = cluster_is_mixed(search->cluster) && !options.request->constraints.is_even;
    bool may_share =
        degrees_allow_stages(&options.request->constraints.degrees, 1) && !options.request->method.no_seeds;
    Budget *budget = &search->budget;
    if (!is_mixed || !may_share || options.nested.purpose == PURPOSE_TRIAL) return AM_OK;
    if (budget->has_cap && budget->cap <= kept) return AM_OK;
    for (int32_t e = 0; e < BASELINE_COUNT; e++) numbers[e] = number > 1 ? number : 1;
    options.nested.purpose = PURPOSE_SHARED_BASELINES;
    options.limits.evaluations = 0;
    if (budget->has_cap) budget->cap -= kept;
    AmStatus status = search_add_stage_baselines(&found, search, false, numbers, &options, error);
    if (budget->has_cap) budget->cap += kept;
    TRY(status);
    search_spend(search, &found);
    search_result_merge(search->result, &found);
    return AM_OK;
}

AmStatus search_add_floor(SearchContext *self, AmError *error) {
    SearchOptions options = search_one_stage_part(self->options);
    SearchContext spent = *self;
    SearchResult found = {.model_gap = NAN};
    AmError refusal = {0};
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS], only[BASELINE_COUNT] = {0};
    double bound;
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        found.baselines[e] = (BaselineResult){.seconds = NAN, .reason = "it has other degrees"};
    micro_batches_numbers(numbers, self->whole, self->settings->micro_batches);
    if (degrees_allow_stages(&options.request->constraints.degrees, 1) && !stop_wanted(&self->budget.stop)) {
        spent.budget.has_cap = true;
        spent.budget.cap = spent.budget.used = 0;
        options.searcher = SEARCHER_ANNEAL; /* takes baselines */
        AmStatus status = search_add_each_number(&found, &bound, &spent, &options, 1, &refusal);
        TRY(search_check_part(status, &refusal, error));
        if (!options.request->method.no_seeds)
            TRY(search_add_stage_baselines(&found, &spent, found.has_baselines, NULL, &options, error));
        if (found.plan) found.plan->space = plan_space_name(self->options->kind);
    }
    only[BASELINE_EVEN_PIPELINE] = only[BASELINE_MEGATRON_3D] = numbers[0];
    if (search_may_price_pipelines(self) && !search_is_large(self) && !stop_wanted(&self->budget.stop))
        TRY(search_add_pipeline_baselines(&found, self, false, only, self->options, error));
    else search_leave_out_pipelines(&found);
    search_result_merge(self->result, &found);
    return AM_OK;
}

AmStatus search_add_late_baselines(SearchContext *self, AmError *error) {
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count = micro_batches_numbers(numbers, self->whole, self->settings->micro_batches);
    const StopSignal timed = self->budget.stop;
    const MicroBatching *settings = self->settings;
    MicroBatching here = *settings;
    SearchOptions options = *self->options;
    AmStatus status = AM_OK;
    if (options.nested.purpose == PURPOSE_TRIAL || options.request->method.no_seeds || timed.deadline <= 0)
        return AM_OK;
    if (!degrees_allow_stages(&options.request->constraints.degrees, 1)) return AM_OK;
    options.limits.seconds = 0;
    self->budget.stop.deadline = 0;
    self->settings = &here;
    for (int32_t k = 0; k < count && status == AM_OK && !self->result->plan; k++) {
        here.micro_batches = numbers[k];
        status = search_add_stage_baselines(self->result, self, false, NULL, &options, error);
    }
    self->settings = settings;
    self->budget.stop = timed;
    return status;
}

/* ---- a given plan ---- */

AmStatus search_check_given(const Plan *given, const Cluster *cluster, AmError *error) {
    int32_t devices = 0, most = -1;
    for (int32_t s = 0; s < given->stage_count; s++) {
        const PlanStage *stage = &given->stages[s];
        devices += stage->mesh.device_count;
        for (int32_t d = 0; d < stage->mesh.device_count; d++)
            if (stage->devices[d] > most) most = stage->devices[d];
    }
    const char *source = given->source ? given->source : "";
    if (devices != cluster->device_count)
        return am_fail(error, AM_ERROR_INPUT, source,
                       "$.stages: a plan for %d devices of cluster %s (expected the %d of cluster %s)",
                       devices, given->cluster_name, cluster->device_count, cluster->name);
    if (most >= cluster->device_count)
        return am_fail(error, AM_ERROR_INPUT, source,
                       "$.stages: %d is not a device of cluster %s (expected 0 to %d)", most, cluster->name,
                       cluster->device_count - 1);
    return AM_OK;
}

/* Returns whether the search may return the given plan unchanged. */
static bool may_add(const SearchOptions *options, const MicroBatching *settings) {
    const Plan *given = options->request->space.initial;
    bool is_narrowed = options->request->space.mesh || options->request->constraints.kept ||
                       options->request->constraints.is_even || options->request->space.no_overrides;
    bool is_one = given && options->kind == SPACE_SINGLE_STAGE && given->stage_count == 1;
    bool is_number =
        is_one && (settings->micro_batches == 0 || given->micro_batches == settings->micro_batches);
    return is_number && !is_narrowed;
}

AmStatus search_add_given(SearchContext *self, AmError *error) {
    const SearchOptions *options = self->options;
    const Plan *given = options->request->space.initial, *before = self->result->plan;
    SearchResult *result = self->result;
    Simulation *simulation;
    AmError refusal = {0};
    if (!may_add(options, self->settings)) return AM_OK;
    const PlanContext *context = plan_context_used(given, self->whole);
    Plan *plan = ARENA_ARRAY(self->arena, Plan, 1);
    if (!plan) return am_fail_memory(error, (int64_t)sizeof *plan);
    search_describe_plan(plan, context, self->cluster, options);
    plan->stages = given->stages;
    plan->micro_batches = given->micro_batches;
    plan->relaxations = given->relaxations;
    plan->relaxation_count = given->relaxation_count;
    if (search_check_plan(options, plan, NULL) != AM_OK) return AM_OK;
    AmStatus status = simulate_plan(
        &simulation, self->arena, context, plan, self->cluster,
        &(SimulationOptions){.memory_fraction = options->request->constraints.memory_fraction}, &refusal);
    if (status == AM_ERROR_INFEASIBLE) return AM_OK;
    if (status != AM_OK && error) *error = refusal;
    if (status == AM_OK) status = simulation_predict(plan, self->arena, simulation, error);
    if (status != AM_OK || !simulation->fit.fits) return status;
    plan->evaluations = result->evaluations;
    search_result_add(result, plan, PLAN_ORIGIN_GIVEN, NULL);
    if (result->plan != plan) return AM_OK;
    if (before) plan->bound = before->bound;
    if (before) plan->bound_seconds = fmin(before->bound_seconds, plan->predicted_step_seconds);
    result->model_gap = NAN;
    if (options->skip_bound) return AM_OK;
    return plan_model_gap(&result->model_gap, self->whole, self->cluster, plan,
                          &(StopSignal){options->request->callbacks.interrupted, 0}, error);
}
