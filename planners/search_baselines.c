/* Plans that are known before a search: baselines of one and several stages, and the plan of --init-plan.
 *
 * A round prices the baselines itself (search_rounds.c). Three cases need them outside of a round: a cluster
 * of mixed devices, before all other plans; a budget that ends before the first round, without evaluations;
 * and a deadline that passes without a plan, after it.
 */
#include "planners/search_baselines.h"

#include <math.h>
#include <string.h>

#include "cost/simulate/simulate.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/bounds/bound.h"
#include "planners/problem/schedule_fallback.h"
#include "planners/search_micro_batches.h"
#include "planners/single_stage/single_stage_search.h"
#include "planners/strategy.h"

/* ---- one-stage baselines ---- */

/* Keeps the fastest step of each baseline, and leaves out those that became slower. */
static void leave_out_slower(bool *is_left_out, BaselineResult *best, const SearchResult *found) {
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        double seconds = found->baselines[e].seconds;
        if (isnan(seconds)) continue;
        if (baseline_is_faster(seconds, &best[e])) best[e] = found->baselines[e];
        else is_left_out[e] = true;
    }
}

/* Returns whether a one-stage search prices the baseline. */
static bool is_of_one_stage(Baseline baseline) {
    return !baseline_has_stages(baseline) && baseline_recompute(baseline) == BASELINE_RECOMPUTES_NOTHING;
}

static bool has_price(const BaselineResult *best) {
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        if (is_of_one_stage((Baseline)e) && !isnan(best[e].seconds)) return true;
    return false;
}

static bool has_all(const bool *is_left_out) {
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        if (!is_left_out[e]) return false;
    return true;
}

/* Steps that differ by this factor on a sample of layers differ in this order on the module. */
#define FAR_FROM_BEST 1.5

/* The one-stage baselines of a search, and the fastest step of each so far. */
typedef struct StageBaselines {
    SearchResult *result;
    SearchContext *search;
    const SearchScope *scope;
    const int32_t *only; /* [baseline] the only number of micro-batches to price; NULL: any */
    BaselineResult best[BASELINE_COUNT];
    bool is_scarce; /* none fits with the first number of micro-batches */
} StageBaselines;

/* Returns the seconds above which a baseline that does not fit is not tried with more micro-batches, which
 * hardly make it faster; 0: it is. Results for a module, but not for a sample, have the price of such a
 * baseline. */
static double far_seconds(const StageBaselines *self) {
    const PlanCandidate *candidate = &self->result->pool.best;
    double best = self->search->enough_seconds;
    if (best == 0 && ir_is_sample(self->search->primary->canonical) && candidate->plan && candidate->fit.fits)
        best = candidate->seconds;
    return FAR_FROM_BEST * best;
}

/* Prices the baselines with each number of micro-batches from the one at `first` on, while one may get
 * faster or may fit, and none is fast enough. */
static AmStatus price_numbers(StageBaselines *self, int32_t first, const PlanRecomputation *recomputed,
                              AmError *error) {
    SearchContext *search = self->search;
    const int32_t *only = self->only;
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count = micro_batches_numbers(numbers, search->primary, search->micro_batches);
    bool is_left_out[BASELINE_COUNT];
    for (int32_t e = 0; e < BASELINE_COUNT; e++) is_left_out[e] = !is_of_one_stage((Baseline)e);
    if (first > 0) leave_out_slower(is_left_out, self->best, self->result);
    for (int32_t k = first; k < count && (only || !has_all(is_left_out)); k++) {
        SearchResult found = {.model_gap = NAN};
        MicroBatchSettings here = search_micro_batching(self->scope->request, numbers[k]);
        const PlanContext *context;
        AmError refusal = {0};
        for (int32_t e = 0; only && e < BASELINE_COUNT; e++)
            is_left_out[e] = only[e] != numbers[k] || !is_of_one_stage((Baseline)e);
        if (has_all(is_left_out)) continue;
        here.stop = &search->budget.stop;
        if (recomputed) here.recomputed = *recomputed;
        if (stop_wanted(&search->budget.stop)) return AM_OK;
        SearchScope part = search_part(self->scope, &search->budget, self->scope->limits.evaluations);
        AmStatus status = plan_context_for(&context, search->primary, &here, &refusal);
        if (stop_wanted(&search->budget.stop)) return AM_OK;
        if (status == AM_OK)
            status = single_stage_baselines(&found, is_left_out, search->arena, context, search->cluster,
                                            &part, far_seconds(self), &refusal);
        if (status == AM_ERROR_INFEASIBLE) return AM_OK; /* nor can it be split into more */
        TRY(am_pass_error(status, &refusal, error));
        leave_out_slower(is_left_out, self->best, &found);
        if (k == 0 && !recomputed) self->is_scarce = !has_price(self->best);
        if (found.plan) found.plan->space = plan_space_name(search->scope->kind);
        search_result_merge(self->result, &found);
        for (int32_t e = 0; e < BASELINE_COUNT; e++)
            if (self->best[e].seconds <= search->enough_seconds) return AM_OK;
    }
    return AM_OK;
}

