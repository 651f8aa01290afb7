/* Saving and loading an agent.
 *
 * One function walks over the state and either appends every field to a Text or reads it from the
 * bytes, so that both directions agree by construction. The format is a magic number, the settings
 * and sizes, then the arrays, in this machine's byte order (the magic number shows it, and its last
 * digit is the version of the format). Only replay rows in use are kept. The sum tree is rebuilt
 * from its leaves, which gives the same inner nodes because each is the sum of its two children.
 * The device is not part of the state: an agent saved on one device continues on another.
 *
 * Input is not trusted: memory is allocated in proportion to the length, and all values on which
 * later code relies are checked.
 */
#include <math.h>
#include <string.h>

#include "dqn/agent_state.h"

#define MAGIC          0x33544e4741514441 /* "ADQAGNT3", little-endian */
#define MOST_UPDATES   ((int64_t)1 << 53)
#define FREE_BYTES     ((int64_t)64 << 20)
#define BYTES_PER_BYTE 64 /* memory granted per byte of the file, beyond FREE_BYTES */

typedef struct Stream {
    Text *out;         /* saving */
    const uint8_t *in; /* loading */
    size_t left;
    bool failed; /* the bytes ended too early */
} Stream;

/* Writes the bytes, or reads them: one list of fields serves both directions. */
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

/* Transfers the header, which comes before the agent exists and contains its size. */
static void transfer_header(Stream *stream, uint64_t *magic, AgentSettings *settings,
                            int32_t *observation_size, int32_t *action_count) {
    transfer(stream, magic, sizeof(*magic));
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
    TRANSFER(stream, settings->convolution_count);
    TRANSFER(stream, settings->channels);
    TRANSFER(stream, settings->length);
    TRANSFER(stream, settings->convolutions);
    TRANSFER(stream, settings->hidden_count);
    TRANSFER(stream, settings->hidden);
    transfer_flag(stream, &settings->double_q);
    transfer_flag(stream, &settings->dueling);
    transfer_flag(stream, &settings->noisy);
    TRANSFER(stream, settings->atoms);
    TRANSFER(stream, settings->v_min);
    TRANSFER(stream, settings->v_max);
    TRANSFER(stream, settings->environments);
    TRANSFER(stream, settings->seed);
    transfer(stream, observation_size, sizeof(*observation_size));
    transfer(stream, action_count, sizeof(*action_count));
}

/* Transfers the counters, which come before the arrays and contain their sizes. */
static void transfer_counters(Stream *stream, LearnerState *state) {
    TRANSFER(stream, state->updates);
    TRANSFER(stream, state->adam_steps);
    TRANSFER(stream, state->count);
    TRANSFER(stream, state->next);
    TRANSFER(stream, state->max_priority);
}

static void transfer_arrays(Stream *stream, const LearnerState *state, const NetworkShape *shape) {
    size_t bytes = sizeof(float) * (size_t)state->parameter_count, rows = (size_t)state->count;
    size_t row_bytes = rows * sizeof(float) * (size_t)shape->observation_size;
    transfer(stream, state->online, bytes);
    transfer(stream, state->target, bytes);
    transfer(stream, state->first, bytes);
    transfer(stream, state->second, bytes);
    transfer(stream, state->observations, row_bytes);
    transfer(stream, state->next_observations, row_bytes);
    transfer(stream, state->next_masks, rows * (size_t)shape->action_count);
    transfer(stream, state->actions, rows * sizeof(int32_t));
    transfer(stream, state->rewards, rows * sizeof(float));
    transfer(stream, state->discounts, rows * sizeof(float));
    transfer(stream, state->masses, rows * sizeof(double));
}

