/* The part of the learner that all back ends share: the table of devices, the
 * bound on memory, the counters, and the host copy of a state. */
#include "dqn/learner.h"

#include <math.h>

#include "automap_features.h"

static AmStatus cpu_check(AmError *error) {
    (void)error;
    return AM_OK;
}

#ifndef AUTOMAP_HAVE_CUDA
AmStatus learner_cuda_check(AmError *error) {
    return am_fail(error, AM_ERROR_USAGE, "",
                   "device cuda: this build has no CUDA (configure it with -DAUTOMAP_CUDA=ON)");
}

AmStatus learner_cuda_create(Learner **learner, const Learner *base, AmError *error) {
    (void)base;
    *learner = NULL;
    return learner_cuda_check(error);
}
#endif

typedef struct Device {
    const char *name;
    AmStatus (*check)(AmError *error);
    AmStatus (*create)(Learner **learner, const Learner *base, AmError *error);
    bool plain; /* has neither noisy layers nor distributions */
} Device;

static const Device DEVICES[DQN_DEVICE_COUNT] = {
    [DQN_CPU] = {"cpu", cpu_check, learner_cpu_create, false},
    [DQN_CUDA] = {"cuda", learner_cuda_check, learner_cuda_create, true},
};

const char *dqn_device_name(DqnDevice device) {
    return DEVICES[device].name;
}

AmStatus dqn_device_check(DqnDevice device, AmError *error) {
    return DEVICES[device].check(error);
}

/* Returns the additional memory of a learner with a thread of its own. */
static int64_t thread_bytes(const Network *network, const LearnerSettings *settings) {
    int64_t bank_row = 8 * (int64_t)network->shape.observation_size + network->shape.action_count +
                       (int64_t)sizeof(Transition);
    int64_t outputs = (int64_t)network->shape.action_count * network->action_outputs;
    return 2 * LEARNER_THREADED_ROWS * bank_row + 2 * 4 * network->parameter_count +
           4 * settings->batch * (network_pass_width(network) + outputs);
}

/* Returns the memory of a learner without small parts: below 2^62 for any sizes that passed their checks. */
static int64_t memory_bytes(const Network *network, const LearnerSettings *settings) {
    int64_t size = network->shape.observation_size, actions = network->shape.action_count;
    int64_t replay_row = 8 * size + actions + 12 + 2 * 2 * (int64_t)sizeof(double);
    int64_t outputs = actions * network->action_outputs;
    int64_t batch_row = 4 * (2 * size + 2 * actions + 6 * outputs + 4 * network_pass_width(network));
    int64_t noise = network->shape.noisy ? 4 * 4 * network->mean_count : 0;
    return replay_row * settings->replay_capacity + batch_row * settings->batch +
           5 * 4 * network->parameter_count + noise +
           (settings->threaded ? thread_bytes(network, settings) : 0);
}

AmStatus learner_create(Learner **learner, DqnDevice device, const LearnerSettings *settings,
                        int64_t most_bytes, AmError *error) {
    *learner = NULL;
    Learner base = {.settings = *settings};
    const char *missing = settings->shape.noisy ? "noisy" : settings->shape.atoms > 0 ? "atoms" : NULL;
    if (missing && DEVICES[device].plain)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "agent setting %s: device %s cannot learn with it; device %s can", missing,
                       DEVICES[device].name, DEVICES[DQN_CPU].name);
    TRY(network_create(&base.network, &settings->shape, error));
    base.atoms = (Atoms){settings->shape.atoms, settings->v_min, settings->v_max};
    int64_t bytes = memory_bytes(&base.network, settings);
    if (bytes > most_bytes)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "the agent would take %lld bytes of memory; expected at most %lld", (long long)bytes,
                       (long long)most_bytes);
    return DEVICES[device].create(learner, &base, error);
}

void learner_free(Learner *learner) {
    if (learner) learner->methods->free(learner);
}

AmStatus learner_add(Learner *learner, const Transition *transitions, int32_t count, AmError *error) {
    TRY(learner->methods->add(learner, transitions, count, error));
    int32_t capacity = learner->settings.replay_capacity;
    learner->next = (int32_t)(((int64_t)learner->next + count) % capacity);
    learner->count = count > capacity - learner->count ? capacity : learner->count + count;
    return AM_OK;
}

AmStatus learner_values(Learner *learner, const float *observations, int32_t count, int64_t noise,
                        float *values, AmError *error) {
    return learner->methods->values(learner, observations, count, noise, values, error);
}

AmStatus learner_learn(Learner *learner, int32_t updates, AmError *error) {
    if (updates <= 0) return AM_OK;
    TRY(learner->methods->learn(learner, updates, error));
    learner->updates += updates;
    learner->adam_steps += updates;
    learner->losses_waiting += updates;
    return AM_OK;
}

AmStatus learner_take_loss(Learner *learner, double *mean, AmError *error) {
    *mean = NAN;
    if (learner->losses_waiting == 0) return AM_OK;
    double sum = 0;
    TRY(learner->methods->take_loss(learner, &sum, error));
    *mean = sum / (double)learner->losses_waiting;
    learner->losses_waiting = 0;
    return AM_OK;
}

AmStatus learner_get_parameters(Learner *learner, float *parameters, AmError *error) {
    return learner->methods->get_parameters(learner, parameters, error);
}

AmStatus learner_set_parameters(Learner *learner, const float *parameters, AmError *error) {
    TRY(learner->methods->set_parameters(learner, parameters, error));
    learner->adam_steps = 0;
    return AM_OK;
}

AmStatus learner_state_create(LearnerState *state, Arena *arena, const Learner *learner, int32_t count,
                              AmError *error) {
    int64_t parameters = learner->network.parameter_count, rows = count;
    int64_t size = learner->settings.shape.observation_size, actions = learner->settings.shape.action_count;
    *state = (LearnerState){.parameter_count = parameters, .count = count, .max_priority = 1};
    float **const networks[] = {&state->online, &state->target, &state->first, &state->second};
    for (size_t i = 0; i < sizeof networks / sizeof *networks; i++) {
        *networks[i] = ARENA_ARRAY(arena, float, parameters);
        if (!*networks[i]) return am_fail_memory(error, parameters * (int64_t)sizeof(float));
    }
    state->observations = ARENA_ARRAY(arena, float, rows *size);
    state->next_observations = ARENA_ARRAY(arena, float, rows *size);
    state->next_masks = ARENA_ARRAY(arena, uint8_t, rows * actions);
    state->actions = ARENA_ARRAY(arena, int32_t, rows);
    state->rewards = ARENA_ARRAY(arena, float, rows);
    state->discounts = ARENA_ARRAY(arena, float, rows);
    state->masses = ARENA_ARRAY(arena, double, rows);
    if (!state->observations || !state->next_observations || !state->next_masks || !state->actions ||
        !state->rewards || !state->discounts || !state->masses)
        return am_fail_memory(error, rows * (8 * size + actions + 20));
    return AM_OK;
}

AmStatus learner_get_state(Learner *learner, LearnerState *state, AmError *error) {
    state->updates = learner->updates;
    state->adam_steps = learner->adam_steps;
    state->count = learner->count;
    state->next = learner->next;
    return learner->methods->get_state(learner, state, error);
}

AmStatus learner_set_state(Learner *learner, const LearnerState *state, AmError *error) {
    TRY(learner->methods->set_state(learner, state, error));
    learner->updates = state->updates;
    learner->adam_steps = state->adam_steps;
    learner->count = state->count;
    learner->next = state->next;
    learner->losses_waiting = 0;
    return AM_OK;
}
