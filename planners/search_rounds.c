/* The search over plans of any number of stages: a sequence of rounds.
 *
 * Every part of a round adds its candidates to one pool (candidate_pool.h): given plan, baselines, pipelines
 * by the tables and by the agent, one-stage plans for one and several micro-batches, and local changes of the
 * best of them. The user's limit N of evaluations cuts the sequence. The result is the best of its first N
 * plans and of the floor (search_add_floor()), which has no evaluation and is the same for every N; so it
 * does not get worse with a larger N.
 */
#include "planners/search_rounds.h"

#include <math.h>

#include "ir/analysis/loops.h"
#include "planners/pipeline/pipeline_search.h"
#include "planners/search_baselines.h"
#include "planners/search_micro_batches.h"
#include "planners/single_stage/single_stage_search.h"

/* The largest number of a module's instructions for which a small round has one-stage plans, whose estimates
 * then take some milliseconds. */
#define BEGINS_WITH_ONE_STAGE 2000
/* Evaluations of its one-stage plans where shares are unequal, in place of SEARCH_FIRST_STAGE_PLANS. */
#define MIXED_STAGE_PLANS 72

/* ---- one round ---- */

typedef struct Round {
    SearchContext *search;
    SearchScope scope;
    SearchResult result;
    AmError refusal; /* why there is no plan */
} Round;

/* Adds the given plan, pipelines and their changes, and one-stage plans with one micro-batch
 * (pipeline_search.h). */
static AmStatus add_pipelines(Round *self, AmError *error) {
    SearchContext *search = self->search;
    SearchResult *result = &self->result;
    AmStatus status = pipeline_search(result, search->arena, search->primary, search->cluster, &self->scope,
                                      &self->refusal);
    TRY(search_check_part(status, &self->refusal, error));
    for (int32_t e = 0; e < BASELINE_COUNT && status == AM_ERROR_INFEASIBLE; e++)
        result->baselines[e] = (BaselineResult){.seconds = NAN, .reason = "it does not fit"};
    search_spend(search, result);
    return AM_OK;
}

/* Adds the result of a one-stage search, whose plan gets the space of the round. */
static void merge_one_stage(Round *self, SearchResult *found) {
    search_spend(self->search, found);
    if (found->plan) found->plan->space = plan_space_name(self->scope.kind);
    search_result_merge(&self->result, found);
}

/* Adds one-stage plans with one number of micro-batches above one. */
static AmStatus add_stage_of(Round *self, int32_t micro_batches, AmError *error) {
    SearchContext *search = self->search, part = *search;
    SearchResult *result = &self->result, found = {.model_gap = NAN};
    SearchScope single = search_one_stage_part(&self->scope);
    AmError failure = {0};
    double bound;
    part.micro_batches = micro_batches;
    int64_t size = search_evaluations_for(single.searcher, ir_represented(search->primary->canonical));
    if (single.limits.evaluations > 0) size = single.limits.evaluations - result->evaluations;
    if (size < 1) return AM_OK;
    if (result->plan) single.known.rival_seconds = result->plan->predicted_step_seconds;
    AmStatus status =
        search_add_each_number(&found, &bound, &part, &single, &(NumbersRound){.size = size}, &failure);
    TRY(search_check_part(status, &failure, error));
    merge_one_stage(self, &found);
    search->budget.is_cut |= part.budget.is_cut;
    if (status != AM_OK && !result->nearest) self->refusal = failure;
    return AM_OK;
}

/* Adds the first `size` evaluations of the one-stage search of round 0, so that a budget that ends before has
 * its best plans. */
static AmStatus add_first_stage_plans(Round *self, int64_t size, AmError *error) {
    SearchContext *search = self->search;
    SearchScope single = search_one_stage_part(&self->scope);
    SearchResult found = {.model_gap = NAN};
    AmError failure = {0};
    int64_t standard = search_evaluations_for(single.searcher, ir_represented(search->primary->canonical));
    bool is_short = single.limits.has_cap && single.limits.cap < size;
    single.limits.evaluations = standard - plan_climb_reserve(&single, standard);
    single.limits.has_cap = true;
    if (!is_short) single.limits.cap = size;
    single.purpose = PURPOSE_FIRST_PLANS;
    if (search->result->plan) single.known.rival_seconds = search->result->plan->predicted_step_seconds;
    AmStatus status =
        single_stage_search(&found, search->arena, search->primary, search->cluster, &single, &failure);
    TRY(search_check_part(status, &failure, error));
    found.is_cut &= is_short; /* the cap of the phase cuts nothing: round 0 has the rest */
    merge_one_stage(self, &found);
    return AM_OK;
}

/* Adds the one-stage baselines, each with its best number of micro-batches, in round 0. For a large
 * module, also one-stage plans with the number of the best baseline, if that is the best plan. */
