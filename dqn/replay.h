/* Replay: the last `capacity` transitions, drawn by priority (Schaul et al.
 * 2016, proportional variant).
 *
 *   P(i) = p_i^alpha / sum_k p_k^alpha,       p_i = |delta_i| + epsilon
 *   w_i  = (N P(i))^-beta / max over the batch
 *
 * A new transition takes the largest priority seen so far; that maximum is kept
 * raw and raised to alpha once, when the leaf is written. Priorities come from
 * the unweighted error; the weight multiplies the gradient alone.
 *
 * Sampling keeps no generator: stratum i of update t draws
 * random_uniform_at(seed, t, i), so that a batch depends on the state of the
 * replay and the number of the update alone, on every device.
 */
#ifndef DQN_REPLAY_H
#define DQN_REPLAY_H

#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "dqn/sum_tree.h"
#include "dqn/transition.h"

typedef struct Replay {
    int32_t observation_size, action_count, capacity;
    double alpha, beta, epsilon;
    int32_t count, next;                     /* transitions held; the place written next */
    double max_priority;                     /* raw */
    SumTree tree;                            /* p_i^alpha */
    float *observations, *next_observations; /* [capacity, observation_size] */
    uint8_t *next_masks;                     /* [capacity, action_count], 1 = legal */
    int32_t *actions;
    float *rewards, *discounts;
} Replay;

/* Priorities (|delta| + epsilon)^alpha, with importance weights of exponent beta. */
typedef struct ReplayPriorities {
    double alpha, beta, epsilon;
} ReplayPriorities;

/* Creates a replay. Sizes are positive; the arena owns the memory. */
AmStatus replay_create(Replay *replay, Arena *arena, int32_t observation_size, int32_t action_count,
                       int32_t capacity, ReplayPriorities priorities, AmError *error);

/* Stores a copy over the oldest transition. */
void replay_add(Replay *replay, const Transition *transition);

/* Draws `batch` indices, one from each of `batch` equal parts of the mass, with
 * their importance weights. `update` counts the draws under `seed`. The replay
 * holds at least one transition. */
void replay_sample(const Replay *replay, uint64_t seed, int64_t update, int32_t batch, int32_t *indices,
                   float *weights);

/* Sets the priorities of indices[count] from their errors. An index may occur
 * twice; the last error counts. An error that is not finite gives the largest
 * priority. */
void replay_update(Replay *replay, const int32_t *indices, const float *errors, int32_t count);

#endif
