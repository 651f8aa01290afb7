/* Agent: deep Q-learning over vectors with all parts of Rainbow (Hessel et al. 2018). The agent acts and
 * observes; a learner learns. A failure of the learner is kept and ends all work. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dqn/agent_state.h"
#include "dqn/loss.h"

#define MOST_BYTES    ((int64_t)1 << 33)
#define MOST_BATCH    (1 << 12)
#define MOST_CAPACITY (1 << 26)

AgentSettings agent_default_settings(void) {
    return (AgentSettings){.gamma = 1,
                           .learning_rate = 0.0005,
                           .epsilon_start = 1,
                           .epsilon_end = 0.1,
                           .epsilon_decay = 2000,
                           .batch = 64,
                           .target_update = 100,
                           .replay_capacity = 2000,
                           .alpha = 0.2,
                           .beta = 0.6,
                           .priority_epsilon = 1e-6,
                           .huber = 1,
                           .n_step = 3,
                           .hidden_count = 2,
                           .hidden = {64, 64},
                           .double_q = true,
                           .dueling = true,
                           .v_min = -10,
                           .v_max = 10,
                           .environments = 1,
                           .seed = 1};
}

typedef struct Range {
    const char *name;
    double value, least, most;
} Range;

static AmStatus check_settings(const AgentSettings *settings, AmError *error) {
    const Range ranges[] = {
        {"gamma", settings->gamma, 0, 1},
        {"learning_rate", settings->learning_rate, 0, 1},
        {"epsilon_start", settings->epsilon_start, 0, 1},
        {"epsilon_end", settings->epsilon_end, 0, 1},
        {"epsilon_decay", (double)settings->epsilon_decay, 0, 1e15},
        {"batch", settings->batch, 1, MOST_BATCH},
        {"target_update", settings->target_update, 1, INT32_MAX},
        {"replay_capacity", settings->replay_capacity, settings->batch, MOST_CAPACITY},
        {"alpha", settings->alpha, 0, 1},
        {"beta", settings->beta, 0, 1},
        {"priority_epsilon", settings->priority_epsilon, 1e-12, 1},
        {"huber", settings->huber, 0, 1e30},
        {"n_step", settings->n_step, 0, 1 << 20},
        {"v_min", settings->v_min, -1e30, 1e30},
        {"v_max", settings->v_max, -1e30, 1e30},
        {"environments", settings->environments, 1, AGENT_MAX_ENVIRONMENTS},
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(*ranges); i++)
        if (!(ranges[i].value >= ranges[i].least && ranges[i].value <= ranges[i].most))
            return am_fail(error, AM_ERROR_USAGE, "", "agent setting %s is %g; expected %g to %g",
                           ranges[i].name, ranges[i].value, ranges[i].least, ranges[i].most);
    if (settings->atoms > 0 && !(settings->v_min < settings->v_max))
        return am_fail(error, AM_ERROR_USAGE, "", "agent setting v_min is %g; expected less than v_max, %g",
                       settings->v_min, settings->v_max);
    return AM_OK;
}

/* Makes room for the values of `rows` observations. */
static AmStatus reserve_values(Agent *agent, int32_t rows, AmError *error) {
    if (rows <= agent->values_rows) return AM_OK;
    if (rows < 2 * agent->values_rows) rows = 2 * agent->values_rows;
    size_t row = sizeof(float) * (size_t)agent->shape.action_count;
    float *values = arena_grow(&agent->arena, NULL, 0, row * (size_t)rows);
    if (!values) return am_fail_memory(error, (int64_t)row * rows);
    agent->values = values;
    agent->values_rows = rows;
    return AM_OK;
}

AmStatus agent_create_within(Agent **result, const AgentSettings *settings, int32_t observation_size,
                             int32_t action_count, int64_t most_bytes, AmError *error) {
    *result = NULL;
    TRY(check_settings(settings, error));
    Agent *agent = calloc(1, sizeof(*agent));
    if (!agent) return am_fail_memory(error, sizeof(*agent));
    agent->settings = *settings;
    AmStatus status = AM_OK;
    LearnerSettings learning = {.shape = {.observation_size = observation_size,
                                          .action_count = action_count,
                                          .convolution_count = settings->convolution_count,
                                          .channels = settings->channels,
                                          .length = settings->length,
                                          .hidden_count = settings->hidden_count,
                                          .atoms = settings->atoms,
                                          .dueling = settings->dueling,
                                          .noisy = settings->noisy},
                                .learning_rate = settings->learning_rate,
                                .alpha = settings->alpha,
                                .beta = settings->beta,
                                .priority_epsilon = settings->priority_epsilon,
                                .huber = settings->huber,
                                .v_min = settings->v_min,
                                .v_max = settings->v_max,
                                .batch = settings->batch,
                                .target_update = settings->target_update,
                                .replay_capacity = settings->replay_capacity,
                                .double_q = settings->double_q,
                                .threaded = settings->threaded,
                                .update = settings->update,
                                .seed = settings->seed};
    memcpy(learning.shape.convolutions, settings->convolutions, sizeof(learning.shape.convolutions));
    memcpy(learning.shape.hidden, settings->hidden, sizeof(learning.shape.hidden));
    TRY_OR_FAIL(learner_create(&agent->learner, settings->device, &learning, most_bytes, error));
    agent->shape = agent->learner->network.shape;
    TRY_OR_FAIL(reserve_values(agent, 1, error));
    agent->waiting = ARENA_ARRAY(&agent->arena, NStep, settings->environments);
    if (!agent->waiting) {
        status = am_fail_memory(error, (int64_t)sizeof(NStep) * settings->environments);
        goto fail;
    }
    for (int32_t i = 0; i < settings->environments; i++)
        TRY_OR_FAIL(n_step_create(&agent->waiting[i], &agent->arena, settings->n_step, settings->gamma,
                                  observation_size, action_count, error));
    random_seed(&agent->random, settings->seed);
    *result = agent;
    return AM_OK;
fail:
    agent_free(agent);
    return status;
}

