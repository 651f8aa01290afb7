/* The search over everything that the options leave open: spaces, and the number of micro-batches.
 *
 * A search over plans of any number of stages is a sequence of rounds. Every part of a round adds its
 * candidates to one pool (candidate_pool.h): given plan, baselines, pipelines by the tables and by the agent,
 * one-stage plans for one and several micro-batches, and local changes of the best of them. The user's limit
 * N of evaluations cuts the sequence. The result is the best of its first N plans and of the floor, which has
 * no evaluation and is the same for every N; so it does not get worse with a larger N. In the other spaces
 * there is one search for each number of micro-batches (search_numbers.h).
 */
#include "planners/plan_search.h"

#include <math.h>

#include "base/system/clock.h"
#include "cost/simulate/simulate.h"
#include "cost/step/rank_memory.h"
#include "ir/analysis/loops.h"
#include "planners/automap_paper/paper_search.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/bounds/bound_pipelines.h"
#include "planners/bounds/model_gap.h"
#include "planners/improve/plan_climb.h"
#include "planners/improve/plan_restarts.h"
#include "planners/pipeline/pipeline_search.h"
#include "planners/pipeline/stage_dp.h"
#include "planners/problem/search_watch.h"
#include "planners/sample_search.h"
#include "planners/search_additions.h"
#include "planners/search_numbers.h"
#include "planners/search_strategies.h"
#include "planners/single_stage/assignment_search.h"
#include "planners/single_stage/single_stage.h"

/* The largest number of a module's instructions for which a pipeline is simulated in some ten
 * milliseconds. */
#define QUICKLY_PRICED 10000
/* The same for a small round of one-stage plans. */
#define BEGINS_WITH_ONE_STAGE 2000

/* ---- the bound ---- */

/* The schedule that says least of how stages fill, of those that the space has: every one of one chunk a
 * stage, all where the plan has chunks itself. */
static ScheduleKind weakest_schedule(const SearchOptions *options, const Plan *plan) {
    if (options->schedule) return schedule_kind_find(options->schedule);
    return plan->stage_count > 1 && plan_schedule(plan) == SCHEDULE_INTERLEAVED ? SCHEDULE_INTERLEAVED
                                                                                : SCHEDULE_ZB_H1;
}

/* Writes into the plan a lower bound on the step of every plan with the requested micro-batches and schedule,
 * and into the result how far the plan's stages are from the best of the sharding graph. */
static AmStatus prove(SearchResult *result, const PlanContext *whole, const Cluster *cluster,
                      const SearchOptions *options, int32_t micro_batches, const StopSignal *stop,
                      AmError *error) {
    Plan *plan = result->plan;
    PlanBound bound;
    const BoundSpace space = {.micro_batches = micro_batches,
                              .most_stages = plan->stage_count > PIPELINE_MOST_STAGES ? plan->stage_count
                                                                                      : PIPELINE_MOST_STAGES,
                              .schedule = weakest_schedule(options, plan),
                              .stop = *stop};
    search_watch_phase(options->watch, SEARCH_PHASE_BOUND);
    if (result->interrupted || stop_wanted(&space.stop))
        TRY(plan_bound_of_work(&bound, whole, cluster, error));
    else TRY(plan_bound_pipelines(&bound, whole, cluster, &space, error));
    bool is_known = bound.seconds > 0;
    plan->bound_seconds = is_known ? fmin(bound.seconds, plan->predicted_step_seconds) : NAN;
    plan->bound = is_known ? "lower" : NULL;
    search_watch_bound(options->watch, plan->bound_seconds);
    result->model_gap = NAN;
    if (result->interrupted || stop_wanted(&space.stop)) return AM_OK;
    return plan_model_gap(&result->model_gap, whole, cluster, plan, &space.stop, error);
}

/* Returns whether the bound of a result is that over any number of stages. */
static bool is_proved(const SearchResult *result, const SearchOptions *options) {
    bool is_paper = options->objective == OBJECTIVE_PAPER;
    return search_spans_stages(options) || (!is_paper && result->plan->stage_count > 1);
}

