/* The search over all that the options leave open: spaces, numbers of stages and of micro-batches.
 *
 * target_search() calls it for each form of a module and each choice of devices. Its result has the best
 * plan, the best of each part of the search, the baselines and a lower bound.
 */
#ifndef PLANNERS_PLAN_SEARCH_H
#define PLANNERS_PLAN_SEARCH_H

#include "lowering/micro_batch/micro_batches.h"
#include "planners/problem/search_options.h"

/* Searches the requested space. SPACE_AUTO, unless search_narrow() restricts it, covers one-stage
 * and multi-stage plans, including a given plan (options->request->space.initial, whose number of devices
 * must be the cluster's: AM_ERROR_INPUT). settings->micro_batches 0: all powers of two that divide the batch,
 * which share the evaluations; the fastest plan that fits wins, at a tie the one with fewer micro-batches.
 * With options->request->space.may_add_micro_batches, one-stage plans may have more than settings say.
 * `*result` is the winner's, with the evaluations and the time of all; `whole` owns
 * the context of its plan. If a number cannot be split exactly, larger ones are not tried.
 * AM_ERROR_INFEASIBLE as in single_stage_search(), or as in plan_context_split() for a requested number. */
AmStatus plan_search(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                     const SearchOptions *options, const MicroBatching *settings, AmError *error);

/* Adds to the plan of a result the baselines with recomputation, the lower bound, the model gap and the
 * memory of ranks that differ, which a search with options->nested.finishes_later leaves out. `whole`: the
 * module of the plan. */
AmStatus plan_search_finish(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                            const SearchOptions *options, const MicroBatching *settings, AmError *error);

#endif