/* Returns why the module cannot recompute layers or their attention, instead of the text of a refusal. */
static const char *recomputation_obstacle(const SearchContext *self, bool is_selective, const char *text) {
    return is_selective && self->primary->unfused
               ? "fused attention keeps no scores (expected --attention unfused)"
               : arena_copy_string(self->arena, text);
}

/* Finds what a kind of recomputation computes again, in instructions of the module as read. `*reason`: why
 * the module has none of that kind; else NULL. Allocates in the search's arena. */
static AmStatus find_recomputed(PlanRecomputation *recomputed, const char **reason, SearchContext *self,
                                BaselineRecompute recompute, AmError *error) {
    bool is_selective = recompute == BASELINE_RECOMPUTES_ATTENTION;
    const Strategy strategy = {.stages = 1,
                               .chunks = 1,
                               .recomputed_layers = STRATEGY_ALL_LAYERS,
                               .recomputed_modules = is_selective ? LAYER_CORE_ATTENTION : 0};
    AmError refusal = {0};
    AmStatus status = strategy_recomputation(recomputed, self->arena, self->primary, &strategy, &refusal);
    bool is_empty = status == AM_OK && recomputed->range_count == 0;
    bool has_none = is_empty || status == AM_ERROR_INFEASIBLE;
    const char *text = is_empty ? "the module has no layers to recompute" : refusal.text;
    *reason = has_none ? recomputation_obstacle(self, is_selective, text) : NULL;
    return search_check_part(status, &refusal, error);
}

AmStatus search_add_stage_baselines(SearchResult *result, SearchContext *self, bool is_first_done,
                                    const int32_t *only, const SearchScope *scope, AmError *error) {
    StageBaselines baselines = {.result = result, .search = self, .scope = scope, .only = only};
    baselines.is_scarce = is_first_done && !has_price(result->baselines);
    for (int32_t e = 0; e < BASELINE_COUNT; e++) baselines.best[e] = (BaselineResult){.seconds = NAN};
    TRY(price_numbers(&baselines, is_first_done, NULL, error));
    if (only || !baselines.is_scarce || (search_module_is_large(self->primary) && result->plan)) return AM_OK;
    for (BaselineRecompute kind = BASELINE_RECOMPUTES_ATTENTION; kind < BASELINE_RECOMPUTES_COUNT; kind++) {
        PlanRecomputation recomputed;
        const char *reason;
        AmError refusal = {0};
        TRY(find_recomputed(&recomputed, &reason, baselines.search, kind, error));
        AmStatus status = reason ? AM_OK : price_numbers(&baselines, 0, &recomputed, &refusal);
        TRY(search_check_part(status, &refusal, error));
    }
    return AM_OK;
}

/* ---- pipeline baselines ---- */

/* Prices one baseline with one number of micro-batches. `*seconds`: NAN where none fits. */
static AmStatus add_pipeline(SearchResult *result, SearchContext *self, const SearchScope *scope,
                             int32_t micro_batches, double *seconds, AmError *error) {
    BaselineResult *baseline = &result->baselines[scope->baseline];
    const PlanContext *context;
    Plan *plan = NULL;
    AmError refusal = {0};
    const char *reason = NULL;
    int64_t evaluations;
    MicroBatchSettings here = search_micro_batching(scope->request, micro_batches);
    here.separate_backward = true;
    here.stop = &self->budget.stop;
    *seconds = NAN;
    if (stop_flag_is_set(self->budget.stop.interrupted)) return AM_OK;
    AmStatus status = plan_context_for(&context, self->primary, &here, &refusal);
    if (status == AM_OK)
        status = even_pipeline_plan(&plan, &reason, &evaluations, self->arena, context, self->cluster, scope,
                                    &refusal);
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE && status != AM_INTERRUPTED)
        return am_pass_error(status, &refusal, error);
    if (isnan(baseline->seconds))
        baseline->reason = status == AM_OK ? reason : arena_copy_string(self->arena, refusal.text);
    if (!plan) return AM_OK;
    if (search_check_plan(scope, plan, NULL) != AM_OK) {
        if (isnan(baseline->seconds)) baseline->reason = "the pins exclude it";
        return AM_OK;
    }
    *seconds = plan->predicted_step_seconds;
    if (!baseline_is_faster(*seconds, baseline)) return AM_OK;
    *baseline = (BaselineResult){.seconds = *seconds, .micro_batches = micro_batches};
    plan->searcher = searcher_name(self->scope->searcher);
    search_result_add(result, plan, PLAN_ORIGIN_BASELINE, baseline_name(scope->baseline));
    return AM_OK;
}

