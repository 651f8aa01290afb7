/* The learner on a device: the parameters, the replay and the random numbers live
 * there, and a whole update is one CUDA graph that is replayed.
 *
 * What changes from update to update (its number, the place written next) is
 * counted in device memory, so the graph takes no arguments and learner_learn
 * only launches it. Transitions go through two halves of a small pinned area: one
 * is copied while the other fills. Everything runs on one stream, in order; a
 * reading call ends by waiting for it.
 *
 * The graph: draw, gather, forward (online: the states and the next states in one
 * pass; target), targets and loss, backward, Adam with the copy into the target
 * network, priorities and counters: 5 + 4 nodes a layer (kernels: dqn.cu). With
 * DQN_UPDATE_BLOCK a dense network is updated by one kernel of one block, which
 * makes several updates in a launch.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cuda/capture.h"
#include "base/cuda/unit.h"
#include "dqn/cuda/dqn.cu.h"
#include "dqn/cuda/memory_cuda.h"
#include "dqn/cuda/network_cuda.h"
#include "dqn/learner.h"

#define MOST_STAGED       64                 /* transitions */
#define MOST_STAGED_BYTES ((int64_t)1 << 20) /* of one half, unless a transition is larger */
#define BLOCK_THREADS     1024               /* of the block that makes whole updates */
#define BLOCK_UPDATES     64                 /* that it makes at most in one launch */

enum { COUNTER_UPDATES, COUNTER_ADAM_STEPS, COUNTER_HELD, COUNTER_NEXT, COUNTER_COUNT };
enum { SUM_MAX_PRIORITY, SUM_LOSS, SUM_COUNT };
enum { PASS_ONLINE, PASS_TARGET, PASS_COUNT };

/* The kernels dqn_NAME of dqn.cu. */
#define KERNELS(X) X(store) X(draw) X(gather) X(values) X(loss) X(adam) X(finish) X(build_tree) X(update)

/* The argument of the kernels: struct Update of dqn.cu, field by field. */
typedef struct UpdateCuda {
    CUdeviceptr observations, next_observations, rewards, discounts;
    CUdeviceptr next_masks;
    CUdeviceptr taken, owners;
    CUdeviceptr tree, sums;
    CUdeviceptr counters;
    CUdeviceptr online, target, gradients, first, second;
    CUdeviceptr batch_rows, batch_rewards, batch_discounts, weights, errors;
    CUdeviceptr losses;
    CUdeviceptr batch_masks;
    CUdeviceptr batch_taken, indices;
    CUdeviceptr outputs[NETWORK_MAX_HIDDEN + 1], target_outputs[NETWORK_MAX_HIDDEN + 1];
    CUdeviceptr gradient, next_gradient;
    uint64_t seed;
    double alpha, beta, priority_epsilon, huber;
    double learning_rate, beta1, beta2, adam_epsilon;
    int32_t batch, online_rows, size, actions, dueling, double_q, capacity, width;
    int32_t target_update, parameter_count, layer_count;
    struct {
        int64_t weights, biases;
        int32_t inputs, outputs;
    } layers[NETWORK_MAX_HIDDEN + 1];
} UpdateCuda;

typedef struct LearnerCuda {
    Learner base;
    CudaDevice device;
    CudaUnit unit;
    CUstream stream;
    CUgraphExec graph; /* of one update; NULL until the first */
#define KERNEL_MEMBER(name) CUfunction name;
    struct {
        KERNELS(KERNEL_MEMBER)
    } kernels;
#undef KERNEL_MEMBER
    NetworkCuda network;
    PassCuda passes[PASS_COUNT];
    DeviceMemory memory;
    UpdateCuda update;           /* where everything is on the device */
    CUdeviceptr staging, values; /* on the device */

    /* Pinned. */
    float *staged[2];      /* [staged_most, transition_width] each */
    float *rows, *answers; /* observations and values of one online pass */
    double *read_sums;     /* [SUM_COUNT] */

    CUevent copied[2];     /* after the copy out of a half */
    int32_t half, waiting; /* the half that fills, and its transitions */
    char description[256]; /* where base.description is not constant */
    int32_t staged_most;   /* transitions in a half */
    int32_t transition_width;
} LearnerCuda;

static AmStatus launch(LearnerCuda *learner, CUfunction function, int64_t blocks, void **arguments,
                       AmError *error) {
    return dqn_cuda_launch(function, blocks, 1, DQN_CUDA_THREADS, learner->stream, arguments, error);
}

