/* The shortest pipeline over a chain, exact.
 *
 * The length of a pipeline (chain.h) grows with the length of the part after its first stage, so
 * that the shortest one begins with a stage followed by the shortest remainder: dynamic programming
 * over (stages left, first unit, first place), memory with min(M, stages left) micro-batches in
 * flight. Unlike for sums of stage times (Alpa), no value of the slowest stage is enumerated. With
 * work in ascending order a stage is not extended once it alone is longer than the best found.
 *
 * The space: all partitions in which each stage is the difference of two places, one inside the
 * other, on consecutive units in the given order, replicated over them.
 */
#ifndef PLANNERS_CUT_AGENT_CHAIN_EXACT_H
#define PLANNERS_CUT_AGENT_CHAIN_EXACT_H

#include "planners/cut_agent/chain.h"

typedef struct ChainExact {
    ChainPlan plan;
    double length;  /* INFINITY: no partition fits the memory */
    int64_t stages; /* number of priced stages */
} ChainExact;

/* Finds the shortest pipeline, with `any_stages` over every number of stages from 1 to problem->stages, else
 * of problem->stages. */
AmStatus chain_exact(ChainExact *result, const ChainProblem *problem, bool any_stages, AmError *error);

#endif