bool search_may_price_pipelines(const SearchContext *search) {
    const SearchScope *scope = search->scope;
    bool is_left_out = search_module_is_large(search->primary) && scope->purpose == PURPOSE_TRIAL;
    return !is_left_out && scope->limits.seconds == 0 && search->cluster->device_count > 1;
}

void search_leave_out_pipelines(SearchResult *result) {
    BaselineResult *baselines = result->baselines;
    baselines[BASELINE_EVEN_PIPELINE] =
        (BaselineResult){.seconds = NAN, .reason = "not priced here: --baseline even_pipeline does"};
    baselines[BASELINE_MEGATRON_3D] =
        (BaselineResult){.seconds = NAN, .reason = "not priced here: --baseline megatron_3d does"};
}

/* ---- named baselines with recomputation ---- */

/* Adds a plan to the result of its own search, or to another one that it makes faster. */
static void add_recomputed_plan(SearchResult *result, const SearchContext *self, Plan *plan,
                                Baseline baseline) {
    const Plan *best = result->plan;
    bool is_faster = !best || plan->predicted_step_seconds < best->predicted_step_seconds;
    if (!is_faster || (!best && self->scope->searcher != SEARCHER_BASELINE)) return;
    if (best) {
        plan->bound = best->bound;
        plan->bound_seconds = best->bound ? fmin(best->bound_seconds, plan->predicted_step_seconds) : NAN;
        plan->evaluations = best->evaluations;
    }
    plan->searcher = searcher_name(self->scope->searcher);
    plan->space = plan_space_name(self->scope->kind);
    plan->seed = self->scope->seed;
    search_result_add(result, plan, PLAN_ORIGIN_BASELINE, baseline_name(baseline));
}

/* Prices the one-stage baselines with one kind of recomputation side by side, each with its number of
 * micro-batches in `numbers` [BASELINE_COUNT]; 0 leaves it out. */
static AmStatus add_recomputed_stages(SearchResult *result, SearchContext *self, BaselineRecompute kind,
                                      const int32_t *numbers, AmError *error) {
    int32_t only[BASELINE_COUNT] = {0};
    SearchResult found = {.model_gap = NAN};
    PlanRecomputation recomputed;
    const char *reason;
    bool is_wanted[BASELINE_COUNT], is_any = false;
    StageBaselines baselines = {.result = &found, .search = self, .scope = self->scope, .only = only};
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        is_wanted[e] =
            numbers[e] > 0 && !baseline_has_stages((Baseline)e) && baseline_recompute((Baseline)e) == kind;
        is_any |= is_wanted[e];
        if (is_wanted[e]) only[baseline_without_recompute((Baseline)e)] = numbers[e];
        baselines.best[e] = found.baselines[e] = (BaselineResult){.seconds = NAN};
    }
    if (!is_any) return AM_OK;
    TRY(find_recomputed(&recomputed, &reason, self, kind, error));
    if (!degrees_allow_stages(&self->request->constraints.degrees, 1)) reason = "it has other degrees";
    if (!reason) TRY(price_numbers(&baselines, 0, &recomputed, error));
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        if (!is_wanted[e]) continue;
        BaselineResult *to = &result->baselines[e];
        *to = found.baselines[baseline_without_recompute((Baseline)e)];
        to->recompute = NULL; /* its name has it */
        if (reason) to->reason = reason;
        else if (isnan(to->seconds) && !to->reason) to->reason = "its micro-batches allow no recomputation";
        if (!found.plan || found.plan->predicted_step_seconds != to->seconds) continue;
        if (search_check_plan(self->scope, found.plan, NULL) != AM_OK)
            *to = (BaselineResult){.seconds = NAN, .reason = "the pins exclude it"};
        else add_recomputed_plan(result, self, found.plan, (Baseline)e);
    }
    return AM_OK;
}

/* Prices a pipeline with recomputation in equal stages of whole layers. It replaces `*best` if it is faster;
 * its obstacle replaces that of `lacking`, unless that one lacks less memory. */
