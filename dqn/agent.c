/* Agent: acting, observing and learning (see agent.h).
 *
 * One update: draw a batch by priority; Q of the states and of the next states
 * in one pass of the online network, of the next states by the target network;
 * double-DQN targets; weighted Huber loss; Adam; new priorities from the
 * unweighted errors; every target_update updates the target becomes a copy of
 * the online network.
 */
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
                           .seed = 1};
}

/* Memory of an agent, to within the small parts: below 2^62 for any sizes that
 * passed their checks. */
static int64_t memory_bytes(const Network *network, const AgentSettings *settings) {
    int64_t size = network->shape.observation_size, actions = network->shape.action_count;
    int64_t replay_row = 8 * size + actions + 12 + 2 * 2 * (int64_t)sizeof(double);
    int64_t widths = 0, widest = 0;
    for (int32_t i = 0; i < network->layer_count; i++) {
        int64_t width = network->layers[i].outputs;
        widths += width;
        if (width > widest) widest = width;
    }
    int64_t batch_row = 4 * (2 * size + 5 * actions + 3 * (widths + 2 * widest));
    return replay_row * settings->replay_capacity + batch_row * settings->batch +
           5 * 4 * network->parameter_count;
}

typedef struct Range {
    const char *name;
    double value, least, most;
} Range;

static AmStatus check_ranges(const Range *ranges, size_t count, AmError *error) {
    for (size_t i = 0; i < count; i++)
        if (!(ranges[i].value >= ranges[i].least && ranges[i].value <= ranges[i].most))
            return am_fail(error, AM_ERROR_USAGE, "", "agent setting %s is %g; expected %g to %g",
                           ranges[i].name, ranges[i].value, ranges[i].least, ranges[i].most);
    return AM_OK;
}

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
    };
    return check_ranges(ranges, sizeof(ranges) / sizeof(*ranges), error);
}

static AmStatus allocate(Agent *agent, AmError *error) {
    Arena *arena = &agent->arena;
    const AgentSettings *settings = &agent->settings;
    int64_t parameters = agent->network.parameter_count, batch = settings->batch;
    int32_t size = agent->network.shape.observation_size, actions = agent->network.shape.action_count;
    TRY(network_pass_create(&agent->online_pass, arena, &agent->network, 2 * settings->batch, error));
    TRY(network_pass_create(&agent->target_pass, arena, &agent->network, settings->batch, error));
    TRY(adam_create(&agent->adam, arena, parameters, settings->learning_rate, error));
    TRY(replay_create(&agent->replay, arena, size, actions, settings->replay_capacity, settings->alpha,
                      settings->beta, settings->priority_epsilon, error));
    TRY(n_step_create(&agent->waiting, arena, settings->n_step, settings->gamma, size, actions, error));
    const struct {
        float **array;
        int64_t count;
    } arrays[] = {
        {&agent->online, parameters},
        {&agent->target, parameters},
        {&agent->gradients, parameters},
        {&agent->observations, 2 * batch * size},
        {&agent->values, 2 * batch * actions},
        {&agent->target_values, batch * actions},
        {&agent->value_gradients, batch * actions},
        {&agent->rewards, batch},
        {&agent->discounts, batch},
        {&agent->errors, batch},
        {&agent->weights, batch},
        {&agent->targets, batch},
    };
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++) {
        *arrays[i].array = ARENA_ARRAY(arena, float, arrays[i].count);
        if (!*arrays[i].array) return am_fail_memory(error, arrays[i].count * (int64_t)sizeof(float));
    }
    agent->indices = ARENA_ARRAY(arena, int32_t, batch);
    agent->actions = ARENA_ARRAY(arena, int32_t, batch);
    agent->next_masks = ARENA_ARRAY(arena, uint8_t, batch * actions);
    if (!agent->indices || !agent->actions || !agent->next_masks)
        return am_fail_memory(error, batch * actions);
    return AM_OK;
}

AmStatus agent_create(Agent **agent, const AgentSettings *settings, int32_t observation_size,
                      int32_t action_count, AmError *error) {
    return agent_create_within(agent, settings, observation_size, action_count, MOST_BYTES, error);
}