static AmStatus launch_rows(LearnerCuda *learner, CUfunction function, int64_t rows, void **arguments,
                            AmError *error) {
    return dqn_cuda_launch(function, rows, 1, DQN_CUDA_ROW_THREADS, learner->stream, arguments, error);
}

static AmStatus wait(LearnerCuda *learner, AmError *error) {
    return cuda_check(cuda.cuStreamSynchronize(learner->stream), "training the network", error);
}

/* Hands the transitions that wait in pinned memory over to the device. */
static AmStatus flush(LearnerCuda *learner, AmError *error) {
    if (learner->waiting == 0) return AM_OK;
    int32_t rows = learner->waiting, half = learner->half;
    size_t bytes = sizeof(float) * (size_t)rows * (size_t)learner->transition_width;
    TRY(cuda_check(cuda.cuMemcpyHtoDAsync(learner->staging, learner->staged[half], bytes, learner->stream),
                   "copying transitions to the device", error));
    TRY(cuda_check(cuda.cuEventRecord(learner->copied[half], learner->stream), "recording an event", error));
    void *arguments[] = {&learner->update, &learner->staging, &rows};
    TRY(launch(learner, learner->kernels.store, 1, arguments, error));
    learner->waiting = 0;
    learner->half = 1 - half;
    return cuda_check(cuda.cuEventSynchronize(learner->copied[learner->half]),
                      "waiting for a copy to the device", error);
}

/* Packs a transition for dqn_store. */
static void pack(float *to, const Transition *transition, const NetworkShape *shape) {
    size_t size = (size_t)shape->observation_size, actions = (size_t)shape->action_count;
    bool follows = (float)transition->discount != 0;
    memcpy(to, transition->observation, size * sizeof(float));
    if (follows) memcpy(to + size, transition->next_observation, size * sizeof(float));
    else memset(to + size, 0, size * sizeof(float));
    float *mask = to + 2 * size;
    for (size_t a = 0; a < actions; a++)
        mask[a] = !follows || !transition->next_mask || transition->next_mask[a];
    mask[actions] = (float)transition->action;
    mask[actions + 1] = (float)transition->reward;
    mask[actions + 2] = (float)transition->discount;
}

static AmStatus cuda_add(Learner *base, const Transition *transitions, int32_t count, AmError *error) {
    LearnerCuda *learner = (LearnerCuda *)base;
    TRY(cuda_device_use(&learner->device, error));
    for (int32_t i = 0; i < count; i++) {
        float *to = learner->staged[learner->half] + (int64_t)learner->waiting * learner->transition_width;
        pack(to, &transitions[i], &base->settings.shape);
        if (++learner->waiting == learner->staged_most) TRY(flush(learner, error));
    }
    return AM_OK;
}

static AmStatus read_rows(LearnerCuda *learner, const float *observations, int32_t rows, float *values,
                          AmError *error) {
    const NetworkShape *shape = &learner->base.settings.shape;
    const PassCuda *pass = &learner->passes[PASS_ONLINE];
    size_t row_bytes = sizeof(float) * (size_t)rows * (size_t)shape->observation_size;
    size_t value_bytes = sizeof(float) * (size_t)rows * (size_t)shape->action_count;
    memcpy(learner->rows, observations, row_bytes);
    TRY(cuda_check(
        cuda.cuMemcpyHtoDAsync(learner->update.batch_rows, learner->rows, row_bytes, learner->stream),
        "copying observations to the device", error));
    TRY(network_cuda_forward(&learner->network, pass, learner->update.online, learner->update.batch_rows,
                             error));
    void *arguments[] = {&learner->update, &learner->values};
    TRY(launch_rows(learner, learner->kernels.values, rows, arguments, error));
    TRY(cuda_check(cuda.cuMemcpyDtoHAsync(learner->answers, learner->values, value_bytes, learner->stream),
                   "copying values from the device", error));
    TRY(wait(learner, error));
    memcpy(values, learner->answers, value_bytes);
    return AM_OK;
}