AmStatus plan_search_finish(SearchResult *result, Arena *arena, const PlanContext *whole,
                            const Cluster *cluster, const SearchOptions *options,
                            const MicroBatching *settings, AmError *error) {
    SearchOptions narrowed = *options;
    const StopSignal stop = {options->interrupted, 0};
    double start = clock_seconds();
    search_narrow(&narrowed);
    if (is_proved(result, &narrowed) && !options->skip_bound)
        TRY(prove(result, whole, cluster, &narrowed, settings->micro_batches, &stop, error));
    result->search_seconds += clock_seconds() - start;
    if (options->nested.is_trial || result->interrupted) return AM_OK;
    return rank_memory_predict(result->plan, arena, whole, &stop, error);
}

/* ---- one round over plans of any number of stages ---- */

typedef struct Round {
    SearchContext *search;
    SearchOptions options;
    SearchResult result;
    AmError refusal; /* why there is no plan */
} Round;

/* Returns AM_OK if a part of a round has a plan, or has none for a reason that concerns the plan alone. */
static AmStatus check_part(AmStatus status, const AmError *failure, AmError *error) {
    if (status == AM_OK || status == AM_ERROR_INFEASIBLE) return AM_OK;
    if (error && error->code == AM_OK) *error = *failure;
    return status;
}

/* Adds the given plan, pipelines and their changes, and one-stage plans with one micro-batch
 * (pipeline_search.h). */
static AmStatus add_pipelines(Round *self, AmError *error) {
    SearchContext *search = self->search;
    SearchResult *result = &self->result;
    AmStatus status = pipeline_search(result, search->arena, search->whole, search->cluster, &self->options,
                                      search->settings, &self->refusal);
    TRY(check_part(status, &self->refusal, error));
    for (int32_t e = 0; e < BASELINE_COUNT && status == AM_ERROR_INFEASIBLE; e++)
        result->baselines[e] = (BaselineResult){.seconds = NAN, .reason = "it does not fit"};
    search_spend(search, result);
    return AM_OK;
}

/* Adds what a one-stage search found, whose plan is one of the space of the round. */
static void merge_one_stage(Round *self, SearchResult *found) {
    search_spend(self->search, found);
    if (found->plan) found->plan->space = plan_space_name(self->options.space);
    search_result_merge(&self->result, found);
}

/* Adds one-stage plans with one number of micro-batches above one. */
static AmStatus add_stage_of(Round *self, int32_t micro_batches, AmError *error) {
    SearchContext *search = self->search, part = *search;
    SearchResult *result = &self->result, found = {.model_gap = NAN};
    SearchOptions single = self->options;
    MicroBatching settings = *search->settings;
    AmError failure = {0};
    double bound;
    settings.micro_batches = micro_batches;
    part.settings = &settings;
    single.space = SPACE_SINGLE_STAGE;
    single.skip_bound = true;
    if (single.searcher == SEARCHER_AGENT)
        single.searcher = SEARCHER_ANNEAL; /* the agent cuts pipelines alone */
    int64_t size = search_evaluations_for(single.searcher, ir_represented(search->whole->canonical));
    if (single.evaluations > 0) size = single.evaluations - result->evaluations;
    if (size < 1) return AM_OK;
    if (result->plan) single.nested.rival_seconds = result->plan->predicted_step_seconds;
    AmStatus status = search_add_each_number(&found, &bound, &part, &single, size, &failure);
    TRY(check_part(status, &failure, error));
    merge_one_stage(self, &found);
    search->budget.is_cut |= part.budget.is_cut;
    if (status != AM_OK && !result->nearest) self->refusal = failure;
    return AM_OK;
}

static bool is_large(const SearchContext *search) {
    return ir_represented(search->whole->canonical) > QUICKLY_PRICED;
}

/* Adds the first `size` evaluations of the one-stage search of round 0, so that a budget that ends before has
 * its best plans. */