AmStatus agent_create_within(Agent **result, const AgentSettings *settings, int32_t observation_size,
                             int32_t action_count, int64_t most_bytes, AmError *error) {
    *result = NULL;
    TRY(check_settings(settings, error));
    NetworkShape shape = {.observation_size = observation_size,
                          .action_count = action_count,
                          .hidden_count = settings->hidden_count,
                          .dueling = settings->dueling};
    memcpy(shape.hidden, settings->hidden, sizeof(shape.hidden));
    Network network;
    TRY(network_create(&network, &shape, error));
    int64_t bytes = memory_bytes(&network, settings);
    if (bytes > most_bytes)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "the agent would take %lld bytes of memory; expected at most %lld", (long long)bytes,
                       (long long)most_bytes);
    Agent *agent = calloc(1, sizeof(*agent));
    if (!agent) return am_fail_memory(error, sizeof(*agent));
    agent->settings = *settings;
    agent->network = network;
    AmStatus status = AM_OK;
    TRY_OR_FAIL(allocate(agent, error));
    random_seed(&agent->random, settings->seed);
    network_initialize(&agent->network, agent->online, &agent->random);
    memcpy(agent->target, agent->online, sizeof(float) * (size_t)network.parameter_count);
    *result = agent;
    return AM_OK;
fail:
    agent_free(agent);
    return status;
}

void agent_free(Agent *agent) {
    if (!agent) return;
    arena_free(&agent->arena);
    free(agent);
}

const AgentSettings *agent_settings(const Agent *agent) {
    return &agent->settings;
}

const NetworkShape *agent_shape(const Agent *agent) {
    return &agent->network.shape;
}

int64_t agent_updates(const Agent *agent) {
    return agent->updates;
}

double agent_epsilon(const Agent *agent) {
    const AgentSettings *settings = &agent->settings;
    if (agent->explored >= settings->epsilon_decay) return settings->epsilon_end;
    double done = (double)agent->explored / (double)settings->epsilon_decay;
    return settings->epsilon_start + done * (settings->epsilon_end - settings->epsilon_start);
}

AmStatus agent_explore(Agent *agent, double epsilon_start, double epsilon_end, int64_t epsilon_decay,
                       AmError *error) {
    AgentSettings settings = agent->settings;
    settings.epsilon_start = epsilon_start;
    settings.epsilon_end = epsilon_end;
    settings.epsilon_decay = epsilon_decay;
    TRY(check_settings(&settings, error));
    agent->settings = settings;
    agent->explored = 0;
    return AM_OK;
}

/* A legal action, each with the same probability; -1 if there is none. */
static int32_t random_action(Agent *agent, const uint8_t *mask) {
    int32_t actions = agent->network.shape.action_count, legal = 0;
    if (!mask) return (int32_t)random_below(&agent->random, actions);
    for (int32_t a = 0; a < actions; a++) legal += mask[a] != 0;
    if (legal == 0) return -1;
    int64_t chosen = random_below(&agent->random, legal);
    for (int32_t a = 0; a < actions; a++)
        if (mask[a] && chosen-- == 0) return a;
    return -1;
}

int32_t agent_act(Agent *agent, const float *observation, const uint8_t *mask, bool greedy) {
    if (!greedy) {
        double epsilon = agent_epsilon(agent);
        agent->explored++;
        if (random_uniform(&agent->random) < epsilon) return random_action(agent, mask);
    }
    network_forward(&agent->network, agent->online, &agent->online_pass, observation, 1, agent->values);
    return loss_best_action(agent->values, mask, agent->network.shape.action_count);
}

void agent_values(Agent *agent, const float *observations, int32_t count, float *values) {
    const NetworkShape *shape = &agent->network.shape;
    int32_t most = agent->online_pass.capacity;
    for (int32_t begin = 0; begin < count; begin += most) {
        int32_t rows = count - begin < most ? count - begin : most;
        network_forward(&agent->network, agent->online, &agent->online_pass,
                        observations + (int64_t)begin * shape->observation_size, rows,
                        values + (int64_t)begin * shape->action_count);
    }
}

static bool all_finite(const float *numbers, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(numbers[i])) return false;
    return true;
}

