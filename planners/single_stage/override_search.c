/* Searches overrides: for single operators, equal in repeated layers, another choice than the axis
 * priorities'.
 *
 * A round takes the dual of the sharding graph for the present plan, lists changes of labels that it proposes
 * (patches, then single nodes with slack), and climbs over them. try_in() assigns a trial and prices it,
 * unless its sum in the graph is already too large. Changes of a batch that help are also tried together.
 */
#include "planners/single_stage/override_search.h"

#include <math.h>
#include <string.h>

#include "base/system/parallel.h"
#include "cost/relaxation/graph_bound.h"
#include "cost/simulate/simulate.h"
#include "ir/analysis/loops.h"
#include "planners/local_search/climb.h"
#include "planners/single_stage/single_stage_state.h"

enum { SWEEPS = 100, ROUNDS = 2, MOST_PATCHES = 20, MOST_CHANGES = 60 };

/* The evaluations of a search for overrides: this fraction, and at most this number. */
enum { EVALUATIONS_PART = 3, EVALUATIONS_MOST = 60 };

/* A change that makes the sum of computing and resharding dearer by more than this, of the step, is not
 * priced.
 */
#define MOST_DEARER 1e-3
/* The least gain of a change, as a fraction of the step: plans with fewer overrides are easier to
 * read. */
#define LEAST_GAIN 2e-4

typedef struct OverrideTrial {
    const ShardingGraphChange *change; /* NULL: several */
    PlanStage stage;
    PlanPrice price;
    double sum;               /* in the sharding graph */
    uint64_t key;             /* of the resulting plan */
    bool is_priced, is_known; /* known: without another evaluation */
    AmStatus status;
    AmError error;
} OverrideTrial;

typedef struct OverrideSearch {
    Arena *arena;
    StageProblem *problem;
    OverrideExtent extent;
    ShardingGraph *graph;
    ShardingGraphFold *fold;
    StopSignal stop;
    PlanStage *stage;
    Assignment *assignment; /* of the stage; NULL: not yet made since the stage changed */
    Arena assigned;         /* of the assignment */
    PlanPrice *price;
    ShardingGraphWeights weights; /* of this round */
    bool is_bounded;              /* the messages are those of the next round */
    double sum;                   /* of the plan so far, by the weights, in the sharding graph */
    ShardingGraphChange *changes; /* [change_count] of this round */
    int32_t change_count;
    bool *is_done; /* [change]: need not be tried again */
    OverrideTrial trials[PROBLEM_BATCH];
    int32_t trial_count;
    const OverrideTrial *best; /* of the batch */
    OverrideTrial joint;       /* all of them that help, together */
    bool is_changed;           /* a change was taken in this round */
} OverrideSearch;

/* If a smaller fraction of the communication is hidden, all of it counts. */
#define LEAST_HIDDEN 0.1

/* Returns the stage's override of an instruction, which is added if it is new; the stage has room. */
static PlanOverride *override_for(PlanStage *stage, int32_t instruction) {
    for (int32_t k = 0; k < stage->override_count; k++)
        if (stage->overrides[k].instruction == instruction) return &stage->overrides[k];
    PlanOverride *override = &stage->overrides[stage->override_count++];
    *override = (PlanOverride){.instruction = instruction};
    return override;
}

static bool is_pinned_weight(const OverrideSearch *self, int32_t i) {
    const StorageRoles *storage = self->problem->context->split_options->storage;
    const PinnedParameter *parameters = self->problem->pins.parameters;
    return parameters && storage->role[i] == STORAGE_WEIGHT && parameters[storage->weight[i]].pin;
}

/* Returns whether pins decide a node: a pinned weight, a view of one, or an operator that reads one. */
static bool is_held(const OverrideSearch *self, const ShardingGraphNode *node) {
    const SplitOptions *split_options = self->problem->context->split_options;
    int32_t i = node->instruction;
    bool reads_pinned = false;
    for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++)
        reads_pinned |= is_pinned_weight(self, split_options->operands[k]);
    return is_pinned_weight(self, i) || (reads_pinned && !node->is_tensor);
}

