/* The spaces that a search spans, and the number of micro-batches.
 *
 * Plans of any number of stages are hybrid_search()'s, with the plans of one stage and one micro-batch among
 * them; what is not in its space is searched beside it and the quickest wins. In the other spaces there is
 * one search for each number of micro-batches. More micro-batches keep fewer activations and pay for it with
 * smaller kernels and more launches, so that the fastest number is the smallest that fits, or nearly so; all
 * of them are searched alike.
 */
#include "planners/micro_batch_search.h"

#include <math.h>

#include "base/clock.h"
#include "cost/rank_memory.h"
#include "cost/simulate.h"
#include "planners/bound_pipelines.h"
#include "planners/even_pipeline.h"
#include "planners/hybrid.h"
#include "planners/hybrid_stages.h"
#include "planners/model_gap.h"
#include "planners/paper_search.h"

/* Instructions of a module of which a pipeline is simulated in some ten milliseconds. */
#define QUICKLY_PRICED 10000

/* Of all numbers so far and one more; NAN: nothing is known of one of them. */
static double least_bound(double bound, const SearchResult *found) {
    bool is_known = found->plan && !isnan(found->plan->bound_seconds) && !isnan(bound);
    return is_known ? fmin(bound, found->plan->bound_seconds) : NAN;
}

/* The schedule that says least of how stages fill, of those that the space has: every one of one chunk a
 * stage, all where the plan has chunks itself. */
static ScheduleKind weakest_schedule(const SearchOptions *options, const Plan *plan) {
    if (options->schedule) return schedule_kind_find(options->schedule);
    return plan->stage_count > 1 && plan_schedule(plan) == SCHEDULE_INTERLEAVED ? SCHEDULE_INTERLEAVED
                                                                                : SCHEDULE_ZB_H1;
}

/* Says of a plan what no plan of any number of stages takes less than, in the number of micro-batches and by
 * the schedule that the user asked for or by any; and of one stage how far it is from the best of the
 * additive model on its mesh. */
static AmStatus prove_stages(SearchResult *result, const PlanContext *whole, const Cluster *cluster,
                             const SearchOptions *options, const MicroBatching *settings, double deadline,
                             AmError *error) {
    Plan *plan = result->plan;
    PlanBound bound;
    const BoundSpace space = {.micro_batches = settings->micro_batches,
                              .most_stages = plan->stage_count > HYBRID_MOST_STAGES ? plan->stage_count
                                                                                    : HYBRID_MOST_STAGES,
                              .schedule = weakest_schedule(options, plan),
                              .stop = {options->interrupted, deadline}};
    search_watch_phase(options->watch, SEARCH_PHASE_BOUND);
    if (result->interrupted) TRY(plan_bound_of_work(&bound, whole, cluster, error));
    else TRY(plan_bound_pipelines(&bound, whole, cluster, &space, error));
    bool is_known = bound.seconds > 0;
    plan->bound_seconds = is_known ? fmin(bound.seconds, plan->predicted_step_seconds) : NAN;
    plan->bound = is_known ? "lower" : NULL;
    search_watch_bound(options->watch, plan->bound_seconds);
    bool has_time = !result->interrupted && !stop_wanted(&space.stop);
    result->model_gap = NAN;
    return has_time ? plan_model_gap(&result->model_gap, whole, cluster, plan, &space.stop, error) : AM_OK;
}

/* One search per number of micro-batches. */
static AmStatus search_numbers(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                               const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count = micro_batches_numbers(numbers, whole, settings->micro_batches);
    SearchOptions part = *options;
    SearchResult best = {0};
    AmError first = {0};
    int64_t evaluations = 0;
    double seconds = 0, bound = INFINITY;
    int64_t limit = options->evaluations > 0 ? options->evaluations : SEARCH_DEFAULT_EVALUATIONS;
    if (count > 1) part.seconds = options->seconds / count;
    for (int32_t k = 0; k < count && evaluations < limit; k++) {
        int64_t left = limit - evaluations, share = left / (count - k);
        if (count > 1) part.evaluations = share > 0 ? share : 1;
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
        if (k + 1 < count && evaluations >= limit) bound = NAN; /* of the others nothing is known */
    }
    if (!best.plan) {
        *result = best;
        result->evaluations = evaluations;
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
    return is_proved ? prove_stages(result, whole, cluster, options, settings, 0, error) : AM_OK;
}

/* A recipe of several stages with one number of micro-batches, quoted, and taken where it is the quicker
 * plan.
 */
static AmStatus take_recipe(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                            const SearchOptions *recipe, const MicroBatching *settings, AmError *error) {
    ExpertResult *quoted = &result->experts[recipe->expert];
    const PlanContext *context;
    Plan *plan = NULL;
    AmError refusal = {0};
    const char *reason = NULL;
    int64_t evaluations; /* quotations are none of the search */
    AmStatus status = plan_context_for(&context, whole, settings, &refusal);
    if (status == AM_OK)
        status = even_pipeline_plan(&plan, &reason, &evaluations, arena, context, cluster, recipe, &refusal);
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE) {
        if (error && error->code == AM_OK) *error = refusal;
        return status;
    }
    if (isnan(quoted->seconds))
        quoted->reason = status == AM_OK ? reason : arena_copy_string(arena, refusal.text);
    if (!plan || quoted->seconds <= plan->predicted_step_seconds) return AM_OK;
    *quoted = (ExpertResult){.seconds = plan->predicted_step_seconds};
    if (quoted->seconds >= result->plan->predicted_step_seconds) return AM_OK;
    plan->searcher = result->plan->searcher;
    plan->evaluations = result->evaluations;
    result->plan = plan;
    return AM_OK;
}

