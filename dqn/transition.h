/* Transition: the record that the replay stores and an update learns from.
 *
 * It covers one or more steps of an episode: `reward` is their discounted sum and `discount` the
 * factor of the value of `next_observation`, gamma^k for the k steps covered, or 0 after a
 * termination: then the next observation and mask are not read. It includes the legal actions of
 * the next state.
 */
#ifndef DQN_TRANSITION_H
#define DQN_TRANSITION_H

#include <stdint.h>

/* The arrays stay the caller's. */
typedef struct Transition {
    const float *observation, *next_observation; /* [observation_size] */
    const uint8_t *next_mask;                    /* [action_count], 1 = legal; NULL: every action is */
    int32_t action;
    double reward, discount;
} Transition;

#endif
