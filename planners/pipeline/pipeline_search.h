/* The hybrid space: number of stages, devices and mesh of each, cuts, micro-batches, schedule,
 * recomputation, ZeRO's level and the axis priorities of each stage, under the memory limit.
 *
 * The dynamic program of stage_dp.h finds pipelines from tables of whole-module lowerings. The
 * best of them are simulated, and their cuts are moved by the results of simulations. One-stage
 * plans are searched in addition unless the tables exclude them. Docs: docs/planning.md.
 */
#ifndef PLANNERS_PIPELINE_PIPELINE_SEARCH_H
#define PLANNERS_PIPELINE_PIPELINE_SEARCH_H

#include "lowering/micro_batch/micro_batches.h"
#include "planners/problem/search_result.h"
#include "planners/problem/search_scope.h"

/* Refuses requests that the space does not have, and an agent that cannot be read or has too few
 * evaluations. */
AmStatus pipeline_check_options(const SearchScope *scope, AmError *error);

/* Makes one round of the search (plan_search.h). scope->micro_batches 0: all powers of two that divide
 * the batch. The plan's context is owned by `primary`. The result does not depend on the number of threads;
 * where the search is interrupted or out of time, it is the best plan so far. AM_ERROR_INFEASIBLE if nothing
 * that was found fits; result->nearest came nearest. */
AmStatus pipeline_search(SearchResult *result, Arena *arena, PlanContext *primary, const Cluster *cluster,
                         const SearchScope *scope, AmError *error);

#endif
