/* Decision problems as an environment for deep Q-learning.
 *
 * An episode takes the decisions in order. Before each, the strategies that can still be completed
 * within the memory are ranked by the estimated seconds of the whole plan (decisions_estimate.h);
 * action r takes the strategy of rank r, so that one network serves every problem. The observation
 * has for each rank its estimated distance from the first, its optimistic distance, whether its
 * price is known, and the bytes moved and stored; except for bytes, all of it was paid for. The
 * taken strategy's increment is priced: one evaluation, unless the same partial plan was priced
 * before.
 *
 * Reward: minus the increment, shaped by the estimate of the remainder (Ng et al. 1999: a potential
 * does not change the best policy), in mean increments. Over an episode it sums to the estimate at
 * its start minus the plan's seconds.
 */
#ifndef BENCH_QUALITY_DECISIONS_ENVIRONMENT_H
#define BENCH_QUALITY_DECISIONS_ENVIRONMENT_H

#include "bench/quality/decisions_estimate.h"
#include "planners/rl/environment.h"

enum {
    DECISION_PLAN_FEATURES = 4,
    DECISION_RANK_FEATURES = 5,
    DECISION_OBSERVATION = DECISION_PLAN_FEATURES + DECISION_RANK_FEATURES * DECISIONS_MOST_STRATEGIES
};

/* A strategy that can be taken next. */
typedef struct DecisionRank {
    int8_t strategy;
    bool is_known;
    double likely, hopeful; /* seconds of the whole plan */
    double reshard;         /* estimated seconds of its resharding */
    double bytes;
} DecisionRank;

typedef struct DecisionEnvironment {
    Environment base;
    DecisionMeter *meter;
    DecisionEstimate estimate;
    int64_t updated; /* samples when the estimate was brought up to date; -1: never */
    DecisionPlan plan;
    int32_t position, rank_count;
    double seconds; /* of the decisions taken */
    DecisionRank ranks[DECISIONS_MOST_STRATEGIES];
    double most_behind; /* optimistic mean increments; ranks further from the first are masked */
} DecisionEnvironment;

#define DECISION_MOST_BEHIND 0.5 /* unless the caller changes it */

/* Prices by `meter`, which stays the caller's. Errors as of decision_estimate_create(). */
AmStatus decision_environment_create(DecisionEnvironment *environment, DecisionMeter *meter, AmError *error);
void decision_environment_free(DecisionEnvironment *environment);

#endif
