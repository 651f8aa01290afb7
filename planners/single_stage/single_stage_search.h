/* The search of one-stage plans.
 *
 *     SearchResult found;
 *     TRY(single_stage_search(&found, arena, context, cluster, &scope, error));
 *     found.plan                   the best plan, with its prediction; found.pool: the best of each part
 *     found.baselines[k].seconds   the step of each baseline, NAN where it does not fit
 *
 * 1. Every allowed mesh of all devices becomes a StageProblem.
 * 2. The baselines are priced, unless the request excludes them.
 * 3. The searcher of the scope proposes axis plans; problem_price() prices them.
 * 4. The best axis plans are simulated in full, and improved by overrides, shares and single changes.
 * 5. With PURPOSE_ALL_ROUNDS, steps 3 and 4 repeat with twice the evaluations until the cap.
 * 6. The fastest plan that fits is the result, with a bound. It is at most as slow as the fastest baseline.
 *
 * The module has the number of micro-batches of `context`. Searches of any number of stages and micro-batches
 * call this one: search_micro_batches.h, search_rounds.h, and plan_search() above all.
 */
#ifndef PLANNERS_SINGLE_STAGE_SINGLE_STAGE_SEARCH_H
#define PLANNERS_SINGLE_STAGE_SINGLE_STAGE_SEARCH_H

#include "planners/problem/search_result.h"
#include "planners/problem/search_scope.h"

/* Returns the default number of evaluations for a small module. */
int64_t search_default_evaluations(Searcher searcher);
/* Returns the default number for a module of so many instructions: fewer for large ones, so that plans times
 * instructions have a limit. */
int64_t search_evaluations_for(Searcher searcher, int32_t instructions);

/* Finds the best one-stage plan that the scope allows (SPACE_AUTO is taken as SPACE_SINGLE_STAGE). Plans are
 * in the arena, and refer to `context` and `cluster`. AM_ERROR_INFEASIBLE if nothing fits: the text names the
 * device, the bytes needed and the limit of the plan that came nearest; or if some pin can hold on no mesh:
 * it names the pin. AM_ERROR_USAGE for a pin that names nothing, a mesh that is not the cluster's size, or a
 * space too large to enumerate. */
AmStatus single_stage_search(SearchResult *result, Arena *arena, const PlanContext *context,
                             const Cluster *cluster, const SearchScope *scope, AmError *error);

/* Finds the plan of the pipeline baseline that the scope names, and prices the one-stage baselines beside
 * it. AM_ERROR_USAGE if it names none; AM_ERROR_INFEASIBLE if the module cannot be cut, or nothing
 * fits. */
AmStatus pipeline_baseline_search(SearchResult *result, Arena *arena, const PlanContext *context,
                                  const Cluster *cluster, const SearchScope *scope, AmError *error);

/* Adds the one-stage baselines with the micro-batches of `context` to a zeroed result, except those that
 * `is_left_out` ([BASELINE_COUNT]) names. Sets `is_left_out` for baselines that more micro-batches cannot
 * make possible: the module has no such plan, or weights and optimizer state alone exceed a device's limit;
 * and for those that do not fit and take more than `far` seconds (0: any). */
AmStatus single_stage_baselines(SearchResult *result, bool *is_left_out, Arena *arena,
                                const PlanContext *context, const Cluster *cluster, const SearchScope *scope,
                                double far, AmError *error);

/* Returns whether the result may be the plan of a baseline instead of one of the searcher's. */
bool search_method_takes_baselines(Searcher searcher);
/* Returns whether the searcher explores: its plans are good, but none is proven to be the best. */
bool search_method_explores(Searcher searcher);
/* Returns whether the searcher spends more evaluations in further rounds. An exact search does not. */
bool search_method_has_rounds(Searcher searcher);

#endif
