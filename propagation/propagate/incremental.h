/* Propagation of decisions to a fixed point, updated incrementally.
 *
 * A seed states: this axis splits this dimension of this value. The split spreads forward and
 * backward along all ties of the factor rules, that is over the dimension's class (classes.h). If
 * several seeds reach different dimensions of one value on one axis, one wins by priority:
 *   0  a seed on the value itself
 *   1  a seed that reaches it through element-wise operators and views alone
 *   2  a seed that reaches it through products, reductions and other operators
 * then by the seed's own priority, then by the first (instruction, dimension). The others are
 * conflicts, with their cost in bytes. The result is a function of the set of seeds, independent of
 * their order.
 *
 * A change visits only the values that it reaches. Every change is logged, so that changes can be
 * undone as a stack, or removed singly.
 */
#ifndef PROPAGATION_PROPAGATE_INCREMENTAL_H
#define PROPAGATION_PROPAGATE_INCREMENTAL_H

#include "propagation/plan/plan.h"

#define INCREMENTAL_MAX_PRIORITY 1000

typedef struct Incremental Incremental;

/* No seeds yet: everything is whole. Lives in the arena, but for the log, which
 * incremental_free() gives back; for each dimension of a value 24 bytes and up to
 * 24 for each axis. */
AmStatus incremental_create(Incremental **incremental, Arena *arena, const PlanContext *context,
                            const Mesh *mesh, AmError *error);

void incremental_free(Incremental *incremental);

/* Adds a seed; of several on one dimension and axis the last one's priority
 * counts (0 is strongest). False, and nothing is changed, where nothing can
 * split the dimension. Memory for the log may run out: incremental_failed(). */
bool incremental_add(Incremental *incremental, int32_t axis, int32_t instruction, int32_t dimension,
                     int32_t priority);
/* Removes a seed; false if there is no such seed. */
bool incremental_remove(Incremental *incremental, int32_t axis, int32_t instruction, int32_t dimension);

/* The log's length, and back to it: undoes all changes since. */
int64_t incremental_mark(const Incremental *incremental);
void incremental_undo(Incremental *incremental, int64_t mark);
bool incremental_failed(const Incremental *incremental);

/* How a value lies; cuts are those that assignment makes of such a split. */
SbpState incremental_state(const Incremental *incremental, int32_t instruction);
/* The number of values that the last change visited. */
int32_t incremental_touched(const Incremental *incremental);

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