static AmStatus price_recomputed_pipeline(Plan **best, BaselineResult *lacking, SearchContext *self,
                                          Strategy *strategy, AmError *error) {
    const SearchRequest *request = self->request;
    const PlanConstraints *constraints = &request->constraints;
    const char *wanted = request->space.schedule;
    const PlanContext *context;
    PlanCandidate priced;
    AmError refusal = {0};
    BaselineResult here = {.seconds = NAN};
    bool alternates;
    AmStatus status = strategy_context(&context, self->primary, strategy, &refusal);
    if (status == AM_OK) {
        TRY(schedule_alternates(&alternates, self->arena, context, error));
        strategy->schedule = schedule_first(wanted, alternates);
        status = strategy_simulate(&priced, self->arena, context, self->cluster, strategy,
                                   constraints->memory_fraction, &refusal);
    }
    if (status == AM_OK && search_check_plan(self->scope, priced.plan, NULL) != AM_OK) {
        here.reason = "the pins exclude it";
    } else if (status == AM_OK && !priced.fit.fits) {
        here.needed_bytes = priced.fit.needed_bytes;
        status = memory_fail(&priced.fit, self->cluster, constraints->memory_fraction, &refusal);
    } else if (status == AM_OK) {
        if (!*best || priced.seconds < (*best)->predicted_step_seconds) *best = priced.plan;
        return AM_OK;
    }
    if (status == AM_ERROR_INFEASIBLE)
        here.reason = recomputation_obstacle(self, strategy->recomputed_modules != 0, refusal.text);
    if (here.reason && (lacking->needed_bytes == 0 || baseline_lacks_less(&here, lacking))) *lacking = here;
    return status == AM_INTERRUPTED ? AM_OK : search_check_part(status, &refusal, error);
}

/* Prices one pipeline baseline with recomputation, with its fastest number of stages. */
static AmStatus add_recomputed_pipeline(SearchResult *result, SearchContext *self, Baseline baseline,
                                        int32_t micro_batches, AmError *error) {
    const SearchRequest *request = self->request;
    const SpaceRequest *space = &request->space;
    const Degrees *degrees = &request->constraints.degrees;
    bool is_3d = baseline_without_recompute(baseline) == BASELINE_MEGATRON_3D;
    bool is_selective = baseline_recompute(baseline) == BASELINE_RECOMPUTES_ATTENTION;
    bool has_chunks = space->schedule && schedule_kind_find(space->schedule) == SCHEDULE_INTERLEAVED;
    int32_t tensor = is_3d ? self->cluster->servers[0].device_count : 1;
    BaselineResult lacking = {.seconds = NAN,
                              .reason = is_3d ? "expected servers for 2 to 8 equal stages"
                                              : "the devices cannot be dealt to 2 to 8 equal stages"};
    Plan *best = NULL;
    for (int32_t stages = 2; stages <= EVEN_PIPELINE_MOST_STAGES; stages++) {
        int32_t devices = self->cluster->device_count / stages;
        if (self->cluster->device_count % (stages * tensor) != 0) continue;
        if (!degrees_allow_stages(degrees, stages) || !degrees_allow_mesh(degrees, devices, tensor)) continue;
        if (stop_wanted(&self->budget.stop)) break;
        Strategy strategy = {.data = devices / tensor,
                             .tensor = tensor,
                             .stages = stages,
                             .chunks = has_chunks ? SEARCH_DEFAULT_CHUNKS : 1,
                             .micro_batches = micro_batches,
                             .splits_sequence = is_selective && tensor > 1,
                             .recomputed_layers = STRATEGY_ALL_LAYERS,
                             .recomputed_modules = is_selective ? LAYER_CORE_ATTENTION : 0,
                             .is_for_jax = request->constraints.target == TARGET_JAX};
        if (has_chunks && space->chunks > 0) strategy.chunks = space->chunks;
        TRY(price_recomputed_pipeline(&best, &lacking, self, &strategy, error));
    }
    if (best) lacking = (BaselineResult){.seconds = best->predicted_step_seconds};
    lacking.micro_batches = micro_batches;
    result->baselines[baseline] = lacking;
    if (best) add_recomputed_plan(result, self, best, baseline);
    return AM_OK;
}

/* Adds the baselines with recomputation that have a number of micro-batches. */
static AmStatus add_recomputed(SearchResult *result, SearchContext *self, const int32_t *numbers,
                               AmError *error) {
    for (BaselineRecompute kind = BASELINE_RECOMPUTES_ATTENTION; kind < BASELINE_RECOMPUTES_COUNT; kind++)
        TRY(add_recomputed_stages(result, self, kind, numbers, error));
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        if (numbers[e] > 0 && baseline_has_stages((Baseline)e))
            TRY(add_recomputed_pipeline(result, self, (Baseline)e, numbers[e], error));
    return AM_OK;
}

/* ---- numbers of micro-batches ---- */

/* The numbers of micro-batches of a search, and the place in them from which a baseline's are climbed. */
typedef struct Numbers {
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count, from;
} Numbers;

/* Releases the contexts that were made since `known` and that no plan of the result has. */
static void release_contexts(const SearchResult *result, SearchContext *self, const PlanContext *known) {
    const PlanContext *used[POOL_CANDIDATES];
    plan_context_keep_only(self->primary, known, used, pool_contexts(used, &result->pool));
}

