/* The shortest pipeline over a chain, exact.
 *
 * The length of a pipeline (chain.h) grows with the length of what follows its first stage, so the
 * shortest one begins with a stage behind which the rest is the shortest: dynamic programming over
 * (stages left, first unit, first place), memory with min(M, stages left) micro-batches in flight.
 * No value of the slowest stage has to be enumerated, as for sums of stage times (Alpa). With work in
 * ascending order a stage is not made larger once it alone is longer than the best found.
 *
 * The space: all partitions in which each stage is the difference of two places, one inside the other, on
 * consecutive units in the order given, replicated over them.
 */
#ifndef PLANNERS_CHAIN_EXACT_H
#define PLANNERS_CHAIN_EXACT_H

#include "planners/chain.h"

typedef struct ChainExact {
    ChainPlan plan;
    double length;  /* INFINITY: no partition fits the memory, and there is no plan */
    int64_t stages; /* priced */
} ChainExact;

/* With `any_stages` over every number of stages from 1 to problem->stages, else of problem->stages. */
AmStatus chain_exact(ChainExact *result, const ChainProblem *problem, bool any_stages, AmError *error);

#endif
