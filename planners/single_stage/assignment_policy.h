/* The assignment policy: one network that values every action of every assignment problem (assignment.h).
 *
 * The network returns the gain that the rest of an episode adds to the estimate after the action. With it
 *
 *   total(s, a) = log E(0) - log E(s') + network(features(s, a))
 *
 * predicts log P(0) - log P of the best plan of the episode, for every mesh on the same scale; of a stop it
 * predicts that of the plan itself. Episodes take the action of the largest total.
 *
 * A trained policy is a file of named arrays with the network's parameters and the version of the features.
 */
#ifndef PLANNERS_SINGLE_STAGE_ASSIGNMENT_POLICY_H
#define PLANNERS_SINGLE_STAGE_ASSIGNMENT_POLICY_H

#include "base/random.h"
#include "dqn/agent.h"
#include "planners/single_stage/assignment.h"

/* Settings of agents of this policy. Every transition is terminal, with the whole return as its reward. */
AgentSettings assignment_settings(void);

/* Reads a file of assignment_agent_write. AM_ERROR_INPUT: no policy, or one of other features. */
AmStatus assignment_agent_read(Agent **agent, const AgentSettings *settings, const char *path,
                               AmError *error);
/* The policy that the library was built with, datasets/agents/assignment.safetensors. */
AmStatus assignment_agent_built_in(Agent **agent, const AgentSettings *settings, AmError *error);
/* `about`: one line on its training. */
AmStatus assignment_agent_write(Agent *agent, const char *path, const char *about, AmError *error);

/* totals[state->action_count] of the actions. `trust`: the factor of the network's values, 1 as trained. */
AmStatus assignment_totals(double *totals, Agent *agent, const Assignments *self,
                           const AssignmentState *state, double trust, AmError *error);

/* An episode: plans[0] is its start, actions lead from plans[k] to plans[k + 1]. */
typedef struct AssignmentEpisode {
    int32_t count; /* actions */
    AxisPlan plans[ASSIGNMENT_MOST_STEPS + 1];
    double so_far[ASSIGNMENT_MOST_STEPS + 1];                    /* of the plans, by estimates */
    double totals[ASSIGNMENT_MOST_STEPS + 1];                    /* predicted for stopping there */
    float rows[ASSIGNMENT_MOST_STEPS][ASSIGNMENT_FEATURES];      /* of the actions */
    float stops[ASSIGNMENT_MOST_STEPS + 1][ASSIGNMENT_FEATURES]; /* of stopping at a plan */
    double best[ASSIGNMENT_MOST_STEPS]; /* the largest gain stored for an action, -INFINITY at first */
} AssignmentEpisode;

/* How an episode is played. */
typedef struct AssignmentManner {
    double trust, temperature, epsilon;
} AssignmentManner;

/* Plays an episode from `start`. Totals get Gumbel noise of scale `temperature`; with probability `epsilon`
 * an action is random. No plan is visited twice. `state` is working memory. */
AmStatus assignment_play(AssignmentEpisode *episode, Agent *agent, const Assignments *self,
                         const AxisPlan *start, const AssignmentManner *manner, Random *random,
                         AssignmentState *state, AmError *error);

/* An episode that builds `target` from the plan that splits nothing, axes in random alternation. */
AmStatus assignment_demonstrate(AssignmentEpisode *episode, const Assignments *self, const AxisPlan *target,
                                Random *random, AssignmentState *state, AmError *error);

/* Stores the transitions of a price of plans[place]: its stop, and the actions before it for which the gain
 * is the largest so far. */
AmStatus assignment_observe(AssignmentEpisode *episode, Agent *agent, int32_t place, double gain,
                            AmError *error);

/* The same for an episode whose plans are all priced: gains[episode->count + 1]. */
AmStatus assignment_observe_all(AssignmentEpisode *episode, Agent *agent, const double *gains,
                                AmError *error);

#endif