static AmStatus cuda_values(Learner *base, const float *observations, int32_t count, int64_t noise,
                            float *values, AmError *error) {
    (void)noise; /* no noisy networks here: learner.c */
    LearnerCuda *learner = (LearnerCuda *)base;
    const NetworkShape *shape = &base->settings.shape;
    int32_t most = learner->passes[PASS_ONLINE].rows;
    TRY(cuda_device_use(&learner->device, error));
    for (int32_t begin = 0; begin < count; begin += most) {
        int32_t rows = count - begin < most ? count - begin : most;
        TRY(read_rows(learner, observations + (int64_t)begin * shape->observation_size, rows,
                      values + (int64_t)begin * shape->action_count, error));
    }
    return AM_OK;
}

/* Runs both networks forward, the loss, and one backward. */
static AmStatus run_networks(LearnerCuda *learner, AmError *error) {
    const UpdateCuda *update = &learner->update;
    const PassCuda *passes = learner->passes;
    CUdeviceptr following = update->batch_rows + sizeof(float) * (size_t)update->batch * (size_t)update->size;
    void *arguments[] = {&learner->update};
    TRY(network_cuda_forward(&learner->network, &passes[PASS_ONLINE], update->online, update->batch_rows,
                             error));
    TRY(network_cuda_forward(&learner->network, &passes[PASS_TARGET], update->target, following, error));
    TRY(launch_rows(learner, learner->kernels.loss, update->batch, arguments, error));
    return network_cuda_backward(&learner->network, &passes[PASS_ONLINE], update->online, update->batch_rows,
                                 update->gradients, error);
}

static AmStatus enqueue_update(LearnerCuda *learner, AmError *error) {
    int64_t parameters = learner->update.parameter_count;
    void *arguments[] = {&learner->update};
    TRY(launch(learner, learner->kernels.draw, 1, arguments, error));
    TRY(launch_rows(learner, learner->kernels.gather, learner->update.batch, arguments, error));
    TRY(run_networks(learner, error));
    TRY(launch(learner, learner->kernels.adam, (parameters + DQN_CUDA_THREADS - 1) / DQN_CUDA_THREADS,
               arguments, error));
    return launch(learner, learner->kernels.finish, 1, arguments, error);
}

static bool makes_updates_in_one_block(const LearnerCuda *learner) {
    return learner->base.settings.update == DQN_UPDATE_BLOCK &&
           learner->base.network.shape.convolution_count == 0;
}

static AmStatus learn_in_one_block(LearnerCuda *learner, int32_t updates, AmError *error) {
    while (updates > 0) {
        int32_t some = updates < BLOCK_UPDATES ? updates : BLOCK_UPDATES;
        void *arguments[] = {&learner->update, &some};
        TRY(dqn_cuda_launch(learner->kernels.update, 1, 1, BLOCK_THREADS, learner->stream, arguments, error));
        updates -= some;
    }
    return AM_OK;
}

static AmStatus cuda_learn(Learner *base, int32_t updates, AmError *error) {
    LearnerCuda *learner = (LearnerCuda *)base;
    TRY(cuda_device_use(&learner->device, error));
    TRY(flush(learner, error));
    if (makes_updates_in_one_block(learner)) return learn_in_one_block(learner, updates, error);
    if (!learner->graph) {
        /* One update as a graph, which is recorded without running it. */
        TRY(cuda_check(cuda_capture_begin(learner->stream), "recording an update", error));
        AmStatus status = enqueue_update(learner, error);
        CUresult ended = cuda_capture_end(learner->stream, status == AM_OK, &learner->graph, NULL);
        TRY(status == AM_OK ? cuda_check(ended, "recording an update", error) : status);
    }
    for (int32_t i = 0; i < updates; i++)
        TRY(cuda_check(cuda.cuGraphLaunch(learner->graph, learner->stream), "starting an update", error));
    return AM_OK;
}

static AmStatus read_sums(LearnerCuda *learner, AmError *error) {
    TRY(cuda_check(cuda.cuMemcpyDtoHAsync(learner->read_sums, learner->update.sums,
                                          SUM_COUNT * sizeof(double), learner->stream),
                   "reading the loss", error));
    return wait(learner, error);
}

static AmStatus cuda_take_loss(Learner *base, double *sum, AmError *error) {
    LearnerCuda *learner = (LearnerCuda *)base;
    TRY(cuda_device_use(&learner->device, error));
    TRY(read_sums(learner, error));
    *sum = learner->read_sums[SUM_LOSS];
    return cuda_check(cuda.cuMemsetD8Async(learner->update.sums + SUM_LOSS * sizeof(double), 0,
                                           sizeof(double), learner->stream),
                      "clearing the loss", error);
}

