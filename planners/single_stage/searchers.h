/* The searchers of one-stage plans but for the learned ones (assignment_search.h). Most price axis plans of
 * one problem by problem_price(), share its budget and its best plan, and stop when problem_must_stop()
 * returns true. exhaustive_search() and exact_search() take all meshes. */
#ifndef PLANNERS_SINGLE_STAGE_SEARCHERS_H
#define PLANNERS_SINGLE_STAGE_SEARCHERS_H

#include "base/random.h"
#include "planners/single_stage/single_stage_state.h"

/* Draws an axis plan: on every axis a random subset in random order. */
void random_axis_plan(const StageProblem *problem, Random *random, AxisPlan *axis_plan);

/* Searches locally: entries inserted, removed, replaced or moved, one at a time. polish_climb() stops at a
 * local optimum, polish_walk() when the budget is spent or the space exhausted, or after `most_in_vain`
 * evaluations without a better plan (0: no limit). */
AmStatus polish_climb(StageProblem *problem, AmError *error);
AmStatus polish_walk(StageProblem *problem, int64_t most_in_vain, AmError *error);

/* Makes the best insertion, again and again from the plan that splits nothing, until none helps. */
AmStatus greedy_search(StageProblem *problem, AmError *error);

/* A walk over axis plans by random single changes. */
typedef struct AnnealWalk {
    StageProblem *problem;
    Random *random;
    AmStatus (*score)(void *user, const AxisPlan *axis_plan, double *score, AmError *error);
    void *user;
    int64_t steps;       /* changes to draw, at most */
    int64_t evaluations; /* of the problem that the temperature falls over, too; 0: over the steps alone */
    bool is_climb;       /* takes only changes that lower the score */
} AnnealWalk;
/* Walks from `start`, which has the score `score`. */
AmStatus anneal_walk(const AnnealWalk *walk, const AxisPlan *start, double score, AmError *error);

/* Anneals over prices, from the best plan so far, which there must be. */
AmStatus anneal_search(StageProblem *problem, uint64_t seed, AmError *error);

/* Prices every axis plan of all meshes; AM_ERROR_USAGE if there are too many. */
AmStatus exhaustive_search(SingleStageSearch *self, AmError *error);

/* Searches all meshes by branch and bound: finds the best plan and a bound on all others, or the best plan
 * itself. */
AmStatus exact_search(SingleStageSearch *self, AmError *error);

#endif
