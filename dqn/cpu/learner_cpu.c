/* The learner on the CPU: one thread, one arena, one update after the other.
 *
 * It is the reference of the CUDA learner: the same sampling, the same formulas
 * and the same order of the sums wherever an order is fixed. Noisy layers and
 * distributions of the return it has alone.
 */
#include <stdlib.h>
#include <string.h>

#include "dqn/cpu/actor_cpu.h"
#include "dqn/cpu/learner_threaded.h"
#include "dqn/loss.h"
#include "dqn/noise.h"
#include "dqn/replay.h"

typedef struct LearnerCpu {
    Learner base;
    Arena arena; /* owns everything below */
    Adam adam;
    Replay replay;
    double loss_sum;

    float *online, *target, *gradients;   /* parameters, network.h's layout */
    NetworkPass online_pass, target_pass; /* 2 batch rows, batch rows */
    Noise online_noise, target_noise;     /* of noisy networks */
    ActorCpu actor;

    /* One batch. Rows 0 .. batch-1 are the states, the next batch rows the
     * states that follow, so that the online network sees both in one pass. */
    float *observations;                 /* [2 batch, observation_size] */
    float *outputs;                      /* [2 batch, action_count, action_outputs] of the online network */
    float *target_outputs;               /* [batch, ..] of the target network on the next states */
    float *output_gradients;             /* [batch, ..] */
    float *means;                        /* [batch, action_count]: of distributions, to choose by */
    float *targets;                      /* [batch, action_outputs] */
    float *rewards, *discounts, *errors; /* [batch] */
    float *weights;                      /* [batch] */
    int32_t *indices, *actions;          /* [batch] */
    uint8_t *next_masks;                 /* [batch, action_count] */
} LearnerCpu;

static size_t parameter_bytes(const Learner *base) {
    return sizeof(float) * (size_t)base->network.parameter_count;
}

static void cpu_free(Learner *base) {
    LearnerCpu *learner = (LearnerCpu *)base;
    arena_free(&learner->arena);
    free(learner);
}

static AmStatus cpu_add(Learner *base, const Transition *transitions, int32_t count, AmError *error) {
    (void)error;
    for (int32_t i = 0; i < count; i++) replay_add(&((LearnerCpu *)base)->replay, &transitions[i]);
    return AM_OK;
}

static AmStatus cpu_values(Learner *base, const float *observations, int32_t count, int64_t noise,
                           float *values, AmError *error) {
    (void)error;
    LearnerCpu *learner = (LearnerCpu *)base;
    actor_cpu_values(&learner->actor, base, learner->online, observations, count, noise, values);
    return AM_OK;
}

/* Returns the input of a pass: the parameters, or the sum of a noisy network's in `noise`. */
static const float *means_of(const LearnerCpu *learner, const float *parameters, Noise *noise,
                             NoiseStream stream, int64_t update) {
    const Network *network = &learner->base.network;
    if (!network->shape.noisy) return parameters;
    noise_draw(noise, network, learner->base.settings.seed, stream, update);
    noise_apply(noise, network, parameters);
    return noise->means;
}

/* Returns the loss of the batch, its derivatives in output_gradients, and errors. `choosing`: outputs of the
 * next states by which the next action is chosen. */
static double loss_of_batch(LearnerCpu *learner, const float *choosing) {
    const LearnerSettings *settings = &learner->base.settings;
    const Atoms *atoms = &learner->base.atoms;
    int32_t batch = settings->batch, actions = settings->shape.action_count;
    const LossRewards next = {.batch = batch,
                              .actions = actions,
                              .rewards = learner->rewards,
                              .discounts = learner->discounts,
                              .next_masks = learner->next_masks};
    const LossActions taken = {.batch = batch,
                               .actions = actions,
                               .taken = learner->actions,
                               .targets = learner->targets,
                               .weights = learner->weights};
    if (settings->shape.atoms == 0) {
        loss_targets(choosing, learner->target_outputs, &next, learner->targets);
        return loss_gradients(learner->outputs, &taken, settings->huber, learner->errors,
                              learner->output_gradients);
    }
    distribution_means(atoms, choosing, (int64_t)batch * actions, learner->means);
    distribution_targets(atoms, learner->means, learner->target_outputs, &next, learner->targets);
    return distribution_gradients(atoms, learner->outputs, &taken, learner->errors,
                                  learner->output_gradients);
}

