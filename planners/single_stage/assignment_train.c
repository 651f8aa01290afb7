/* Trains the assignment policy on generated problems, and writes checkpoints of the training. */
#include "planners/single_stage/assignment_train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/parallel.h"
#include "base/system/stop.h"
#include "base/text.h"
#include "planners/rl/learner_parts.h"
#include "planners/rl/trained_agent.h"

#define MAGIC                "AMASGTR5"
#define ROUND                8 /* problems that are played side by side, by one policy */
#define TEACHER_EVALUATIONS  24
#define EPISODES             4 /* of the policy for each problem */
#define DEMONSTRATIONS       1
#define UPDATES              48 /* for each problem */
#define VALIDATION_SEED_STEP 1000003
#define MOST_VALIDATION      64
#define MOST_REGRET          1.0 /* of a problem: a plan that does not fit counts as one of e times the step */

/* The header of a checkpoint; the network of errors and the one of actions follow. */
typedef struct Head {
    char magic[8];
    uint64_t seed;
    int64_t problems, done;
    int32_t modules, is_supervised;
    int64_t errors_bytes;
    char learner[LEARNER_TEXT_BYTES];
} Head;

typedef struct Trainer Trainer;

/* A problem of a round, and the episodes that were played on it. */
typedef struct Play {
    Trainer *trainer;
    uint64_t index;
    Agent *agent; /* the network of actions of the round */
    AmStatus status;
    AmError error;
    GeneratedProblem problem;
    AssignmentEpisode episodes[EPISODES + DEMONSTRATIONS];
    AssignmentValue values[EPISODES + DEMONSTRATIONS][ASSIGNMENT_MOST_STEPS + 1]; /* by prices */
    AssignmentState state;
} Play;

struct Trainer {
    const AssignmentTraining *training;
    Head head;
    AssignmentPolicy policy;
    GeneratedProblem validation[MOST_VALIDATION];
    double teacher[MOST_VALIDATION]; /* gains of the teacher's plans */
    int32_t validation_count;
    Play plays[ROUND];
};

/* Makes the settings of agents of this training. */
static AmStatus make_settings(AgentSettings *settings, const Trainer *self, AmError *error) {
    *settings = assignment_settings();
    return learner_parts_apply(settings, self->training->learner, LEARNER_OF_ONE_OUTPUT, error);
}

/* Makes the networks of a new training. */
static AmStatus open_policy(Trainer *self, AmError *error) {
    AgentSettings settings;
    TRY(make_settings(&settings, self, error));
    settings.seed = random_at(self->head.seed, 2, 0);
    TRY(assignment_agent_untrained(&self->policy.actions, &settings, ASSIGNMENT_FEATURES, error));
    return assignment_agent_untrained(&self->policy.errors, &settings, ASSIGNMENT_FACTS, error);
}

static AmStatus write_checkpoint(Trainer *self, AmError *error) {
    Text errors = {0}, bytes = {0};
    AmStatus status = agent_save(self->policy.errors, &errors, error);
    if (status == AM_OK) {
        self->head.errors_bytes = (int64_t)errors.length;
        text_append_bytes(&bytes, (const char *)&self->head, sizeof(Head));
        text_append_bytes(&bytes, errors.data, errors.length);
        status = bytes.failed ? am_fail_memory(error, self->head.errors_bytes)
                              : trained_checkpoint_write(self->training->checkpoint, bytes.data, bytes.length,
                                                         self->policy.actions, error);
    }
    text_free(&errors);
    text_free(&bytes);
    return status;
}

static AmStatus read_checkpoint(Trainer *self, AmError *error) {
    const AssignmentTraining *training = self->training;
    FileBytes bytes;
    Head head = {0};
    AmStatus status;
    TRY(trained_checkpoint_read(&bytes, &head, sizeof(Head), training->checkpoint, error));
    if (memcmp(head.magic, MAGIC, sizeof head.magic) != 0 || head.seed != training->seed ||
        head.problems != training->problems || head.modules != training->module_count ||
        head.is_supervised != training->is_supervised ||
        memcmp(head.learner, self->head.learner, sizeof head.learner) != 0 || head.done < 0 ||
        head.errors_bytes < 0 || head.errors_bytes > bytes.length - (int64_t)sizeof(Head))
        status = am_fail(error, AM_ERROR_INPUT, training->checkpoint,
                         "expected a checkpoint of a training of %lld problems of %d modules under seed %llu",
                         (long long)training->problems, training->module_count,
                         (unsigned long long)training->seed);
    else {
        FileBytes errors = bytes;
        errors.length = (int64_t)sizeof(Head) + head.errors_bytes;
        status = trained_checkpoint_agent(&self->policy.errors, &errors, sizeof(Head), DQN_CPU,
                                          ASSIGNMENT_FACTS, training->checkpoint, error);
        if (status == AM_OK)
            status = trained_checkpoint_agent(&self->policy.actions, &bytes, (size_t)errors.length, DQN_CPU,
                                              ASSIGNMENT_FEATURES, training->checkpoint, error);
    }
    file_release(&bytes);
    if (status == AM_OK) self->head = head;
    return status;
}