AmStatus agent_create(Agent **result, const AgentSettings *settings, int32_t observation_size,
                      int32_t action_count, AmError *error) {
    Agent *agent = NULL;
    *result = NULL;
    TRY(agent_create_within(&agent, settings, observation_size, action_count, MOST_BYTES, error));
    AmStatus status = AM_OK;
    const Network *network = &agent->learner->network;
    float *parameters = malloc(sizeof(float) * (size_t)network->parameter_count);
    if (parameters) {
        network_initialize(network, parameters, &agent->random);
        status = learner_set_parameters(agent->learner, parameters, error);
        free(parameters);
    } else {
        status = am_fail_memory(error, (int64_t)sizeof(float) * network->parameter_count);
    }
    if (status == AM_OK) *result = agent;
    else agent_free(agent);
    return status;
}

void agent_free(Agent *agent) {
    if (!agent) return;
    learner_free(agent->learner);
    arena_free(&agent->arena);
    free(agent);
}

const AgentSettings *agent_settings(const Agent *agent) {
    return &agent->settings;
}

const NetworkShape *agent_shape(const Agent *agent) {
    return &agent->shape;
}

double agent_epsilon(const Agent *agent) {
    const AgentSettings *settings = &agent->settings;
    if (agent->explored >= settings->epsilon_decay) return settings->epsilon_end;
    double done = (double)agent->explored / (double)settings->epsilon_decay;
    return settings->epsilon_start + done * (settings->epsilon_end - settings->epsilon_start);
}

AmStatus agent_check(const Agent *agent, AmError *error) {
    const AmError *failure = &agent->failure;
    return failure->code == AM_OK ? AM_OK
                                  : am_fail(error, failure->code, failure->source, "%s", failure->text);
}

/* Returns a legal action with uniform probability; -1 without one. */
static int32_t random_action(Agent *agent, const uint8_t *mask) {
    int32_t actions = agent->shape.action_count, legal = 0;
    if (!mask) return (int32_t)random_below(&agent->random, actions);
    for (int32_t a = 0; a < actions; a++) legal += mask[a] != 0;
    if (legal == 0) return -1;
    int64_t chosen = random_below(&agent->random, legal);
    for (int32_t a = 0; a < actions; a++)
        if (mask[a] && chosen-- == 0) return a;
    return -1;
}

/* Keeps the first failure and hands it to the caller. */
static AmStatus keep(Agent *agent, AmStatus status, AmError *error) {
    if (status == AM_OK) return AM_OK;
    if (agent->failure.code == AM_OK) agent->failure.code = status;
    return agent_check(agent, error);
}

AmStatus agent_values(Agent *agent, const float *observations, int32_t count, float *values, AmError *error) {
    TRY(agent_check(agent, error));
    AmStatus status =
        learner_values(agent->learner, observations, count, LEARNER_NO_NOISE, values, &agent->failure);
    return keep(agent, status, error);
}

enum { BY_VALUE = -2 }; /* in the place of an action that is still to be chosen */

/* Fills actions[count] with random choices or BY_VALUE; returns whether any is the latter. */
static bool explore(Agent *agent, const uint8_t *masks, int32_t count, int32_t *actions) {
    bool any = false;
    for (int32_t i = 0; i < count; i++) {
        const uint8_t *mask = masks ? masks + (int64_t)i * agent->shape.action_count : NULL;
        double epsilon = agent_epsilon(agent);
        agent->explored++;
        bool random = random_uniform(&agent->random) < epsilon;
        actions[i] = random ? random_action(agent, mask) : BY_VALUE;
        any = any || !random;
    }
    return any;
}

