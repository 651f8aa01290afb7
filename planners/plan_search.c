/* The spaces of a search, and the number of micro-batches.
 *
 * hybrid_search() covers plans of any number of stages, including one-stage plans with one
 * micro-batch. One-stage plans with several micro-batches are searched in addition, and the fastest
 * plan wins. In the other spaces there is one search for each number of micro-batches. More
 * micro-batches keep fewer activations at the cost of smaller kernels and more launches, so that
 * the fastest number is the smallest that fits, or nearly so; all of them are searched in the same
 * way.
 */
#include "planners/plan_search.h"

#include <math.h>

#include "base/system/clock.h"
#include "cost/simulate/simulate.h"
#include "cost/step/rank_memory.h"
#include "planners/automap_paper/paper_search.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/bounds/bound_pipelines.h"
#include "planners/bounds/model_gap.h"
#include "planners/improve/plan_climb.h"
#include "planners/improve/plan_restarts.h"
#include "planners/pipeline/hybrid.h"
#include "planners/pipeline/hybrid_stages.h"
#include "planners/problem/search_watch.h"
#include "planners/single_stage/single_stage.h"

/* The largest number of a module's instructions for which a pipeline is simulated in some ten
 * milliseconds. */
#define QUICKLY_PRICED 10000

/* The least bound over all numbers so far and one more; NAN if one is unknown. */
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
 * the schedule that the user asked for or by any; and of a stage how far it is from the best of the
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
    if (result->interrupted || stop_wanted(&space.stop))
        TRY(plan_bound_of_work(&bound, whole, cluster, error));
    else TRY(plan_bound_pipelines(&bound, whole, cluster, &space, error));
    bool is_known = bound.seconds > 0;
    plan->bound_seconds = is_known ? fmin(bound.seconds, plan->predicted_step_seconds) : NAN;
    plan->bound = is_known ? "lower" : NULL;
    search_watch_bound(options->watch, plan->bound_seconds);
    bool has_time = !result->interrupted && !stop_wanted(&space.stop);
    result->model_gap = NAN;
    return has_time ? plan_model_gap(&result->model_gap, whole, cluster, plan, &space.stop, error) : AM_OK;
}

/* ---- budgets ---- */

/* A search is a sequence of rounds whose sizes depend on the module, the cluster and the options, never on
 * the evaluations that are allowed: those only cut the sequence. So a larger budget prices all that a smaller
 * one does, and its plan is at least as good. */
typedef struct Budget {
    int64_t cap, used; /* evaluations; cap 0: the rounds of the default budget */
    double deadline;   /* clock_seconds(), or 0 */
    const volatile sig_atomic_t *interrupted;
    bool is_cut; /* the cap has left something out */
} Budget;

static Budget open_budget(const SearchOptions *options, int64_t cap) {
    double end = options->seconds > 0 ? clock_seconds() + options->seconds : 0;
    return (Budget){.cap = cap, .deadline = end, .interrupted = options->interrupted};
}

/* Interrupted, or out of time. */
static bool has_ended(const Budget *budget) {
    return stop_wanted(&(StopSignal){budget->interrupted, budget->deadline});
}

static bool is_over(const Budget *budget) {
    return budget->is_cut || (budget->cap > 0 && budget->used >= budget->cap) || has_ended(budget);
}

/* Sets the budget of a part of the search: its size and the remaining budget. */
static void allow(SearchOptions *part, const Budget *budget, int64_t size) {
    part->evaluations = size;
    part->is_default_limit = false;
    part->cap = budget->cap > 0 ? budget->cap - budget->used : 0;
    if (budget->cap > 0 && part->cap <= 0) part->cap = -1;
    if (budget->deadline > 0) part->seconds = fmax(budget->deadline - clock_seconds(), 1e-3);
}

static void spend(Budget *budget, const SearchResult *found) {
    budget->used += found->evaluations;
    budget->is_cut |= found->is_cut;
}

/* ---- climbs ---- */

static PlanClimb open_climb(PlanContext *whole, const Cluster *cluster, const SearchOptions *options,
                            const MicroBatching *settings) {
    return (PlanClimb){.whole = whole,
                       .cluster = cluster,
                       .options = options,
                       .keeps_micro_batches = settings->micro_batches > 0};
}

