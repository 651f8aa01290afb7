/* Reports the reason why no plan fits, and sufficient changes: the report of exit code 4.
 *
 * The plan closest to the limit names the device, its bytes, the operator at its peak and the
 * largest tensors then. Each possible change is then relaxed separately, in growing steps, until a
 * short search finds a plan that fits: memory, devices, micro-batches, and ZeRO if the space
 * excludes it; for small modules the steps are bisected. A change without a plan is not reported.
 */
#ifndef PLANNERS_INFEASIBLE_H
#define PLANNERS_INFEASIBLE_H

#include "planners/plan_search.h"

/* `nearest` and `fit`: of the failed search, SearchResult's. *report is the caller's reference:
 *   {"evaluations": examined plans,
 *    "binding": {"device", "name", "needed_bytes", "limit_bytes", "memory_peak": as of simulate --json},
 *    "relaxations": [{"kind", "change", "step_seconds"}]}
 * `line` gets the same in one line. Memory is the arena's. An interrupt ends the list. */
AmStatus infeasible_report(json_t **report, Text *line, Arena *arena, PlanContext *whole,
                           const Cluster *cluster, const SearchOptions *options,
                           const MicroBatching *settings, const SearchResult *failed, AmError *error);

#endif