/* Gives a node and all equal ones another label, as overrides, if plans and pins allow it. */
static void relabel_stage(PlanStage *stage, const OverrideSearch *self, const ShardingGraphRelabel *relabel) {
    const ShardingGraph *graph = self->graph;
    int32_t factors[MESH_MAX_AXES];
    SbpState states;
    bool is_tensor = graph->nodes[relabel->node].is_tensor;
    if (is_tensor && !sharding_graph_label_state(graph, relabel->node, relabel->label, &states)) return;
    if (!is_tensor && !sharding_graph_label_factors(graph, relabel->node, relabel->label, factors)) return;
    for (int32_t n = 0; n < graph->node_count; n++) {
        if (!sharding_graph_is_alike(self->fold, n, relabel->node)) continue;
        if (is_held(self, &graph->nodes[n])) continue;
        PlanOverride *override = override_for(stage, graph->nodes[n].instruction);
        if (is_tensor && override->is_pinned) continue;
        if (is_tensor) override->states = states;
        else memcpy(override->factors, factors, sizeof override->factors);
        override->has_states |= is_tensor;
        override->has_factors |= !is_tensor;
    }
}

/* Returns the number of nodes that the changes relabel, with all equal ones. */
static int32_t count_nodes(const OverrideSearch *self, const ShardingGraphChange *const *changes,
                           int32_t count) {
    int32_t nodes = 0;
    for (int32_t c = 0; c < count; c++)
        for (int32_t k = 0; k < changes[c]->count; k++)
            for (int32_t n = 0; n < self->graph->node_count; n++)
                nodes += sharding_graph_is_alike(self->fold, n, changes[c]->relabels[k].node);
    return nodes;
}

/* Copies the stage with changes, as far as plans can express them. */
static AmStatus change_stage(PlanStage *changed, const OverrideSearch *self,
                             const ShardingGraphChange *const *changes, int32_t count, AmError *error) {
    const PlanStage *stage = self->stage;
    int32_t most = stage->override_count + count_nodes(self, changes, count);
    *changed = *stage;
    changed->overrides = ARENA_ARRAY(self->arena, PlanOverride, most + 1);
    if (!changed->overrides) return am_fail_memory(error, most);
    if (stage->override_count > 0)
        memcpy(changed->overrides, stage->overrides,
               sizeof *stage->overrides * (size_t)stage->override_count);
    for (int32_t c = 0; c < count; c++)
        for (int32_t k = 0; k < changes[c]->count; k++)
            relabel_stage(changed, self, &changes[c]->relabels[k]);
    return AM_OK;
}

/* Stores the result of each operator with an override in the state that its only reader needs. Returns
 * whether any state is another one now. */
static bool keep_as_read(const OverrideSearch *self, OverrideTrial *trial, const Assignment *assignment) {
    bool is_changed = false;
    for (int32_t k = 0; k < trial->stage.override_count; k++) {
        PlanOverride *override = &trial->stage.overrides[k];
        SbpState state;
        if (override->is_pinned ||
            !sharding_graph_wanted_state(self->graph, assignment, override->instruction, &state))
            continue;
        override->has_states = is_changed = true;
        override->states = state;
    }
    return is_changed;
}

static double sum_of(const OverrideSearch *self, const ShardingGraphCost *cost) {
    return self->weights.compute * cost->compute_seconds +
           self->weights.communication * cost->communication_seconds;
}