static AmStatus open_validation(Trainer *self, AmError *error) {
    const AssignmentTraining *training = self->training;
    int32_t count = training->report_every > 0 ? training->validation_problems : 0;
    uint64_t seed = training->seed + VALIDATION_SEED_STEP;
    for (int32_t k = 0; k < count && k < MOST_VALIDATION && !stop_flag_is_set(training->interrupted); k++) {
        GeneratedProblem *problem = &self->validation[k];
        self->validation_count++;
        TRY(generated_problem_open(problem, training->modules, training->module_count, seed, (uint64_t)k,
                                   error));
        TRY(generated_problem_teach(problem, TEACHER_EVALUATIONS, seed, error));
        self->teacher[k] = assignment_gain(&problem->described, &problem->problem->best.price);
    }
    return AM_OK;
}

static AmStatus report_progress(Trainer *self, AmError *error) {
    const AssignmentTraining *training = self->training;
    Play *memory = &self->plays[0]; /* which no problem uses now */
    AssignmentProgress progress = {.problems = self->head.done,
                                   .problem_count = self->head.problems,
                                   .loss = agent_loss(self->policy.actions)};
    for (int32_t k = 0; k < self->validation_count; k++) {
        double gain, surprise;
        if (stop_flag_is_set(training->interrupted)) return AM_OK; /* train_network() ends */
        const AssignmentPlayer player = {.policy = &self->policy,
                                         .problem = &self->validation[k].described,
                                         .state = &memory->state,
                                         .choice.best = ASSIGNMENT_ESTIMATES};
        TRY(assignment_zero_shot(&gain, &surprise, &memory->episodes[0], &player, error));
        double regret = fmax(-MOST_REGRET, fmin(MOST_REGRET, self->teacher[k] - gain));
        progress.gain += gain / self->validation_count;
        progress.error += surprise / self->validation_count;
        progress.regret += regret / self->validation_count;
    }
    if (training->on_report) training->on_report(training->user, &progress);
    return write_checkpoint(self, error);
}

static AmStatus check_interrupt(const Play *self, AmError *error) {
    if (!stop_flag_is_set(self->trainer->training->interrupted)) return AM_OK;
    return am_fail(error, AM_INTERRUPTED, "", "interrupted while a problem was played");
}

static AmStatus play_problem(Play *self, AmError *error) {
    static const ActionChoice choices[EPISODES + DEMONSTRATIONS] = {
        {8, 0, 0}, {8, 16, 0}, {8, 16, 0.1}, {4, 20, 0.3}, {8, 16, 0}};
    static const AxisPlan nothing = {0};
    static const ActionChoice supervised = {0, ASSIGNMENT_MOST_ESTIMATES, 0};
    const AssignmentTraining *training = self->trainer->training;
    const AssignmentProblem *described = &self->problem.described;
    const AssignmentPolicy policy = {.actions = self->agent};
    uint64_t seed = self->trainer->head.seed;
    Random random;
    AssignmentPlayer player = {
        .policy = &policy, .problem = described, .state = &self->state, .random = &random};
    random_seed(&random, random_at(seed, 1, self->index));
    TRY(check_interrupt(self, error));
    TRY(generated_problem_open(&self->problem, training->modules, training->module_count, seed, self->index,
                               error));
    TRY(generated_problem_teach(&self->problem, TEACHER_EVALUATIONS, self->index, error));
    for (int32_t k = 0; k < EPISODES + DEMONSTRATIONS; k++) {
        AxisPlan best = self->problem.problem->best.axis_plan;
        best.gathers_again = 0;
        player.choice = training->is_supervised ? supervised : choices[k];
        TRY(check_interrupt(self, error));
        if (k < EPISODES && !training->is_supervised)
            TRY(assignment_play(&self->episodes[k], &player, k == EPISODES - 1 ? &best : &nothing, error));
        else TRY(assignment_demonstrate(&self->episodes[k], &player, &best, error));
        for (int32_t place = 0; place <= self->episodes[k].count; place++) {
            PlanPrice price;
            TRY(problem_price(described->problem, &self->episodes[k].plans[place], &price, error));
            self->values[k][place] = assignment_value(described, &price);
        }
    }
    return AM_OK;
}

