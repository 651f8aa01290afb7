/* Maximum-weight independent sets of exclusive groups. */
#ifndef PROPAGATION_GROUPS_INDEPENDENT_SET_H
#define PROPAGATION_GROUPS_INDEPENDENT_SET_H

#include "base/arena.h"
#include "base/status.h"

/* The exclusions of g: others[first[g]] to others[first[g + 1] - 1], ascending; symmetric. */
typedef struct ExclusionGraph {
    int32_t count;
    const int32_t *first, *others;
    const int64_t *weights; /* [count] */
} ExclusionGraph;

/* Sets `is_chosen` ([count]), and `is_exact` to whether the set is proved to be the heaviest. Among
 * sets of equal weight it prefers heavier, then earlier members. */
AmStatus independent_set(bool *is_chosen, bool *is_exact, const ExclusionGraph *graph, AmError *error);

#endif