static AmStatus try_in(const OverrideSearch *self, OverrideTrial *trial, Arena *scratch, AmError *error) {
    const StageProblem *problem = self->problem;
    Assignment *assignment;
    AmStatus status = plan_assign(&assignment, scratch, problem->context, &trial->stage, error);
    if (status == AM_OK && keep_as_read(self, trial, assignment)) {
        arena_release(scratch, (ArenaMark){0});
        status = plan_assign(&assignment, scratch, problem->context, &trial->stage, error);
    }
    if (status == AM_ERROR_INPUT) return AM_OK; /* an operator that cannot be split so */
    TRY(status);
    if (!pins_hold(&problem->pins, problem->context, assignment)) return AM_OK;
    const ShardingGraphCost cost = sharding_graph_cost(self->graph, assignment);
    trial->sum = sum_of(self, &cost);
    trial->key = problem_assignment_key(problem, assignment);
    const PlanPrice *known = price_memo_find(&problem->priced.plans, trial->key);
    trial->is_known = known != NULL;
    trial->is_priced = known || trial->sum <= self->sum + MOST_DEARER * self->price->seconds;
    if (known) trial->price = *known;
    if (known || !trial->is_priced) return AM_OK;
    return problem_price_assignment(&trial->price, problem, scratch, assignment, error);
}

static void try_one(const OverrideSearch *self, OverrideTrial *trial) {
    Arena *scratch = scratch_take(self->problem->scratch);
    trial->status = try_in(self, trial, scratch, &trial->error);
    scratch_give(self->problem->scratch, scratch);
}

static void try_task(void *user, int32_t k) {
    OverrideSearch *self = user;
    try_one(self, &self->trials[k]);
}

static bool is_better(const OverrideSearch *self, const OverrideTrial *trial) {
    PlanPrice wanted = *self->price;
    wanted.seconds *= 1 - LEAST_GAIN;
    if (!trial->is_priced) return false;
    bool is_less = trial->sum < self->sum - LEAST_GAIN * self->price->seconds;
    return plan_price_better(&trial->price, &wanted) ||
           (is_less && !plan_price_better(self->price, &trial->price));
}

/* Records the result of a trial. */
static AmStatus account(OverrideSearch *self, const OverrideTrial *trial, AmError *error) {
    StageProblem *problem = self->problem;
    TRY(am_pass_error(trial->status, &trial->error, error));
    if (!trial->is_priced || price_memo_find(&problem->priced.plans, trial->key)) return AM_OK;
    problem->budget.used++;
    search_watch_count(problem->watch, 1, trial->price.excess > 0 ? NAN : trial->price.seconds);
    return price_memo_add(&problem->priced.plans, trial->key, &trial->price) ? AM_OK
                                                                             : am_fail_memory(error, 0);
}

static void adopt(OverrideSearch *self, const OverrideTrial *trial) {
    *self->stage = trial->stage;
    self->assignment = NULL;
    *self->price = trial->price;
    self->sum = trial->sum;
}

static void mark_done(OverrideSearch *self, const ShardingGraphChange *change) {
    self->is_done[change - self->changes] = true;
}

/* Tries all changes that help by themselves together, but for those that change what another does; true:
 * that is better than the best of them, and taken. */
static AmStatus try_jointly(OverrideSearch *self, const OverrideTrial *best, bool *is_taken, AmError *error) {
    const ShardingGraphChange *joined[PROBLEM_BATCH] = {best->change};
    int32_t count = 1;
    for (int32_t k = 0; k < self->trial_count; k++) {
        const OverrideTrial *trial = &self->trials[k];
        bool is_apart = is_better(self, trial) && trial->key != best->key;
        for (int32_t j = 0; j < count; j++)
            is_apart &= !sharding_graph_share_a_node(joined[j], trial->change);
        if (is_apart) joined[count++] = trial->change;
    }
    *is_taken = false;
    if (count == 1 || self->problem->budget.used >= self->problem->budget.limit) return AM_OK;
    if (!budget_try_take(&self->problem->budget, 1)) return AM_OK;
    self->joint = (OverrideTrial){0};
    TRY(change_stage(&self->joint.stage, self, joined, count, error));
    try_one(self, &self->joint);
    TRY(account(self, &self->joint, error));
    *is_taken = self->joint.is_priced && plan_price_better(&self->joint.price, &best->price);
    if (!*is_taken) return AM_OK;
    adopt(self, &self->joint);
    for (int32_t j = 0; j < count; j++) mark_done(self, joined[j]);
    return AM_OK;
}

