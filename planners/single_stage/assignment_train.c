/* Trains the assignment policy on generated problems, and writes checkpoints of the training. */
#include "planners/single_stage/assignment_train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/stop.h"
#include "planners/rl/trained_agent.h"

#define MAGIC                "AMASGTR1"
#define TEACHER_EVALUATIONS  40
#define EPISODES             8 /* of the policy for each problem */
#define DEMONSTRATIONS       2
#define UPDATES              32 /* for each problem */
#define VALIDATION_SEED_STEP 1000003
#define MOST_VALIDATION      64
#define MOST_REGRET          1.0 /* of a problem: a plan that does not fit counts as one of e times the step */

static const struct {
    double until, learning_rate; /* part of the problems */
} phases[] = {{0.75, 1e-3}, {1, 2e-4}};
#define PHASES ((int32_t)(sizeof phases / sizeof *phases))

/* The header of a checkpoint; the agent follows. */
typedef struct Head {
    char magic[8];
    uint64_t seed;
    int64_t problems, done;
    int32_t phase, modules;
} Head;

typedef struct Trainer {
    const AssignmentTraining *training;
    Head head;
    Agent *agent;
    AssignmentProblem validation[MOST_VALIDATION];
    double teacher[MOST_VALIDATION]; /* gains of the teacher's plans */
    int32_t validation_count;
    AssignmentEpisode episode;
    AssignmentState state;
} Trainer;

static AmStatus begin_phase(Trainer *self, AmError *error) {
    AgentSettings settings = assignment_settings();
    settings.seed = random_at(self->head.seed, 2, (uint64_t)self->head.phase);
    settings.learning_rate = phases[self->head.phase].learning_rate;
    return trained_agent_continue(&self->agent, &settings, ASSIGNMENT_FEATURES, error);
}

static AmStatus write_checkpoint(const Trainer *self, AmError *error) {
    return trained_checkpoint_write(self->training->checkpoint, &self->head, sizeof(Head), self->agent,
                                    error);
}

static AmStatus read_checkpoint(Trainer *self, AmError *error) {
    const AssignmentTraining *training = self->training;
    FileBytes bytes;
    Head head = {0};
    AmStatus status;
    TRY(trained_checkpoint_read(&bytes, &head, sizeof(Head), training->checkpoint, error));
    if (memcmp(head.magic, MAGIC, sizeof head.magic) != 0 || head.seed != training->seed ||
        head.problems != training->problems || head.modules != training->module_count || head.done < 0 ||
        head.phase < 0 || head.phase >= PHASES)
        status = am_fail(error, AM_ERROR_INPUT, training->checkpoint,
                         "expected a checkpoint of a training of %lld problems of %d modules under seed %llu",
                         (long long)training->problems, training->module_count,
                         (unsigned long long)training->seed);
    else
        status = trained_checkpoint_agent(&self->agent, &bytes, sizeof(Head), DQN_CPU, ASSIGNMENT_FEATURES,
                                          training->checkpoint, error);
    file_release(&bytes);
    if (status == AM_OK) self->head = head;
    return status;
}

static AmStatus open_validation(Trainer *self, AmError *error) {
    const AssignmentTraining *training = self->training;
    int32_t count = training->report_every > 0 ? training->validation_problems : 0;
    uint64_t seed = training->seed + VALIDATION_SEED_STEP;
    for (int32_t k = 0; k < count && k < MOST_VALIDATION; k++) {
        AssignmentProblem *problem = &self->validation[k];
        self->validation_count++;
        TRY(assignment_problem_open(problem, training->modules, training->module_count, seed, (uint64_t)k,
                                    error));
        TRY(assignment_problem_teach(problem, TEACHER_EVALUATIONS, seed, error));
        self->teacher[k] = assignment_gain(&problem->assignments, &problem->problem->best_price);
    }
    return AM_OK;
}

static AmStatus report(Trainer *self, AmError *error) {
    const AssignmentTraining *training = self->training;
    AssignmentProgress progress = {
        .problems = self->head.done, .problem_count = self->head.problems, .loss = agent_loss(self->agent)};
    for (int32_t k = 0; k < self->validation_count; k++) {
        double gain, predicted;
        TRY(assignment_zero_shot(&gain, &predicted, self->agent, &self->validation[k].assignments,
                                 &self->episode, &self->state, error));
        double regret = fmax(-MOST_REGRET, fmin(MOST_REGRET, self->teacher[k] - gain));
        progress.gain += gain / self->validation_count;
        progress.error += fabs(predicted - gain) / self->validation_count;
        progress.regret += regret / self->validation_count;
    }
    if (training->on_report) training->on_report(training->user, &progress);
    return write_checkpoint(self, error);
}

