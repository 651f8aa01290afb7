/* The searcher dqn: one-stage plans by the assignment policy, over all meshes of a search together.
 *
 * Plans form a tree: a child is one action away from its parent. The network chooses which actions are
 * estimated, and learns from the estimates. On each mesh a beam search by estimated gains, without any price,
 * begins the tree. The plan of the largest gain is priced next, whichever its mesh. Estimates get the errors
 * at priced plans of like facts. New best plans, and plans drawn by their gains, get further children.
 *
 * With the scope's stages the number of stages is an action, too (stage_choices.h). A pipeline of the tables
 * is opened when its gain by the tables, or by its price, is larger than that of every unpriced plan. Its
 * price fixes the estimates on the meshes of its stages, and beams on these meshes join the tree.
 */
#ifndef PLANNERS_SINGLE_STAGE_ASSIGNMENT_SEARCH_H
#define PLANNERS_SINGLE_STAGE_ASSIGNMENT_SEARCH_H

#include "dqn/agent.h"
#include "planners/single_stage/single_stage_state.h"

typedef struct AssignmentSearch AssignmentSearch;

/* Opens the policy built in, or scope->request->method.policy: "untrained", or a file. Searches the first
 * `meshes` problems of the search, to which it refers. */
AmStatus assignment_search_open(AssignmentSearch **search, SingleStageSearch *stages, int32_t meshes,
                                AmError *error);
void assignment_search_close(AssignmentSearch *search);

/* Reads scope->request->method.policy, if it is a file: AM_ERROR_INPUT before the search, whatever the
 * search needs.
 */
AmStatus assignment_search_check(const SearchScope *scope, AmError *error);

/* Prices plans until the search has `until` evaluations, must end, or finds nothing new. */
AmStatus assignment_search_run(AssignmentSearch *search, int64_t until, AmError *error);
/* Finds the best plan of the search's own problems that it has priced, and its problem. Returns false without
 * one. */
bool assignment_search_best(const AssignmentSearch *search, StageProblem **problem, AxisPlan *axis_plan);

#endif
