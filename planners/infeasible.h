/* Why no plan fits, and what would: the report beside exit code 4.
 *
 * The plan that came nearest names the device, its bytes, the operator at which its memory is fullest and the
 * largest tensors then. Then what could give way is relaxed by itself, in growing steps, until a short
 * search finds a plan that fits: memory, devices, micro-batches, and ZeRO where the space
 * leaves it out; of small modules the steps are bisected. What no search has found a plan for is not named.
 */
#ifndef PLANNERS_INFEASIBLE_H
#define PLANNERS_INFEASIBLE_H

#include "planners/micro_batch_search.h"

/* `nearest` and `fit`: of the search that failed, SearchResult's. *report is the caller's reference:
 *   {"evaluations": plans that were looked at,
 *    "binding": {"device", "name", "needed_bytes", "limit_bytes", "memory_peak": as of simulate --json},
 *    "relaxations": [{"kind", "change", "step_seconds"}]}
 * and `line` gets the same in one line. Memory is the arena's. An interrupt ends the list. */
AmStatus infeasible_report(json_t **report, Text *line, Arena *arena, PlanContext *whole,
                           const Cluster *cluster, const SearchOptions *options,
                           const MicroBatching *settings, const SearchResult *failed, AmError *error);

#endif
