/* Saving and loading an agent.
 *
 * One function walks over the state and either appends every field to a Text or
 * takes it from the bytes, so that both directions agree by construction. The
 * form is a magic number, the settings and sizes, then the arrays, in this
 * machine's byte order (the magic number tells). Only replay rows in use are
 * kept. The sum tree is rebuilt from its leaves, which gives the same inner
 * nodes because each is the sum of its two children.
 *
 * What is read is not trusted: memory is asked for in proportion to the length,
 * and everything that later code relies on is checked.
 */
#include <math.h>
#include <string.h>

#include "dqn/agent_state.h"

#define MAGIC          0x31544e4741514441 /* "ADQAGNT1", little-endian */
#define FREE_BYTES     ((int64_t)64 << 20)
#define BYTES_PER_BYTE 64 /* memory granted per byte of the file, beyond FREE_BYTES */

typedef struct Stream {
    Text *out;         /* saving */
    const uint8_t *in; /* loading */
    size_t left;
    bool failed; /* the bytes ended too early */
} Stream;

static void transfer(Stream *stream, void *data, size_t bytes) {
    if (stream->out) {
        text_append_bytes(stream->out, data, bytes);
    } else if (stream->failed || bytes > stream->left) {
        stream->failed = true;
    } else {
        if (bytes > 0) memcpy(data, stream->in, bytes);
        stream->in += bytes;
        stream->left -= bytes;
    }
}

#define TRANSFER(stream, field) transfer((stream), &(field), sizeof(field))

static void transfer_flag(Stream *stream, bool *flag) {
    uint8_t byte = *flag;
    transfer(stream, &byte, 1);
    *flag = byte != 0;
}

static void transfer_settings(Stream *stream, AgentSettings *settings) {
    TRANSFER(stream, settings->gamma);
    TRANSFER(stream, settings->learning_rate);
    TRANSFER(stream, settings->epsilon_start);
    TRANSFER(stream, settings->epsilon_end);
    TRANSFER(stream, settings->epsilon_decay);
    TRANSFER(stream, settings->batch);
    TRANSFER(stream, settings->target_update);
    TRANSFER(stream, settings->replay_capacity);
    TRANSFER(stream, settings->alpha);
    TRANSFER(stream, settings->beta);
    TRANSFER(stream, settings->priority_epsilon);
    TRANSFER(stream, settings->huber);
    TRANSFER(stream, settings->n_step);
    TRANSFER(stream, settings->hidden_count);
    TRANSFER(stream, settings->hidden);
    transfer_flag(stream, &settings->double_q);
    transfer_flag(stream, &settings->dueling);
    TRANSFER(stream, settings->seed);
}

/* The header comes before the agent exists: it says how large that one is. */
static void transfer_header(Stream *stream, uint64_t *magic, AgentSettings *settings,
                            int32_t *observation_size, int32_t *action_count) {
    transfer(stream, magic, sizeof(*magic));
    transfer_settings(stream, settings);
    transfer(stream, observation_size, sizeof(*observation_size));
    transfer(stream, action_count, sizeof(*action_count));
}

static void transfer_networks(Stream *stream, Agent *agent) {
    size_t bytes = sizeof(float) * (size_t)agent->network.parameter_count;
    transfer(stream, agent->online, bytes);
    transfer(stream, agent->target, bytes);
    transfer(stream, agent->adam.first, bytes);
    transfer(stream, agent->adam.second, bytes);
    TRANSFER(stream, agent->adam.step);
    TRANSFER(stream, agent->random.state);
    TRANSFER(stream, agent->explored);
    TRANSFER(stream, agent->updates);
}

static void transfer_replay(Stream *stream, Replay *replay) {
    TRANSFER(stream, replay->count);
    TRANSFER(stream, replay->next);
    TRANSFER(stream, replay->max_priority);
    if (replay->count < 0 || replay->count > replay->capacity) stream->failed = true;
    if (stream->failed) return;
    size_t rows = (size_t)replay->count, size = (size_t)replay->observation_size;
    transfer(stream, replay->observations, rows * size * sizeof(float));
    transfer(stream, replay->next_observations, rows * size * sizeof(float));
    transfer(stream, replay->next_masks, rows * (size_t)replay->action_count);
    transfer(stream, replay->actions, rows * sizeof(int32_t));
    transfer(stream, replay->rewards, rows * sizeof(float));
    transfer(stream, replay->discounts, rows * sizeof(float));
    for (int32_t i = 0; i < replay->count; i++) {
        double mass = sum_tree_get(&replay->tree, i);
        TRANSFER(stream, mass);
        if (!isfinite(mass) || mass <= 0) stream->failed = true;
        if (stream->failed) return;
        if (stream->in) sum_tree_set(&replay->tree, i, mass);
    }
}

