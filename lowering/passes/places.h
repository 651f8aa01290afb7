/* Slices of arrays that a loop's iteration selects, without a copy.
 *
 * A loop keeps one array per iteration in a larger one, a stack: `dynamic-update-slice(stack,
 * value, i)` at the definition and `dynamic-slice(stack, i)` at the use, in the iteration of
 * another loop. If the index is a function of the iteration alone, both offsets are known
 * beforehand for every iteration:
 *
 *   reading   the slice is a view of the stack, if the loop does not change the stack: its address is
 *             the stack's plus an offset per iteration
 *   writing   the producer of `value` writes directly into its slice, if the stack has no other use in
 *             the loop
 *
 * Both require a contiguous slice (one index of the first dimension, all of the others; dimensions
 * of size 1 may come before), aligned as all values are. Kernels get addresses per iteration. A
 * value that a region of its own or a transfer without slots reads or writes is therefore copied.
 * Operands and results of collectives are copied too, except in joined loops, which run on the
 * host, where addresses may change.
 */
#ifndef LOWERING_PASSES_PLACES_H
#define LOWERING_PASSES_PLACES_H

#include "lowering/program/program.h"

/* Sets body->counter, if it is known (ir/analysis/loops.h). `loop`: the instruction of its module; leaves[p]
 * is the array of what that carries, tuples taken apart, which is parameter p; NULL: p itself. */
void program_set_counter(Program *body, int32_t loop, const int32_t *leaves);

/* Sets `place` of all instructions and values; before program_fuse, which calls it. Time: instructions, and
 * iterations for every index. */
AmStatus program_find_places(Program *program, AmError *error);

/* Sets `unset` of all loops, whose regions are finished: arrays that the iterations overwrite
 * completely.
 */
AmStatus program_find_unset(Program *program, AmError *error);

/* Finds [instruction] an index that only slices of this kind used, which need not run. NULL: none. In the
 * arena. */
AmStatus program_unused_indices(bool **unused, const Program *program, AmError *error);

#endif