static AmStatus add_first_stage_plans(Round *self, int64_t size, AmError *error) {
    SearchContext *search = self->search;
    SearchOptions single = self->options;
    SearchResult found = {.model_gap = NAN};
    AmError failure = {0};
    int64_t standard = search_evaluations_for(single.searcher, ir_represented(search->whole->canonical));
    bool is_short = single.nested.cap > 0 && single.nested.cap < size;
    single.evaluations = standard - plan_climb_reserve(&single, standard);
    if (!is_short) single.nested.cap = size;
    single.space = SPACE_SINGLE_STAGE;
    single.skip_bound = single.nested.is_beginning = true;
    if (search->result->plan) single.nested.rival_seconds = search->result->plan->predicted_step_seconds;
    AmStatus status =
        single_stage_search(&found, search->arena, search->whole, search->cluster, &single, &failure);
    TRY(check_part(status, &failure, error));
    found.is_cut &= is_short; /* the cap of the phase cuts nothing: round 0 has the rest */
    merge_one_stage(self, &found);
    return AM_OK;
}

/* Adds one-stage plans with a requested number of micro-batches: pipeline_search() has them for one
 * micro-batch alone. For large modules its tables must suffice if they contain a plan. */
static AmStatus add_micro_batched_stage(Round *self, AmError *error) {
    const SearchContext *search = self->search;
    bool is_left_out = (is_large(search) && self->result.plan) || self->options.nested.is_small;
    is_left_out |= !degrees_allow_stages(&self->options.degrees, 1);
    if (is_left_out || search->settings->micro_batches <= 1 || search_is_over(search)) return AM_OK;
    return add_stage_of(self, search->settings->micro_batches, error);
}

/* Adds the baselines of one stage, each with its best number of micro-batches, in round 0. For a large
 * module, also one-stage plans with the number of the best baseline, if that is the best plan. */
static AmStatus add_stage_baselines(Round *self, AmError *error) {
    SearchContext *search = self->search;
    const SearchOptions *options = &self->options;
    if (!degrees_allow_stages(&options->degrees, 1)) return AM_OK;
    if (search->has_floor || options->nested.is_trial || options->no_seeds) return AM_OK;
    TRY(search_add_stage_baselines(&self->result, search, self->result.has_baselines, NULL, options, error));
    const Plan *plan = self->result.plan;
    bool is_baseline = plan && plan == self->result.pool.of[PLAN_ORIGIN_BASELINE].plan;
    bool is_one_stage = is_baseline && plan->stage_count == 1 && plan->micro_batches > 1;
    if (!is_one_stage || !is_large(search) || search_is_over(search)) return AM_OK;
    return add_stage_of(self, plan->micro_batches, error);
}

/* Returns whether the options leave time for baselines of several stages, which take some time to price. */
static bool may_price_pipelines(const SearchContext *search) {
    const SearchOptions *options = search->options;
    bool is_left_out = is_large(search) && options->nested.is_trial;
    return !is_left_out && options->seconds == 0 && search->cluster->device_count > 1;
}

static void leave_out_pipelines(SearchResult *result) {
    BaselineResult *baselines = result->baselines;
    baselines[BASELINE_EVEN_PIPELINE] =
        (BaselineResult){.seconds = NAN, .reason = "not priced here: --baseline even_pipeline does"};
    baselines[BASELINE_MEGATRON_3D] =
        (BaselineResult){.seconds = NAN, .reason = "not priced here: --baseline megatron_3d does"};
}

/* Adds the baselines of several stages. */
static AmStatus add_pipeline_baselines(Round *self, AmError *error) {
    SearchResult *result = &self->result;
    if (!result->plan) return AM_OK;
    if (may_price_pipelines(self->search) && !result->interrupted)
        return search_add_pipeline_baselines(result, self->search, is_large(self->search), NULL,
                                             &self->options, error);
    leave_out_pipelines(result);
    return AM_OK;
}

/* ---- the floor ---- */

/* Adds the plans that every budget has: the baselines of one stage, each with its best number of
 * micro-batches, or the unsplit plan, and, if the module is small, those of several stages with the least
 * number. They depend on the module, the cluster and the options alone, and take no evaluation. */
