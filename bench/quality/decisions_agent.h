/* Deep Q-learning on decision problems, and its network, trained beforehand on others. */
#ifndef BENCH_QUALITY_DECISIONS_AGENT_H
#define BENCH_QUALITY_DECISIONS_AGENT_H

#include "bench/quality/decisions.h"
#include "dqn/agent.h"

/* Creates a new agent for any decision problem; agent_free() releases it. */
AmStatus decision_agent_create(Agent **agent, uint64_t seed, AmError *error);
/* Creates a new agent with other parts of Rainbow (planners/rl/learner_parts.h); NULL: none other. */
AmStatus decision_agent_create_with(Agent **agent, const char *parts, uint64_t seed, AmError *error);

/* Runs episodes until the meter is used up: epsilon falls over the budget, and again over the rest
 * of it each time that the policy has settled, a limited number of times; the agent keeps learning.
 * Started from an agent trained on other problems, this is the searcher; run on many problems one
 * after the other, it trains that agent. */
AmStatus decision_agent_search(DecisionMeter *meter, Agent *agent, AmError *error);

/* Runs episodes without a network: always the first rank, or a random one as often as the agent
 * explores. It measures the value of the observation alone. */
AmStatus decision_rank_search(DecisionMeter *meter, uint64_t seed, AmError *error);

#endif
