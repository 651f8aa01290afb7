/* A run of deep Q-learning: episodes of any environment by an agent.
 *
 * Auto-MAP section 4.1: the agent acts, the environment returns a reward and the next state, the
 * step goes to the replay, and every few steps the network is updated. The caller ends the run: its
 * callback is called before every episode, with the last one.
 */
#ifndef PLANNERS_RL_DQN_RUN_H
#define PLANNERS_RL_DQN_RUN_H

#include "dqn/agent.h"
#include "planners/rl/environment.h"

/* An episode that is over. */
typedef struct DqnEpisode {
    int64_t number; /* from 1 on; 0: none has been played yet */
    int64_t steps;  /* that were learned from, of the run so far: this episode's among them */
    double reward;  /* summed over the episode, without discount */
    double epsilon; /* of the next exploring action */
    double loss;    /* mean of the updates made during it */
    bool is_greedy; /* played by the policy alone: nothing was explored or stored */
} DqnEpisode;

typedef struct DqnRunOptions {
    int32_t steps_per_update; /* updates come after every so many steps; 0: no updates */
    /* Asked before every episode, with the last one; NULL is refused, as nothing else ends a run. */
    bool (*must_stop)(void *user, const DqnEpisode *last);
    /* Returns whether the next episode is by the policy alone; NULL: never. */
    bool (*is_greedy)(void *user, const DqnEpisode *last);
    /* After every episode; or NULL. */
    void (*on_episode)(void *user, const DqnEpisode *episode);
    void *user;
} DqnRunOptions;

/* Episodes of `environment` by `agent`, which stays the caller's. Failures of the
 * environment and of the agent's device end the run. */
AmStatus dqn_run_agent(Agent *agent, Environment *environment, const DqnRunOptions *options, AmError *error);

/* Runs episodes by a new agent of these settings, which is freed afterwards. */
AmStatus dqn_run(Environment *environment, const AgentSettings *settings, const DqnRunOptions *options,
                 AmError *error);

#endif