AmStatus agent_observe(Agent *agent, const AgentStep *step, AmError *error) {
    const NetworkShape *shape = &agent->network.shape;
    if (step->action < 0 || step->action >= shape->action_count)
        return am_fail(error, AM_ERROR_USAGE, "", "action %d was observed; expected 0 to %d", step->action,
                       shape->action_count - 1);
    if (!isfinite((float)step->reward) || !all_finite(step->observation, shape->observation_size) ||
        (!step->terminal && !all_finite(step->next_observation, shape->observation_size)))
        return am_fail(error, AM_ERROR_USAGE, "", "a reward or an observation is not a finite number");
    return n_step_observe(&agent->waiting, &agent->arena, &agent->replay, step->observation, step->action,
                          step->reward, step->next_observation, step->next_mask, step->terminal, error);
}

void agent_end_episode(Agent *agent) {
    n_step_truncate(&agent->waiting, &agent->replay);
}

/* Draws a batch and copies its rows next to each other. */
static void gather_batch(Agent *agent) {
    const Replay *replay = &agent->replay;
    int32_t batch = agent->settings.batch;
    size_t size = (size_t)replay->observation_size, actions = (size_t)replay->action_count;
    replay_sample(replay, &agent->random, batch, agent->indices, agent->weights);
    for (int32_t row = 0; row < batch; row++) {
        size_t from = (size_t)agent->indices[row], next = (size_t)(batch + row);
        memcpy(agent->observations + (size_t)row * size, replay->observations + from * size,
               size * sizeof(float));
        memcpy(agent->observations + next * size, replay->next_observations + from * size,
               size * sizeof(float));
        memcpy(agent->next_masks + (size_t)row * actions, replay->next_masks + from * actions, actions);
        agent->actions[row] = replay->actions[from];
        agent->rewards[row] = replay->rewards[from];
        agent->discounts[row] = replay->discounts[from];
    }
}

bool agent_learn(Agent *agent, double *loss) {
    const AgentSettings *settings = &agent->settings;
    const Network *network = &agent->network;
    int32_t batch = settings->batch, actions = network->shape.action_count;
    if (agent->replay.count < batch) return false;
    gather_batch(agent);
    const float *next_observations = agent->observations + (int64_t)batch * network->shape.observation_size;
    int32_t online_rows = settings->double_q ? 2 * batch : batch;
    network_forward(network, agent->online, &agent->online_pass, agent->observations, online_rows,
                    agent->values);
    network_forward(network, agent->target, &agent->target_pass, next_observations, batch,
                    agent->target_values);
    const float *choosing =
        settings->double_q ? agent->values + (int64_t)batch * actions : agent->target_values;
    loss_targets(choosing, agent->target_values, agent->next_masks, agent->rewards, agent->discounts, batch,
                 actions, agent->targets);
    double batch_loss =
        loss_gradients(agent->values, agent->actions, agent->targets, agent->weights, settings->huber, batch,
                       actions, agent->errors, agent->value_gradients);
    if (loss) *loss = batch_loss;
    network_backward(network, agent->online, &agent->online_pass, agent->observations, batch,
                     agent->value_gradients, agent->gradients);
    adam_update(&agent->adam, agent->online, agent->gradients);
    replay_update(&agent->replay, agent->indices, agent->errors, batch);
    agent->updates++;
    if (agent->updates % settings->target_update == 0)
        memcpy(agent->target, agent->online, sizeof(float) * (size_t)network->parameter_count);
    return true;
}

const float *agent_parameters(const Agent *agent, int64_t *count) {
    *count = agent->network.parameter_count;
    return agent->online;
}

AmStatus agent_set_parameters(Agent *agent, const float *parameters, int64_t count, const char *source,
                              AmError *error) {
    if (count != agent->network.parameter_count)
        return am_fail(error, AM_ERROR_INPUT, source, "%lld network parameters; expected %lld",
                       (long long)count, (long long)agent->network.parameter_count);
    if (!all_finite(parameters, count))
        return am_fail(error, AM_ERROR_INPUT, source, "a network parameter is not a finite number");
    size_t bytes = sizeof(float) * (size_t)count;
    memmove(agent->online, parameters, bytes);
    memcpy(agent->target, agent->online, bytes);
    memset(agent->adam.first, 0, bytes);
    memset(agent->adam.second, 0, bytes);
    agent->adam.step = 0;
    return AM_OK;
}
