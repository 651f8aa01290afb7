/* Propagation of decisions to a fixed point, updated incrementally.
 *
 * A seed states: this axis splits this dimension of this value. The split spreads forward and
 * backward along all ties of the factor rules, that is over the dimension's class (classes.h). If
 * several seeds reach different dimensions of one value on one axis, one wins by priority:
 *   0  a seed on the value itself
 *   1  a seed that reaches it through element-wise operators and views alone
 *   2  a seed that reaches it through products, reductions and other operators
 * Ties go to the seed's own priority, then to the first (instruction, dimension). The others are
 * conflicts, with their cost in bytes. The result is a function of the set of seeds, independent of
 * their order.
 *
 * Adding a seed visits only the values that it reaches.
 */
#ifndef PROPAGATION_PROPAGATE_INCREMENTAL_H
#define PROPAGATION_PROPAGATE_INCREMENTAL_H

#include "propagation/plan/plan.h"

#define INCREMENTAL_MAX_PRIORITY 1000

typedef struct Incremental Incremental;

/* Makes a propagation without seeds: every value is replicated. It is the arena's, with 24 bytes for each
 * dimension of a value and up to 24 for each axis. */
AmStatus incremental_create(Incremental **incremental, Arena *arena, const PlanContext *context,
                            const Mesh *mesh, AmError *error);

/* Adds a seed of a priority from 0, the strongest, to INCREMENTAL_MAX_PRIORITY. Of several on one dimension
 * and axis, the last one's priority counts. Returns false, and changes nothing, if no operator can split the
 * dimension or the axis has one device. */
bool incremental_add(Incremental *incremental, int32_t axis, int32_t instruction, int32_t dimension,
                     int32_t priority);

/* Returns the state of a value, with the cuts that assignment makes of such a split. */
SbpState incremental_state(const Incremental *incremental, int32_t instruction);

/* A dimension that a seed reaches and the axis does not split, because it splits
 * another one of the value. */
typedef struct IncrementalConflict {
    int32_t instruction, axis, kept, refused; /* the last two are dimensions */
    int32_t level;                            /* at which the refused one was reached: 0 to 2 */
    double bytes; /* that an all-to-all sends in all between the two, (n - 1) / n of the value */
} IncrementalConflict;

/* Lists conflicts by instruction, axis, dimension; in the arena. */
AmStatus incremental_conflicts(IncrementalConflict **conflicts, int32_t *count, Arena *arena,
                               const Incremental *incremental, AmError *error);

/* Appends the axis priorities by which assignment finds the same to those of `stage`: strongest class
 * first, but that of a seeded value before those that are refused there; and overrides for
 * values that this order would split otherwise. */
AmStatus incremental_to_stage(PlanStage *stage, Arena *arena, const Incremental *incremental, AmError *error);

#endif