/* The recipes of several stages, which a search may not lose to: of one turn, and of as many as its plan has.
 */
static AmStatus take_recipes(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                             const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    static const Expert recipes[] = {EXPERT_EVEN_PIPELINE, EXPERT_MEGATRON_3D};
    const int32_t numbers[] = {1, result->plan->micro_batches};
    for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
        SearchOptions recipe = *options;
        recipe.searcher = SEARCHER_EXPERT;
        recipe.expert = recipes[r];
        result->experts[recipes[r]] = (ExpertResult){.seconds = NAN};
        for (int32_t k = 0; k < (numbers[1] > 1 ? 2 : 1); k++) {
            if (options->interrupted && *options->interrupted) return AM_OK;
            MicroBatching here = *settings;
            here.micro_batches = numbers[k];
            here.separate_backward = true;
            if (settings->micro_batches > 0 && numbers[k] != settings->micro_batches) continue;
            TRY(take_recipe(result, arena, whole, cluster, &recipe, &here, error));
        }
    }
    return AM_OK;
}

/* A given plan of one stage, as it is, where nothing better was found. */
static AmStatus take_initial(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                             const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    const Plan *initial = options->initial;
    const PlanContext *context = plan_context_used(initial, whole);
    if (settings->micro_batches > 0 && initial->micro_batches != settings->micro_batches) return AM_OK;
    Plan *plan = ARENA_ARRAY(arena, Plan, 1);
    Simulation *simulation;
    AmError refusal = {0};
    if (!plan) return am_fail_memory(error, (int64_t)sizeof *plan);
    search_describe_plan(plan, context, cluster, options);
    plan->stages = initial->stages;
    plan->micro_batches = initial->micro_batches;
    plan->relaxations = initial->relaxations;
    plan->relaxation_count = initial->relaxation_count;
    AmStatus status =
        simulate_plan(&simulation, arena, context, plan, cluster, options->memory_fraction, &refusal);
    if (status == AM_ERROR_INFEASIBLE) return AM_OK;
    if (status != AM_OK && error) *error = refusal;
    if (status == AM_OK) status = simulation_predict(plan, arena, simulation, error);
    if (status != AM_OK || !simulation->fit.fits) return status;
    if (result->plan && plan->predicted_step_seconds >= result->plan->predicted_step_seconds) return AM_OK;
    plan->evaluations = result->evaluations;
    if (result->plan) plan->bound = result->plan->bound;
    if (result->plan) plan->bound_seconds = fmin(result->plan->bound_seconds, plan->predicted_step_seconds);
    result->plan = plan;
    result->model_gap = NAN;
    if (options->no_proof) return AM_OK;
    return plan_model_gap(&result->model_gap, whole, cluster, plan, &(StopSignal){options->interrupted, 0},
                          error);
}

/* Of both searches the quicker plan, and what came nearest where neither has one. */
static void take_better(SearchResult *result, const SearchResult *found, const SearchOptions *options) {
    result->evaluations += found->evaluations;
    result->search_seconds += found->search_seconds;
    for (int32_t e = 0; e < EXPERT_COUNT; e++)
        if (isnan(result->experts[e].seconds)) result->experts[e] = found->experts[e];
    bool is_nearer = !result->nearest || (found->nearest && found->nearest_fit.needed_fraction <
                                                                result->nearest_fit.needed_fraction);
    if (found->nearest && is_nearer) {
        result->nearest = found->nearest;
        result->nearest_fit = found->nearest_fit;
    }
    bool is_better = found->plan && (!result->plan || found->plan->predicted_step_seconds <
                                                          result->plan->predicted_step_seconds);
    if (is_better) result->plan = found->plan;
    if (is_better) result->plan->space = plan_space_name(options->space);
}

/* Plans of one stage with a number of micro-batches that is asked for: hybrid_search() has their lists for
 * one micro-batch alone. Of large modules its tables must do where they have a plan. `*refusal`: why there is
 * none, of both searches, where it is not for want of memory: one stage is refused for the module's sake, not
 * for its cuts'. */