/* Prepares climbs and restarts with the remaining budget; `is_allowed` is false if it is used up,
 * or if the options exclude them. */
static AmStatus begin_climb(bool *is_allowed, PlanClimb *climb, const Plan *plan, const Budget *budget,
                            Arena *arena, AmError *error) {
    *is_allowed = plan && !is_over(budget) && plan_climb_applies(climb->options);
    if (!*is_allowed) return AM_OK;
    climb->stop = (StopSignal){budget->interrupted, budget->deadline};
    climb->cap = budget->cap > 0 ? budget->cap - budget->used : 0;
    search_watch_phase(climb->options->watch, SEARCH_PHASE_CHANGES);
    return plan_climb_open(climb, arena, error);
}

static void end_climb(Budget *budget, const PlanClimb *climb) {
    budget->used += climb->evaluations;
    budget->is_cut |= climb->is_cut;
}

/* Changes of the plan one by one, within the budget. */
static AmStatus climb_from(SearchResult *result, PlanClimb *climb, Budget *budget, Arena *arena,
                           AmError *error) {
    bool is_allowed;
    TRY(begin_climb(&is_allowed, climb, result->plan, budget, arena, error));
    if (!is_allowed) return AM_OK;
    AmStatus status = plan_climb(&result->plan, climb, 0, arena, error);
    end_climb(budget, climb);
    return status;
}

/* ---- one search per number of micro-batches ---- */

/* The numbers one after the other, `size` evaluations together. */
static AmStatus search_each(SearchResult *best, double *bound, Arena *arena, PlanContext *whole,
                            const Cluster *cluster, const SearchOptions *options,
                            const MicroBatching *settings, int64_t size, Budget *budget, AmError *error) {
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count = micro_batches_numbers(numbers, whole, settings->micro_batches);
    AmError first = {0};
    double start = clock_seconds();
    *best = (SearchResult){0};
    *bound = INFINITY;
    for (int32_t k = 0; k < count && (k == 0 || !is_over(budget)); k++) {
        SearchOptions part = *options;
        allow(&part, budget, size / count > 0 ? size / count : 1);
        if (count > 1 && options->seconds > 0) part.seconds /= count - k;
        part.is_anytime = part.is_anytime && count == 1;
        if (count > 1) part.climbs = NULL;
        MicroBatching here = {.micro_batches = numbers[k],
                              .relaxations = settings->relaxations,
                              .recomputed = settings->recomputed,
                              .separate_backward = search_has_stages(options)};
        const PlanContext *context;
        SearchResult found = {0};
        AmError failure = {0};
        AmStatus status = plan_context_for(&context, whole, &here, &failure);
        bool cannot_split = status == AM_ERROR_INFEASIBLE;
        if (status == AM_OK) status = search(&found, arena, context, cluster, &part, &failure);
        if (first.code == AM_OK) first = failure;
        spend(budget, &found);
        best->evaluations = budget->used;
        bool is_nearer = found.nearest &&
                         (!best->nearest || found.nearest_fit.needed_bytes < best->nearest_fit.needed_bytes);
        if (is_nearer && !best->plan) *best = found;
        if (status != AM_OK && status != AM_ERROR_INFEASIBLE) {
            if (error && error->code == AM_OK) *error = failure;
            return status;
        }
        if (!cannot_split) *bound = least_bound(*bound, &found);
        bool is_better = found.plan && (!best->plan || found.plan->predicted_step_seconds <
                                                           best->plan->predicted_step_seconds);
        if (status == AM_OK && is_better) *best = found;
        if (cannot_split || found.interrupted) break;
        if (k + 1 < count && is_over(budget)) *bound = NAN; /* of the others nothing is known */
    }
    best->evaluations = budget->used;
    best->search_seconds = clock_seconds() - start;
    if (best->plan) return AM_OK;
    if (error && error->code == AM_OK) *error = first;
    return AM_ERROR_INFEASIBLE;
}

