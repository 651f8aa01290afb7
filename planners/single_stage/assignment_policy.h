/* The assignment policy: two networks for every assignment problem (assignment.h).
 *
 * For an action at s the first one returns by how much the best plan that follows in the episode exceeds the
 * gain of s. Actions are ranked without estimates of the plans after them: only the best few are estimated,
 * and of these the gain decides. For the facts of a plan the second one returns the error of its estimate:
 * the logarithm of the estimated seconds over the price's. It is the value of a stop at the plan.
 *
 * A trained policy is a file of named arrays with the parameters of both (`parameters`, `errors`) and the
 * version of the features.
 */
#ifndef PLANNERS_SINGLE_STAGE_ASSIGNMENT_POLICY_H
#define PLANNERS_SINGLE_STAGE_ASSIGNMENT_POLICY_H

#include "base/random.h"
#include "dqn/agent.h"
#include "planners/single_stage/assignment.h"

typedef struct AssignmentPolicy {
    Agent *actions;
    Agent *errors; /* NULL: estimates count uncorrected */
} AssignmentPolicy;

/* Settings of the agents of a policy. Every transition is terminal, with the whole return as its reward. */
AgentSettings assignment_settings(void);

/* Reads a file of assignment_policy_write; assignment_policy_close() releases the policy. AM_ERROR_INPUT: no
 * policy, or one of other features. */
AmStatus assignment_policy_read(AssignmentPolicy *policy, const AgentSettings *settings, const char *path,
                                AmError *error);
/* Reads the policy that the library was built with, datasets/agents/assignment.safetensors. */
AmStatus assignment_policy_built_in(AssignmentPolicy *policy, const AgentSettings *settings, AmError *error);
/* Writes both networks of the policy. `about`: one line on its training. `prices`: the figures of
 * assignment_prices_text(), by which a test finds out that prices have changed since. */
AmStatus assignment_policy_write(const AssignmentPolicy *policy, const char *path, const char *about,
                                 const char *prices, AmError *error);
void assignment_policy_close(AssignmentPolicy *policy);

/* Makes a network over `features` (ASSIGNMENT_FEATURES, or ASSIGNMENT_FACTS for errors) with random hidden
 * layers and an output of zero: the values follow the estimates until something is learnt. */
AmStatus assignment_agent_untrained(Agent **agent, const AgentSettings *settings, int32_t features,
                                    AmError *error);

/* An action whose plan was estimated. */
typedef struct ActionEstimate {
    int32_t action;
    AssignmentValue estimate; /* of the plan after it */
    AssignmentValue value;    /* the estimate with the error that the policy expects */
    float facts[ASSIGNMENT_FACTS];
} ActionEstimate;

/* Numbers of estimated actions of a state. */
#define ASSIGNMENT_MOST_ESTIMATES ESTIMATE_BATCH
#define ASSIGNMENT_ESTIMATES      16 /* with the network of errors, which distinguishes more plans */
#define ASSIGNMENT_FEW_ESTIMATES  8  /* without it */

typedef struct ActionEstimates {
    ActionEstimate of[ASSIGNMENT_MOST_ESTIMATES];
    int32_t count;
} ActionEstimates;

/* Which actions are estimated: those of the largest values, with Gumbel noise of scale `temperature`, and
 * random ones. */
typedef struct ActionChoice {
    int32_t best, random; /* together at most ASSIGNMENT_MOST_ESTIMATES */
    double temperature;
} ActionChoice;

/* A policy on one problem. */
typedef struct AssignmentPlayer {
    const AssignmentPolicy *policy;
    const AssignmentProblem *problem;
    AssignmentState *state; /* the present plan and its actions */
    ActionChoice choice;
    Random *random;
} AssignmentPlayer;

/* Ranks the actions of the present state by the policy, and estimates those of the choice. `skipped`
 * [action_count]: actions to leave out; NULL: none. */
AmStatus assignment_estimate_actions(ActionEstimates *estimates, const AssignmentPlayer *self,
                                     const bool *skipped, AmError *error);

/* An episode: plans[0] is its start, actions lead from plans[k] to plans[k + 1]. */
typedef struct AssignmentEpisode {
    int32_t count; /* actions */
    AxisPlan plans[ASSIGNMENT_MOST_STEPS + 1];
    AssignmentValue estimates[ASSIGNMENT_MOST_STEPS + 1]; /* of the plans */
    float facts[ASSIGNMENT_MOST_STEPS + 1][ASSIGNMENT_FACTS];
    double first_value;                                     /* of the first action by the network */
    float rows[ASSIGNMENT_MOST_STEPS][ASSIGNMENT_FEATURES]; /* of the actions */
    /* Other actions that were estimated at each plan: their number, features and estimated gains. */
    int32_t other_count[ASSIGNMENT_MOST_STEPS + 1];
    float others[ASSIGNMENT_MOST_STEPS + 1][ASSIGNMENT_MOST_ESTIMATES][ASSIGNMENT_FEATURES];
    double other_gains[ASSIGNMENT_MOST_STEPS + 1][ASSIGNMENT_MOST_ESTIMATES];
} AssignmentEpisode;

/* Plays an episode from `start`: it takes the action of the largest gain among the estimated ones. It ends
 * when some steps in a row have not raised the gain. No plan is visited twice. */
AmStatus assignment_play(AssignmentEpisode *episode, const AssignmentPlayer *self, const AxisPlan *start,
                         AmError *error);

/* Plays an episode that builds `target` from the plan that splits nothing, axes in random alternation. */
AmStatus assignment_demonstrate(AssignmentEpisode *episode, const AssignmentPlayer *self,
                                const AxisPlan *target, AmError *error);

/* Stores a transition with its whole return. */
AmStatus assignment_store(Agent *agent, const float *row, double target, AmError *error);

/* Stores the transitions of an episode: the actions taken by prices, values[episode->count + 1], and the
 * others by estimated gains. With n-step returns an action whose best plan follows later than n steps has the
 * gain after n steps and the value of the best action there, of those that were estimated: `frozen` chooses
 * it, an earlier network, or with double Q-learning the agent itself. */
AmStatus assignment_observe(const AssignmentEpisode *episode, Agent *agent, Agent *frozen,
                            const AssignmentValue *values, AmError *error);
/* Stores the errors of the estimates of an episode's plans. */
AmStatus assignment_observe_errors(const AssignmentEpisode *episode, Agent *errors,
                                   const AssignmentValue *values, AmError *error);

#endif
