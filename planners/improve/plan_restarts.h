/* Iterated local search (Lourenco, Martin and Stuetzle 2003) around the best plan of a search.
 *
 * A restart applies a larger change (plan_moves.h) to the best plan: first shifts of a unit between
 * parts that are not neighbours, from busy to idle ones, and priorities of a stage for another;
 * then pairs of the fastest single changes; then one to three random changes. The search climbs
 * from a plan within PLAN_RESTART_NEAR of the best one. A faster plan replaces the best one, and
 * restarts begin anew.
 *
 * The sequence depends on the plan and the seed alone; the cap of the climb cuts it.
 */
#ifndef PLANNERS_IMPROVE_PLAN_RESTARTS_H
#define PLANNERS_IMPROVE_PLAN_RESTARTS_H

#include "planners/improve/plan_climb.h"

#define PLAN_RESTART_GAIN 1e-5 /* least gain of a change, as a fraction of the step */
#define PLAN_RESTART_NEAR 0.01

/* Replaces `*plan`, which fits, by the best plan of restarts with about `size` evaluations, made in `arena`.
 * Ends before where the changes are exhausted. */
AmStatus plan_restarts(Plan **plan, PlanClimb *climb, int64_t size, uint64_t seed, Arena *arena,
                       AmError *error);

#endif
