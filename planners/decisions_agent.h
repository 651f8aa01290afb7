/* Deep Q-learning on decision problems, and its network, trained beforehand on others. */
#ifndef PLANNERS_DECISIONS_AGENT_H
#define PLANNERS_DECISIONS_AGENT_H

#include "dqn/agent.h"
#include "planners/decisions.h"

/* A new agent for any decision problem; agent_free() releases it. */
AmStatus decision_agent_create(Agent **agent, uint64_t seed, AmError *error);

/* Episodes until the meter is spent: epsilon falls over the budget, and again over what is left of it each
 * time that the policy has settled, some times at most; the agent goes on learning. Started from an agent
 * that has learned on other problems, this is the searcher; one after the other on many problems, it is how
 * that agent is trained. */
AmStatus decision_agent_search(DecisionMeter *meter, Agent *agent, AmError *error);

/* The same episodes without a network: always the first rank, or a random one as often as the agent explores.
 * What the observation alone is worth. */
AmStatus decision_rank_search(DecisionMeter *meter, uint64_t seed, AmError *error);

#endif