static AmStatus transfer_waiting(Stream *stream, Agent *agent, NStep *waiting, AmError *error) {
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

static AmStatus transfer_acting(Stream *stream, Agent *agent, AmError *error) {
    TRANSFER(stream, agent->random.state);
    TRANSFER(stream, agent->explored);
    TRANSFER(stream, agent->noise_draws);
    for (int32_t i = 0; i < agent->settings.environments && !stream->failed; i++)
        TRY(transfer_waiting(stream, agent, &agent->waiting[i], error));
    return AM_OK;
}

/* Writes all parts of an agent, in the order in which they are read. */
AmStatus agent_save(Agent *agent, Text *bytes, AmError *error) {
    Learner *learner = agent->learner;
    LearnerState state;
    Arena scratch = {0};
    Stream stream = {.out = bytes};
    uint64_t magic = MAGIC;
    int32_t size = agent->shape.observation_size, actions = agent->shape.action_count;
    AmStatus status;
    TRY(agent_check(agent, error));
    TRY_OR_FAIL(learner_state_create(&state, &scratch, learner, learner->count, error));
    TRY_OR_FAIL(learner_get_state(learner, &state, error));
    transfer_header(&stream, &magic, &agent->settings, &size, &actions);
    transfer_counters(&stream, &state);
    transfer_arrays(&stream, &state, &agent->shape);
    TRY_OR_FAIL(transfer_acting(&stream, agent, error));
    if (bytes->failed) status = am_fail_memory(error, (int64_t)bytes->capacity * 2);
fail:
    arena_free(&scratch);
    return status;
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

static bool are_masses(const double *numbers, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (!isfinite(numbers[i]) || numbers[i] <= 0) return false;
    return true;
}

/* Checks the invariants of the learner. */
static bool state_is_sound(const LearnerState *state, const NetworkShape *shape, int32_t capacity) {
    const float most = 3.402823466e+38f; /* any finite number */
    size_t parameters = (size_t)state->parameter_count, rows = (size_t)state->count;
    size_t size = (size_t)shape->observation_size;
    int32_t next = state->count < capacity ? state->count : state->next;
    return in_range(state->online, parameters, -most, most) &&
           in_range(state->target, parameters, -most, most) &&
           in_range(state->first, parameters, -most, most) && in_range(state->second, parameters, 0, most) &&
           state->updates >= 0 && state->adam_steps >= 0 && state->adam_steps <= state->updates &&
           state->updates <= MOST_UPDATES && state->next == next && next >= 0 && next < capacity &&
           isfinite(state->max_priority) && state->max_priority > 0 &&
           in_range(state->observations, rows * size, -most, most) &&
           in_range(state->next_observations, rows * size, -most, most) &&
           in_range(state->rewards, rows, -most, most) && in_range(state->discounts, rows, 0, 1) &&
           are_actions(state->actions, state->count, shape->action_count) &&
           are_masses(state->masses, state->count);
}

static bool waiting_is_sound(const NStep *waiting) {
    const float most = 3.402823466e+38f;
    size_t size = (size_t)waiting->observation_size;
    return are_actions(waiting->actions, waiting->count, waiting->action_count) &&
           are_finite(waiting->rewards, waiting->count) &&
           in_range(waiting->observations, (size_t)waiting->count * size, -most, most) &&
           in_range(waiting->last_observation, size, -most, most);
}

static bool acting_is_sound(const Agent *agent) {
    const uint64_t *random = agent->random.state;
    for (int32_t i = 0; i < agent->settings.environments; i++)
        if (!waiting_is_sound(&agent->waiting[i])) return false;
    return agent->explored >= 0 && agent->noise_draws >= 0 &&
           (random[0] | random[1] | random[2] | random[3]) != 0;
}

/* Takes the state from the bytes; stream->failed if they are not one. */
static AmStatus load_state(Stream *stream, Agent *agent, Arena *scratch, AmError *error) {
    LearnerState counters = {0}, state;
    int32_t capacity = agent->settings.replay_capacity;
    transfer_counters(stream, &counters);
    /* A transition takes more than its two observations. */
    size_t row_bytes = 2 * sizeof(float) * (size_t)agent->shape.observation_size;
    if (stream->failed || counters.count < 0 || counters.count > capacity ||
        (size_t)counters.count > stream->left / row_bytes) {
        stream->failed = true;
        return AM_OK;
    }
    TRY(learner_state_create(&state, scratch, agent->learner, counters.count, error));
    state.updates = counters.updates;
    state.adam_steps = counters.adam_steps;
    state.next = counters.next;
    state.max_priority = counters.max_priority;
    transfer_arrays(stream, &state, &agent->shape);
    TRY(transfer_acting(stream, agent, error));
    if (stream->failed || stream->left > 0 || !state_is_sound(&state, &agent->shape, capacity) ||
        !acting_is_sound(agent)) {
        stream->failed = true;
        return AM_OK;
    }
    return learner_set_state(agent->learner, &state, error);
}

AmStatus agent_load(Agent **result, DqnDevice device, const void *bytes, size_t length, const char *source,
                    AmError *error) {
    *result = NULL;
    Stream stream = {.in = bytes, .left = length};
    uint64_t magic = 0;
    AgentSettings settings = {.device = device};
    int32_t size = 0, actions = 0;
    transfer_header(&stream, &magic, &settings, &size, &actions);
    if (stream.failed || magic != MAGIC)
        return am_fail(error, AM_ERROR_INPUT, source,
                       "not the saved state of an agent, or that of another version");
    int64_t granted = FREE_BYTES + BYTES_PER_BYTE * (int64_t)length;
    Agent *agent = NULL;
    Arena scratch = {0};
    AmError reason = {0};
    AmStatus status = agent_create_within(&agent, &settings, size, actions, granted, &reason);
    if (status == AM_ERROR_RUNTIME) return am_fail(error, status, reason.source, "%s", reason.text);
    if (status != AM_OK)
        return am_fail(error, AM_ERROR_INPUT, source, "the saved agent cannot be made: %s", reason.text);
    status = load_state(&stream, agent, &scratch, error);
    if (status == AM_OK && stream.failed)
        status = am_fail(error, AM_ERROR_INPUT, source, "the saved agent is damaged or has the wrong length");
    arena_free(&scratch);
    if (status == AM_OK) *result = agent;
    else agent_free(agent);
    return status;
}