/* Prices the plans of the episode and stores the transitions. */
static AmStatus learn_from(Trainer *self, const Assignments *assignments, AmError *error) {
    double gains[ASSIGNMENT_MOST_STEPS + 1];
    for (int32_t k = 0; k <= self->episode.count; k++) {
        PlanPrice price;
        TRY(problem_price(assignments->problem, &self->episode.plans[k], &price, error));
        gains[k] = assignment_gain(assignments, &price);
    }
    return assignment_observe_all(&self->episode, self->agent, gains, error);
}

static AmStatus train_on(Trainer *self, const AssignmentProblem *given, Random *random, AmError *error) {
    static const double temperatures[] = {0, 0.03, 0.1, 0.3};
    static const AxisPlan nothing = {0};
    const Assignments *assignments = &given->assignments;
    for (int32_t k = 0; k < EPISODES; k++) {
        AxisPlan start = k % 4 == 3 ? given->problem->best : nothing;
        start.gathers_again = 0;
        const AssignmentManner manner = {.trust = 1, .temperature = temperatures[k % 4], .epsilon = 0.05};
        TRY(assignment_play(&self->episode, self->agent, assignments, &start, &manner, random, &self->state,
                            error));
        TRY(learn_from(self, assignments, error));
    }
    for (int32_t k = 0; k < DEMONSTRATIONS; k++) {
        const AxisPlan best = given->problem->best;
        TRY(assignment_demonstrate(&self->episode, assignments, &best, random, &self->state, error));
        TRY(learn_from(self, assignments, error));
    }
    agent_learn(self->agent, UPDATES);
    return agent_check(self->agent, error);
}

static AmStatus train(Trainer *self, AmError *error) {
    const AssignmentTraining *training = self->training;
    Head *head = &self->head;
    search_watch_expect(training->watch, head->problems - head->done);
    while (head->done < head->problems && !stop_flag_is_set(training->interrupted)) {
        AssignmentProblem given;
        Random random;
        uint64_t index = (uint64_t)head->done;
        if ((double)head->done >= phases[head->phase].until * (double)head->problems) {
            head->phase++;
            TRY(begin_phase(self, error));
        }
        random_seed(&random, random_at(head->seed, 1, index));
        AmStatus status = assignment_problem_open(&given, training->modules, training->module_count,
                                                  head->seed, index, error);
        if (status == AM_OK) status = assignment_problem_teach(&given, TEACHER_EVALUATIONS, index, error);
        if (status == AM_OK) status = train_on(self, &given, &random, error);
        assignment_problem_close(&given);
        TRY(status);
        head->done++;
        search_watch_count(training->watch, 1, NAN);
        if (training->report_every > 0 && head->done % training->report_every == 0) TRY(report(self, error));
    }
    return write_checkpoint(self, error);
}

AmStatus assignment_train(Agent **agent, int64_t *done, const AssignmentTraining *training, AmError *error) {
    AmStatus status = AM_OK;
    Trainer *self = calloc(1, sizeof *self);
    *agent = NULL;
    if (!self) return am_fail_memory(error, sizeof *self);
    self->training = training;
    self->head =
        (Head){.seed = training->seed, .problems = training->problems, .modules = training->module_count};
    memcpy(self->head.magic, MAGIC, sizeof self->head.magic);
    if (training->resume) TRY_OR_FAIL(read_checkpoint(self, error));
    else TRY_OR_FAIL(begin_phase(self, error));
    TRY_OR_FAIL(open_validation(self, error));
    if (training->report_every > 0 && self->head.done == 0) TRY_OR_FAIL(report(self, error));
    TRY_OR_FAIL(train(self, error));
    *agent = self->agent;
    *done = self->head.done;
    self->agent = NULL;
fail:
    for (int32_t k = 0; k < self->validation_count; k++) assignment_problem_close(&self->validation[k]);
    agent_free(self->agent);
    free(self);
    return status;
}
