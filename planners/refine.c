/* Exceptions to lists; see refine.h. */
#include "planners/refine.h"

#include <string.h>

#include "base/parallel.h"
#include "cost/additive_bound.h"
#include "cost/simulate.h"
#include "planners/searching.h"

enum { SWEEPS = 100, ROUNDS = 2, MOST_CHANGES = 60 };

/* Of a search's evaluations those that are for exceptions: one in so many, and no more than that. */
enum { EVALUATIONS_PART = 3, EVALUATIONS_MOST = 60 };

/* A change that makes the sum of computing and boxing dearer by more than this, of the step, is not priced.
 */
#define MOST_DEARER 1e-3
/* What a change has to gain, of the step: plans with fewer exceptions are easier to read. */
#define LEAST_GAIN 2e-4

typedef struct Trial {
    const AdditiveChange *change;
    PlanStage stage;
    PlanPrice price;
    double sum; /* in the additive model */
    bool is_priced;
    AmStatus status;
    AmError error;
} Trial;

typedef struct Refining {
    Arena *arena;
    Problem *problem;
    AdditiveModel *model;
    AdditiveFold *fold;
    StopSignal stop;
    PlanStage *stage;
    PlanPrice *price;
    double sum; /* of the plan so far, in the additive model */
    Trial trials[PROBLEM_BATCH];
    int32_t trial_count;
    bool *is_done; /* [change]: need not be tried again */
} Refining;

static const AdditiveWeights both = {1, 1};

static PlanException *find_exception(const PlanStage *stage, int32_t instruction) {
    for (int32_t k = 0; k < stage->exception_count; k++)
        if (stage->exceptions[k].instruction == instruction) return &stage->exceptions[k];
    return NULL;
}

/* The stage with a change of one operator and of all that are alike. */
static AmStatus change_stage(PlanStage *changed, const Refining *self, Arena *arena,
                             const AdditiveChange *change, const int32_t factors[MESH_MAX_AXES],
                             AmError *error) {
    const PlanStage *stage = self->stage;
    int32_t alike = 0;
    for (int32_t n = 0; n < self->model->node_count; n++)
        alike += additive_is_alike(self->fold, n, change->node);
    *changed = *stage;
    changed->exceptions = ARENA_ARRAY(arena, PlanException, stage->exception_count + alike + 1);
    if (!changed->exceptions) return am_fail_memory(error, alike);
    if (stage->exception_count > 0)
        memcpy(changed->exceptions, stage->exceptions,
               sizeof *stage->exceptions * (size_t)stage->exception_count);
    for (int32_t n = 0; n < self->model->node_count; n++) {
        if (!additive_is_alike(self->fold, n, change->node)) continue;
        int32_t instruction = self->model->nodes[n].instruction;
        PlanException *exception = find_exception(changed, instruction);
        if (!exception) exception = &changed->exceptions[changed->exception_count++];
        exception->instruction = instruction;
        exception->has_factors = true;
        memcpy(exception->factors, factors, sizeof exception->factors);
    }
    return AM_OK;
}

static AmStatus try_in(const Refining *self, Trial *trial, Arena *scratch, AmError *error) {
    const Problem *problem = self->problem;
    Completion *completion;
    AmStatus status = plan_complete(&completion, scratch, problem->context, &trial->stage, error);
    if (status == AM_ERROR_INPUT) return AM_OK; /* an operator that cannot be split so */
    TRY(status);
    const AdditiveCost cost = additive_cost(self->model, completion);
    trial->sum = cost.compute_seconds + cost.communication_seconds;
    if (trial->sum > self->sum + MOST_DEARER * self->price->seconds) return AM_OK;
    trial->is_priced = true;
    return problem_price_completion(&trial->price, problem, scratch, completion, error);
}

static void try_task(void *user, int32_t k) {
    Refining *self = user;
    Trial *trial = &self->trials[k];
    Arena *scratch = scratch_take(self->problem->scratch);
    trial->status = try_in(self, trial, scratch, &trial->error);
    scratch_give(self->problem->scratch, scratch);
}

static bool is_better(const Refining *self, const Trial *trial) {
    PlanPrice wanted = *self->price;
    wanted.seconds *= 1 - LEAST_GAIN;
    if (!trial->is_priced) return false;
    bool is_less = trial->sum < self->sum - LEAST_GAIN * self->price->seconds;
    return plan_price_better(&trial->price, &wanted) ||
           (is_less && !plan_price_better(self->price, &trial->price));
}

/* Tries what is waiting and goes on from the best. Changes that helped by themselves, too, are left to be
 * tried again beside it. */
static AmStatus try_waiting(Refining *self, const AdditiveChange *changes, bool *is_changed, AmError *error) {
    const Trial *best = NULL;
    parallel_for(self->trial_count, 0, try_task, self);
    for (int32_t k = 0; k < self->trial_count; k++) {
        const Trial *trial = &self->trials[k];
        if (trial->status != AM_OK && error) *error = trial->error;
        TRY(trial->status);
        self->problem->budget.evaluations += trial->is_priced;
        self->is_done[trial->change - changes] = !is_better(self, trial);
        if (is_better(self, trial) && (!best || plan_price_better(&trial->price, &best->price))) best = trial;
    }
    self->trial_count = 0;
    if (!best) return AM_OK;
    self->is_done[best->change - changes] = true;
    *self->stage = best->stage;
    *self->price = best->price;
    self->sum = best->sum;
    *is_changed = true;
    return AM_OK;
}

