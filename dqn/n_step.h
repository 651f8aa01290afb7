/* n-step returns: turns single steps into transitions over up to n steps.
 *
 *   reward   = r_t + gamma r_{t+1} + .. + gamma^(k-1) r_{t+k-1}
 *   discount = gamma^k, or 0 if step t+k-1 terminated the episode
 *
 * While an episode runs, every step is stored once n steps from it are known
 * (k = n). At its end all shorter suffixes follow, each with its own k, so that
 * the last rewards reach the last states. n = 0 waits for the end: Monte Carlo
 * returns. Truncation (the episode was cut off but could have gone on)
 * bootstraps from the state it stopped in, termination does not.
 */
#ifndef DQN_N_STEP_H
#define DQN_N_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "dqn/transition.h"

/* The destination of finished transitions; their arrays are valid until it returns. */
typedef struct NStepSink {
    AmStatus (*store)(void *user, const Transition *transition, AmError *error);
    void *user;
} NStepSink;

typedef struct NStep {
    int32_t n; /* 0: whole episodes */
    double gamma;
    int32_t observation_size, action_count;
    int32_t count, capacity; /* steps that wait, oldest first */
    float *observations;     /* [capacity, observation_size] */
    int32_t *actions;
    double *rewards;
    float *last_observation; /* the state after the newest step, and its legal actions */
    uint8_t *last_mask;
} NStep;

/* Makes an empty queue whose returns sum n rewards, discounted by gamma; its arrays are the arena's. */
AmStatus n_step_create(NStep *queue, Arena *arena, int32_t n, double gamma, int32_t observation_size,
                       int32_t action_count, AmError *error);

/* Makes room for `count` waiting steps; old steps are kept. */
AmStatus n_step_reserve(NStep *queue, Arena *arena, int32_t count, AmError *error);

/* One step of an environment. */
typedef struct ObservedStep {
    const float *observation;
    int32_t action;
    double reward;
    const float *next_observation; /* not read if `terminal` */
    const uint8_t *next_mask;      /* NULL: all legal; not read if `terminal` */
    bool terminal;
} ObservedStep;

/* Takes one step and stores the transitions that it completes. */
AmStatus n_step_observe(NStep *queue, Arena *arena, const NStepSink *sink, const ObservedStep *step,
                        AmError *error);

/* Ends the episode without a termination: stores every waiting step. */
AmStatus n_step_truncate(NStep *queue, const NStepSink *sink, AmError *error);

#endif