/* Adds the results of a round to those of earlier rounds. */
static void keep_round(SearchResult *result, const SearchResult *found) {
    SearchResult kept = *result;
    bool is_better = found->plan &&
                     (!kept.plan || found->plan->predicted_step_seconds < kept.plan->predicted_step_seconds);
    bool is_nearer = found->nearest &&
                     (!kept.nearest || found->nearest_fit.needed_fraction < kept.nearest_fit.needed_fraction);
    bool is_first = kept.baselines[0].seconds == 0 && !kept.baselines[0].reason;
    if (is_better || (!kept.plan && is_nearer) || is_first) *result = *found;
    if (!is_better) result->plan = kept.plan;
    if (!is_nearer) {
        result->nearest = kept.nearest;
        result->nearest_fit = kept.nearest_fit;
    }
    for (int32_t e = 0; e < BASELINE_COUNT && !is_first; e++) {
        const BaselineResult *old = &kept.baselines[e], *now = &found->baselines[e];
        bool is_old = !isnan(old->seconds) && !(now->seconds <= old->seconds);
        result->baselines[e] = is_old ? *old : *now;
    }
}

/* Rounds of twice the size each until the budget ends; of one number of micro-batches they are search()'s
 * own.
 */
static AmStatus search_numbers(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                               const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count = micro_batches_numbers(numbers, whole, settings->micro_batches);
    int32_t instructions = whole->canonical->instruction_count;
    int64_t standard = search_evaluations_for(options->searcher, instructions);
    SearchOptions part = *options;
    int64_t size = options->evaluations;
    bool is_one = options->searcher == SEARCHER_RANDOM && options->evaluations == 0;
    bool is_capped = (search_method_has_rounds(options->searcher) || options->searcher == SEARCHER_EXACT) &&
                     !options->is_trial && !is_one;
    if (is_capped) size = standard - plan_climb_reserve(options, standard);
    Budget budget = open_budget(options, !is_capped                 ? 0
                                         : options->evaluations > 0 ? options->evaluations
                                                                    : standard);
    enum { MOST_ROUNDS = 24 };
    double start = clock_seconds(), bound = NAN;
    part.is_anytime = is_capped;
    part.climbs = is_capped ? whole : NULL;
    *result = (SearchResult){0};
    for (int32_t round = 0;; round++, size *= 2) {
        SearchResult found;
        AmError failure = {0};
        int64_t before = budget.used;
        double round_bound;
        part.seed = options->seed + (uint64_t)round * SEARCH_SEED_STEP;
        AmStatus status = search_each(&found, &round_bound, arena, whole, cluster, &part, settings, size,
                                      &budget, &failure);
        bool is_known = status == AM_OK || status == AM_ERROR_INFEASIBLE;
        if (status != AM_OK && (!is_known || round == 0) && error && error->code == AM_OK) *error = failure;
        if (!is_known) return status;
        if (isnan(bound) || round_bound > bound) bound = round_bound;
        if (count > 1) {
            PlanClimb climb = open_climb(whole, cluster, options, settings);
            status = climb_from(&found, &climb, &budget, arena, error);
            plan_climb_close(&climb);
            TRY(status);
        }
        keep_round(result, &found);
        bool is_done = count == 1 || budget.cap == 0 || budget.used == before || round == MOST_ROUNDS;
        if (is_done || is_over(&budget) || found.interrupted) break;
    }
    result->evaluations = budget.used;
    if (!result->plan) return AM_ERROR_INFEASIBLE;
    if (error) *error = (AmError){0};
    if (count > 1 && !result->interrupted) {
        result->plan->bound_seconds = isnan(bound) ? NAN : fmin(bound, result->plan->predicted_step_seconds);
        result->plan->bound = isnan(bound) ? NULL : "lower";
    }
    result->plan->evaluations = budget.used;
    result->search_seconds = clock_seconds() - start;
    bool is_proved = result->plan->stage_count > 1 && !options->skip_bound;
    return is_proved ? prove_stages(result, whole, cluster, options, settings, budget.deadline, error)
                     : AM_OK;
}

/* A recipe of multiple stages with one number of micro-batches, quoted, and taken where it is the quicker
 * plan.
 */
static AmStatus take_recipe(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                            const SearchOptions *recipe, const MicroBatching *settings, AmError *error) {
    BaselineResult *quoted = &result->baselines[recipe->baseline];
    const PlanContext *context;
    Plan *plan = NULL;
    AmError refusal = {0};
    const char *reason = NULL;
    int64_t evaluations; /* prices of baselines do not count as evaluations */
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
    *quoted = (BaselineResult){.seconds = plan->predicted_step_seconds};
    if (quoted->seconds >= result->plan->predicted_step_seconds) return AM_OK;
    plan->searcher = result->plan->searcher;
    plan->evaluations = result->evaluations;
    result->plan = plan;
    return AM_OK;
}