static AmStatus search_one_stage(SearchResult *result, Arena *arena, PlanContext *whole,
                                 const Cluster *cluster, const SearchOptions *options,
                                 const MicroBatching *settings, AmError *refusal, AmError *error) {
    SearchOptions single = *options;
    SearchResult found = {0};
    AmError reason = {0};
    single.space = SPACE_SINGLE_STAGE;
    single.no_proof = true;
    if (single.searcher == SEARCHER_AGENT)
        single.searcher = SEARCHER_DQN; /* the agent cuts pipelines alone */
    if (options->evaluations > 0) single.evaluations -= result->evaluations;
    if (options->seconds > 0) single.seconds = options->seconds - result->search_seconds;
    bool is_spent = (options->evaluations > 0 && single.evaluations < 1) ||
                    (options->seconds > 0 && single.seconds <= 0) || result->interrupted;
    bool is_left_out = result->plan && whole->rules->count > QUICKLY_PRICED;
    if (is_spent || is_left_out || settings->micro_batches <= 1) return AM_OK;
    AmStatus status = search_numbers(&found, arena, whole, cluster, &single, settings, &reason);
    if (status == AM_OK || status == AM_ERROR_INFEASIBLE) {
        take_better(result, &found, options);
        if (status != AM_OK && !result->nearest) *refusal = reason;
        return AM_OK;
    }
    if (error && error->code == AM_OK) *error = reason;
    return status;
}

/* Plans of any number of stages. */
static AmStatus search_stages(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                              const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    AmError refusal = {0};
    double start = clock_seconds(), deadline = options->seconds > 0 ? start + options->seconds : 0;
    *result = (SearchResult){.model_gap = NAN};
    AmStatus status = hybrid_search(result, arena, whole, cluster, options, settings, &refusal);
    for (int32_t e = 0; e < EXPERT_COUNT && status == AM_ERROR_INFEASIBLE; e++)
        result->experts[e] = (ExpertResult){NAN, "it does not fit"};
    if (status == AM_OK || status == AM_ERROR_INFEASIBLE) {
        TRY(search_one_stage(result, arena, whole, cluster, options, settings, &refusal, error));
        if (result->plan) status = AM_OK;
    }
    if (status != AM_OK) {
        if (error && error->code == AM_OK) *error = refusal;
        return status;
    }
    result->plan->evaluations = result->evaluations;
    bool has_time = options->seconds == 0 && !result->interrupted && cluster->device_count > 1;
    bool is_quoted = has_time && whole->rules->count <= QUICKLY_PRICED;
    if (is_quoted) {
        TRY(take_recipes(result, arena, whole, cluster, options, settings, error));
    } else {
        result->experts[EXPERT_EVEN_PIPELINE].reason = "not priced here: --expert even_pipeline does";
        result->experts[EXPERT_MEGATRON_3D].reason = "not priced here: --expert megatron_3d does";
    }
    if (!options->no_proof) TRY(prove_stages(result, whole, cluster, options, settings, deadline, error));
    result->search_seconds = clock_seconds() - start;
    return AM_OK;
}

/* Whether a plan as it is may be what the search returns. */
static bool may_take_initial(const SearchOptions *options) {
    bool is_narrowed = options->mesh || options->pin_count > 0 || options->kept || options->is_even ||
                       options->no_exceptions;
    return options->initial && options->space == SPACE_SINGLE_STAGE && !is_narrowed &&
           options->initial->stage_count == 1;
}

/* A plan to start from is for as many devices as the cluster has. */
static AmStatus check_initial(const Plan *initial, const Cluster *cluster, AmError *error) {
    int32_t devices = 0, most = -1;
    for (int32_t s = 0; s < initial->stage_count; s++) {
        const PlanStage *stage = &initial->stages[s];
        devices += stage->mesh.device_count;
        for (int32_t d = 0; d < stage->mesh.device_count; d++)
            if (stage->devices[d] > most) most = stage->devices[d];
    }
    if (devices == cluster->device_count && most < cluster->device_count) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, "",
                   "--init-plan is a plan for %d devices of cluster %s, cluster %s has %d", devices,
                   initial->cluster_name, cluster->name, cluster->device_count);
}

AmStatus search_micro_batches(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                              const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    SearchOptions narrowed = *options;
    search_narrow(&narrowed);
    if (options->initial) TRY(check_initial(options->initial, cluster, error));
    if (options->objective == OBJECTIVE_PAPER) {
        TRY(paper_search(result, arena, whole, cluster, options, settings, error));
    } else if (search_spans_stages(&narrowed)) {
        TRY(search_stages(result, arena, whole, cluster, &narrowed, settings, error));
    } else {
        TRY(search_numbers(result, arena, whole, cluster, &narrowed, settings, error));
        if (may_take_initial(&narrowed))
            TRY(take_initial(result, arena, whole, cluster, &narrowed, settings, error));
    }
    result->interrupted |= options->interrupted && *options->interrupted;
    if (options->is_trial || result->interrupted) return AM_OK;
    return rank_memory_predict(result->plan, arena, whole, error);
}