static AmStatus wait_for(Refining *self, const AdditiveChange *change, bool *is_waiting, AmError *error) {
    int32_t factors[MESH_MAX_AXES];
    Trial *trial = &self->trials[self->trial_count];
    *is_waiting = additive_label_factors(self->model, change->node, change->label, factors);
    if (!*is_waiting) return AM_OK;
    *trial = (Trial){.change = change};
    self->trial_count++;
    return change_stage(&trial->stage, self, self->arena, change, factors, error);
}

static AmStatus refine_round(Refining *self, bool *is_changed, AmError *error) {
    AdditiveChange *changes;
    Completion *completion;
    int32_t *labels, count;
    TRY(plan_complete(&completion, self->arena, self->problem->context, self->stage, error));
    TRY(additive_labels(&labels, self->arena, self->model, completion, error));
    TRY(additive_changes(&changes, &count, self->arena, self->fold, labels, &both, error));
    if (count > MOST_CHANGES) count = MOST_CHANGES;
    self->is_done = ARENA_ARRAY(self->arena, bool, count + 1);
    if (!self->is_done) return am_fail_memory(error, count);
    for (bool is_left = true; is_left && !problem_must_stop(self->problem);) {
        bool is_waiting = false;
        is_left = false;
        for (int32_t k = 0; k < count && self->trial_count < PROBLEM_BATCH; k++) {
            const SearchBudget *budget = &self->problem->budget;
            if (self->is_done[k] || budget->evaluations + self->trial_count >= budget->limit) continue;
            TRY(wait_for(self, &changes[k], &is_waiting, error));
            if (!is_waiting) self->is_done[k] = true;
            is_left |= is_waiting;
        }
        TRY(try_waiting(self, changes, is_changed, error));
    }
    return AM_OK;
}

static AmStatus open_model(Refining *self, AmError *error) {
    const Problem *problem = self->problem;
    Completion *completion;
    TRY(additive_create(&self->model, self->arena, problem->context, &problem->mesh, problem->cluster,
                        problem->devices, error));
    if (!self->model) return AM_OK;
    TRY(additive_fold(&self->fold, self->arena, self->model, error));
    self->stop = (StopSignal){problem->budget.interrupted, problem->budget.deadline};
    additive_fold_watch(self->fold, &self->stop);
    TRY(plan_complete(&completion, self->arena, problem->context, self->stage, error));
    const AdditiveCost cost = additive_cost(self->model, completion);
    self->sum = cost.compute_seconds + cost.communication_seconds;
    additive_bound(self->fold, &both, SWEEPS);
    return AM_OK;
}

AmStatus refine_stage(PlanStage *stage, PlanPrice *price, Arena *arena, Problem *problem, AmError *error) {
    Refining *self = ARENA_ARRAY(arena, Refining, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (Refining){.arena = arena, .problem = problem, .stage = stage, .price = price};
    if (problem_must_stop(problem)) return AM_OK;
    TRY(open_model(self, error));
    bool is_changed = self->model != NULL;
    for (int32_t round = 0; round < ROUNDS && is_changed; round++) {
        is_changed = false;
        TRY(refine_round(self, &is_changed, error));
    }
    return AM_OK;
}

int64_t refine_evaluations(const SearchOptions *options, int64_t limit) {
    bool is_joint = options->space == SPACE_SINGLE_STAGE || search_spans_stages(options);
    bool is_free = is_joint && !options->kept && options->pin_count == 0 && !options->is_even;
    bool is_wanted =
        search_method_explores(options->searcher) && !options->no_polish && !options->no_exceptions;
    int64_t part = limit / EVALUATIONS_PART;
    if (!is_free || !is_wanted) return 0;
    return part < EVALUATIONS_MOST ? part : EVALUATIONS_MOST;
}

/* The plan with the stage, simulated, where it is quicker by that, too. */
static AmStatus take_stage(Plan *plan, const PlanStage *stage, Arena *arena, const PlanContext *context,
                           const Cluster *cluster, const SearchOptions *options, AmError *error) {
    PlanStage *stages = ARENA_ARRAY(arena, PlanStage, 1);
    Simulation *simulation;
    Plan refined = *plan;
    if (!stages) return am_fail_memory(error, (int64_t)sizeof *stages);
    *stages = *stage;
    refined.stages = stages;
    TRY(simulate_plan(&simulation, arena, context, &refined, cluster, options->memory_fraction, error));
    TRY(simulation_predict(&refined, arena, simulation, error));
    if (simulation->fit.fits && refined.predicted_step_seconds < plan->predicted_step_seconds)
        *plan = refined;
    return AM_OK;
}

AmStatus refine_plan(Plan *plan, int64_t left, int64_t *evaluations, Arena *arena, const PlanContext *context,
                     const Cluster *cluster, const SearchOptions *options, const StopSignal *stop,
                     AmError *error) {
    int64_t all = search_evaluations_for(options->searcher, context->canonical->instruction_count);
    int64_t most = refine_evaluations(options, all);
    const ProblemSettings settings = {.space = SPACE_SINGLE_STAGE,
                                      .memory_fraction = options->memory_fraction,
                                      .budget = {.limit = left < most ? left : most,
                                                 .deadline = stop->deadline,
                                                 .interrupted = stop->interrupted}};
    PlanStage stage = plan->stages[0];
    PlanPrice price = {.seconds = plan->predicted_step_seconds};
    Problem *problem;
    TRY(problem_create(&problem, context, cluster, &stage.mesh, stage.devices, &settings, error));
    AmStatus status = refine_stage(&stage, &price, arena, problem, error);
    *evaluations += problem->budget.evaluations;
    if (status == AM_OK && stage.exception_count > plan->stages[0].exception_count)
        status = take_stage(plan, &stage, arena, context, cluster, options, error);
    problem_free(problem);
    return status;
}
