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

typedef struct InfeasibleReport {
    json_t *details; /* the caller's reference */
    Text line;       /* the same in one line, which the caller frees */
} InfeasibleReport;

/* Fills a zeroed report about a search that `failed`. `details`:
 *   {"evaluations": examined plans,
 *    "binding": {"device", "name", "needed_bytes", "limit_bytes", "memory_peak": as of simulate --json},
 *    "relaxations": [{"kind", "change", "step_seconds"}]}
 * Memory is the arena's. An interrupt ends the list. */
AmStatus infeasible_report(InfeasibleReport *report, Arena *arena, PlanContext *primary,
                           const Cluster *cluster, const SearchScope *scope, const SearchResult *failed,
                           AmError *error);

#endif