static AmStatus transfer_waiting(Stream *stream, Agent *agent, AmError *error) {
    NStep *waiting = &agent->waiting;
    int32_t count = waiting->count;
    size_t size = (size_t)waiting->observation_size;
    TRANSFER(stream, count);
    if (count < 0 || (stream->in && (size_t)count > stream->left / (size * sizeof(float))))
        stream->failed = true;
    if (stream->failed) return AM_OK;
    if (stream->in) TRY(n_step_reserve(waiting, &agent->arena, count, error));
    waiting->count = count;
    transfer(stream, waiting->observations, (size_t)count * size * sizeof(float));
    transfer(stream, waiting->actions, (size_t)count * sizeof(int32_t));
    transfer(stream, waiting->rewards, (size_t)count * sizeof(double));
    transfer(stream, waiting->last_observation, size * sizeof(float));
    transfer(stream, waiting->last_mask, (size_t)waiting->action_count);
    return AM_OK;
}

static AmStatus transfer_state(Stream *stream, Agent *agent, AmError *error) {
    transfer_networks(stream, agent);
    transfer_replay(stream, &agent->replay);
    return transfer_waiting(stream, agent, error);
}

AmStatus agent_save(const Agent *agent, Text *bytes, AmError *error) {
    Stream stream = {.out = bytes};
    Agent view = *agent; /* saving changes nothing that the copy points at */
    uint64_t magic = MAGIC;
    int32_t size = view.network.shape.observation_size, actions = view.network.shape.action_count;
    transfer_header(&stream, &magic, &view.settings, &size, &actions);
    TRY(transfer_state(&stream, &view, error));
    if (bytes->failed) return am_fail_memory(error, (int64_t)bytes->capacity * 2);
    return AM_OK;
}

static bool in_range(const float *numbers, size_t count, float least, float most) {
    for (size_t i = 0; i < count; i++)
        if (!(numbers[i] >= least && numbers[i] <= most)) return false;
    return true;
}

static bool are_actions(const int32_t *actions, int32_t count, int32_t action_count) {
    for (int32_t i = 0; i < count; i++)
        if (actions[i] < 0 || actions[i] >= action_count) return false;
    return true;
}

static bool are_finite(const double *numbers, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (!isfinite(numbers[i])) return false;
    return true;
}

/* What the rest of the agent takes for granted. */
static bool state_is_sound(const Agent *agent) {
    const Replay *replay = &agent->replay;
    const NStep *waiting = &agent->waiting;
    const float most = 3.402823466e+38f; /* any finite number */
    size_t parameters = (size_t)agent->network.parameter_count, rows = (size_t)replay->count;
    size_t size = (size_t)replay->observation_size;
    int32_t next = replay->count < replay->capacity ? replay->count : replay->next;
    const uint64_t *random = agent->random.state;
    return in_range(agent->online, parameters, -most, most) &&
           in_range(agent->target, parameters, -most, most) &&
           in_range(agent->adam.first, parameters, -most, most) &&
           in_range(agent->adam.second, parameters, 0, most) && agent->adam.step >= 0 &&
           agent->explored >= 0 && agent->updates >= 0 &&
           (random[0] | random[1] | random[2] | random[3]) != 0 && replay->next == next && next >= 0 &&
           (next < replay->capacity || replay->count < replay->capacity) && isfinite(replay->max_priority) &&
           replay->max_priority > 0 && in_range(replay->observations, rows * size, -most, most) &&
           in_range(replay->next_observations, rows * size, -most, most) &&
           in_range(replay->rewards, rows, -most, most) && in_range(replay->discounts, rows, 0, 1) &&
           are_actions(replay->actions, replay->count, replay->action_count) &&
           are_actions(waiting->actions, waiting->count, waiting->action_count) &&
           are_finite(waiting->rewards, waiting->count) &&
           in_range(waiting->observations, (size_t)waiting->count * size, -most, most) &&
           in_range(waiting->last_observation, size, -most, most);
}

AmStatus agent_load(Agent **result, const void *bytes, size_t length, const char *source, AmError *error) {
    *result = NULL;
    Stream stream = {.in = bytes, .left = length};
    uint64_t magic = 0;
    AgentSettings settings = {0};
    int32_t size = 0, actions = 0;
    transfer_header(&stream, &magic, &settings, &size, &actions);
    if (stream.failed || magic != MAGIC)
        return am_fail(error, AM_ERROR_INPUT, source, "not the saved state of an agent");
    int64_t granted = FREE_BYTES + BYTES_PER_BYTE * (int64_t)length;
    Agent *agent = NULL;
    AmError reason = {0};
    if (agent_create_within(&agent, &settings, size, actions, granted, &reason) != AM_OK)
        return am_fail(error, AM_ERROR_INPUT, source, "the saved agent cannot be made: %s", reason.text);
    AmStatus status = AM_OK;
    TRY_OR_FAIL(transfer_state(&stream, agent, error));
    if (stream.failed || stream.left > 0 || !state_is_sound(agent)) {
        status = am_fail(error, AM_ERROR_INPUT, source, "the saved agent is damaged or has the wrong length");
        goto fail;
    }
    *result = agent;
    return AM_OK;
fail:
    agent_free(agent);
    return status;
}
