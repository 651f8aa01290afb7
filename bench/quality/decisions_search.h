/* Searchers of decision problems that learn nothing: all price by the meter, until it is spent. */
#ifndef BENCH_QUALITY_DECISIONS_SEARCH_H
#define BENCH_QUALITY_DECISIONS_SEARCH_H

#include "bench/quality/decisions.h"

/* A random plan that fits: decisions in random order, each uniform among those that can be
 * completed. */
typedef struct Random Random;
DecisionPlan decision_random_plan(const Decisions *decisions, Random *random);

/* Chooses, decision after decision, the strategy of the least increment; N x K evaluations at most. */
void decision_greedy(DecisionMeter *meter, uint64_t seed);
/* Improves random plans by single changes in random order (the first that is better is taken) until none is;
 * then the next. */
void decision_restarts(DecisionMeter *meter, uint64_t seed);
/* Runs simulated annealing over the whole budget, from the best plan so far or a random one. */
void decision_anneal(DecisionMeter *meter, uint64_t seed);
/* Runs simulated annealing with temperatures from `hot` to `cold`, as shares of a decision's mean seconds. */
void decision_anneal_by(DecisionMeter *meter, uint64_t seed, double hot, double cold);
/* Improves the best plan so far by single changes, then by changes of two decisions that exchange data, until
 * neither helps or the budget is spent. */
void decision_polish(DecisionMeter *meter, uint64_t seed);

#endif