static AmStatus add_floor(SearchContext *self, AmError *error) {
    SearchOptions options = *self->options;
    SearchContext spent = *self;
    SearchResult found = {.model_gap = NAN};
    AmError refusal = {0};
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS], only[BASELINE_COUNT] = {0};
    double bound;
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        found.baselines[e] = (BaselineResult){.seconds = NAN, .reason = "it has other degrees"};
    micro_batches_numbers(numbers, self->whole, self->settings->micro_batches);
    if (degrees_allow_stages(&options.degrees, 1) && !stop_wanted(&self->budget.stop)) {
        spent.budget.cap = spent.budget.used = 1;
        options.space = SPACE_SINGLE_STAGE;
        options.skip_bound = true;
        options.searcher = SEARCHER_ANNEAL; /* takes baselines */
        AmStatus status = search_add_each_number(&found, &bound, &spent, &options, 1, &refusal);
        TRY(check_part(status, &refusal, error));
        if (!options.no_seeds)
            TRY(search_add_stage_baselines(&found, &spent, found.has_baselines, NULL, &options, error));
        if (found.plan) found.plan->space = plan_space_name(self->options->space);
    }
    only[BASELINE_EVEN_PIPELINE] = only[BASELINE_MEGATRON_3D] = numbers[0];
    if (may_price_pipelines(self) && !is_large(self) && !stop_wanted(&self->budget.stop))
        TRY(search_add_pipeline_baselines(&found, self, false, only, self->options, error));
    else leave_out_pipelines(&found);
    search_result_merge(self->result, &found);
    return AM_OK;
}

/* Returns whether a round has priced the floor: with the best number of micro-batches of its plan, too. */
static bool round_has_floor(const Round *self) {
    const SearchOptions *options = &self->options;
    return self->result.plan && !options->no_seeds && options->searcher != SEARCHER_RANDOM &&
           !stop_wanted(&self->search->budget.stop);
}

/* ---- phases: rounds and restarts ---- */

typedef enum PhaseKind {
    PHASE_ROUND,
    PHASE_ONE_STAGE, /* a small round: the beginning of the one-stage search of round 0 */
    PHASE_RESTARTS
} PhaseKind;

typedef struct Phase {
    PhaseKind kind;
    int32_t number; /* of the round; those below 0 are small; round 0 is that of the default budget */
    int64_t size;   /* evaluations; 0: by the module */
} Phase;

typedef struct Phases {
    SearchContext *search;
    double climbed_from; /* the step of the last round's plan */
    int64_t standard;    /* evaluations up to the end of round 0 */
    AmError refusal;     /* of the last round without a plan */
} Phases;

enum { SMALL_PHASES = 3, FIRST_PHASES = SMALL_PHASES + 1, MOST_PHASES = FIRST_PHASES + 48 };

/* Phase k of the sequence, which the budget cuts:
 *
 *     pipelines (8) | one stage (48) | pipelines (24) | round 0 |
 *     restarts (1) | round 1 (2) | restarts (2) | round 2 (4) | ...
 *
 * in evaluations up to round 0, and after it in multiples of the evaluations up to its end. Modules
 * that are priced slowly have no small phases, and only small ones have that of one stage. */
static Phase phase_at(const Phases *self, int32_t k) {
    static const Phase small[SMALL_PHASES] = {
        {PHASE_ROUND, -3, 8}, {PHASE_ONE_STAGE, -2, 48}, {PHASE_ROUND, -1, 24}};
    if (k < SMALL_PHASES) return small[k];
    int32_t round = (k - SMALL_PHASES + 1) / 2;
    bool is_round = (k - SMALL_PHASES) % 2 == 0;
    if (round == 0)
        return (Phase){PHASE_ROUND, 0,
                       self->search->options->nested.is_trial ? self->search->options->evaluations : 0};
    int32_t doublings = is_round ? round : round - 1;
    int64_t size = self->standard < INT64_MAX >> (doublings + 1) ? self->standard << doublings : 0;
    return (Phase){is_round ? PHASE_ROUND : PHASE_RESTARTS, round, size};
}

/* Runs all parts of a round, with a climb at the end of all but the small ones, which have pipelines or plans
 * of one stage. */