/* The baselines of multiple stages, which a search may not lose to: of one micro-batch, and of as many as its
 * plan has. The number of a search that was cut short is not one that a larger budget comes to. */
static AmStatus take_recipes(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                             const SearchOptions *options, const MicroBatching *settings, bool is_cut,
                             AmError *error) {
    static const Baseline recipes[] = {BASELINE_EVEN_PIPELINE, BASELINE_MEGATRON_3D};
    const int32_t numbers[] = {1, result->plan->micro_batches};
    bool has_both = numbers[1] > 1 && (!is_cut || settings->micro_batches > 0);
    for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
        SearchOptions recipe = *options;
        recipe.searcher = SEARCHER_BASELINE;
        recipe.baseline = recipes[r];
        result->baselines[recipes[r]] = (BaselineResult){.seconds = NAN};
        for (int32_t k = 0; k < 1 + has_both; k++) {
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

/* Takes a given one-stage plan unchanged, if no better one was found. */
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
    if (options->skip_bound) return AM_OK;
    return plan_model_gap(&result->model_gap, whole, cluster, plan, &(StopSignal){options->interrupted, 0},
                          error);
}

/* Takes the faster plan of two searches, or, without a plan, the one closest to the limit. */
static void take_better(SearchResult *result, const SearchResult *found, const SearchOptions *options) {
    result->evaluations += found->evaluations;
    result->search_seconds += found->search_seconds;
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        if (isnan(result->baselines[e].seconds)) result->baselines[e] = found->baselines[e];
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

/* Searches one-stage plans with a requested number of micro-batches: hybrid_search() has their
 * lists for one micro-batch alone. For large modules its tables must suffice if they contain a
 * plan. `*refusal`: the reason why both searches have no plan, other than memory: a refusal of one
 * stage concerns the module, not its cuts. */
static AmStatus search_one_stage(SearchResult *result, Arena *arena, PlanContext *whole,
                                 const Cluster *cluster, const SearchOptions *options,
                                 const MicroBatching *settings, Budget *budget, AmError *refusal,
                                 AmError *error) {
    SearchOptions single = *options;
    SearchResult found = {0};
    AmError reason = {0};
    single.space = SPACE_SINGLE_STAGE;
    single.skip_bound = true;
    if (single.searcher == SEARCHER_AGENT)
        single.searcher = SEARCHER_DQN; /* the agent cuts pipelines alone */
    bool is_left_out = whole->rules->count > QUICKLY_PRICED && (result->plan || budget->is_cut);
    is_left_out |= options->is_small && !is_over(budget);
    if (is_left_out || settings->micro_batches <= 1 || has_ended(budget)) return AM_OK;
    int64_t size = search_evaluations_for(single.searcher, whole->canonical->instruction_count);
    if (options->evaluations > 0) size = options->evaluations - result->evaluations;
    Budget part = *budget;
    double bound;
    if (result->plan) single.rival_seconds = result->plan->predicted_step_seconds;
    if (budget->is_cut || size < 1) part.used = part.cap; /* the baselines alone */
    int64_t before = part.used;
    AmStatus status =
        search_each(&found, &bound, arena, whole, cluster, &single, settings, size, &part, &reason);
    found.evaluations = part.used - before;
    budget->used += found.evaluations;
    budget->is_cut |= part.is_cut;
    if (status == AM_OK || status == AM_ERROR_INFEASIBLE) {
        take_better(result, &found, options);
        if (status != AM_OK && !result->nearest) *refusal = reason;
        return AM_OK;
    }
    if (error && error->code == AM_OK) *error = reason;
    return status;
}

/* One round over plans of any number of stages; `size`: evaluations, 0: by the module. */
static AmStatus stages_round(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                             const SearchOptions *options, const MicroBatching *settings, int64_t size,
                             Budget *budget, AmError *error) {
    AmError refusal = {0};
    SearchOptions part = *options;
    allow(&part, budget, size);
    AmStatus status = hybrid_search(result, arena, whole, cluster, &part, settings, &refusal);
    for (int32_t e = 0; e < BASELINE_COUNT && status == AM_ERROR_INFEASIBLE; e++)
        result->baselines[e] = (BaselineResult){NAN, "it does not fit"};
    if (status == AM_OK || status == AM_ERROR_INFEASIBLE) {
        spend(budget, result);
        TRY(search_one_stage(result, arena, whole, cluster, &part, settings, budget, &refusal, error));
        if (result->plan) status = AM_OK;
    }
    if (status != AM_OK) {
        if (error && error->code == AM_OK) *error = refusal;
        return status;
    }
    bool has_time = options->seconds == 0 && !result->interrupted && cluster->device_count > 1;
    if (part.is_small && !is_over(budget)) return AM_OK;
    if (has_time && whole->rules->count <= QUICKLY_PRICED)
        return take_recipes(result, arena, whole, cluster, options, settings, budget->is_cut, error);
    result->baselines[BASELINE_EVEN_PIPELINE].reason = "not priced here: --expert even_pipeline does";
    result->baselines[BASELINE_MEGATRON_3D].reason = "not priced here: --expert megatron_3d does";
    return AM_OK;
}

/* ---- phases of a search over plans of any number of stages ---- */

typedef enum PhaseKind { PHASE_ROUND, PHASE_RESTARTS } PhaseKind;

typedef struct Phase {
    PhaseKind kind;
    int32_t number; /* of the round; those below 0 are small; round 0 is that of the default budget */
    int64_t size;   /* evaluations; 0: by the module */
} Phase;

typedef struct StagesSearch {
    SearchResult *result;
    Arena *arena;
    PlanContext *whole;
    const Cluster *cluster;
    const SearchOptions *options;
    const MicroBatching *settings;
    Budget budget;
    PlanClimb climb;
    double climbed_from; /* the step of the last round's plan */
    int64_t standard;    /* evaluations up to the end of round 0 */
    AmError refusal;     /* of the last round without a plan */
} StagesSearch;

enum { SMALL_ROUNDS = 2, FIRST_PHASES = SMALL_ROUNDS + 1, MOST_PHASES = FIRST_PHASES + 48 };

/* Phase k of the sequence, which the budget cuts:
 *
 *     round -2 (8) | round -1 (24) | round 0 | restarts (1) | round 1 (2) | restarts (2) | round 2 (4) | ...
 *
 * in evaluations up to round 0, and after it in multiples of the evaluations up to its end. Modules
 * that are priced slowly have no small rounds. */
static Phase phase_at(const StagesSearch *self, int32_t k) {
    static const int64_t small[SMALL_ROUNDS] = {8, 24};
    if (k < SMALL_ROUNDS) return (Phase){PHASE_ROUND, k - SMALL_ROUNDS, small[k]};
    int32_t round = (k - SMALL_ROUNDS + 1) / 2;
    bool is_round = (k - SMALL_ROUNDS) % 2 == 0;
    if (round == 0) return (Phase){PHASE_ROUND, 0, self->options->is_trial ? self->options->evaluations : 0};
    int32_t doublings = is_round ? round : round - 1;
    int64_t size = self->standard < INT64_MAX >> (doublings + 1) ? self->standard << doublings : 0;
    return (Phase){is_round ? PHASE_ROUND : PHASE_RESTARTS, round, size};
}

/* A round, with a climb at the end of all but the small ones. */
static AmStatus run_round(StagesSearch *self, const Phase *phase, AmError *error) {
    SearchOptions part = *self->options;
    SearchResult found = {0};
    AmError failure = {0};
    part.is_small = phase->number < 0;
    if (phase->number > 0) part.seed += (uint64_t)phase->number * SEARCH_SEED_STEP;
    AmStatus status = stages_round(&found, self->arena, self->whole, self->cluster, &part, self->settings,
                                   phase->size, &self->budget, &failure);
    bool is_known = status == AM_OK || status == AM_ERROR_INFEASIBLE;
    if (!is_known && error && error->code == AM_OK) *error = failure;
    if (!is_known) return status;
    if (status != AM_OK) self->refusal = failure;
    bool is_new = found.plan && found.plan->predicted_step_seconds != self->climbed_from;
    if (is_new && phase->number >= 0) {
        self->climbed_from = found.plan->predicted_step_seconds;
        TRY(climb_from(&found, &self->climb, &self->budget, self->arena, error));
    }
    keep_round(self->result, &found);
    self->result->interrupted |= found.interrupted;
    if (phase->number == 0) self->standard = self->budget.used;
    return AM_OK;
}

/* Restarts from the best plan of all phases before. */
static AmStatus run_restarts(StagesSearch *self, const Phase *phase, AmError *error) {
    bool is_allowed;
    TRY(begin_climb(&is_allowed, &self->climb, self->result->plan, &self->budget, self->arena, error));
    if (!is_allowed) return AM_OK;
    uint64_t seed = self->options->seed + (uint64_t)phase->number * SEARCH_SEED_STEP;
    AmStatus status = plan_restarts(&self->result->plan, &self->climb, phase->size, seed, self->arena, error);
    end_climb(&self->budget, &self->climb);
    return status;
}

/* Runs phases until the budget ends, or until a round and the restarts before it price nothing new. The
 * default budget ends with round 0. */
static AmStatus run_phases(StagesSearch *self, AmError *error) {
    bool is_quick = self->whole->rules->count <= QUICKLY_PRICED && !self->options->is_trial;
    int64_t before = 0; /* evaluations up to the end of the last round */
    for (int32_t k = is_quick ? 0 : SMALL_ROUNDS; k < MOST_PHASES; k++) {
        const Phase phase = phase_at(self, k);
        if (phase.kind == PHASE_RESTARTS) TRY(run_restarts(self, &phase, error));
        else TRY(run_round(self, &phase, error));
        if (is_over(&self->budget) || self->result->interrupted) return AM_OK;
        if (phase.kind == PHASE_RESTARTS || phase.number < 0) continue;
        if (self->budget.cap == 0 || self->budget.used == before) return AM_OK;
        before = self->budget.used;
    }
    return AM_OK;
}

static AmStatus search_stages(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                              const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    double start = clock_seconds();
    TRY(hybrid_check_options(options, error));
    *result = (SearchResult){.model_gap = NAN};
    StagesSearch self = {.result = result,
                         .arena = arena,
                         .whole = whole,
                         .cluster = cluster,
                         .options = options,
                         .settings = settings,
                         .budget = open_budget(options, options->is_trial ? 0 : options->evaluations),
                         .climb = open_climb(whole, cluster, options, settings)};
    AmStatus status = run_phases(&self, error);
    plan_climb_close(&self.climb);
    TRY(status);
    result->evaluations = self.budget.used;
    result->interrupted = options->interrupted && *options->interrupted;
    if (!result->plan) {
        if (error && error->code == AM_OK) *error = self.refusal;
        return AM_ERROR_INFEASIBLE;
    }
    result->plan->evaluations = self.budget.used;
    if (!options->skip_bound)
        TRY(prove_stages(result, whole, cluster, options, settings, self.budget.deadline, error));
    result->search_seconds = clock_seconds() - start;
    return AM_OK;
}

/* Returns whether the search may return a given plan unchanged. */
static bool may_take_initial(const SearchOptions *options) {
    bool is_narrowed =
        options->mesh || options->pin_count > 0 || options->kept || options->is_even || options->no_overrides;
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
    const char *source = initial->source ? initial->source : "";
    if (devices != cluster->device_count)
        return am_fail(error, AM_ERROR_INPUT, source,
                       "$.stages: a plan for %d devices of cluster %s (expected the %d of cluster %s)",
                       devices, initial->cluster_name, cluster->device_count, cluster->name);
    if (most >= cluster->device_count)
        return am_fail(error, AM_ERROR_INPUT, source,
                       "$.stages: %d is not a device of cluster %s (expected 0 to %d)", most, cluster->name,
                       cluster->device_count - 1);
    return AM_OK;
}

/* The part of a time limit, and the most seconds, that a search keeps for the work in hand when its time is
 * up, for the bound and for the memory of the ranks. */
#define TAIL_SHARE 0.1
#define MOST_TAIL  0.5

AmStatus plan_search(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                     const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    SearchOptions narrowed = *options;
    double end = options->seconds > 0 ? clock_seconds() + options->seconds : 0;
    const StopSignal stop = {options->interrupted, end};
    narrowed.seconds -= fmin(TAIL_SHARE * options->seconds, MOST_TAIL);
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
    if (options->is_trial || result->interrupted || stop_wanted(&stop)) return AM_OK;
    return rank_memory_predict(result->plan, arena, whole, &stop, error);
}
