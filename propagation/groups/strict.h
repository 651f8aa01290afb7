/* Auto-MAP's own mode of operator partitioning: one axis, no conversions.
 *
 * Every tensor has one state, B or S(d). Every operator allows a list of rows of states: its parallel
 * factors, its reductions with result B, and all B. The states must be in a row of every operator. Rule R: a
 * reduction over a split dimension is allowed only where its result reaches no dot or convolution of the
 * forward pass. The contraction of a dot and the indexed dimension of a gather are always allowed. So a
 * decision about one dimension of a weight decides other dimensions: a linkage group.
 */
#ifndef PROPAGATION_GROUPS_STRICT_H
#define PROPAGATION_GROUPS_STRICT_H

#include "propagation/groups/groups.h"
#include "propagation/plan/plan.h"

/* The values that may be split: the state (data is B); the state by any cut, also unevenly and in blocks
 * (sbp.h); or the data (state is B: auto data parallelism). */
typedef enum StrictRoots { STRICT_STATE, STRICT_STATE_ANY_CUT, STRICT_DATA } StrictRoots;

/* Dimension d + STRICT_IN_BLOCKS is dimension d cut in the fewest blocks that a class has in it. */
#define STRICT_IN_BLOCKS IR_MAX_RANK

typedef struct StrictProblem StrictProblem;

/* Builds the problem: everything that the axis and the roots rule out is ruled out at once. The problem lives
 * in the arena. AM_ERROR_USAGE for an axis below 2. */
AmStatus strict_build(StrictProblem **problem, Arena *arena, const PlanContext *context, int32_t axis_size,
                      StrictRoots roots, AmError *error);

/* Decisions add up until strict_undo() takes all of them back. They return -1,
 * or the instruction that admits no state any more; the problem must then be undone. */
int32_t strict_partition(StrictProblem *problem, int32_t parameter, int32_t dimension);
int32_t strict_replicate(StrictProblem *problem, int32_t parameter, int32_t dimension);
void strict_undo(StrictProblem *problem);

/* Returns the variables that decisions since the last undo have narrowed, some more than once. A variable
 * represents parameters with equal state; their number is `strict_variables()`. */
int32_t strict_variables(const StrictProblem *problem);
int32_t strict_variable(const StrictProblem *problem, int32_t parameter);
int32_t strict_narrowed_count(const StrictProblem *problem);
int32_t strict_narrowed(const StrictProblem *problem, int32_t k);

/* Decides everything that is open, for B where it can be; -1 or the instruction
 * that admits no state. strict_state() then is the state of an instruction's
 * result; of values that constrain nothing it is B. */
int32_t strict_complete(StrictProblem *problem);
Sbp strict_state(const StrictProblem *problem, int32_t instruction);

/* Returns whether the parameter may still be S(dimension), and whether it must be. */
bool strict_may_split(const StrictProblem *problem, int32_t parameter, int32_t dimension);
bool strict_must_split(const StrictProblem *problem, int32_t parameter, int32_t dimension);
/* Returns the instruction that ruled S(dimension) out from the start; -1 where the size does not divide. */
int32_t strict_ruled_out_by(const StrictProblem *problem, int32_t parameter, int32_t dimension);

/* Finds the linkage groups of this mode; those that contradict one another exclude one another. */
AmStatus strict_groups(LinkageGroups **groups, Arena *arena, const PlanContext *context, int32_t axis_size,
                       StrictRoots roots, AmError *error);

#endif
