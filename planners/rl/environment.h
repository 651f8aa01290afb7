/* Environment: a search problem for the agent, as vectors only.
 *
 * Every searcher that decides step by step uses this interface; the environment defines the meaning
 * of an action. Rewards are differences of cost, relative to data parallelism, so that they add up
 * to the improvement.
 */
#ifndef PLANNERS_RL_ENVIRONMENT_H
#define PLANNERS_RL_ENVIRONMENT_H

#include "planners/problem/problem.h"

typedef struct Environment Environment;

typedef struct EnvironmentMethods {
    /* Starts an episode. */
    AmStatus (*reset)(Environment *environment, AmError *error);
    /* observation[observation_size] of the state before the next decision. */
    void (*observe)(const Environment *environment, float *observation);
    /* mask[action_count]: 1 where the action is legal. */
    void (*mask)(const Environment *environment, uint8_t *mask);
    /* Acts; `*done` when nothing is left to decide. */
    AmStatus (*step)(Environment *environment, int32_t action, double *reward, bool *done, AmError *error);
} EnvironmentMethods;

struct Environment {
    const EnvironmentMethods *methods;
    int32_t observation_size, action_count;
};

#endif