static AmStatus cuda_get_parameters(Learner *base, float *parameters, AmError *error) {
    LearnerCuda *learner = (LearnerCuda *)base;
    TRY(cuda_device_use(&learner->device, error));
    return network_cuda_download(&learner->network, &base->network, parameters, learner->update.online,
                                 error);
}

static AmStatus set_counters(LearnerCuda *learner, int64_t updates, int64_t adam_steps, int32_t held,
                             int32_t next, AmError *error) {
    const int64_t counters[COUNTER_COUNT] = {[COUNTER_UPDATES] = updates,
                                             [COUNTER_ADAM_STEPS] = adam_steps,
                                             [COUNTER_HELD] = held,
                                             [COUNTER_NEXT] = next};
    TRY(cuda_check(
        cuda.cuMemcpyHtoDAsync(learner->update.counters, counters, sizeof(counters), learner->stream),
        "setting the counters", error));
    return wait(learner, error);
}

static AmStatus cuda_set_parameters(Learner *base, const float *parameters, AmError *error) {
    LearnerCuda *learner = (LearnerCuda *)base;
    const NetworkCuda *network = &learner->network;
    size_t bytes = sizeof(float) * (size_t)network->layout.parameter_count;
    TRY(cuda_device_use(&learner->device, error));
    TRY(flush(learner, error));
    TRY(network_cuda_upload(network, &base->network, learner->update.online, parameters, error));
    TRY(network_cuda_upload(network, &base->network, learner->update.target, parameters, error));
    TRY(cuda_check(cuda.cuMemsetD8Async(learner->update.first, 0, bytes, learner->stream), "restarting Adam",
                   error));
    TRY(cuda_check(cuda.cuMemsetD8Async(learner->update.second, 0, bytes, learner->stream), "restarting Adam",
                   error));
    return set_counters(learner, base->updates, 0, base->count, base->next, error);
}

/* One array of the replay and its place in a state. */
typedef struct BatchSlice {
    CUdeviceptr own;
    void *copy;
    size_t bytes;
} BatchSlice;

enum { PART_COUNT = 7 };

static void list_parts(const LearnerCuda *learner, const LearnerState *state, BatchSlice parts[PART_COUNT]) {
    const NetworkShape *shape = &learner->base.settings.shape;
    size_t rows = (size_t)state->count, row_bytes = rows * sizeof(float) * (size_t)shape->observation_size;
    const BatchSlice all[PART_COUNT] = {
        {learner->update.observations, state->observations, row_bytes},
        {learner->update.next_observations, state->next_observations, row_bytes},
        {learner->update.next_masks, state->next_masks, rows * (size_t)shape->action_count},
        {learner->update.taken, state->actions, rows * sizeof(int32_t)},
        {learner->update.rewards, state->rewards, rows * sizeof(float)},
        {learner->update.discounts, state->discounts, rows * sizeof(float)},
        {learner->update.tree + sizeof(double) * (size_t)learner->update.width, state->masses,
         rows * sizeof(double)},
    };
    memcpy(parts, all, sizeof(all));
}

static AmStatus cuda_get_state(Learner *base, LearnerState *state, AmError *error) {
    LearnerCuda *learner = (LearnerCuda *)base;
    const NetworkCuda *network = &learner->network;
    BatchSlice parts[PART_COUNT];
    TRY(cuda_device_use(&learner->device, error));
    TRY(flush(learner, error));
    TRY(network_cuda_download(network, &base->network, state->online, learner->update.online, error));
    TRY(network_cuda_download(network, &base->network, state->target, learner->update.target, error));
    TRY(network_cuda_download(network, &base->network, state->first, learner->update.first, error));
    TRY(network_cuda_download(network, &base->network, state->second, learner->update.second, error));
    list_parts(learner, state, parts);
    for (int32_t i = 0; i < PART_COUNT && state->count > 0; i++)
        TRY(cuda_check(cuda.cuMemcpyDtoHAsync(parts[i].copy, parts[i].own, parts[i].bytes, learner->stream),
                       "copying the replay from the device", error));
    TRY(read_sums(learner, error));
    state->max_priority = learner->read_sums[SUM_MAX_PRIORITY];
    return AM_OK;
}

static AmStatus set_priorities(LearnerCuda *learner, double max_priority, AmError *error) {
    const double sums[SUM_COUNT] = {[SUM_MAX_PRIORITY] = max_priority};
    void *arguments[] = {&learner->update};
    TRY(cuda_check(cuda.cuMemcpyHtoDAsync(learner->update.sums, sums, sizeof(sums), learner->stream),
                   "setting the priorities", error));
    TRY(launch(learner, learner->kernels.build_tree, 1, arguments, error));
    return wait(learner, error);
}

