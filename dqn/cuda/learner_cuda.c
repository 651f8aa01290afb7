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
 * network, priorities and counters: 8 + 4 layers nodes (kernels: dqn.cu).
 */
#include <stdlib.h>
#include <string.h>

#include "base/cuda/unit.h"
#include "dqn/cuda/dqn.cu.h"
#include "dqn/cuda/memory_cuda.h"
#include "dqn/cuda/network_cuda.h"
#include "dqn/learner.h"

#define MOST_STAGED       64                 /* transitions */
#define MOST_STAGED_BYTES ((int64_t)1 << 20) /* of one half, unless a transition is larger */

enum { COUNTER_UPDATES, COUNTER_ADAM_STEPS, COUNTER_HELD, COUNTER_NEXT, COUNTER_COUNT };
enum { SUM_MAX_PRIORITY, SUM_LOSS, SUM_COUNT };
enum { PASS_ONLINE, PASS_TARGET, PASS_COUNT };

#define KERNELS(X) X(store) X(draw) X(gather) X(values) X(loss) X(adam) X(finish) X(build_tree)

typedef struct LearnerCuda {
    Learner base;
    CudaDevice device;
    CudaUnit unit;
    CUstream stream;
    CUgraphExec update; /* NULL until the first update */
#define KERNEL_MEMBER(name) CUfunction name;
    struct {
        KERNELS(KERNEL_MEMBER)
    } kernels;
#undef KERNEL_MEMBER
    NetworkCuda network;
    PassCuda passes[PASS_COUNT];
    Adam adam; /* its constants */
    DeviceMemory memory;
    int32_t tree_width; /* leaf i is tree[tree_width + i] */

    /* On the device. Parameters and what is like them: network_cuda.h's layout. */
    CUdeviceptr online, target, gradients, first, second;
    CUdeviceptr tree, owners, counters, sums;
    CUdeviceptr observations, next_observations, next_masks, actions, rewards, discounts; /* the replay */
    CUdeviceptr batch_rows, batch_masks, batch_actions, batch_rewards, batch_discounts;   /* one batch */
    CUdeviceptr indices, weights, errors, losses;
    CUdeviceptr staging, values;

    /* Pinned. */
    float *staged[2];      /* [staged_most, transition_width] each */
    float *rows, *answers; /* observations and values of one pass of PASS_ONLINE's rows */
    double *read_sums;     /* [SUM_COUNT] */
    CUevent copied[2];     /* after the copy out of a half */
    int32_t half, waiting; /* the half that fills, and its transitions */
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
    const LearnerSettings *settings = &learner->base.settings;
    int32_t rows = learner->waiting, half = learner->half, capacity = settings->replay_capacity;
    int32_t size = settings->shape.observation_size, actions = settings->shape.action_count;
    double alpha = settings->alpha;
    size_t bytes = sizeof(float) * (size_t)rows * (size_t)learner->transition_width;
    TRY(cuda_check(cuda.cuMemcpyHtoDAsync(learner->staging, learner->staged[half], bytes, learner->stream),
                   "copying transitions to the device", error));
    TRY(cuda_check(cuda.cuEventRecord(learner->copied[half], learner->stream), "recording an event", error));
    void *arguments[] = {&learner->staging,
                         &rows,
                         &size,
                         &actions,
                         &capacity,
                         &learner->tree_width,
                         &alpha,
                         &learner->counters,
                         &learner->sums,
                         &learner->observations,
                         &learner->next_observations,
                         &learner->next_masks,
                         &learner->actions,
                         &learner->rewards,
                         &learner->discounts,
                         &learner->tree};
    TRY(launch(learner, learner->kernels.store, 1, arguments, error));
    learner->waiting = 0;
    learner->half = 1 - half;
    return cuda_check(cuda.cuEventSynchronize(learner->copied[learner->half]),
                      "waiting for a copy to the device", error);
}

