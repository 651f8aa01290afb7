/* The search of one-stage plans: all allowed meshes, each a StageProblem.
 *
 * It starts from the baselines (unless disabled), keeps the best plan, improves it locally, and never returns
 * a plan that is slower than the best baseline. plan_search() calls it for one stage; pipeline_search.h has
 * plans of several stages. single_stage.h is the state that the parts of this search share.
 */
#ifndef PLANNERS_SINGLE_STAGE_SEARCH_H
#define PLANNERS_SINGLE_STAGE_SEARCH_H

#include "planners/problem/search_options.h"

/* The default number of evaluations for a small module. */
int64_t search_default_evaluations(Searcher searcher);
/* The default number for a module of so many instructions: fewer for large ones, so that plans times
 * instructions have a limit. */
int64_t search_evaluations_for(Searcher searcher, int32_t instructions);

/* The best one-stage plan that the options allow (SPACE_AUTO: SPACE_SINGLE_STAGE), or the baseline of a
 * pipeline; plan_search() is for every space. AM_ERROR_INFEASIBLE if nothing fits: the text names the device,
 * the bytes needed and the limit of the plan that came nearest; or if some pin can hold on no mesh: it names
 * the pin. AM_ERROR_USAGE for a pin that means nothing, a mesh that is not the cluster's size, or a space too
 * large to enumerate. */
AmStatus single_stage_search(SearchResult *result, Arena *arena, const PlanContext *context,
                             const Cluster *cluster, const SearchOptions *options, AmError *error);

#endif