/* Runs update number `update`, counted from 0. */
static void one_update(LearnerCpu *learner, int64_t update) {
    const LearnerSettings *settings = &learner->base.settings;
    const Network *network = &learner->base.network;
    int32_t batch = settings->batch;
    /* Draws a batch and copies its rows next to each other. */
    const Replay *replay = &learner->replay;
    size_t size = (size_t)replay->observation_size, actions = (size_t)replay->action_count;
    replay_sample(replay, learner->base.settings.seed, update, batch, learner->indices, learner->weights);
    for (int32_t row = 0; row < batch; row++) {
        size_t from = (size_t)learner->indices[row], next = (size_t)(batch + row);
        memcpy(learner->observations + (size_t)row * size, replay->observations + from * size,
               size * sizeof(float));
        memcpy(learner->observations + next * size, replay->next_observations + from * size,
               size * sizeof(float));
        memcpy(learner->next_masks + (size_t)row * actions, replay->next_masks + from * actions, actions);
        learner->actions[row] = replay->actions[from];
        learner->rewards[row] = replay->rewards[from];
        learner->discounts[row] = replay->discounts[from];
    }
    const float *online = means_of(learner, learner->online, &learner->online_noise, NOISE_ONLINE, update);
    const float *target = means_of(learner, learner->target, &learner->target_noise, NOISE_TARGET, update);
    const float *next_observations = learner->observations + (int64_t)batch * network->shape.observation_size;
    int64_t row_outputs = (int64_t)network->shape.action_count * network->action_outputs;
    network_forward(network, online, &learner->online_pass, learner->observations,
                    settings->double_q ? 2 * batch : batch, learner->outputs);
    network_forward(network, target, &learner->target_pass, next_observations, batch,
                    learner->target_outputs);
    learner->loss_sum += loss_of_batch(learner, settings->double_q ? learner->outputs + batch * row_outputs
                                                                   : learner->target_outputs);
    network_backward(network, online, &learner->online_pass, learner->observations, batch,
                     learner->output_gradients, learner->gradients);
    if (network->shape.noisy) noise_gradients(&learner->online_noise, network, learner->gradients);
    adam_update(&learner->adam, learner->online, learner->gradients);
    replay_update(&learner->replay, learner->indices, learner->errors, batch);
    if ((update + 1) % settings->target_update == 0)
        memcpy(learner->target, learner->online, parameter_bytes(&learner->base));
}

static AmStatus cpu_learn(Learner *base, int32_t updates, AmError *error) {
    (void)error;
    for (int32_t i = 0; i < updates; i++) one_update((LearnerCpu *)base, base->updates + i);
    return AM_OK;
}

static AmStatus cpu_take_loss(Learner *base, double *sum, AmError *error) {
    (void)error;
    LearnerCpu *learner = (LearnerCpu *)base;
    *sum = learner->loss_sum;
    learner->loss_sum = 0;
    return AM_OK;
}

static AmStatus cpu_get_parameters(Learner *base, float *parameters, AmError *error) {
    (void)error;
    memcpy(parameters, ((LearnerCpu *)base)->online, parameter_bytes(base));
    return AM_OK;
}

static AmStatus cpu_set_parameters(Learner *base, const float *parameters, AmError *error) {
    (void)error;
    LearnerCpu *learner = (LearnerCpu *)base;
    size_t bytes = parameter_bytes(base);
    memcpy(learner->online, parameters, bytes);
    memcpy(learner->target, parameters, bytes);
    memset(learner->adam.first, 0, bytes);
    memset(learner->adam.second, 0, bytes);
    learner->adam.step = 0;
    return AM_OK;
}

/* One array of the learner and its place in a state. */
typedef struct BatchSlice {
    void *own, *copy;
    size_t bytes;
} BatchSlice;

enum { PART_COUNT = 10 };

static void list_parts(LearnerCpu *learner, const LearnerState *state, BatchSlice parts[PART_COUNT]) {
    const Replay *replay = &learner->replay;
    size_t bytes = parameter_bytes(&learner->base), rows = (size_t)state->count;
    size_t row_bytes = rows * sizeof(float) * (size_t)replay->observation_size;
    const BatchSlice all[PART_COUNT] = {
        {learner->online, state->online, bytes},
        {learner->target, state->target, bytes},
        {learner->adam.first, state->first, bytes},
        {learner->adam.second, state->second, bytes},
        {replay->observations, state->observations, row_bytes},
        {replay->next_observations, state->next_observations, row_bytes},
        {replay->next_masks, state->next_masks, rows * (size_t)replay->action_count},
        {replay->actions, state->actions, rows * sizeof(int32_t)},
        {replay->rewards, state->rewards, rows * sizeof(float)},
        {replay->discounts, state->discounts, rows * sizeof(float)},
    };
    memcpy(parts, all, sizeof(all));
}