/* Prices baselines with recomputation side by side, each with the number at its place (-1 leaves it out), and
 * keeps the fastest result of each. Contexts of other plans than the result's are released. */
static AmStatus price_recomputed(bool *is_faster, SearchContext *self, const Numbers *all, const int32_t *at,
                                 AmError *error) {
    SearchResult *result = self->result;
    const PlanContext *known = self->primary->splits;
    int32_t numbers[BASELINE_COUNT];
    BaselineResult before[BASELINE_COUNT];
    memcpy(before, result->baselines, sizeof before);
    for (int32_t e = 0; e < BASELINE_COUNT; e++) numbers[e] = at[e] < 0 ? 0 : all->numbers[at[e]];
    TRY(add_recomputed(result, self, numbers, error));
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        is_faster[e] = at[e] >= 0 && baseline_is_faster(result->baselines[e].seconds, &before[e]);
        if (!is_faster[e] && !isnan(before[e].seconds)) result->baselines[e] = before[e];
    }
    release_contexts(result, self, known);
    return AM_OK;
}

/* Moves the places of baselines that were faster by a step, and leaves out the others. Returns whether one
 * has a number there. */
static bool move_places(int32_t *at, const bool *is_faster, const Numbers *all, int32_t step) {
    bool has_number = false;
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        at[e] = at[e] >= 0 && is_faster[e] && at[e] + step < all->count ? at[e] + step : -1;
        has_number |= at[e] >= 0;
    }
    return has_number;
}

/* Prices baselines with recomputation, each from its place in the numbers on (-1 leaves it out): with smaller
 * and with larger numbers as long as they are faster. One that does not fit begins with the largest number,
 * which needs the least memory. */
static AmStatus climb_recomputed(SearchContext *self, const Numbers *all, int32_t *from, AmError *error) {
    const int32_t last = all->count - 1;
    int32_t at[BASELINE_COUNT];
    bool is_first[BASELINE_COUNT], is_faster[BASELINE_COUNT], has_larger = false;
    TRY(price_recomputed(is_first, self, all, from, error));
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        at[e] = from[e] >= 0 && from[e] < last && !is_first[e] ? last : -1;
        has_larger |= at[e] >= 0;
        if (at[e] >= 0) from[e] = last;
    }
    if (has_larger) TRY(price_recomputed(is_faster, self, all, at, error));
    for (int32_t e = 0; e < BASELINE_COUNT && has_larger; e++) is_first[e] |= is_faster[e];
    for (int32_t step = -1; step <= 1; step += 2) {
        memcpy(at, from, sizeof at);
        memcpy(is_faster, is_first, sizeof is_faster);
        while (move_places(at, is_faster, all, step) && !stop_wanted(&self->budget.stop))
            TRY(price_recomputed(is_faster, self, all, at, error));
    }
    return AM_OK;
}

/* Prices the scope's baseline, of several stages or with recomputation, with one number of micro-batches, and
 * keeps the fastest result. Contexts of other plans with recomputation than the result's are released.
 * `*seconds`: NAN where none fits. */
static AmStatus price_number(SearchResult *result, SearchContext *self, const SearchScope *scope,
                             int32_t micro_batches, double *seconds, AmError *error) {
    BaselineResult *priced = &result->baselines[scope->baseline];
    const BaselineResult before = *priced;
    const PlanContext *known = self->primary->splits;
    int32_t numbers[BASELINE_COUNT] = {0};
    if (baseline_recompute(scope->baseline) == BASELINE_RECOMPUTES_NOTHING)
        return add_pipeline(result, self, scope, micro_batches, seconds, error);
    numbers[scope->baseline] = micro_batches;
    TRY(add_recomputed(result, self, numbers, error));
    release_contexts(result, self, known);
    *seconds = priced->seconds;
    if (!isnan(before.seconds) && !baseline_is_faster(*seconds, &before)) *priced = before;
    return AM_OK;
}

/* Prices larger (`step` 1) or smaller (-1) numbers as long as they are faster. A baseline without
 * recomputation has its first number priced before. In a large module it must get as fast as the best plan: a
 * step with one micro-batch takes at most as many times as long as the pipeline has stages. */
static AmStatus climb_numbers(SearchResult *result, SearchContext *self, const SearchScope *scope,
                              const Numbers *numbers, int32_t step, AmError *error) {
    const bool recomputes = baseline_recompute(scope->baseline) != BASELINE_RECOMPUTES_NOTHING;
    const bool is_any = recomputes || !search_module_is_large(self->primary);
    const double near = is_any ? INFINITY : numbers->from == 0 ? EVEN_PIPELINE_MOST_STAGES : 1.3;
    double best = result->baselines[scope->baseline].seconds, seconds;
    for (int32_t k = numbers->from + step; k >= !recomputes && k < numbers->count; k += step) {
        if (isnan(best) || best >= near * result->plan->predicted_step_seconds) return AM_OK;
        TRY(price_number(result, self, scope, numbers->numbers[k], &seconds, error));
        if (!(seconds < best)) return AM_OK;
        best = seconds;
    }
    return AM_OK;
}

