/* Replay: the last `capacity` transitions, drawn by priority (Schaul et al. 2016). A ring of rows of equal
 * size lies beside the sum tree. */
#include "dqn/replay.h"

#include <math.h>
#include <string.h>

#include "base/random.h"

AmStatus replay_create(Replay *replay, Arena *arena, int32_t observation_size, int32_t action_count,
                       int32_t capacity, ReplayPriorities priorities, AmError *error) {
    *replay = (Replay){.observation_size = observation_size,
                       .action_count = action_count,
                       .capacity = capacity,
                       .alpha = priorities.alpha,
                       .beta = priorities.beta,
                       .epsilon = priorities.epsilon,
                       .max_priority = 1};
    TRY(sum_tree_create(&replay->tree, arena, capacity, error));
    int64_t rows = capacity;
    replay->observations = ARENA_ARRAY(arena, float, rows *observation_size);
    replay->next_observations = ARENA_ARRAY(arena, float, rows *observation_size);
    replay->next_masks = ARENA_ARRAY(arena, uint8_t, rows * action_count);
    replay->actions = ARENA_ARRAY(arena, int32_t, rows);
    replay->rewards = ARENA_ARRAY(arena, float, rows);
    replay->discounts = ARENA_ARRAY(arena, float, rows);
    if (!replay->observations || !replay->next_observations || !replay->next_masks || !replay->actions ||
        !replay->rewards || !replay->discounts)
        return am_fail_memory(error,
                              rows * (2 * (int64_t)sizeof(float) * observation_size + action_count + 12));
    return AM_OK;
}

void replay_add(Replay *replay, const Transition *transition) {
    int32_t at = replay->next;
    size_t size = (size_t)replay->observation_size, actions = (size_t)replay->action_count;
    float *next_observation = replay->next_observations + (size_t)at * size;
    uint8_t *next_mask = replay->next_masks + (size_t)at * actions;
    memcpy(replay->observations + (size_t)at * size, transition->observation, size * sizeof(float));
    if (transition->discount == 0) {
        memset(next_observation, 0, size * sizeof(float));
        memset(next_mask, 1, actions);
    } else {
        memcpy(next_observation, transition->next_observation, size * sizeof(float));
        for (size_t a = 0; a < actions; a++)
            next_mask[a] = !transition->next_mask || transition->next_mask[a];
    }
    replay->actions[at] = transition->action;
    replay->rewards[at] = (float)transition->reward;
    replay->discounts[at] = (float)transition->discount;
    sum_tree_set(&replay->tree, at, pow(replay->max_priority, replay->alpha));
    replay->next = at + 1 == replay->capacity ? 0 : at + 1;
    if (replay->count < replay->capacity) replay->count++;
}

void replay_sample(const Replay *replay, uint64_t seed, int64_t update, int32_t batch, int32_t *indices,
                   float *weights) {
    double total = sum_tree_total(&replay->tree), largest = 0;
    for (int32_t i = 0; i < batch; i++) {
        double position = total * (i + random_uniform_at(seed, (uint64_t)update, (uint64_t)i)) / batch;
        int32_t index = sum_tree_find(&replay->tree, position);
        if (index < 0 || index >= replay->count) index = replay->count - 1;
        double probability = sum_tree_get(&replay->tree, index) / total;
        double weight = pow(replay->count * probability, -replay->beta);
        indices[i] = index;
        weights[i] = (float)weight;
        if (weight > largest) largest = weight;
    }
    for (int32_t i = 0; i < batch; i++) weights[i] = (float)(weights[i] / largest);
}

void replay_update(Replay *replay, const int32_t *indices, const float *errors, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        double priority = fabs((double)errors[i]) + replay->epsilon;
        if (!isfinite(priority)) priority = replay->max_priority;
        if (priority > replay->max_priority) replay->max_priority = priority;
        sum_tree_set(&replay->tree, indices[i], pow(priority, replay->alpha));
    }
}