static AmStatus cuda_set_state(Learner *base, const LearnerState *state, AmError *error) {
    LearnerCuda *learner = (LearnerCuda *)base;
    const NetworkCuda *network = &learner->network;
    BatchSlice parts[PART_COUNT];
    TRY(cuda_device_use(&learner->device, error));
    learner->waiting = 0;
    TRY(network_cuda_upload(network, &base->network, learner->update.online, state->online, error));
    TRY(network_cuda_upload(network, &base->network, learner->update.target, state->target, error));
    TRY(network_cuda_upload(network, &base->network, learner->update.first, state->first, error));
    TRY(network_cuda_upload(network, &base->network, learner->update.second, state->second, error));
    TRY(cuda_check(cuda.cuMemsetD8Async(learner->update.tree, 0,
                                        2 * sizeof(double) * (size_t)learner->update.width, learner->stream),
                   "clearing the priorities", error));
    list_parts(learner, state, parts);
    for (int32_t i = 0; i < PART_COUNT && state->count > 0; i++)
        TRY(cuda_check(cuda.cuMemcpyHtoDAsync(parts[i].own, parts[i].copy, parts[i].bytes, learner->stream),
                       "copying the replay to the device", error));
    TRY(set_priorities(learner, state->max_priority, error));
    return set_counters(learner, state->updates, state->adam_steps, state->count, state->next, error);
}

static void cuda_free(Learner *base) {
    LearnerCuda *learner = (LearnerCuda *)base;
    if (learner->device.context && cuda_device_use(&learner->device, NULL) == AM_OK) {
        if (learner->stream) cuda.cuStreamSynchronize(learner->stream);
        if (learner->graph) cuda.cuGraphExecDestroy(learner->graph);
        void *const pinned[] = {learner->staged[0], learner->staged[1], learner->rows, learner->answers,
                                learner->read_sums};
        for (size_t i = 0; i < sizeof(pinned) / sizeof(*pinned); i++)
            if (pinned[i]) cuda.cuMemFreeHost(pinned[i]);
        for (int32_t half = 0; half < 2; half++)
            if (learner->copied[half]) cuda.cuEventDestroy(learner->copied[half]);
        network_cuda_free(&learner->network);
        memory_free(&learner->memory);
        cuda_unit_unload(&learner->unit);
        if (learner->stream) cuda.cuStreamDestroy(learner->stream);
    }
    cuda_device_close(&learner->device);
    free(learner);
}

static const LearnerMethods METHODS = {
    .free = cuda_free,
    .add = cuda_add,
    .values = cuda_values,
    .learn = cuda_learn,
    .take_loss = cuda_take_loss,
    .get_parameters = cuda_get_parameters,
    .set_parameters = cuda_set_parameters,
    .get_state = cuda_get_state,
    .set_state = cuda_set_state,
};

static AmStatus load_kernels(LearnerCuda *learner, AmError *error) {
    TRY(cuda_unit_load(&learner->unit, &learner->device, cuda_text_dqn, error));
#define KERNEL_ROW(name) {&learner->kernels.name, "dqn_" #name},
    const struct {
        CUfunction *function;
        const char *name;
    } kernels[] = {KERNELS(KERNEL_ROW)};
#undef KERNEL_ROW
    for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
        TRY(cuda_unit_function(kernels[i].function, &learner->unit, kernels[i].name, error));
    return AM_OK;
}

static AmStatus prepare_networks(LearnerCuda *learner, AmError *error) {
    const LearnerSettings *settings = &learner->base.settings;
    int32_t batch = settings->batch;
    /* The next states begin after the states. */
    int64_t offset = (int64_t)sizeof(float) * batch * settings->shape.observation_size;
    int32_t alignment = offset % 16 == 0 ? 16 : offset % 8 == 0 ? 8 : 4;
    NetworkCuda *network = &learner->network;
    TRY(network_cuda_create(network, &learner->base.network, batch, settings->update != DQN_UPDATE_GRAPH,
                            &learner->unit, learner->stream, error));
    TRY(network_cuda_pass(network, &learner->passes[PASS_ONLINE], settings->double_q ? 2 * batch : batch,
                          true, 16, &learner->memory, error));
    TRY(network_cuda_pass(network, &learner->passes[PASS_TARGET], batch, false, alignment, &learner->memory,
                          error));
    network_cuda_reserve(network, learner->passes, PASS_COUNT, &learner->memory);
    return AM_OK;
}

