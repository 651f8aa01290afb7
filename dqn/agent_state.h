/* The state of an agent; for agent.c, agent_file.c and the tests. */
#ifndef DQN_AGENT_STATE_H
#define DQN_AGENT_STATE_H

#include "base/arena.h"
#include "base/random.h"
#include "dqn/agent.h"
#include "dqn/n_step.h"

struct Agent {
    Arena arena; /* owns the following fields except the learner */
    AgentSettings settings;
    NetworkShape shape;
    Learner *learner;    /* networks, replay, updates */
    NStep *waiting;      /* [environments] */
    Random random;       /* of acting and of the first parameters */
    int64_t explored;    /* exploring actions under the present schedule */
    int64_t noise_draws; /* made for exploring */
    double loss;         /* agent_loss's last result */
    float *values;       /* [values_rows, action_count] */
    int32_t values_rows;
    AmError failure; /* code AM_OK: none */
};

/* Creates an agent as agent_create, refused with AM_ERROR_USAGE if the agent would take more than
 * `most_bytes` of memory. The parameters are 0. */
AmStatus agent_create_within(Agent **agent, const AgentSettings *settings, int32_t observation_size,
                             int32_t action_count, int64_t most_bytes, AmError *error);

#endif