AmStatus agent_act_many(Agent *agent, const float *observations, const uint8_t *masks, int32_t count,
                        bool greedy, int32_t *actions, AmError *error) {
    int64_t action_count = agent->shape.action_count, noise = LEARNER_NO_NOISE;
    for (int32_t i = 0; i < count; i++) actions[i] = -1;
    TRY(agent_check(agent, error));
    for (int32_t i = 0; i < count && greedy; i++) actions[i] = BY_VALUE;
    if (!greedy && !explore(agent, masks, count, actions)) return AM_OK;
    if (!greedy && agent->shape.noisy) noise = agent->noise_draws++;
    AmStatus status = reserve_values(agent, count, &agent->failure);
    if (status == AM_OK)
        status = learner_values(agent->learner, observations, count, noise, agent->values, &agent->failure);
    for (int32_t i = 0; i < count; i++)
        if (status != AM_OK) actions[i] = -1;
        else if (actions[i] == BY_VALUE)
            actions[i] = loss_best_action(agent->values + i * action_count,
                                          masks ? masks + i * action_count : NULL, (int32_t)action_count);
    return keep(agent, status, error);
}

int32_t agent_act(Agent *agent, const float *observation, const uint8_t *mask, bool greedy) {
    int32_t action = -1;
    return agent_act_many(agent, observation, mask, 1, greedy, &action, NULL) == AM_OK ? action : -1;
}

static bool all_finite(const float *numbers, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(numbers[i])) return false;
    return true;
}

static AmStatus store(void *user, const Transition *transition, AmError *error) {
    return learner_add(((Agent *)user)->learner, transition, 1, error);
}

AmStatus agent_observe(Agent *agent, const AgentStep *step, AmError *error) {
    const NetworkShape *shape = &agent->shape;
    TRY(agent_check(agent, error));
    if (step->action < 0 || step->action >= shape->action_count)
        return am_fail(error, AM_ERROR_USAGE, "", "action %d was observed; expected 0 to %d", step->action,
                       shape->action_count - 1);
    if (step->environment < 0 || step->environment >= agent->settings.environments)
        return am_fail(error, AM_ERROR_USAGE, "", "a step of environment %d; expected 0 to %d",
                       step->environment, agent->settings.environments - 1);
    if (!isfinite((float)step->reward) || !all_finite(step->observation, shape->observation_size) ||
        (!step->terminal && !all_finite(step->next_observation, shape->observation_size)))
        return am_fail(error, AM_ERROR_USAGE, "", "a reward or an observation is not a finite number");
    const NStepSink sink = {store, agent};
    const ObservedStep observed = {.observation = step->observation,
                                   .action = step->action,
                                   .reward = step->reward,
                                   .next_observation = step->next_observation,
                                   .next_mask = step->next_mask,
                                   .terminal = step->terminal};
    NStep *queue = &agent->waiting[step->environment];
    AmStatus status = n_step_observe(queue, &agent->arena, &sink, &observed, &agent->failure);
    return keep(agent, status, error);
}

void agent_end_episode_of(Agent *agent, int32_t environment) {
    bool known = environment >= 0 && environment < agent->settings.environments;
    if (!known || agent->failure.code != AM_OK) return;
    const NStepSink sink = {store, agent};
    keep(agent, n_step_truncate(&agent->waiting[environment], &sink, &agent->failure), NULL);
}

void agent_end_episode(Agent *agent) {
    for (int32_t i = 0; i < agent->settings.environments; i++) agent_end_episode_of(agent, i);
}

bool agent_learn(Agent *agent, int32_t updates) {
    if (agent->failure.code != AM_OK || agent->learner->count < agent->settings.batch) return false;
    return keep(agent, learner_learn(agent->learner, updates, &agent->failure), NULL) == AM_OK;
}

double agent_loss(Agent *agent) {
    double mean;
    if (agent->failure.code != AM_OK) return agent->loss;
    if (keep(agent, learner_take_loss(agent->learner, &mean, &agent->failure), NULL) == AM_OK && !isnan(mean))
        agent->loss = mean;
    return agent->loss;
}

int64_t agent_parameter_count(const Agent *agent) {
    return agent->learner->network.parameter_count;
}

AmStatus agent_parameters(Agent *agent, float *parameters, AmError *error) {
    TRY(agent_check(agent, error));
    return keep(agent, learner_get_parameters(agent->learner, parameters, &agent->failure), error);
}

AmStatus agent_set_parameters(Agent *agent, const float *parameters, int64_t count, const char *source,
                              AmError *error) {
    TRY(agent_check(agent, error));
    if (count != agent_parameter_count(agent))
        return am_fail(error, AM_ERROR_INPUT, source, "%lld network parameters; expected %lld",
                       (long long)count, (long long)agent_parameter_count(agent));
    if (!all_finite(parameters, count))
        return am_fail(error, AM_ERROR_INPUT, source, "a network parameter is not a finite number");
    return keep(agent, learner_set_parameters(agent->learner, parameters, &agent->failure), error);
}
