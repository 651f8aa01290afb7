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

/* Operator partitioning, auto data parallelism and their product on one stage, by the candidates of
 * the problem. On each axis the candidates come one after the other, largest linkage group first,
 * and are taken (1: appended to the axis's list) or left (0). Freed by the arena of `problem`. */
AmStatus lists_environment_create(Environment **environment, Problem *problem, double reference_seconds,
                                  AmError *error);
#define LISTS_OBSERVATION_SIZE 18
#define LISTS_ACTION_COUNT     2

#endif