/* Prices a pipeline baseline that does not fit with the first number of micro-batches, from the largest
 * number on, which needs the least memory. */
static AmStatus climb_from_largest(SearchResult *result, SearchContext *self, const SearchScope *scope,
                                   const Numbers *numbers, AmError *error) {
    Numbers from_largest = *numbers;
    double seconds;
    from_largest.from = numbers->count - 1;
    if (from_largest.from <= numbers->from) return AM_OK;
    TRY(add_pipeline(result, self, scope, numbers->numbers[from_largest.from], &seconds, error));
    return climb_numbers(result, self, scope, &from_largest, -1, error);
}

AmStatus search_add_pipeline_baselines(SearchResult *result, SearchContext *self, bool is_large,
                                       const int32_t *only, const SearchScope *scope, AmError *error) {
    enum { LARGE_FROM = 3 /* eight micro-batches */ };
    static const Baseline pipelines[] = {BASELINE_EVEN_PIPELINE, BASELINE_MEGATRON_3D};
    Numbers numbers = {0};
    numbers.count = micro_batches_numbers(numbers.numbers, self->primary, self->micro_batches);
    for (int32_t k = 0; k < numbers.count && result->plan; k++)
        if (numbers.numbers[k] == result->plan->micro_batches) numbers.from = k;
    if (is_large && numbers.from == 0)
        numbers.from = numbers.count > LARGE_FROM ? LARGE_FROM : numbers.count - 1;
    bool climbs = self->micro_batches == 0;
    for (size_t r = 0; r < sizeof pipelines / sizeof *pipelines; r++) {
        SearchScope part = *scope;
        double seconds;
        part.searcher = SEARCHER_BASELINE;
        part.baseline = pipelines[r];
        part.known.rival_seconds = result->plan ? result->plan->predicted_step_seconds : 0;
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

/* Largest ratio of an estimate to the step of the plan for which a baseline of a large module is priced. */
#define ESTIMATE_WITHIN 1.2

/* Prices the baselines of a large module that may be near the plan by the tables, from the number of
 * micro-batches of the estimate on. */
static AmStatus add_estimated(SearchContext *self, AmError *error) {
    SearchResult *result = self->result;
    Numbers numbers = {0};
    numbers.count = micro_batches_numbers(numbers.numbers, self->primary, self->micro_batches);
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        const BaselineEstimate *estimate = &result->estimates[e];
        SearchScope part = *self->scope;
        double seconds;
        if (estimate->micro_batches == 0) continue;
        if (!(estimate->seconds <= ESTIMATE_WITHIN * result->plan->predicted_step_seconds)) {
            result->baselines[e].reason = isinf(estimate->seconds)
                                              ? "by the tables of stages it does not fit"
                                              : "by the tables of stages it is far from the best";
            continue;
        }
        part.baseline = (Baseline)e;
        numbers.from = 0;
        while (numbers.from + 1 < numbers.count && numbers.numbers[numbers.from] < estimate->micro_batches)
            numbers.from++;
        TRY(price_number(result, self, &part, numbers.numbers[numbers.from], &seconds, error));
        TRY(climb_numbers(result, self, &part, &numbers, 1, error));
        TRY(climb_numbers(result, self, &part, &numbers, -1, error));
    }
    return AM_OK;
}

AmStatus search_add_recomputed_baselines(SearchContext *self, AmError *error) {
    SearchResult *result = self->result;
    const SearchRequest *request = self->request;
    int32_t from[BASELINE_COUNT];
    Numbers all = {0};
    all.count = micro_batches_numbers(all.numbers, self->primary, self->micro_batches);
    bool recomputes = ir_source_recomputes(self->primary->roles, self->primary->canonical);
    const char *reason = recomputes ? "the source recomputes layers"
                         : self->scope->kind == SPACE_SINGLE_STAGE || search_spans_stages(self->scope)
                             ? "not priced here: --baseline prices it"
                             : "it is outside of the space";
    bool is_priced = !recomputes && search_may_price_pipelines(self) && !result->interrupted &&
                     !request->method.no_seeds && search_method_takes_baselines(self->scope->searcher) &&
                     request->constraints.target == TARGET_AUTOMAP && !request->constraints.kept &&
                     request->devices.quota_count == 0 && !request->explores_prices;
    bool has_stages = search_spans_stages(self->scope);
    if (!result->plan || result->paper || search_is_recomputed_baseline(self->scope)) return AM_OK;
    if (self->scope->purpose != PURPOSE_RESULT) return AM_OK;
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        const BaselineResult *without = &result->baselines[baseline_without_recompute((Baseline)e)];
        from[e] = -1;
        if (baseline_recompute((Baseline)e) == BASELINE_RECOMPUTES_NOTHING) continue;
        result->baselines[e] = (BaselineResult){.seconds = NAN, .reason = reason};
        if (!is_priced || (baseline_has_stages((Baseline)e) && !has_stages)) continue;
        from[e] = all.count - 1;
        while (from[e] > 0 && without->micro_batches > 0 && all.numbers[from[e]] > without->micro_batches)
            from[e]--;
    }
    if (!search_module_is_large(self->primary)) return climb_recomputed(self, &all, from, error);
    return is_priced && has_stages ? add_estimated(self, error) : AM_OK;
}