/* A transition as dqn_store reads it. */
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
    TRY(cuda_check(cuda.cuMemcpyHtoDAsync(learner->batch_rows, learner->rows, row_bytes, learner->stream),
                   "copying observations to the device", error));
    TRY(network_cuda_forward(&learner->network, pass, learner->online, learner->batch_rows, error));
    CUdeviceptr head = pass->outputs[learner->network.layout.layer_count - 1], to = learner->values;
    int32_t actions = shape->action_count, dueling = shape->dueling;
    void *arguments[] = {&head, &actions, &dueling, &to};
    TRY(launch_rows(learner, learner->kernels.values, rows, arguments, error));
    TRY(cuda_check(cuda.cuMemcpyDtoHAsync(learner->answers, to, value_bytes, learner->stream),
                   "copying values from the device", error));
    TRY(wait(learner, error));
    memcpy(values, learner->answers, value_bytes);
    return AM_OK;
}

static AmStatus cuda_values(Learner *base, const float *observations, int32_t count, float *values,
                            AmError *error) {
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

static AmStatus draw_batch(LearnerCuda *learner, AmError *error) {
    const LearnerSettings *settings = &learner->base.settings;
    int32_t batch = settings->batch;
    int32_t size = settings->shape.observation_size, actions = settings->shape.action_count;
    unsigned long long seed = settings->seed;
    double beta = settings->beta;
    void *draw[] = {&learner->tree,     &learner->tree_width, &batch,           &seed, &beta,
                    &learner->counters, &learner->indices,    &learner->weights};
    TRY(launch(learner, learner->kernels.draw, 1, draw, error));
    void *gather[] = {&learner->indices,
                      &batch,
                      &size,
                      &actions,
                      &learner->observations,
                      &learner->next_observations,
                      &learner->next_masks,
                      &learner->actions,
                      &learner->rewards,
                      &learner->discounts,
                      &learner->batch_rows,
                      &learner->batch_masks,
                      &learner->batch_actions,
                      &learner->batch_rewards,
                      &learner->batch_discounts};
    return launch_rows(learner, learner->kernels.gather, batch, gather, error);
}

static AmStatus run_networks(LearnerCuda *learner, AmError *error) {
    const LearnerSettings *settings = &learner->base.settings;
    NetworkCuda *network = &learner->network;
    const PassCuda *online = &learner->passes[PASS_ONLINE], *target = &learner->passes[PASS_TARGET];
    int32_t batch = settings->batch, actions = settings->shape.action_count;
    int32_t dueling = settings->shape.dueling, double_q = settings->double_q;
    int32_t head = network->layout.layer_count - 1;
    double huber = settings->huber;
    size_t states = sizeof(float) * (size_t)batch * (size_t)settings->shape.observation_size;
    TRY(network_cuda_forward(network, online, learner->online, learner->batch_rows, error));
    TRY(network_cuda_forward(network, target, learner->target, learner->batch_rows + states, error));
    CUdeviceptr online_head = online->outputs[head], target_head = target->outputs[head];
    void *arguments[] = {&online_head,
                         &target_head,
                         &learner->batch_masks,
                         &learner->batch_actions,
                         &learner->batch_rewards,
                         &learner->batch_discounts,
                         &learner->weights,
                         &batch,
                         &actions,
                         &dueling,
                         &double_q,
                         &huber,
                         &learner->errors,
                         &learner->losses,
                         &network->gradient};
    TRY(launch_rows(learner, learner->kernels.loss, batch, arguments, error));
    return network_cuda_backward(network, online, learner->online, learner->batch_rows, learner->gradients,
                                 error);
}

static AmStatus move_parameters(LearnerCuda *learner, AmError *error) {
    const LearnerSettings *settings = &learner->base.settings;
    Adam adam = learner->adam;
    int32_t count = (int32_t)learner->network.layout.parameter_count;
    int32_t target_update = settings->target_update;
    void *arguments[] = {&count,           &adam.learning_rate, &adam.beta1,        &adam.beta2,
                         &adam.epsilon,    &target_update,      &learner->counters, &learner->gradients,
                         &learner->online, &learner->target,    &learner->first,    &learner->second};
    int64_t blocks = ((int64_t)count + DQN_CUDA_THREADS - 1) / DQN_CUDA_THREADS;
    return launch(learner, learner->kernels.adam, blocks, arguments, error);
}

static AmStatus finish_update(LearnerCuda *learner, AmError *error) {
    const LearnerSettings *settings = &learner->base.settings;
    int32_t batch = settings->batch;
    double alpha = settings->alpha, epsilon = settings->priority_epsilon;
    void *arguments[] = {&learner->indices,    &learner->errors, &learner->losses,  &batch,
                         &learner->tree_width, &alpha,           &epsilon,          &learner->owners,
                         &learner->tree,       &learner->sums,   &learner->counters};
    return launch(learner, learner->kernels.finish, 1, arguments, error);
}

static AmStatus enqueue_update(LearnerCuda *learner, AmError *error) {
    TRY(draw_batch(learner, error));
    TRY(run_networks(learner, error));
    TRY(move_parameters(learner, error));
    return finish_update(learner, error);
}

/* Records one update as a graph; nothing of it runs. */
static AmStatus capture_update(LearnerCuda *learner, AmError *error) {
    CUgraph graph = NULL;
    TRY(cuda_check(cuda.cuStreamBeginCapture(learner->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "recording an update", error));
    AmStatus status = enqueue_update(learner, error);
    CUresult ended = cuda.cuStreamEndCapture(learner->stream, &graph);
    if (status == AM_OK) status = cuda_check(ended, "recording an update", error);
    if (status == AM_OK)
        status =
            cuda_check(cuda.cuGraphInstantiate(&learner->update, graph, 0), "preparing an update", error);
    if (graph) cuda.cuGraphDestroy(graph);
    return status;
}

static AmStatus cuda_learn(Learner *base, int32_t updates, AmError *error) {
    LearnerCuda *learner = (LearnerCuda *)base;
    TRY(cuda_device_use(&learner->device, error));
    TRY(flush(learner, error));
    if (!learner->update) TRY(capture_update(learner, error));
    for (int32_t i = 0; i < updates; i++)
        TRY(cuda_check(cuda.cuGraphLaunch(learner->update, learner->stream), "starting an update", error));
    return AM_OK;
}

static AmStatus read_sums(LearnerCuda *learner, AmError *error) {
    TRY(cuda_check(cuda.cuMemcpyDtoHAsync(learner->read_sums, learner->sums, SUM_COUNT * sizeof(double),
                                          learner->stream),
                   "reading the loss", error));
    return wait(learner, error);
}

static AmStatus cuda_take_loss(Learner *base, double *sum, AmError *error) {
    LearnerCuda *learner = (LearnerCuda *)base;
    TRY(cuda_device_use(&learner->device, error));
    TRY(read_sums(learner, error));
    *sum = learner->read_sums[SUM_LOSS];
    return cuda_check(
        cuda.cuMemsetD8Async(learner->sums + SUM_LOSS * sizeof(double), 0, sizeof(double), learner->stream),
        "clearing the loss", error);
}

static AmStatus cuda_get_parameters(Learner *base, float *parameters, AmError *error) {
    LearnerCuda *learner = (LearnerCuda *)base;
    TRY(cuda_device_use(&learner->device, error));
    return network_cuda_download(&learner->network, &base->network, parameters, learner->online, error);
}

static AmStatus set_counters(LearnerCuda *learner, int64_t updates, int64_t adam_steps, int32_t held,
                             int32_t next, AmError *error) {
    const int64_t counters[COUNTER_COUNT] = {[COUNTER_UPDATES] = updates,
                                             [COUNTER_ADAM_STEPS] = adam_steps,
                                             [COUNTER_HELD] = held,
                                             [COUNTER_NEXT] = next};
    TRY(cuda_check(cuda.cuMemcpyHtoDAsync(learner->counters, counters, sizeof(counters), learner->stream),
                   "setting the counters", error));
    return wait(learner, error);
}

static AmStatus cuda_set_parameters(Learner *base, const float *parameters, AmError *error) {
    LearnerCuda *learner = (LearnerCuda *)base;
    const NetworkCuda *network = &learner->network;
    size_t bytes = sizeof(float) * (size_t)network->layout.parameter_count;
    TRY(cuda_device_use(&learner->device, error));
    TRY(flush(learner, error));
    TRY(network_cuda_upload(network, &base->network, learner->online, parameters, error));
    TRY(network_cuda_upload(network, &base->network, learner->target, parameters, error));
    TRY(cuda_check(cuda.cuMemsetD8Async(learner->first, 0, bytes, learner->stream), "restarting Adam",
                   error));
    TRY(cuda_check(cuda.cuMemsetD8Async(learner->second, 0, bytes, learner->stream), "restarting Adam",
                   error));
    return set_counters(learner, base->updates, 0, base->count, base->next, error);
}

/* One array of the replay and its place in a state. */
typedef struct Part {
    CUdeviceptr own;
    void *copy;
    size_t bytes;
} Part;

enum { PART_COUNT = 7 };

static void list_parts(const LearnerCuda *learner, const LearnerState *state, Part parts[PART_COUNT]) {
    const NetworkShape *shape = &learner->base.settings.shape;
    size_t rows = (size_t)state->count, row_bytes = rows * sizeof(float) * (size_t)shape->observation_size;
    const Part all[PART_COUNT] = {
        {learner->observations, state->observations, row_bytes},
        {learner->next_observations, state->next_observations, row_bytes},
        {learner->next_masks, state->next_masks, rows * (size_t)shape->action_count},
        {learner->actions, state->actions, rows * sizeof(int32_t)},
        {learner->rewards, state->rewards, rows * sizeof(float)},
        {learner->discounts, state->discounts, rows * sizeof(float)},
        {learner->tree + sizeof(double) * (size_t)learner->tree_width, state->masses, rows * sizeof(double)},
    };
    memcpy(parts, all, sizeof(all));
}

static AmStatus cuda_get_state(Learner *base, LearnerState *state, AmError *error) {
    LearnerCuda *learner = (LearnerCuda *)base;
    const NetworkCuda *network = &learner->network;
    Part parts[PART_COUNT];
    TRY(cuda_device_use(&learner->device, error));
    TRY(flush(learner, error));
    TRY(network_cuda_download(network, &base->network, state->online, learner->online, error));
    TRY(network_cuda_download(network, &base->network, state->target, learner->target, error));
    TRY(network_cuda_download(network, &base->network, state->first, learner->first, error));
    TRY(network_cuda_download(network, &base->network, state->second, learner->second, error));
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
    void *arguments[] = {&learner->tree, &learner->tree_width};
    TRY(cuda_check(cuda.cuMemcpyHtoDAsync(learner->sums, sums, sizeof(sums), learner->stream),
                   "setting the priorities", error));
    TRY(launch(learner, learner->kernels.build_tree, 1, arguments, error));
    return wait(learner, error);
}

static AmStatus cuda_set_state(Learner *base, const LearnerState *state, AmError *error) {
    LearnerCuda *learner = (LearnerCuda *)base;
    const NetworkCuda *network = &learner->network;
    Part parts[PART_COUNT];
    TRY(cuda_device_use(&learner->device, error));
    learner->waiting = 0;
    TRY(network_cuda_upload(network, &base->network, learner->online, state->online, error));
    TRY(network_cuda_upload(network, &base->network, learner->target, state->target, error));
    TRY(network_cuda_upload(network, &base->network, learner->first, state->first, error));
    TRY(network_cuda_upload(network, &base->network, learner->second, state->second, error));
    TRY(cuda_check(cuda.cuMemsetD8Async(learner->tree, 0, 2 * sizeof(double) * (size_t)learner->tree_width,
                                        learner->stream),
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
        if (learner->update) cuda.cuGraphExecDestroy(learner->update);
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
    /* The next states begin behind the states. */
    int64_t offset = (int64_t)sizeof(float) * batch * settings->shape.observation_size;
    int32_t alignment = offset % 16 == 0 ? 16 : offset % 8 == 0 ? 8 : 4;
    NetworkCuda *network = &learner->network;
    TRY(network_cuda_create(network, &learner->base.network, batch, &learner->unit, learner->stream, error));
    TRY(network_cuda_pass(network, &learner->passes[PASS_ONLINE], settings->double_q ? 2 * batch : batch,
                          true, 16, &learner->memory, error));
    TRY(network_cuda_pass(network, &learner->passes[PASS_TARGET], batch, false, alignment, &learner->memory,
                          error));
    network_cuda_reserve(network, learner->passes, PASS_COUNT, &learner->memory);
    return AM_OK;
}

static void reserve_arrays(LearnerCuda *learner) {
    const LearnerSettings *settings = &learner->base.settings;
    int64_t number = sizeof(float), capacity = settings->replay_capacity, batch = settings->batch;
    int64_t size = settings->shape.observation_size, actions = settings->shape.action_count;
    int64_t parameters = learner->network.layout.parameter_count, width = learner->tree_width;
    const struct {
        CUdeviceptr *place;
        int64_t bytes;
    } arrays[] = {
        {&learner->online, parameters * number},
        {&learner->target, parameters * number},
        {&learner->gradients, parameters * number},
        {&learner->first, parameters * number},
        {&learner->second, parameters * number},
        {&learner->tree, 2 * width * (int64_t)sizeof(double)},
        {&learner->owners, capacity * (int64_t)sizeof(int32_t)},
        {&learner->counters, COUNTER_COUNT * (int64_t)sizeof(int64_t)},
        {&learner->sums, SUM_COUNT * (int64_t)sizeof(double)},
        {&learner->observations, capacity * size * number},
        {&learner->next_observations, capacity * size * number},
        {&learner->next_masks, capacity * actions},
        {&learner->actions, capacity * (int64_t)sizeof(int32_t)},
        {&learner->rewards, capacity * number},
        {&learner->discounts, capacity * number},
        {&learner->batch_rows, 2 * batch * size * number},
        {&learner->batch_masks, batch * actions},
        {&learner->batch_actions, batch * (int64_t)sizeof(int32_t)},
        {&learner->batch_rewards, batch * number},
        {&learner->batch_discounts, batch * number},
        {&learner->indices, batch * (int64_t)sizeof(int32_t)},
        {&learner->weights, batch * number},
        {&learner->errors, batch * number},
        {&learner->losses, batch * (int64_t)sizeof(double)},
        {&learner->staging, (int64_t)learner->staged_most * learner->transition_width * number},
        {&learner->values, learner->passes[PASS_ONLINE].rows * actions * number},
    };
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++)
        memory_reserve(&learner->memory, arrays[i].place, arrays[i].bytes);
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

static void set_sizes(LearnerCuda *learner) {
    const LearnerSettings *settings = &learner->base.settings;
    learner->transition_width = 2 * settings->shape.observation_size + settings->shape.action_count + 3;
    int64_t most = MOST_STAGED_BYTES / ((int64_t)sizeof(float) * learner->transition_width);
    if (most > MOST_STAGED) most = MOST_STAGED;
    if (most > settings->replay_capacity) most = settings->replay_capacity;
    learner->staged_most = most > 1 ? (int32_t)most : 1;
    learner->tree_width = 1;
    while (learner->tree_width < settings->replay_capacity) learner->tree_width *= 2;
}

/* Runs the products and convolutions once over zeros: libraries load their code
 * now and not while an update is recorded, and what cannot run says so now. */
static AmStatus warm_up(LearnerCuda *learner, AmError *error) {
    TRY(run_networks(learner, error));
    return wait(learner, error);
}

static AmStatus prepare(LearnerCuda *learner, AmError *error) {
    TRY(cuda_device_open(&learner->device, 0, error));
    TRY(cuda_check(cuda.cuStreamCreate(&learner->stream, CU_STREAM_NON_BLOCKING), "making a stream", error));
    TRY(load_kernels(learner, error));
    TRY(prepare_networks(learner, error));
    learner->adam = adam_constants(learner->base.settings.learning_rate);
    reserve_arrays(learner);
    TRY(memory_allocate(&learner->memory, &learner->device, learner->stream, error));
    TRY(allocate_pinned(learner, error));
    TRY(warm_up(learner, error));
    return set_priorities(learner, 1, error);
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
    set_sizes(learner);
    AmStatus status = prepare(learner, error);
    if (status == AM_OK) *result = &learner->base;
    else cuda_free(&learner->base);
    return status;
}