static AmStatus run_round(Phases *self, const Phase *phase, AmError *error) {
    SearchContext *search = self->search;
    Round round = {.search = search, .options = *search->options};
    SearchResult *result = &round.result;
    round.options.nested.is_small = phase->number < 0;
    if (phase->number > 0) round.options.seed += (uint64_t)phase->number * SEARCH_SEED_STEP;
    search_allow(&round.options, search, phase->size);
    if (phase->kind == PHASE_ONE_STAGE) {
        TRY(add_first_stage_plans(&round, phase->size, error));
    } else {
        TRY(add_pipelines(&round, error));
        TRY(add_micro_batched_stage(&round, error));
    }
    if (phase->number >= 0 && !search_is_over(search)) {
        TRY(add_stage_baselines(&round, error));
        TRY(add_pipeline_baselines(&round, error));
        search->has_floor |= round_has_floor(&round);
    }
    if (!result->plan) self->refusal = round.refusal;
    bool is_new = result->plan && result->plan->predicted_step_seconds != self->climbed_from;
    if (is_new && phase->number >= 0) {
        self->climbed_from = result->plan->predicted_step_seconds;
        TRY(search_add_climb(result, search, !is_large(search), error));
    }
    search_result_merge(search->result, result);
    if (phase->number == 0) self->standard = search->budget.used;
    return AM_OK;
}

static AmStatus run_phase(Phases *self, const Phase *phase, AmError *error) {
    SearchContext *search = self->search;
    if (phase->kind != PHASE_RESTARTS) return run_round(self, phase, error);
    uint64_t seed = search->options->seed + (uint64_t)phase->number * SEARCH_SEED_STEP;
    return search_add_restarts(search->result, search, phase->size, seed, error);
}

/* Gives the fastest baselines of one stage unequal shares on mixed devices, before all other plans of a
 * limited budget. One evaluation is left for a given plan. */
static AmStatus share_baselines(SearchContext *search, AmError *error) {
    SearchOptions options = *search->options;
    SearchResult found = {.model_gap = NAN};
    int32_t numbers[BASELINE_COUNT], number = search->settings->micro_batches;
    const int64_t kept = options.initial ? 1 : 0;
    bool is_mixed = cluster_is_mixed(search->cluster) && !options.is_even;
    bool may_share = degrees_allow_stages(&options.degrees, 1) && !options.no_seeds;
    if (!is_mixed || !may_share || search->budget.cap <= kept) return AM_OK;
    for (int32_t e = 0; e < BASELINE_COUNT; e++) numbers[e] = number > 1 ? number : 1;
    options.nested.shares_baselines = true;
    options.evaluations = 0;
    search->budget.cap -= kept;
    AmStatus status = search_add_stage_baselines(&found, search, false, numbers, &options, error);
    search->budget.cap += kept;
    TRY(status);
    search_spend(search, &found);
    search_result_merge(search->result, &found);
    return AM_OK;
}

/* Returns whether a small round has plans of one stage: its estimates of all meshes, which round 0 makes
 * again, take up to a second for larger modules. Where memory is scarce, pipelines come first. */
static bool begins_with_one_stage(const SearchContext *search) {
    const SearchOptions *options = search->options;
    bool is_scarce = !search->result->plan && search->result->nearest;
    return !is_scarce && ir_represented(search->whole->canonical) <= BEGINS_WITH_ONE_STAGE &&
           search->settings->micro_batches <= 1 && degrees_allow_stages(&options->degrees, 1) &&
           options->seconds == 0 && !options->no_seeds && search_method_explores(options->searcher) &&
           !search_is_over(search);
}

/* Runs phases until the budget ends, or until a round and the restarts before it price nothing new. The
 * default budget ends with round 0. */
static AmStatus run_phases(Phases *self, AmError *error) {
    SearchContext *search = self->search;
    bool is_quick = !is_large(search) && !search->options->nested.is_trial;
    int64_t before = 0; /* evaluations up to the end of the last round */
    for (int32_t k = is_quick ? 0 : SMALL_PHASES; k < MOST_PHASES; k++) {
        const Phase phase = phase_at(self, k);
        if (phase.kind == PHASE_ONE_STAGE && !begins_with_one_stage(search)) continue;
        TRY(run_phase(self, &phase, error));
        if (search_is_over(search) || search->result->interrupted) return AM_OK;
        if (phase.kind == PHASE_RESTARTS || phase.number < 0) continue;
        bool is_default = search->budget.cap == 0 || search->options->nested.ends_at_default;
        if (is_default || search->budget.used == before) return AM_OK;
        before = search->budget.used;
    }
    return AM_OK;
}