static void play_task(void *user, int32_t k) {
    Trainer *self = user;
    Play *play = &self->plays[k];
    play->error = (AmError){0};
    play->status = play_problem(play, &play->error);
    generated_problem_close(&play->problem);
}

/* Gives the plays the present network of actions. */
static AmStatus copy_policy(Trainer *self, AmError *error) {
    int64_t count = agent_parameter_count(self->policy.actions);
    float *parameters = malloc(sizeof(float) * (size_t)count);
    if (!parameters) return am_fail_memory(error, count * (int64_t)sizeof(float));
    AmStatus status = agent_parameters(self->policy.actions, parameters, error);
    for (int32_t k = 0; k < ROUND && status == AM_OK; k++) {
        AgentSettings settings;
        TRY_OR_FAIL(make_settings(&settings, self, error));
        settings.replay_capacity = settings.batch;
        if (self->plays[k].agent)
            status = agent_set_parameters(self->plays[k].agent, parameters, count, "", error);
        else
            status = trained_agent_create(&self->plays[k].agent, &settings, ASSIGNMENT_FEATURES, parameters,
                                          count, "", error);
    }
fail:
    free(parameters);
    return status;
}

/* Plays the next problems side by side, and learns from them in their order. An interrupt drops the round. */
static AmStatus train_round(Trainer *self, AmError *error) {
    int64_t left = self->head.problems - self->head.done;
    int32_t count = left < ROUND ? (int32_t)left : ROUND;
    TRY(copy_policy(self, error));
    for (int32_t k = 0; k < count; k++) {
        self->plays[k].trainer = self;
        self->plays[k].index = (uint64_t)(self->head.done + k);
    }
    parallel_for(count, 0, play_task, self);
    for (int32_t k = 0; k < count; k++)
        if (self->plays[k].status == AM_INTERRUPTED) return AM_OK;
    for (int32_t k = 0; k < count; k++) {
        Play *play = &self->plays[k];
        if (play->status != AM_OK) return am_pass_error(play->status, &play->error, error);
        for (int32_t e = 0; e < EPISODES + DEMONSTRATIONS; e++) {
            TRY(assignment_observe(&play->episodes[e], self->policy.actions, play->agent, play->values[e],
                                   error));
            TRY(assignment_observe_errors(&play->episodes[e], self->policy.errors, play->values[e], error));
        }
        agent_learn(self->policy.actions, UPDATES);
        agent_learn(self->policy.errors, UPDATES);
    }
    self->head.done += count;
    search_watch_count(self->training->watch, count, NAN);
    TRY(agent_check(self->policy.actions, error));
    return agent_check(self->policy.errors, error);
}

static AmStatus train_network(Trainer *self, AmError *error) {
    const AssignmentTraining *training = self->training;
    Head *head = &self->head;
    search_watch_expect(training->watch, head->problems - head->done);
    while (head->done < head->problems && !stop_flag_is_set(training->interrupted)) {
        int64_t before = head->done;
        TRY(train_round(self, error));
        bool reports = training->report_every > 0 &&
                       head->done / training->report_every > before / training->report_every;
        if (reports) TRY(report_progress(self, error));
    }
    return write_checkpoint(self, error);
}

AmStatus assignment_train(AssignmentPolicy *policy, int64_t *done, const AssignmentTraining *training,
                          AmError *error) {
    AmStatus status = AM_OK;
    Trainer *self = calloc(1, sizeof *self);
    *policy = (AssignmentPolicy){0};
    if (!self) return am_fail_memory(error, sizeof *self);
    self->training = training;
    self->head = (Head){.seed = training->seed,
                        .problems = training->problems,
                        .modules = training->module_count,
                        .is_supervised = training->is_supervised};
    memcpy(self->head.magic, MAGIC, sizeof self->head.magic);
    if (training->learner) snprintf(self->head.learner, sizeof self->head.learner, "%s", training->learner);
    if (training->resume) TRY_OR_FAIL(read_checkpoint(self, error));
    else TRY_OR_FAIL(open_policy(self, error));
    TRY_OR_FAIL(open_validation(self, error));
    if (training->report_every > 0 && self->head.done == 0) TRY_OR_FAIL(report_progress(self, error));
    TRY_OR_FAIL(train_network(self, error));
    *policy = self->policy;
    *done = self->head.done;
    self->policy = (AssignmentPolicy){0};
fail:
    for (int32_t k = 0; k < self->validation_count; k++) generated_problem_close(&self->validation[k]);
    for (int32_t k = 0; k < ROUND; k++) agent_free(self->plays[k].agent);
    assignment_policy_close(&self->policy);
    free(self);
    return status;
}
