/* Search over the number of micro-batches.
 *
 * More micro-batches keep fewer activations and pay for it with smaller kernels
 * and more launches, so that the fastest number is the smallest that fits, or
 * nearly so; all of them are searched alike.
 */
#include "planners/micro_batch_search.h"

#include <math.h>

#include "planners/bound.h"
#include "planners/hybrid.h"
#include "planners/paper_search.h"

#define MOST_NUMBERS 17

/* Instructions of a module of which a pipeline is simulated in some ten milliseconds. */
#define QUICKLY_PRICED 10000

/* 1, 2, 4, ... as far as the batch divides; or the one number asked for. */
static int32_t list_numbers(int32_t *numbers, const PlanContext *whole, const MicroBatching *settings) {
    int32_t count = 0;
    int64_t batch = micro_batches_limit(whole);
    if (settings->micro_batches > 0) {
        numbers[0] = settings->micro_batches;
        return 1;
    }
    for (int64_t m = 1; m <= MICRO_BATCHES_MOST && batch % m == 0 && count < MOST_NUMBERS; m *= 2)
        numbers[count++] = (int32_t)m;
    return count;
}

/* Of all numbers so far and one more; NAN: nothing is known of one of them. */
static double least_bound(double bound, const SearchResult *found) {
    bool is_known = found->plan && !isnan(found->plan->bound_seconds) && !isnan(bound);
    return is_known ? fmin(bound, found->plan->bound_seconds) : NAN;
}

/* How far the best plan of any number of stages can be from this one. */
static AmStatus prove_stages(SearchResult *result, const PlanContext *whole, const Cluster *cluster,
                             AmError *error) {
    PlanBound bound;
    TRY(plan_bound_of_work(&bound, whole, cluster, error));
    result->plan->bound_seconds = fmin(bound.seconds, result->plan->predicted_step_seconds);
    result->plan->bound = isnan(bound.seconds) ? NULL : "lower";
    if (isnan(bound.seconds)) result->plan->bound_seconds = NAN;
    if (result->plan->stage_count > 1) result->model_gap = NAN;
    return AM_OK;
}

/* One search per number of micro-batches. */
static AmStatus search_numbers(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                               const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    int32_t numbers[MOST_NUMBERS], count = list_numbers(numbers, whole, settings);
    SearchOptions part = *options;
    SearchResult best = {0};
    AmError first = {0};
    int64_t evaluations = 0;
    double seconds = 0, bound = INFINITY;
    if (count > 1) {
        part.evaluations =
            (options->evaluations > 0 ? options->evaluations : SEARCH_DEFAULT_EVALUATIONS) / count;
        if (part.evaluations < 1) part.evaluations = 1;
        part.seconds = options->seconds / count;
    }
    for (int32_t k = 0; k < count; k++) {
        MicroBatching here = {.micro_batches = numbers[k],
                              .relaxations = settings->relaxations,
                              .recomputed = settings->recomputed,
                              .separate_backward = search_has_stages(options)};
        const PlanContext *context;
        SearchResult found = {0};
        AmError failure = {0};
        AmStatus status = plan_context_for(&context, whole, &here, &failure);
        bool cannot_split = status == AM_ERROR_INFEASIBLE;
        if (status == AM_OK) {
            /* A given plan's classes are those of its own context. */
            bool same = options->initial && plan_context_used(options->initial, whole) == context;
            part.initial = same ? options->initial : NULL;
            status = search(&found, arena, context, cluster, &part, &failure);
        }
        if (first.code == AM_OK) first = failure;
        bool is_nearer = found.nearest &&
                         (!best.nearest || found.nearest_fit.needed_bytes < best.nearest_fit.needed_bytes);
        if (is_nearer && !best.plan) best = found;
        if (status != AM_OK && status != AM_ERROR_INFEASIBLE) {
            if (error && error->code == AM_OK) *error = failure;
            return status;
        }
        if (!cannot_split) bound = least_bound(bound, &found);
        evaluations += found.evaluations;
        seconds += found.search_seconds;
        bool is_better = found.plan && (!best.plan || found.plan->predicted_step_seconds <
                                                          best.plan->predicted_step_seconds);
        if (status == AM_OK && is_better) best = found;
        if (cannot_split || found.interrupted) break;
    }
    if (!best.plan) {
        *result = best;
        if (error && error->code == AM_OK) *error = first;
        return AM_ERROR_INFEASIBLE;
    }
    if (count > 1 && !best.interrupted) {
        best.plan->bound_seconds = bound;
        best.plan->bound = isnan(bound) ? NULL : "lower";
    }
    *result = best;
    result->evaluations = evaluations;
    result->search_seconds = seconds;
    bool is_proved = result->plan->stage_count > 1 && !options->no_proof;
    return is_proved ? prove_stages(result, whole, cluster, error) : AM_OK;
}

/* The even pipelines that a hybrid search may not lose to, where they are quickly priced: of one turn, and of
 * as many as its plan has. */
static AmStatus take_even_pipelines(SearchResult *result, Arena *arena, PlanContext *whole,
                                    const Cluster *cluster, const SearchOptions *options,
                                    const MicroBatching *settings, AmError *error) {
    ExpertResult *quoted = &result->experts[EXPERT_EVEN_PIPELINE];
    SearchOptions recipe = *options;
    const int32_t numbers[] = {1, result->plan->micro_batches};
    recipe.searcher = SEARCHER_EXPERT;
    recipe.expert = EXPERT_EVEN_PIPELINE;
    recipe.no_proof = true;
    for (int32_t k = 0; k < (numbers[1] > 1 ? 2 : 1); k++) {
        MicroBatching here = *settings;
        SearchResult found = {0};
        AmError refusal = {0};
        if (settings->micro_batches > 0 && numbers[k] != settings->micro_batches) continue;
        here.micro_batches = numbers[k];
        AmStatus status = search_numbers(&found, arena, whole, cluster, &recipe, &here, &refusal);
        if (status == AM_ERROR_INFEASIBLE) continue;
        if (status != AM_OK) {
            if (error && error->code == AM_OK) *error = refusal;
            return status;
        }
        double seconds = found.plan->predicted_step_seconds;
        result->evaluations += found.evaluations;
        if (!(quoted->seconds <= seconds)) *quoted = (ExpertResult){.seconds = seconds};
        if (seconds >= result->plan->predicted_step_seconds) continue;
        found.plan->searcher = result->plan->searcher;
        found.plan->space = result->plan->space;
        result->plan = found.plan;
    }
    result->plan->evaluations = result->evaluations;
    return AM_OK;
}

static AmStatus search_stages(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                              const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    TRY(hybrid_search(result, arena, whole, cluster, options, settings, error));
    bool has_time = options->seconds == 0 && !result->interrupted && cluster->device_count > 1;
    if (has_time && whole->rules->count <= QUICKLY_PRICED)
        TRY(take_even_pipelines(result, arena, whole, cluster, options, settings, error));
    return options->no_proof ? AM_OK : prove_stages(result, whole, cluster, error);
}

AmStatus search_micro_batches(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                              const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    bool has_stages = options->space == SPACE_HYBRID && options->searcher != SEARCHER_EXPERT;
    if (options->objective == OBJECTIVE_PAPER)
        TRY(paper_search(result, arena, whole, cluster, options, settings, error));
    else if (has_stages) TRY(search_stages(result, arena, whole, cluster, options, settings, error));
    else TRY(search_numbers(result, arena, whole, cluster, options, settings, error));
    result->interrupted |= options->interrupted && *options->interrupted;
    return AM_OK;
}