static AmStatus add_stage_baselines(Round *self, AmError *error) {
    SearchContext *search = self->search;
    const SearchScope *scope = &self->scope;
    if (!degrees_allow_stages(&scope->request->constraints.degrees, 1)) return AM_OK;
    if (search->has_floor || scope->purpose == PURPOSE_TRIAL || scope->request->method.no_seeds) return AM_OK;
    TRY(search_add_stage_baselines(&self->result, search, self->result.has_baselines, NULL, scope, error));
    const Plan *plan = self->result.plan;
    bool is_baseline = plan && plan == self->result.pool.of[PLAN_ORIGIN_BASELINE].plan;
    bool is_one_stage = is_baseline && plan->stage_count == 1 && plan->micro_batches > 1;
    if (!is_one_stage || !search_module_is_large(search->primary) || budget_is_over(&search->budget))
        return AM_OK;
    return add_stage_of(self, plan->micro_batches, error);
}

/* ---- phases: rounds and restarts ---- */

enum { FIRST_ROUND = -3, POLICY_PIPELINES = 16 };

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
    double climbed_from;   /* the step of the last round's plan */
    int64_t standard;      /* evaluations up to the end of round 0 */
    bool policy_continues; /* from the pipelines of the first round, which has its one-stage plans, too */
    AmError refusal;       /* of the last round that had a reason for no plan */
} Phases;

enum { SMALL_PHASES = 3, FIRST_PHASES = SMALL_PHASES + 1, MOST_PHASES = FIRST_PHASES + 48 };

/* Returns phase k of the sequence, which the budget cuts: pipelines (8) | one stage (48) | pipelines (24) |
 * round 0 | restarts (1) | round 1 (2) | restarts (2) | round 2 (4) | ... in evaluations up to round 0, and
 * after it in multiples of the evaluations up to its end. Modules that are priced slowly have no small
 * phases, and only small ones have the one-stage phase. */
static Phase phase_at(const Phases *self, int32_t k) {
    static const Phase small[SMALL_PHASES] = {{PHASE_ROUND, FIRST_ROUND, 8},
                                              {PHASE_ONE_STAGE, -2, SEARCH_FIRST_STAGE_PLANS},
                                              {PHASE_ROUND, -1, 24}};
    if (k == 0 && self->policy_continues) return (Phase){PHASE_ROUND, FIRST_ROUND, POLICY_PIPELINES};
    if (k < SMALL_PHASES) return small[k];
    int32_t round = (k - SMALL_PHASES + 1) / 2;
    bool is_round = (k - SMALL_PHASES) % 2 == 0;
    const SearchScope *scope = self->search->scope;
    bool is_trial = scope->purpose == PURPOSE_TRIAL;
    if (round == 0) return (Phase){PHASE_ROUND, 0, is_trial ? scope->limits.evaluations : 0};
    int32_t doublings = is_round ? round : round - 1;
    int64_t size = self->standard < INT64_MAX >> (doublings + 1) ? self->standard << doublings : 0;
    return (Phase){is_round ? PHASE_ROUND : PHASE_RESTARTS, round, size};
}

/* Runs all parts of a round, with a climb at the end of all but the small ones, which have pipelines or
 * one-stage plans. */
static AmStatus run_round(Phases *self, const Phase *phase, AmError *error) {
    SearchContext *search = self->search;
    Round round = {.search = search, .scope = search_part(search->scope, &search->budget, phase->size)};
    SearchResult *result = &round.result;
    const bool is_large = search_module_is_large(search->primary);
    const int32_t micro_batches = search->micro_batches;
    if (phase->number < 0) round.scope.purpose = PURPOSE_PIPELINES;
    if (self->policy_continues && phase->number == FIRST_ROUND) round.scope.purpose = PURPOSE_STAGES;
    if (phase->number > 0) round.scope.seed += (uint64_t)phase->number * SEARCH_SEED_STEP;
    if (phase->kind == PHASE_ONE_STAGE) {
        TRY(add_first_stage_plans(&round, phase->size, error));
    } else {
        TRY(add_pipelines(&round, error));
        /* One-stage plans with a requested number of micro-batches: pipelines have them for one micro-batch
         * alone. For large modules the tables must suffice if they contain a plan. */
        bool is_left_out = (is_large && result->plan) || phase->number < 0 || micro_batches <= 1 ||
                           !degrees_allow_stages(&search->request->constraints.degrees, 1);
        if (!is_left_out && !budget_is_over(&search->budget)) TRY(add_stage_of(&round, micro_batches, error));
    }
    if (phase->number >= 0 && !budget_is_over(&search->budget)) {
        TRY(add_stage_baselines(&round, error));
        bool may_price = result->plan && search_may_price_pipelines(search) && !result->interrupted;
        if (may_price)
            TRY(search_add_pipeline_baselines(result, search, is_large, NULL, &round.scope, error));
        else if (result->plan) search_leave_out_pipelines(result);
        /* The floor is priced with the best number of micro-batches of the plan, too. */
        search->has_floor |= result->plan && !round.scope.request->method.no_seeds &&
                             round.scope.searcher != SEARCHER_RANDOM && !stop_wanted(&search->budget.stop);
    }
    if (!result->plan && round.refusal.code != AM_OK) self->refusal = round.refusal;
    bool is_new = result->plan && result->plan->predicted_step_seconds != self->climbed_from;
    if (is_new && phase->number >= 0) {
        self->climbed_from = result->plan->predicted_step_seconds;
        TRY(search_add_climb(result, search, !is_large, error));
    }
    search_result_merge(search->result, result);
    if (phase->number == 0) self->standard = search->budget.used;
    return AM_OK;
}