AmStatus search_recomputed_baseline(SearchContext *self, AmError *error) {
    SearchResult *result = self->result;
    const SearchScope *scope = self->scope;
    const Baseline baseline = scope->baseline;
    BaselineResult *priced = &result->baselines[baseline];
    int32_t all[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count = micro_batches_numbers(all, self->primary, self->micro_batches);
    int32_t numbers[BASELINE_COUNT];
    SearchResult others = {.model_gap = NAN};
    if (scope->request->space.mesh && baseline_has_stages(baseline))
        return am_fail(error, AM_ERROR_USAGE, "", "--baseline %s takes no --mesh", baseline_name(baseline));
    if (ir_source_recomputes(self->primary->roles, self->primary->canonical))
        return am_fail(error, AM_ERROR_INFEASIBLE, plan_context_file(self->primary),
                       "--baseline %s: the source recomputes layers", baseline_name(baseline));
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        result->baselines[e] = (BaselineResult){.seconds = NAN, .reason = "not priced beside this baseline"};
        others.baselines[e] = result->baselines[e];
        numbers[e] = all[0];
    }
    TRY(search_add_stage_baselines(&others, self, false, numbers, scope, error));
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        if (is_of_one_stage((Baseline)e)) result->baselines[e] = others.baselines[e];
    for (int32_t k = 0; k < count && !stop_wanted(&self->budget.stop); k++) {
        const BaselineResult before = *priced;
        memset(numbers, 0, sizeof numbers);
        numbers[baseline] = all[k];
        TRY(add_recomputed(result, self, numbers, error));
        bool is_slower = before.seconds <= priced->seconds;
        bool lacks_less = isnan(before.seconds) && baseline_lacks_less(priced, &before);
        if (k > 0 && !baseline_is_faster(priced->seconds, &before) && !lacks_less) *priced = before;
        if (is_slower) break;
    }
    if (result->plan) return AM_OK;
    return am_fail(error, AM_ERROR_INFEASIBLE, plan_context_file(self->primary), "--baseline %s: %s",
                   baseline_name(baseline), priced->reason);
}

/* ---- baselines outside of the rounds ---- */

AmStatus search_share_baselines(SearchContext *search, AmError *error) {
    SearchScope scope = *search->scope;
    SearchResult found = {.model_gap = NAN};
    int32_t numbers[BASELINE_COUNT], number = search->micro_batches;
    const int64_t kept = scope.request->space.initial ? 1 : 0;
    bool is_mixed = cluster_is_mixed(search->cluster) && !scope.request->constraints.is_even;
    bool may_share =
        degrees_allow_stages(&scope.request->constraints.degrees, 1) && !scope.request->method.no_seeds;
    SearchBudget *budget = &search->budget;
    if (!is_mixed || !may_share || scope.purpose == PURPOSE_TRIAL) return AM_OK;
    if (budget->has_cap && budget->cap <= kept) return AM_OK;
    for (int32_t e = 0; e < BASELINE_COUNT; e++) numbers[e] = number > 1 ? number : 1;
    scope.purpose = PURPOSE_SHARED_BASELINES;
    scope.limits.evaluations = 0;
    if (budget->has_cap) budget->cap -= kept;
    AmStatus status = search_add_stage_baselines(&found, search, false, numbers, &scope, error);
    if (budget->has_cap) budget->cap += kept;
    TRY(status);
    search_spend(search, &found);
    search_result_merge(search->result, &found);
    return AM_OK;
}