static void reserve_arrays(LearnerCuda *learner) {
    const LearnerSettings *settings = &learner->base.settings;
    UpdateCuda *update = &learner->update;
    int64_t number = sizeof(float), capacity = settings->replay_capacity, batch = settings->batch;
    int64_t size = settings->shape.observation_size, actions = settings->shape.action_count;
    int64_t parameters = learner->network.layout.parameter_count, width = update->width;
    const struct {
        CUdeviceptr *place;
        int64_t bytes;
    } arrays[] = {
        {&update->online, parameters * number},
        {&update->target, parameters * number},
        {&update->gradients, parameters * number},
        {&update->first, parameters * number},
        {&update->second, parameters * number},
        {&update->tree, 2 * width * (int64_t)sizeof(double)},
        {&update->owners, capacity * (int64_t)sizeof(int32_t)},
        {&update->counters, COUNTER_COUNT * (int64_t)sizeof(int64_t)},
        {&update->sums, SUM_COUNT * (int64_t)sizeof(double)},
        {&update->observations, capacity * size * number},
        {&update->next_observations, capacity * size * number},
        {&update->next_masks, capacity * actions},
        {&update->taken, capacity * (int64_t)sizeof(int32_t)},
        {&update->rewards, capacity * number},
        {&update->discounts, capacity * number},
        {&update->batch_rows, 2 * batch * size * number},
        {&update->batch_masks, batch * actions},
        {&update->batch_taken, batch * (int64_t)sizeof(int32_t)},
        {&update->batch_rewards, batch * number},
        {&update->batch_discounts, batch * number},
        {&update->indices, batch * (int64_t)sizeof(int32_t)},
        {&update->weights, batch * number},
        {&update->errors, batch * number},
        {&update->losses, batch * (int64_t)sizeof(double)},
        {&learner->staging, (int64_t)learner->staged_most * learner->transition_width * number},
        {&learner->values, learner->passes[PASS_ONLINE].rows * actions * number},
    };
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++)
        memory_reserve(&learner->memory, arrays[i].place, arrays[i].bytes);
}

/* Describes the network for the kernels, once its arrays have addresses. */
static void describe_network(LearnerCuda *learner) {
    const NetworkCuda *network = &learner->network;
    UpdateCuda *update = &learner->update;
    update->gradient = network->gradient;
    update->next_gradient = network->next_gradient;
    update->online_rows = learner->passes[PASS_ONLINE].rows;
    update->parameter_count = (int32_t)network->layout.parameter_count;
    update->layer_count = network->layout.layer_count;
    for (int32_t i = 0; i < update->layer_count; i++) {
        const NetworkLayer *layer = &network->layout.layers[i];
        update->outputs[i] = learner->passes[PASS_ONLINE].outputs[i];
        update->target_outputs[i] = learner->passes[PASS_TARGET].outputs[i];
        update->layers[i].weights = layer->weights;
        update->layers[i].biases = layer->biases;
        update->layers[i].inputs = layer->inputs;
        update->layers[i].outputs = layer->outputs;
    }
}

static AmStatus allocate_pinned(LearnerCuda *learner, AmError *error) {
    const NetworkShape *shape = &learner->base.settings.shape;
    size_t number = sizeof(float), rows = (size_t)learner->passes[PASS_ONLINE].rows;
    size_t half = number * (size_t)learner->staged_most * (size_t)learner->transition_width;
    const struct {
        void **place;
        size_t bytes;
    } areas[] = {
        {(void **)&learner->staged[0], half},
        {(void **)&learner->staged[1], half},
        {(void **)&learner->rows, rows * number * (size_t)shape->observation_size},
        {(void **)&learner->answers, rows * number * (size_t)shape->action_count},
        {(void **)&learner->read_sums, SUM_COUNT * sizeof(double)},
    };
    for (size_t i = 0; i < sizeof(areas) / sizeof(*areas); i++)
        TRY(cuda_check(cuda.cuMemAllocHost(areas[i].place, areas[i].bytes), "allocating pinned memory",
                       error));
    for (int32_t half_index = 0; half_index < 2; half_index++)
        TRY(cuda_check(cuda.cuEventCreate(&learner->copied[half_index], CU_EVENT_DISABLE_TIMING),
                       "making an event", error));
    return AM_OK;
}

