/* Agent: deep Q-learning over vectors with all parts of Rainbow (Hessel et al. 2018), each with its
 * switch. Auto-MAP section 5.1 uses double DQN, dueling heads and prioritized replay; n-step
 * returns, noisy layers (noise.h) and distributions of the return (distribution.h) are the others.
 *
 * It is independent of programs and plans. An episode is
 *
 *   while not done:
 *       action = agent_act(agent, observation, mask, false)
 *       (the environment steps)
 *       agent_observe(agent, &(AgentStep){...}, error)
 *       agent_learn(agent, 1)
 *   agent_end_episode(agent)
 *
 * One agent may alternate between several environments: agent_act_many chooses for all of them in
 * one pass, and every step contains the number of its environment.
 *
 * Networks, replay and updates are on a device (learner.h). With the same settings, seed and calls
 * the agent gives the same results, bit for bit, on the same kind of processor; agent_save and
 * agent_load continue such a run as if it had not been interrupted. An agent is used by one thread
 * at a time. With `threaded` it learns on a thread of its own while the caller acts with the newest
 * published parameters: the progress of learning then depends on the machine's speed, and results
 * are not reproducible. By default learning and acting alternate.
 *
 * A device may fail at any call. The first failure persists: afterwards no work is done, agent_act
 * returns -1, and agent_check and every call with an AmError return the failure.
 */
#ifndef DQN_AGENT_H
#define DQN_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "dqn/learner.h"
#include "dqn/network.h"

typedef struct AgentSettings {
    DqnDevice device; /* this and the next two are no part of a saved agent */
    DqnUpdate update;
    bool threaded;        /* on the CPU; another device works beside the caller anyway */
    double gamma;         /* discount per step, 0 .. 1 */
    double learning_rate; /* Adam's */
    /* Probability of a random legal action: from start to end, linearly over
     * the first epsilon_decay exploring actions. */
    double epsilon_start, epsilon_end;
    int64_t epsilon_decay;
    int32_t batch;           /* transitions per update */
    int32_t target_update;   /* updates between copies of the online into the target network */
    int32_t replay_capacity; /* transitions kept, at least one batch */
    double alpha, beta;      /* of prioritized replay, 0 .. 1 */
    double priority_epsilon; /* added to |error|, so that nothing becomes unreachable */
    double huber;            /* errors beyond this count linearly; 0: squared throughout */
    int32_t n_step;          /* steps per return; 0: whole episodes */
    /* Convolutions over the arrays that an observation begins with: network.h. */
    int32_t convolution_count, channels, length;
    NetworkConvolution convolutions[NETWORK_MAX_CONVOLUTIONS];
    int32_t hidden_count;
    int32_t hidden[NETWORK_MAX_HIDDEN];
    bool double_q, dueling;
    bool noisy;           /* dense layers with learnt noise; epsilon may then be 0 */
    int32_t atoms;        /* of the return's distribution, 2 .. NETWORK_MAX_ATOMS; 0: the mean return alone */
    double v_min, v_max;  /* the smallest and the largest return that the distribution represents */
    int32_t environments; /* alternating: 1 .. AGENT_MAX_ENVIRONMENTS */
    uint64_t seed;
} AgentSettings;

#define AGENT_MAX_ENVIRONMENTS 4096

/* Returns Auto-MAP's settings (its section 5.1), with gamma 1: with gamma 0.6 the optimal policy of a cost
 * objective is not the cheapest plan. v_min and v_max are -10 and 10, used if atoms are requested (51 are
 * usual). */
AgentSettings agent_default_settings(void);

typedef struct Agent Agent;

/* Makes an agent with random weights; agent_free releases it. AM_ERROR_USAGE names a setting out of
 * range, AM_ERROR_RUNTIME the reason why the device cannot be used. */
AmStatus agent_create(Agent **agent, const AgentSettings *settings, int32_t observation_size,
                      int32_t action_count, AmError *error);
void agent_free(Agent *agent);

const AgentSettings *agent_settings(const Agent *agent);
const NetworkShape *agent_shape(const Agent *agent);
double agent_epsilon(const Agent *agent);                 /* of the next exploring action */
AmStatus agent_check(const Agent *agent, AmError *error); /* the failure that stays, or AM_OK */

/* Returns the action for observation[observation_size]. `mask` [action_count] is 1 for legal actions, NULL if
 * all are; random choices keep to it too. -1 if nothing is legal, or after a failure. Greedy: the best value,
 * the first among equals, without moving the exploration schedule or the random numbers, by the means of
 * noisy layers. */
int32_t agent_act(Agent *agent, const float *observation, const uint8_t *mask, bool greedy);

/* Acts as agent_act for observations[count, observation_size] and masks[count, action_count] (NULL: all are
 * legal) in one forward pass. Greedy actions equal those of `count` calls; other actions too, unless layers
 * are noisy: a call makes one draw of noise. */
AmStatus agent_act_many(Agent *agent, const float *observations, const uint8_t *masks, int32_t count,
                        bool greedy, int32_t *actions, AmError *error);

/* Computes values[count, action_count] of observations[count, observation_size], for planners that rank many
 * candidates at once. A row's do not depend on the others. */
AmStatus agent_values(Agent *agent, const float *observations, int32_t count, float *values, AmError *error);

/* One step of the environment; the arrays stay the caller's. */
typedef struct AgentStep {
    const float *observation;
    int32_t action;
    double reward;
    const float *next_observation; /* not read if terminal */
    const uint8_t *next_mask;      /* legal actions in the next state, NULL: all */
    bool terminal;                 /* the episode is over: nothing follows. A finished plan is terminal. */
    int32_t environment;           /* 0 .. environments - 1 */
} AgentStep;

/* Fails with AM_ERROR_USAGE for an action or environment out of range or numbers that are not finite. */
AmStatus agent_observe(Agent *agent, const AgentStep *step, AmError *error);

/* Ends the episode, whether or not its last step was terminal. Steps that wait for their n-step
 * return are stored; without a termination they bootstrap from the last state. With several
 * environments, ends the episodes of all, or of the given one. */
void agent_end_episode(Agent *agent);
void agent_end_episode_of(Agent *agent, int32_t environment);

/* Makes `updates` updates from a batch each, without waiting for the device; false, and nothing done, until
 * the replay holds a batch, and after a failure. */
bool agent_learn(Agent *agent, int32_t updates);

/* Returns the mean loss of the updates since the last call (each the weighted mean over its batch); where
 * there were none, the last result again, 0 at first. */
double agent_loss(Agent *agent);

/* Appends the whole state (settings, networks, Adam, replay, waiting steps,
 * random numbers) to `bytes`. AM_ERROR_INTERNAL if memory is short. */
AmStatus agent_save(Agent *agent, Text *bytes, AmError *error);

/* Reads the agent that agent_save wrote, on whichever device, ready to go on on this one. AM_ERROR_INPUT if
 * the bytes are not exactly such a state; `source` names them in messages. */
AmStatus agent_load(Agent **agent, DqnDevice device, const void *bytes, size_t length, const char *source,
                    AmError *error);

/* Returns the online parameters alone, network.h's layout: to ship a trained agent, and to start another of
 * the same shape from it. Getting them fills parameters[agent_parameter_count]. Setting them copies into both
 * networks and restarts Adam; AM_ERROR_INPUT unless count is the network's and every number is finite. */
int64_t agent_parameter_count(const Agent *agent);
AmStatus agent_parameters(Agent *agent, float *parameters, AmError *error);
AmStatus agent_set_parameters(Agent *agent, const float *parameters, int64_t count, const char *source,
                              AmError *error);

#endif