/* ---- the climb over the changes of a round ---- */

static bool is_over(void *user) {
    const OverrideSearch *self = user;
    bool is_batch_done = self->extent == OVERRIDES_AFTER_SAMPLE && self->is_changed;
    return is_batch_done || problem_must_stop(self->problem);
}

/* Counts the changes of a round, which stay the same: each is tried until it is kept, or is no better. */
static AmStatus list_open(void *user, int32_t *count, AmError *error) {
    const OverrideSearch *self = user;
    (void)error;
    *count = self->change_count;
    return AM_OK;
}

static AmStatus make_trial(void *user, int32_t move, ClimbMove *made, AmError *error) {
    OverrideSearch *self = user;
    SearchBudget *budget = &self->problem->budget;
    const ShardingGraphChange *change = &self->changes[move];
    if (self->is_done[move]) return AM_OK;
    *made = CLIMB_FULL;
    if (budget->used + self->trial_count >= budget->limit) return AM_OK;
    if (!budget_try_take(budget, self->trial_count + 1)) return AM_OK;
    OverrideTrial *trial = &self->trials[self->trial_count++];
    *trial = (OverrideTrial){.change = change};
    *made = CLIMB_ADDED;
    return change_stage(&trial->stage, self, &change, 1, error);
}

static AmStatus price_trials(void *user, bool *is_found, AmError *error) {
    OverrideSearch *self = user;
    self->best = NULL;
    parallel_for(self->trial_count, 0, try_task, self);
    for (int32_t k = 0; k < self->trial_count; k++) {
        const OverrideTrial *trial = &self->trials[k];
        TRY(account(self, trial, error));
        if (!is_better(self, trial)) mark_done(self, trial->change);
        else if (!self->best || plan_price_better(&trial->price, &self->best->price)) self->best = trial;
    }
    *is_found = self->best != NULL;
    if (!self->best) self->trial_count = 0;
    return AM_OK;
}

/* Takes all useful changes of the batch together, or the best. A change that was useful alone may be tried
 * again with others. */
static AmStatus take_trials(void *user, AmError *error) {
    OverrideSearch *self = user;
    bool is_taken;
    TRY(try_jointly(self, self->best, &is_taken, error));
    self->trial_count = 0;
    self->is_changed = true;
    if (is_taken) return AM_OK;
    mark_done(self, self->best->change);
    adopt(self, self->best);
    return AM_OK;
}

/* The weights of the second round, in which all communication counts. */
static const ShardingGraphWeights all_communication = {1, 1};

/* The climb of the first round and the messages of the second one. */
typedef struct RoundTasks {
    OverrideSearch *search;
    AmStatus status;
    AmError error;
} RoundTasks;

static void round_task(void *user, int32_t k) {
    RoundTasks *tasks = user;
    const Climb climb = {.order = CLIMB_FROM_FIRST,
                         .batch = PROBLEM_BATCH,
                         .user = tasks->search,
                         .is_over = is_over,
                         .list = list_open,
                         .make = make_trial,
                         .price = price_trials,
                         .take = take_trials};
    ClimbPlace place = {0};
    if (k == 0) tasks->status = climb_run(&climb, &place, &tasks->error);
    else sharding_graph_bound(tasks->search->fold, &all_communication, SWEEPS);
}

/* Changes the stage by the changes that the messages propose. If another round follows in any case, its
 * messages are passed beside the climb, which reads the classes of the fold alone. */
