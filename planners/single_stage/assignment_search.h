/* The searcher dqn: one-stage plans by the assignment policy, over all meshes of a search together.
 *
 * Episodes of the policy, by estimates alone, put the plans that they visit into a pool. The plan of the
 * largest predicted gain is priced next, whichever its mesh. The first episode of each mesh has no noise.
 * Each price is stored and learnt from at once, and the pool is predicted again. Later episodes have noise,
 * on the meshes of the best predictions, from the plan that splits nothing or from the best plan.
 */
#ifndef PLANNERS_SINGLE_STAGE_ASSIGNMENT_SEARCH_H
#define PLANNERS_SINGLE_STAGE_ASSIGNMENT_SEARCH_H

#include "dqn/agent.h"
#include "planners/single_stage/single_stage.h"

typedef struct AssignmentSearch AssignmentSearch;

/* The policy built in, or options->policy: "untrained", or a file. Refers to the search and its problems. */
AmStatus assignment_search_open(AssignmentSearch **search, SingleStageSearch *stages, AmError *error);
void assignment_search_close(AssignmentSearch *search);

/* Reads options->policy, if it is a file: AM_ERROR_INPUT before the search, whatever the search needs. */
AmStatus assignment_search_check(const SearchOptions *options, AmError *error);

/* Prices plans until the search has `until` evaluations, must end, or finds nothing new. */
AmStatus assignment_search_run(AssignmentSearch *search, int64_t until, AmError *error);

#endif
