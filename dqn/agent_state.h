/* The inside of an agent, shared by agent.c (acting and learning) and
 * agent_file.c (saving and loading). */
#ifndef DQN_AGENT_STATE_H
#define DQN_AGENT_STATE_H

#include "base/arena.h"
#include "base/random.h"
#include "dqn/agent.h"
#include "dqn/n_step.h"
#include "dqn/replay.h"

struct Agent {
    Arena arena; /* owns everything below */
    AgentSettings settings;
    Network network;
    Adam adam;
    Replay replay;
    NStep waiting;
    Random random;
    int64_t explored; /* exploring actions under the present schedule */
    int64_t updates;

    float *online, *target, *gradients;   /* parameters, network.h's layout */
    NetworkPass online_pass, target_pass; /* 2 batch rows, batch rows */

    /* One batch. Rows 0 .. batch-1 are the states, the next batch rows the
     * states that follow, so that the online network sees both in one pass. */
    float *observations, *values;        /* [2 batch, observation_size or action_count] */
    float *target_values;                /* [batch, action_count], of the next states */
    float *value_gradients;              /* [batch, action_count] */
    float *rewards, *discounts, *errors; /* [batch] */
    float *weights, *targets;            /* [batch] */
    int32_t *indices, *actions;          /* [batch] */
    uint8_t *next_masks;                 /* [batch, action_count] */
};

/* agent_create, refused with AM_ERROR_USAGE if the agent would take more than
 * `most_bytes` of memory. */
AmStatus agent_create_within(Agent **agent, const AgentSettings *settings, int32_t observation_size,
                             int32_t action_count, int64_t most_bytes, AmError *error);

#endif