static AmStatus run_round(OverrideSearch *self, bool is_followed, AmError *error) {
    int32_t *labels;
    RoundTasks tasks = {.search = self};
    self->is_changed = false;
    if (!self->assignment) {
        arena_free(&self->assigned);
        TRY(plan_assign(&self->assignment, &self->assigned, self->problem->context, self->stage, error));
    }
    const ShardingGraphCost cost = sharding_graph_cost(self->graph, self->assignment);
    self->sum = sum_of(self, &cost);
    if (!self->is_bounded) sharding_graph_bound(self->fold, &self->weights, SWEEPS);
    TRY(sharding_graph_labels(&labels, self->arena, self->graph, self->assignment, error));
    /* The changes that the messages propose: patches, then single operators. */
    const bool is_after_sample = self->extent == OVERRIDES_AFTER_SAMPLE;
    const int32_t most_patches = is_after_sample ? PROBLEM_BATCH : MOST_PATCHES;
    ShardingGraphChange *patches, *singles = NULL;
    int32_t patch_count, single_count = 0, count;
    TRY(sharding_graph_patches(&patches, &patch_count, self->arena, self->fold, labels, &self->weights,
                               error));
    if (!is_after_sample)
        TRY(sharding_graph_changes(&singles, &single_count, self->arena, self->fold, labels, &self->weights,
                                   error));
    if (patch_count > most_patches) patch_count = most_patches;
    if (single_count > MOST_CHANGES) single_count = MOST_CHANGES;
    count = patch_count + single_count;
    self->changes = ARENA_ARRAY(self->arena, ShardingGraphChange, count + 1);
    self->is_done = ARENA_ARRAY(self->arena, bool, count + 1);
    if (!self->changes || !self->is_done) return am_fail_memory(error, count);
    memcpy(self->changes, patches, sizeof *patches * (size_t)patch_count);
    if (single_count > 0)
        memcpy(self->changes + patch_count, singles, sizeof *singles * (size_t)single_count);
    self->change_count = count;
    parallel_for(is_followed ? 2 : 1, 0, round_task, &tasks);
    self->is_bounded = is_followed;
    return am_pass_error(tasks.status, &tasks.error, error);
}

/* Returns the fraction of the communication that the step waits for. */
static double exposed_share(const PlanPrice *price) {
    if (!(price->communication_seconds > 0) || !(price->compute_seconds > 0)) return 1;
    double share = (price->seconds - price->compute_seconds) / price->communication_seconds;
    return share > 1 - LEAST_HIDDEN ? 1 : fmax(share, LEAST_HIDDEN);
}

/* Changes the stage in rounds; its overrides are in self->arena then. */
static AmStatus run_rounds(OverrideSearch *self, AmError *error) {
    const StageProblem *problem = self->problem;
    const int32_t rounds = self->extent == OVERRIDES_AFTER_SAMPLE ? 1 : ROUNDS;
    TRY(sharding_graph_create_estimate(&self->graph, self->arena, problem->context,
                                       &(PlacedMesh){&problem->mesh, problem->cluster, problem->devices},
                                       error));
    if (!self->graph) return AM_OK;
    TRY(sharding_graph_fold(&self->fold, self->arena, self->graph, error));
    self->stop = problem->budget.stop;
    sharding_graph_fold_watch(self->fold, &self->stop);
    TRY(plan_assign(&self->assignment, &self->assigned, problem->context, self->stage, error));
    if (!price_memo_add(&self->problem->priced.plans, problem_assignment_key(problem, self->assignment),
                        self->price))
        return am_fail_memory(error, 0);
    double share = exposed_share(self->price);
    bool is_open = true;
    for (int32_t round = 0; round < rounds && is_open; round++) {
        bool is_followed = round == 0 && rounds > 1 && share < 1;
        self->weights = round == 0 ? (ShardingGraphWeights){1, share} : all_communication;
        TRY(run_round(self, is_followed, error));
        is_open = self->is_changed || is_followed;
    }
    return AM_OK;
}

