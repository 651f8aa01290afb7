/* n-step returns. The waiting steps lie oldest first in plain
 * arrays; n is small, so the oldest leaves by moving the rest down. */
#include "dqn/n_step.h"

#include <math.h>
#include <string.h>

#define MOST_STEPS (1 << 24)

AmStatus n_step_create(NStep *queue, Arena *arena, int32_t n, double gamma, int32_t observation_size,
                       int32_t action_count, AmError *error) {
    *queue =
        (NStep){.n = n, .gamma = gamma, .observation_size = observation_size, .action_count = action_count};
    queue->last_observation = ARENA_ARRAY(arena, float, observation_size);
    queue->last_mask = ARENA_ARRAY(arena, uint8_t, action_count);
    if (!queue->last_observation || !queue->last_mask)
        return am_fail_memory(error, (int64_t)sizeof(float) * observation_size + action_count);
    return n_step_reserve(queue, arena, 8, error);
}

AmStatus n_step_reserve(NStep *queue, Arena *arena, int32_t count, AmError *error) {
    if (count <= queue->capacity) return AM_OK;
    if (count > MOST_STEPS)
        return am_fail(error, AM_ERROR_USAGE, "", "an episode of more than %d steps", MOST_STEPS);
    size_t old = (size_t)queue->capacity, capacity = old ? old : 8;
    while (capacity < (size_t)count) capacity *= 2;
    size_t row = sizeof(float) * (size_t)queue->observation_size;
    float *observations = arena_grow(arena, queue->observations, old * row, capacity * row);
    int32_t *actions = arena_grow(arena, queue->actions, old * sizeof(int32_t), capacity * sizeof(int32_t));
    double *rewards = arena_grow(arena, queue->rewards, old * sizeof(double), capacity * sizeof(double));
    if (!observations || !actions || !rewards)
        return am_fail_memory(error, (int64_t)(capacity * (row + sizeof(int32_t) + sizeof(double))));
    queue->observations = observations;
    queue->actions = actions;
    queue->rewards = rewards;
    queue->capacity = (int32_t)capacity;
    return AM_OK;
}

/* Stores waiting step `index` with the given return; `terminal` cuts the bootstrap. */
static AmStatus store(const NStep *queue, const NStepSink *sink, int32_t index, double reward,
                      double discount, bool terminal, AmError *error) {
    const Transition transition = {.observation =
                                       queue->observations + (size_t)index * (size_t)queue->observation_size,
                                   .next_observation = queue->last_observation,
                                   .next_mask = queue->last_mask,
                                   .action = queue->actions[index],
                                   .reward = reward,
                                   .discount = terminal ? 0 : discount};
    return sink->store(sink->user, &transition, error);
}

/* Stores every waiting step with the return up to the newest one, newest first,
 * so that each return follows from the one after it. */
static AmStatus flush(NStep *queue, const NStepSink *sink, bool terminal, AmError *error) {
    double reward = 0, discount = 1;
    int32_t count = queue->count;
    queue->count = 0;
    for (int32_t i = count - 1; i >= 0; i--) {
        reward = queue->rewards[i] + queue->gamma * reward;
        discount *= queue->gamma;
        TRY(store(queue, sink, i, reward, discount, terminal, error));
    }
    return AM_OK;
}

static AmStatus store_oldest(NStep *queue, const NStepSink *sink, AmError *error) {
    double reward = 0;
    for (int32_t i = queue->count - 1; i >= 0; i--) reward = queue->rewards[i] + queue->gamma * reward;
    TRY(store(queue, sink, 0, reward, pow(queue->gamma, queue->count), false, error));
    size_t rest = (size_t)queue->count - 1, size = (size_t)queue->observation_size;
    memmove(queue->observations, queue->observations + size, rest * size * sizeof(float));
    memmove(queue->actions, queue->actions + 1, rest * sizeof(int32_t));
    memmove(queue->rewards, queue->rewards + 1, rest * sizeof(double));
    queue->count--;
    return AM_OK;
}

AmStatus n_step_observe(NStep *queue, Arena *arena, const NStepSink *sink, const ObservedStep *step,
                        AmError *error) {
    TRY(n_step_reserve(queue, arena, queue->count + 1, error));
    size_t size = (size_t)queue->observation_size, actions = (size_t)queue->action_count;
    memcpy(queue->observations + (size_t)queue->count * size, step->observation, size * sizeof(float));
    queue->actions[queue->count] = step->action;
    queue->rewards[queue->count] = step->reward;
    queue->count++;
    if (step->terminal) return flush(queue, sink, true, error);
    memcpy(queue->last_observation, step->next_observation, size * sizeof(float));
    for (size_t a = 0; a < actions; a++) queue->last_mask[a] = !step->next_mask || step->next_mask[a];
    if (queue->n > 0 && queue->count >= queue->n) return store_oldest(queue, sink, error);
    return AM_OK;
}

AmStatus n_step_truncate(NStep *queue, const NStepSink *sink, AmError *error) {
    return flush(queue, sink, false, error);
}