/* Returns whether a search may have a small round of one-stage plans: its estimates of all meshes, which
 * round 0 makes again, take up to a second for larger modules. */
static bool may_begin_with_one_stage(const SearchContext *search) {
    const SearchScope *scope = search->scope;
    return ir_represented(search->primary->canonical) <= BEGINS_WITH_ONE_STAGE &&
           search->micro_batches <= 1 && degrees_allow_stages(&scope->request->constraints.degrees, 1) &&
           scope->limits.seconds == 0 && !budget_is_over(&search->budget);
}

/* Returns whether a small round has one-stage plans. If memory is scarce, pipelines come first. */
static bool begins_with_one_stage(const SearchContext *search) {
    bool is_scarce = !search->result->plan && search->result->nearest;
    return !is_scarce && may_begin_with_one_stage(search) && !search->request->method.no_seeds &&
           search_method_explores(search->scope->searcher);
}

/* Returns whether the best plan so far has one stage with unequal shares, which take further plans. */
static bool leads_with_shares(const SearchContext *search) {
    const Plan *best = search->result->plan;
    return best && best->stage_count == 1 && !mesh_has_equal_shares(&best->stages[0].mesh);
}

/* Returns whether the policy has the rest of the first round, with the number of stages as its choice. */
static bool continues_by_policy(const SearchContext *search) {
    bool chooses = search->scope->searcher == SEARCHER_DQN && !search->request->method.no_stage_choice;
    return chooses && may_begin_with_one_stage(search);
}

/* Runs phases until the budget ends, or until a round and the restarts before it price nothing new. The
 * default budget ends with round 0. */
static AmStatus run_phases(Phases *self, AmError *error) {
    SearchContext *search = self->search;
    bool is_quick = !search_module_is_large(search->primary) && search->scope->purpose != PURPOSE_TRIAL;
    int64_t before = 0; /* evaluations up to the end of the last round */
    self->policy_continues = is_quick && continues_by_policy(search);
    for (int32_t k = is_quick ? 0 : SMALL_PHASES; k < MOST_PHASES; k++) {
        Phase phase = phase_at(self, k);
        bool is_done = self->policy_continues || !begins_with_one_stage(search);
        if (phase.kind == PHASE_ONE_STAGE && is_done) continue;
        if (phase.kind == PHASE_ONE_STAGE && leads_with_shares(search)) phase.size = MIXED_STAGE_PLANS;
        if (phase.kind == PHASE_RESTARTS)
            TRY(search_add_restarts(search->result, search, phase.size,
                                    search->scope->seed + (uint64_t)phase.number * SEARCH_SEED_STEP, error));
        else TRY(run_round(self, &phase, error));
        if (budget_is_over(&search->budget) || search->result->interrupted) return AM_OK;
        if (phase.kind == PHASE_RESTARTS || phase.number < 0) continue;
        bool is_default = !search->budget.has_cap || search->scope->ends_at_default;
        if (is_default || search->budget.used == before) return AM_OK;
        before = search->budget.used;
    }
    return AM_OK;
}

AmStatus search_stages(SearchContext *self, AmError *error) {
    Phases phases = {.search = self};
    SearchResult *result = self->result;
    TRY(pipeline_check_options(self->scope, error));
    TRY(search_share_baselines(self, error));
    TRY(run_phases(&phases, error));
    if (!self->has_floor && self->scope->purpose != PURPOSE_TRIAL) TRY(search_add_floor(self, error));
    if (!result->plan && stop_wanted(&self->budget.stop)) TRY(search_add_late_baselines(self, error));
    result->evaluations = self->budget.used;
    result->is_cut |= budget_is_over(&self->budget);
    if (result->plan) {
        result->plan->evaluations = self->budget.used;
        return AM_OK;
    }
    if (phases.refusal.code != AM_OK) return am_pass_error(AM_ERROR_INFEASIBLE, &phases.refusal, error);
    return am_fail(error, AM_ERROR_INFEASIBLE, plan_context_file(self->primary), BUDGET_CUT_TEXT);
}