AmStatus stage_add_overrides(PlanStage *stage, PlanPrice *price, Arena *arena, StageProblem *problem,
                             OverrideExtent extent, AmError *error) {
    /* Instructions of a module that was rewritten may stand for one of the file's together. */
    if (problem->context->primary || problem_must_stop(problem)) return AM_OK;
    Arena own = {0}; /* of the sharding graph and the stages of all trials */
    OverrideSearch *self = ARENA_ARRAY(&own, OverrideSearch, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self =
        (OverrideSearch){.arena = &own, .problem = problem, .extent = extent, .stage = stage, .price = price};
    AmStatus status = run_rounds(self, error);
    /* The overrides found are in the arena of the trials. */
    PlanOverride *overrides = ARENA_ARRAY(arena, PlanOverride, stage->override_count + 1);
    if (overrides && stage->override_count > 0)
        memcpy(overrides, stage->overrides, sizeof *overrides * (size_t)stage->override_count);
    stage->overrides = overrides;
    if (!overrides) stage->override_count = 0;
    arena_free(&self->assigned);
    arena_free(&own);
    return status == AM_OK && !overrides ? am_fail_memory(error, 0) : status;
}

int64_t override_evaluations(const SearchScope *scope, int64_t limit) {
    const SearchRequest *request = scope->request;
    bool is_joint = scope->kind == SPACE_SINGLE_STAGE || search_spans_stages(scope);
    bool is_free = is_joint && !request->constraints.kept && !request->constraints.is_even;
    bool is_wanted =
        search_method_explores(scope->searcher) && !request->method.no_polish && !request->space.no_overrides;
    int64_t part = limit / EVALUATIONS_PART;
    if (!is_free || !is_wanted) return 0;
    return part < EVALUATIONS_MOST ? part : EVALUATIONS_MOST;
}

/* Keeps the plan with the stage if its simulated step is shorter, too. */
static AmStatus take_stage(Plan *plan, const PlanStage *stage, Arena *arena, const PlanContext *context,
                           const Cluster *cluster, const SearchScope *scope, AmError *error) {
    PlanStage *stages = ARENA_ARRAY(arena, PlanStage, 1);
    Simulation *simulation;
    Arena scratch = {0};
    Plan refined = *plan;
    if (!stages) return am_fail_memory(error, (int64_t)sizeof *stages);
    *stages = *stage;
    refined.stages = stages;
    AmStatus status = simulate_plan(
        &simulation, &scratch, context, &refined, cluster,
        &(SimulationOptions){.memory_fraction = scope->request->constraints.memory_fraction}, error);
    if (status == AM_OK) status = simulation_predict(&refined, arena, simulation, error);
    bool is_taken = status == AM_OK && simulation->fit.fits &&
                    refined.predicted_step_seconds < plan->predicted_step_seconds;
    if (is_taken) *plan = refined;
    arena_free(&scratch);
    return status;
}

AmStatus plan_add_overrides(Plan *plan, SearchBudget *budget, Arena *arena, const PlanContext *context,
                            const Cluster *cluster, const SearchScope *scope, OverrideExtent extent,
                            AmError *error) {
    const SearchRequest *request = scope->request;
    int64_t all = search_evaluations_for(scope->searcher, ir_represented(context->canonical));
    int64_t most = override_evaluations(scope, all);
    if (budget->limit > most) budget->limit = most;
    const ProblemSettings settings = {.space = SPACE_SINGLE_STAGE,
                                      .constraints = request->constraints,
                                      .budget = *budget,
                                      .watch = request->callbacks.watch};
    PlanStage stage = plan->stages[0];
    PlanPrice price = {.seconds = plan->predicted_step_seconds,
                       .compute_seconds = plan->predicted[0].compute_seconds,
                       .communication_seconds = plan->predicted[0].communication_seconds};
    StageProblem *problem;
    TRY(problem_create(&problem, context, cluster, &stage.mesh, stage.devices, &settings, error));
    search_watch_phase(request->callbacks.watch, SEARCH_PHASE_OVERRIDES);
    AmStatus status = stage_add_overrides(&stage, &price, arena, problem, extent, error);
    *budget = problem->budget;
    problem_free(problem); /* the simulation takes as much memory as an evaluation */
    if (status == AM_OK && stage.override_count > plan->stages[0].override_count) {
        AmError refusal = {0};
        status = take_stage(plan, &stage, arena, context, cluster, scope, &refusal);
        /* Overrides that exclude one another leave the plan unchanged. */
        if (status == AM_ERROR_INPUT) status = AM_OK;
        else if (status != AM_OK && error) *error = refusal;
    }
    return status;
}