static AmStatus cpu_get_state(Learner *base, LearnerState *state, AmError *error) {
    (void)error;
    LearnerCpu *learner = (LearnerCpu *)base;
    BatchSlice parts[PART_COUNT];
    list_parts(learner, state, parts);
    for (int32_t i = 0; i < PART_COUNT; i++) memcpy(parts[i].copy, parts[i].own, parts[i].bytes);
    for (int32_t i = 0; i < state->count; i++) state->masses[i] = sum_tree_get(&learner->replay.tree, i);
    state->max_priority = learner->replay.max_priority;
    return AM_OK;
}

static AmStatus cpu_set_state(Learner *base, const LearnerState *state, AmError *error) {
    (void)error;
    LearnerCpu *learner = (LearnerCpu *)base;
    BatchSlice parts[PART_COUNT];
    list_parts(learner, state, parts);
    for (int32_t i = 0; i < PART_COUNT; i++) memcpy(parts[i].own, parts[i].copy, parts[i].bytes);
    for (int32_t i = 0; i < learner->replay.capacity; i++)
        sum_tree_set(&learner->replay.tree, i, i < state->count ? state->masses[i] : 0);
    learner->replay.max_priority = state->max_priority;
    learner->replay.count = state->count;
    learner->replay.next = state->next;
    learner->adam.step = state->adam_steps;
    learner->loss_sum = 0;
    return AM_OK;
}

static const LearnerMethods METHODS = {
    .free = cpu_free,
    .add = cpu_add,
    .values = cpu_values,
    .learn = cpu_learn,
    .take_loss = cpu_take_loss,
    .get_parameters = cpu_get_parameters,
    .set_parameters = cpu_set_parameters,
    .get_state = cpu_get_state,
    .set_state = cpu_set_state,
};

static AmStatus allocate(LearnerCpu *learner, AmError *error) {
    Arena *arena = &learner->arena;
    const LearnerSettings *settings = &learner->base.settings;
    const Network *network = &learner->base.network;
    int64_t parameters = network->parameter_count, batch = settings->batch;
    int32_t size = network->shape.observation_size, actions = network->shape.action_count;
    int64_t outputs = (int64_t)actions * network->action_outputs;
    TRY(actor_cpu_create(&learner->actor, arena, &learner->base, error));
    if (network->shape.noisy) {
        TRY(noise_create(&learner->online_noise, arena, network, error));
        TRY(noise_create(&learner->target_noise, arena, network, error));
    }
    TRY(network_pass_create(&learner->online_pass, arena, network, 2 * settings->batch, error));
    TRY(network_pass_create(&learner->target_pass, arena, network, settings->batch, error));
    TRY(adam_create(&learner->adam, arena, parameters, settings->learning_rate, error));
    const ReplayPriorities priorities = {settings->alpha, settings->beta, settings->priority_epsilon};
    TRY(replay_create(&learner->replay, arena, size, actions, settings->replay_capacity, priorities, error));
    const struct {
        float **array;
        int64_t count;
    } arrays[] = {
        {&learner->online, parameters},
        {&learner->target, parameters},
        {&learner->gradients, parameters},
        {&learner->observations, 2 * batch * size},
        {&learner->outputs, 2 * batch * outputs},
        {&learner->target_outputs, batch * outputs},
        {&learner->output_gradients, batch * outputs},
        {&learner->means, batch * actions},
        {&learner->targets, batch * network->action_outputs},
        {&learner->rewards, batch},
        {&learner->discounts, batch},
        {&learner->errors, batch},
        {&learner->weights, batch},
    };
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++) {
        *arrays[i].array = network_array(arena, arrays[i].count);
        if (!*arrays[i].array) return am_fail_memory(error, arrays[i].count * (int64_t)sizeof(float));
    }
    learner->indices = ARENA_ARRAY(arena, int32_t, batch);
    learner->actions = ARENA_ARRAY(arena, int32_t, batch);
    learner->next_masks = ARENA_ARRAY(arena, uint8_t, batch * actions);
    if (!learner->indices || !learner->actions || !learner->next_masks)
        return am_fail_memory(error, batch * actions);
    return AM_OK;
}

AmStatus learner_cpu_create(Learner **result, const Learner *base, AmError *error) {
    if (base->settings.threaded) return learner_threaded_create(result, base, error);
    *result = NULL;
    LearnerCpu *learner = calloc(1, sizeof(*learner));
    if (!learner) return am_fail_memory(error, sizeof(*learner));
    learner->base = *base;
    learner->base.methods = &METHODS;
    learner->base.description = "one thread";
    AmStatus status = allocate(learner, error);
    if (status == AM_OK) *result = &learner->base;
    else cpu_free(&learner->base);
    return status;
}
