/* The search over all that the options leave open: spaces, numbers of stages and of micro-batches.
 *
 * The path of a request, from the API to the plans. Each level calls those below it:
 *
 *   target_search()               forms/target_search.h       with the target's restrictions, and without
 *     form_search()               forms/form_search.h         each form of the module, with the restrictions
 *       device_search()           devices/device_search.h     each choice of devices; also without them
 *         plan_search()           plan_search.h               one module on one cluster
 *           search_recomputed_baseline()  search_baselines.h  a baseline with recomputation
 *           sample_search()       sample_search.h             a large module: plan_search() of a sample
 *           paper_search()        automap_paper/paper_search.h  the rules of the paper
 *           search_strategies()   search_strategies.h         degrees of parallelism, for a trainer
 *           search_stages()       search_rounds.h             rounds over any number of stages
 *             pipeline_search()   pipeline/pipeline_search.h  several stages, then one stage
 *             single_stage_search() single_stage/single_stage_search.h  one stage; in pipeline_search(), too
 *           search_micro_batches()  search_micro_batches.h    one stage, each number of micro-batches
 *             single_stage_search() single_stage/single_stage_search.h  one stage, one number
 *             pipeline_baseline_search()  there               the plan of a baseline of stages
 *
 * Three structs carry a search through the levels. The API owns the SearchRequest, the wishes of the user. A
 * level that searches with other wishes has a changed copy: search_with_request(). A SearchScope is what one
 * search covers: space, method, limits and purpose. A level makes the scope of each part below it, as a copy
 * of its own: search_part(), search_one_stage_part(). SearchContext is the state of one plan_search(), which
 * owns it: module, cluster, budget and result.
 *
 * Every level returns a SearchResult: the best plan, the pool of candidates, the baselines and a lower bound.
 */
#ifndef PLANNERS_PLAN_SEARCH_H
#define PLANNERS_PLAN_SEARCH_H

#include "planners/problem/search_result.h"
#include "planners/problem/search_scope.h"

/* Searches the requested space. SPACE_AUTO, unless search_narrow() restricts it, covers one-stage
 * and multi-stage plans, including a given plan (scope->request->space.initial, whose number of devices
 * must be the cluster's: AM_ERROR_INPUT). scope->micro_batches 0: all powers of two that divide the batch,
 * which share the evaluations; the fastest plan that fits wins, at a tie the one with fewer micro-batches.
 * With scope->request->space.may_add_micro_batches, one-stage plans may have more than the scope says.
 * primary->keeps_data_apart and keeps_examples_apart become those of the target of the request, for all
 * modules in micro-batches that are made from now on. `*result` is the winner's, with the evaluations and the
 * time of all; `primary` owns the context of its plan. If a number cannot be split exactly, larger ones are
 * not tried. AM_ERROR_INFEASIBLE as in single_stage_search(), or as in plan_context_split() for a requested
 * number. */
AmStatus plan_search(SearchResult *result, Arena *arena, PlanContext *primary, const Cluster *cluster,
                     const SearchScope *scope, AmError *error);

/* Adds to the plan of a result the baselines with recomputation, the lower bound, the model gap and the
 * memory of ranks that differ, which a search with scope->finishes_later leaves out. `primary`: the
 * module of the plan. */
AmStatus plan_search_finish(SearchResult *result, Arena *arena, PlanContext *primary, const Cluster *cluster,
                            const SearchScope *scope, AmError *error);

#endif