AmStatus search_add_floor(SearchContext *self, AmError *error) {
    SearchScope scope = search_one_stage_part(self->scope);
    SearchContext spent = *self;
    SearchResult found = {.model_gap = NAN};
    AmError refusal = {0};
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS], only[BASELINE_COUNT] = {0};
    double bound;
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        found.baselines[e] = (BaselineResult){.seconds = NAN, .reason = "it has other degrees"};
    micro_batches_numbers(numbers, self->primary, self->micro_batches);
    if (degrees_allow_stages(&scope.request->constraints.degrees, 1) && !stop_wanted(&self->budget.stop)) {
        spent.budget.has_cap = true;
        spent.budget.cap = spent.budget.used = 0;
        scope.searcher = SEARCHER_ANNEAL; /* takes baselines */
        AmStatus status =
            search_add_each_number(&found, &bound, &spent, &scope, &(NumbersRound){.size = 1}, &refusal);
        TRY(search_check_part(status, &refusal, error));
        if (!scope.request->method.no_seeds)
            TRY(search_add_stage_baselines(&found, &spent, found.has_baselines, NULL, &scope, error));
        if (found.plan) found.plan->space = plan_space_name(self->scope->kind);
    }
    only[BASELINE_EVEN_PIPELINE] = only[BASELINE_MEGATRON_3D] = numbers[0];
    if (search_may_price_pipelines(self) && !search_module_is_large(self->primary) &&
        !stop_wanted(&self->budget.stop))
        TRY(search_add_pipeline_baselines(&found, self, false, only, self->scope, error));
    else search_leave_out_pipelines(&found);
    search_result_merge(self->result, &found);
    return AM_OK;
}

AmStatus search_add_late_baselines(SearchContext *self, AmError *error) {
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count = micro_batches_numbers(numbers, self->primary, self->micro_batches);
    const StopSignal timed = self->budget.stop;
    const int32_t given = self->micro_batches;
    const SearchScope *scope = self->scope;
    AmStatus status = AM_OK;
    if (scope->purpose == PURPOSE_TRIAL || scope->request->method.no_seeds || timed.deadline <= 0)
        return AM_OK;
    if (!degrees_allow_stages(&scope->request->constraints.degrees, 1)) return AM_OK;
    self->budget.stop.deadline = 0;
    for (int32_t k = 0; k < count && status == AM_OK && !self->result->plan; k++) {
        self->micro_batches = numbers[k];
        status = search_add_stage_baselines(self->result, self, false, NULL, scope, error);
    }
    self->micro_batches = given;
    self->budget.stop = timed;
    return status;
}

/* ---- a given plan ---- */

AmStatus search_check_given(const Plan *given, const Cluster *cluster, AmError *error) {
    int32_t devices = 0, most = -1;
    if (!given) return AM_OK;
    for (int32_t s = 0; s < given->stage_count; s++) {
        const PlanStage *stage = &given->stages[s];
        devices += stage->mesh.device_count;
        for (int32_t d = 0; d < stage->mesh.device_count; d++)
            if (stage->devices[d] > most) most = stage->devices[d];
    }
    const char *source = given->source ? given->source : "";
    if (given->replicas.count > 0)
        return am_fail(error, AM_ERROR_INPUT, source,
                       "$.replicas: expected none, since no search starts from replicas");
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
static bool may_add(const SearchScope *scope, int32_t micro_batches) {
    const SearchRequest *request = scope->request;
    const Plan *given = request->space.initial;
    bool is_narrowed = request->space.mesh || request->constraints.kept || request->constraints.is_even ||
                       request->space.no_overrides;
    bool is_one = given && scope->kind == SPACE_SINGLE_STAGE && given->stage_count == 1 &&
                  request->objective != OBJECTIVE_PAPER && request->constraints.target == TARGET_AUTOMAP;
    bool is_number = is_one && (micro_batches == 0 || given->micro_batches == micro_batches);
    return is_number && !is_narrowed;
}

AmStatus search_add_given(SearchContext *self, AmError *error) {
    const SearchScope *scope = self->scope;
    const Plan *given = scope->request->space.initial, *before = self->result->plan;
    SearchResult *result = self->result;
    Simulation *simulation;
    AmError refusal = {0};
    if (!may_add(scope, self->micro_batches)) return AM_OK;
    const PlanContext *context = plan_context_used(given, self->primary);
    Plan *plan = ARENA_ARRAY(self->arena, Plan, 1);
    if (!plan) return am_fail_memory(error, (int64_t)sizeof *plan);
    search_describe_plan(plan, context, self->cluster, scope);
    plan->stages = given->stages;
    plan->micro_batches = given->micro_batches;
    plan->relaxations = given->relaxations;
    plan->relaxation_count = given->relaxation_count;
    if (search_check_plan(scope, plan, NULL) != AM_OK) return AM_OK;
    AmStatus status = simulate_plan(
        &simulation, self->arena, context, plan, self->cluster,
        &(SimulationOptions){.memory_fraction = scope->request->constraints.memory_fraction}, &refusal);
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
    if (scope->skip_bound) return AM_OK;
    return plan_model_gap(&result->model_gap, self->primary, self->cluster, plan,
                          &(StopSignal){scope->request->callbacks.interrupted, 0}, error);
}
