/* Unequal shares where a stage mixes device types (hardware-aware load balance).
 *
 * An axis is mixed if its coordinates have devices of different types. Coordinates with the same devices are
 * a class and get equal shares. The simulated computing seconds of a class are a line over its share, a + b
 * share: a is what does not depend on the share (launches, updates), b is the speed of these devices for
 * this module. The shares that let all classes end at once are simulated and the lines are fitted again.
 * Memory is a line over the share, too: a class that lacks memory keeps what fits, and the least busy
 * classes take the rest. Collectives and overlap do not follow these lines. So shares between the equal ones
 * and the balanced ones, and beyond, are simulated as well, with those of Whale's algorithm 1.
 */
#ifndef PLANNERS_IMPROVE_UNEVEN_SHARES_H
#define PLANNERS_IMPROVE_UNEVEN_SHARES_H

#include "base/system/stop.h"
#include "planners/problem/search_scope.h"

/* Candidates that are simulated at most for one mixed axis. */
enum { UNEVEN_SHARES_TRIED = 9 };

/* Returns whether an axis of this mesh, on these cluster devices, is mixed and has no shares yet. */
bool uneven_shares_axis_is_mixed(const Mesh *mesh, const int32_t *devices, const Cluster *cluster,
                                 int32_t axis);
/* Returns whether some axis of some stage is mixed and has no shares yet. */
bool uneven_shares_apply(const Plan *plan, const Cluster *cluster);

typedef struct ShareSearch {
    const Cluster *cluster;
    double memory_fraction;
    int64_t most;         /* evaluations */
    double rival_seconds; /* of the fastest plan known: plans far above it are left early; 0: none */
    const StopSignal *stop;
} ShareSearch;

/* Finds the fastest plan that fits with shares on the mixed axes of `plan`, which has been simulated; of
 * plans that do not fit the one that lacks least. `*best` is NULL where that is the plan itself, or where no
 * shares come near the rival. The result
 * lives in the arena, and `*fit` is its memory. `*evaluations` grows by the simulated plans. The result does
 * not depend on the number of threads. */
AmStatus uneven_shares_find(Plan **best, MemoryFit *fit, int64_t *evaluations, Arena *arena, const Plan *plan,
                            const ShareSearch *search, AmError *error);

#endif
