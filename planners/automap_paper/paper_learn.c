/* The run of deep Q-learning in Auto-MAP's own mode.
 *
 * Batch 64, Adam, gamma 0.6, epsilon from 1 to 0.1, prioritized replay with alpha 0.2 and beta 0.6 over 2000
 * transitions, target network every 100 updates, double DQN, dueling heads, no noisy layers: all of it the
 * paper's, and scope->request->method.learner changes the parts. It gives no width of its network and no
 * steps between updates.
 */
#include "planners/automap_paper/paper_learn.h"

#include <math.h>
#include <stdio.h>

#include "base/system/clock.h"
#include "base/system/stop.h"
#include "planners/rl/learner_parts.h"

/* The differences of the three tasks. Epsilon falls over `decay` steps. */
typedef struct TaskSettings {
    double learning_rate;
    int64_t decay;
    int32_t hidden, steps_per_update;
    int32_t settled;     /* episodes of the policy in a row that earn the most */
    double tolerance;    /* by which they may earn less than the best one */
    int64_t least_steps; /* before it may have settled */
    int64_t most_steps;  /* 0: no bound but the number of episodes */
} TaskSettings;

static const TaskSettings tasks[SPACE_COUNT] = {
    [SPACE_OPERATOR] = {5e-4, 2000, 64, 4, 10, 1e-6, 2000, 0},
    [SPACE_DATA] = {5e-4, 500, 32, 2, 20, 1e-6, 1000, 0},
    [SPACE_PIPELINE] = {1e-3, 10000, 64, 16, 20, 5e-3, 3000, 10000},
};

static const char *const end_names[PAPER_ENDS] = {"settled", "steps", "episodes", "seconds", "interrupted"};

const char *paper_end_name(PaperEnd end) {
    return end_names[end];
}

typedef struct LearningRun {
    PaperLearning *result;
    const SearchScope *scope;
    const SearchRequest *request; /* of the scope */
    const TaskSettings *task;
    double deadline;
    int32_t settled;
} LearningRun;

static bool must_stop(void *user, const DqnEpisode *last) {
    LearningRun *self = user;
    PaperLearning *result = self->result;
    const SearchScope *scope = self->scope;
    result->episodes = last->number;
    result->steps = last->steps;
    if (last->number > 0) result->best = fmax(result->best, last->reward);
    if (last->is_greedy) { /* does the policy earn as much as the best episode? */
        double least = result->best - self->task->tolerance * fabs(result->best);
        self->settled = last->reward >= least ? self->settled + 1 : 0;
        result->greedy = last->reward;
    }
    bool has_learned = last->steps >= self->task->least_steps;
    if (has_learned && self->settled >= self->task->settled) result->end = PAPER_SETTLED;
    else if (self->task->most_steps > 0 && last->steps >= self->task->most_steps) result->end = PAPER_STEPS;
    else if (stop_flag_is_set(scope->request->callbacks.interrupted)) result->end = PAPER_INTERRUPTED;
    else if (self->deadline > 0 && clock_seconds() > self->deadline) result->end = PAPER_SECONDS;
    else if (last->number >= scope->limits.evaluations) result->end = PAPER_EPISODES;
    else return false;
    return true;
}

static bool is_greedy(void *user, const DqnEpisode *last) {
    (void)user;
    return last->number % 2 == 1;
}

static void log_episode(void *user, const DqnEpisode *episode) {
    const LearningRun *self = user;
    char line[256];
    snprintf(line, sizeof line,
             "{\"episode\":%lld,\"reward\":%.6g,\"best\":%.6g,\"epsilon\":%.4g,\"loss\":%.6g,\"greedy\":%s}",
             (long long)episode->number, episode->reward, fmax(self->result->best, episode->reward),
             episode->epsilon, episode->loss, episode->is_greedy ? "true" : "false");
    self->request->callbacks.on_episode(self->request->callbacks.user, line);
}

AmStatus paper_learn(PaperLearning *learning, Environment *environment, PlanSpace space,
                     const SearchScope *scope, AmError *error) {
    const SearchRequest *request = scope->request;
    double start = clock_seconds();
    *learning = (PaperLearning){.best = -HUGE_VAL, .greedy = -HUGE_VAL};
    LearningRun self = {.result = learning,
                        .scope = scope,
                        .request = scope->request,
                        .task = &tasks[space],
                        .deadline = scope->limits.seconds > 0 ? start + scope->limits.seconds : 0};
    AgentSettings settings = agent_default_settings(); /* the paper's but for these */
    settings.gamma = 0.6;
    settings.n_step = 1;
    settings.learning_rate = self.task->learning_rate;
    settings.epsilon_decay = self.task->decay;
    settings.hidden[0] = settings.hidden[1] = self.task->hidden;
    settings.seed = scope->seed;
    settings.device = scope->request->method.device;
    TRY(learner_parts_apply(&settings, request->method.learner, (1U << LEARNER_PARTS) - 1, error));
    DqnRunOptions run = {.steps_per_update = self.task->steps_per_update,
                         .must_stop = must_stop,
                         .is_greedy = is_greedy,
                         .on_episode = request->callbacks.on_episode ? log_episode : NULL,
                         .user = &self};
    TRY(dqn_run(environment, &settings, &run, error));
    learning->seconds = clock_seconds() - start;
    return AM_OK;
}
