/* The common procedure of the searchers that explore: screening, baselines, exploration and polish on every
 * mesh, with the evaluations shared among the meshes by successive halving (exploration.c).
 */
#ifndef PLANNERS_SINGLE_STAGE_EXPLORATION_H
#define PLANNERS_SINGLE_STAGE_EXPLORATION_H

#include "planners/single_stage/single_stage_state.h"

/* Searches plans of one problem, until it is exhausted or problem_must_stop(). */
typedef AmStatus ExploreFunction(StageProblem *problem, uint64_t seed, AmError *error);

/* Spends the evaluations of a round on all meshes, by successive halving. */
AmStatus exploration_search(SingleStageSearch *self, ExploreFunction *explore, AmError *error);

/* Searches by the policy, then by exploration_search(). Without polish the policy has the remaining
 * evaluations. */
AmStatus exploration_by_policy(SingleStageSearch *self, ExploreFunction *explore, AmError *error);

/* Prices on every mesh the screened plans, the baselines and the local optimum below them, with about
 * `evaluations` for each. */
AmStatus exploration_start(SingleStageSearch *self, int64_t evaluations, AmError *error);

#endif
