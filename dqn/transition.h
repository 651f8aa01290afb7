/* Transition: what the replay keeps and an update learns from.
 *
 * It covers one or more steps of an episode: `reward` is their discounted sum
 * and `discount` what the value of `next_observation` is multiplied by, gamma^k
 * for the k steps covered, or 0 after a termination: then the next observation
 * and mask are not read. The legal actions of the next state are kept with it.
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