/* Runs every kernel, product and convolution once, over a replay of one transition
 * of zeros, and clears the results. So libraries load their code before an update is
 * recorded, and a part that cannot run fails here. */
static AmStatus warm_up(LearnerCuda *learner, AmError *error) {
    int32_t one = 1;
    void *store[] = {&learner->update, &learner->staging, &one},
         *values[] = {&learner->update, &learner->values};
    TRY(set_priorities(learner, 1, error));
    TRY(launch(learner, learner->kernels.store, 1, store, error));
    TRY(enqueue_update(learner, error));
    TRY(launch_rows(learner, learner->kernels.values, 1, values, error));
    if (makes_updates_in_one_block(learner)) TRY(learn_in_one_block(learner, 1, error));
    TRY(memory_clear(&learner->memory, learner->stream, error));
    return set_priorities(learner, 1, error);
}

static const char *describe(LearnerCuda *learner) {
    const NetworkCuda *network = &learner->network;
    char *text = learner->description;
    size_t bytes = sizeof learner->description;
    int32_t all = network->product_count, own = network->own_count;
    if (makes_updates_in_one_block(learner)) return "one block";
    int length = own == 0     ? snprintf(text, bytes, "graph, cuBLASLt")
                 : own == all ? snprintf(text, bytes, "graph, own products")
                              : snprintf(text, bytes, "graph, cuBLASLt, %d of %d products own", own, all);
    if (network->refusal.text[0])
        snprintf(text + length, bytes - (size_t)length, ", %d of %d convolutions own: %.150s",
                 network->own_convolutions, network->convolution_count, network->refusal.text);
    return text;
}

static AmStatus load_learner(LearnerCuda *learner, AmError *error) {
    TRY(cuda_device_open(&learner->device, 0, error));
    TRY(cuda_check(cuda.cuStreamCreate(&learner->stream, CU_STREAM_NON_BLOCKING), "making a stream", error));
    TRY(load_kernels(learner, error));
    TRY(prepare_networks(learner, error));
    reserve_arrays(learner);
    TRY(memory_allocate(&learner->memory, &learner->device, learner->stream, error));
    describe_network(learner);
    TRY(allocate_pinned(learner, error));
    learner->base.description = describe(learner);
    return warm_up(learner, error);
}

AmStatus learner_cuda_check(AmError *error) {
    return cuda_driver_open(error);
}

AmStatus learner_cuda_create(Learner **result, const Learner *base, AmError *error) {
    *result = NULL;
    LearnerCuda *learner = calloc(1, sizeof(*learner));
    if (!learner) return am_fail_memory(error, sizeof(*learner));
    learner->base = *base;
    learner->base.methods = &METHODS;
    /* The settings of the kernels, and the sizes of the staging area. */
    const LearnerSettings *settings = &learner->base.settings;
    const NetworkShape *shape = &settings->shape;
    Adam adam = adam_constants(settings->learning_rate);
    learner->update = (UpdateCuda){.seed = settings->seed,
                                   .alpha = settings->alpha,
                                   .beta = settings->beta,
                                   .priority_epsilon = settings->priority_epsilon,
                                   .huber = settings->huber,
                                   .learning_rate = adam.learning_rate,
                                   .beta1 = adam.beta1,
                                   .beta2 = adam.beta2,
                                   .adam_epsilon = adam.epsilon,
                                   .batch = settings->batch,
                                   .size = shape->observation_size,
                                   .actions = shape->action_count,
                                   .dueling = shape->dueling,
                                   .double_q = settings->double_q,
                                   .capacity = settings->replay_capacity,
                                   .width = 1,
                                   .target_update = settings->target_update};
    while (learner->update.width < settings->replay_capacity) learner->update.width *= 2;
    learner->transition_width = 2 * shape->observation_size + shape->action_count + 3;
    int64_t most = MOST_STAGED_BYTES / ((int64_t)sizeof(float) * learner->transition_width);
    if (most > MOST_STAGED) most = MOST_STAGED;
    if (most > settings->replay_capacity) most = settings->replay_capacity;
    learner->staged_most = most > 1 ? (int32_t)most : 1;
    AmStatus status = load_learner(learner, error);
    if (status == AM_OK) *result = &learner->base;
    else cuda_free(&learner->base);
    return status;
}