/* Prices the baselines of one stage although the time is up, until one fits: a search without any other plan
 * returns it rather than none. */
static AmStatus add_late_baselines(SearchContext *self, AmError *error) {
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count = micro_batches_numbers(numbers, self->whole, self->settings->micro_batches);
    const StopSignal timed = self->budget.stop;
    const MicroBatching *settings = self->settings;
    MicroBatching here = *settings;
    SearchOptions options = *self->options;
    AmStatus status = AM_OK;
    if (options.nested.is_trial || options.no_seeds || timed.deadline <= 0) return AM_OK;
    if (!degrees_allow_stages(&options.degrees, 1)) return AM_OK;
    options.seconds = 0;
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

static AmStatus search_stages(SearchContext *self, AmError *error) {
    Phases phases = {.search = self};
    SearchResult *result = self->result;
    TRY(pipeline_check_options(self->options, error));
    TRY(share_baselines(self, error));
    TRY(run_phases(&phases, error));
    if (!self->has_floor && !self->options->nested.is_trial) TRY(add_floor(self, error));
    if (!result->plan && stop_wanted(&self->budget.stop)) TRY(add_late_baselines(self, error));
    result->evaluations = self->budget.used;
    result->is_cut |= search_is_over(self);
    if (result->plan) {
        result->plan->evaluations = self->budget.used;
        return AM_OK;
    }
    if (error && error->code == AM_OK) *error = phases.refusal;
    return AM_ERROR_INFEASIBLE;
}

/* ---- one-stage plans ---- */

/* Returns whether the search may choose the number of micro-batches if no plan with one fits. */
static bool may_add_micro_batches(const SearchContext *self) {
    const SearchOptions *options = self->options;
    bool is_free = !options->mesh && options->pin_count == 0 && !options->kept && !options->nested.is_trial;
    return options->may_add_micro_batches && options->space == SPACE_SINGLE_STAGE && is_free &&
           search_method_explores(options->searcher);
}

/* Chooses the number of micro-batches of the fastest baseline that fits; unchanged where none fits. */
static AmStatus choose_number(SearchContext *self, AmError *error) {
    SearchResult *result = self->result;
    MicroBatching all = *self->settings;
    all.micro_batches = 0;
    self->settings = &all;
    AmStatus status = search_add_stage_baselines(result, self, false, NULL, self->options, error);
    self->settings = &self->chosen;
    if (result->plan) self->chosen.micro_batches = result->plan->micro_batches;
    return status;
}

/* Searches one-stage plans. For a large module, baselines choose the number of micro-batches before the
 * search; for others, only where no plan fits. Out of time, the fastest baseline is the result. */
static AmStatus search_one_stage(SearchContext *self, AmError *error) {
    bool may_add = may_add_micro_batches(self);
    AmError failure = {0};
    self->chosen = *self->settings;
    if (may_add && is_large(self)) TRY(choose_number(self, error));
    if (self->result->plan && stop_wanted(&self->budget.stop)) {
        self->result->plan->bound = NULL;
        self->result->plan->bound_seconds = NAN;
        return AM_OK;
    }
    AmStatus status = search_numbers(self, &failure);
    if (status == AM_ERROR_INFEASIBLE && may_add && !is_large(self) && self->result->nearest) {
        TRY(choose_number(self, error));
        if (self->result->plan) status = search_numbers(self, &failure);
    }
    if (status != AM_OK && error && error->code == AM_OK) *error = failure;
    return status;
}

/* ---- all of it ---- */

/* Auto-MAP's own mode, whose only candidate is its plan. */
static AmStatus search_as_paper(SearchContext *self, AmError *error) {
    SearchResult *result = self->result;
    TRY(paper_search(result, self->arena, self->whole, self->cluster, self->options, self->settings, error));
    search_result_add(result, result->plan, PLAN_ORIGIN_PAPER, NULL);
    return AM_OK;
}

/* Gives the watch a bound that is quick to compute, until the search has its own. */
static AmStatus show_bound(const SearchContext *self, AmError *error) {
    const BoundSpace space = {.most_stages = PIPELINE_MOST_STAGES};
    PlanBound bound;
    if (!self->options->watch || self->options->skip_bound) return AM_OK;
    TRY(plan_bound_quickly(&bound, self->whole, self->cluster, &space, error));
    search_watch_bound(self->options->watch, bound.seconds);
    return AM_OK;
}

/* Searches the space of the options: candidates, bound, and the best of them with its record. After `end` the
 * memory of ranks that differ is not computed. */
static AmStatus search_space(SearchContext *self, const StopSignal *end, AmError *error) {
    const SearchOptions *options = self->options;
    SearchResult *result = self->result;
    bool is_paper = options->objective == OBJECTIVE_PAPER, spans_stages = search_spans_stages(options);
    bool is_done = false;
    double start = clock_seconds();
    TRY(target_check_module(options->target, self->whole, error));
    if (options->initial) TRY(search_check_given(options->initial, self->cluster, error));
    TRY(assignment_search_check(options, error));
    TRY(show_bound(self, error));
    TRY(sample_search(self, &is_done, error));
    if (is_paper) TRY(search_as_paper(self, error));
    else if (is_done) result->is_cut = false;
    else if (target_row(options->target)->trainer) TRY(search_strategies(self, error));
    else if (spans_stages) TRY(search_stages(self, error));
    else TRY(search_one_stage(self, error));
    result->interrupted |= stop_flag_is_set(options->interrupted);
    if (is_proved(result, options) && !options->skip_bound && !options->nested.finishes_later)
        TRY(prove(result, self->whole, self->cluster, options, self->settings->micro_batches,
                  &self->budget.stop, error));
    if (!is_paper && !spans_stages && options->target == TARGET_AUTOMAP) TRY(search_add_given(self, error));
    result->search_seconds = clock_seconds() - start;
    pool_record(&result->pool);
    bool has_ranks = !options->nested.is_trial && !options->nested.finishes_later && !result->interrupted;
    if (!has_ranks || stop_wanted(end)) return AM_OK;
    return rank_memory_predict(result->plan, self->arena, self->whole, end, error);
}

/* The part of a time limit, and the most seconds, that a search keeps for the work in hand when its time is
 * up, for the bound and for the memory of the ranks. */
#define TAIL_SHARE 0.1
#define MOST_TAIL  0.5

/* Refuses more stages than the cluster has devices, where pins name them. */
static AmStatus check_pinned_stages(const Cluster *cluster, const SearchOptions *options, AmError *error) {
    const PropagationPin *last;
    char label[PIN_LABEL_BYTES];
    int32_t stages = placement_stages(options->pins, options->pin_count, &last);
    if (stages <= cluster->device_count) return AM_OK;
    return am_fail(error, AM_ERROR_INFEASIBLE, pin_file(last),
                   "%s: cluster %s has %d device%s (expected at most as many stages, 0 to %d)",
                   pin_place(label, last), cluster->name, cluster->device_count,
                   cluster->device_count == 1 ? "" : "s", cluster->device_count - 1);
}

AmStatus plan_search(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                     const SearchOptions *options, const MicroBatching *settings, AmError *error) {
    SearchOptions narrowed = *options;
    double end = options->seconds > 0 ? clock_seconds() + options->seconds : 0;
    const StopSignal stop = {options->interrupted, end};
    narrowed.seconds -= fmin(TAIL_SHARE * options->seconds, MOST_TAIL);
    search_narrow(&narrowed);
    TRY(check_pinned_stages(cluster, options, error));
    TRY(degrees_complete(&narrowed.degrees, cluster, error));
    TRY(placement_find(&narrowed.nested.placement, arena, whole, cluster, options->pins, options->pin_count,
                       error));
    TRY(placement_check_numbers(narrowed.nested.placement, narrowed.degrees.stages, error));
    SearchContext self = search_context(result, arena, whole, cluster, &narrowed, settings);
    AmStatus status = search_space(&self, &stop, error);
    plan_climb_close(&self.climb);
    return status;
}
