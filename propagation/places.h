/* Parts of arrays that a loop's turn chooses, without a copy.
 *
 * A loop keeps one array per turn in a larger one, a stack: `dynamic-update-slice(stack, value, turn)` where
 * it is made and `dynamic-slice(stack, turn)` where it is needed, in the turn of another loop. Where the
 * index is a function of the turn alone, both are known beforehand for every turn:
 *
 *   reading   the slice is a view of the stack, if the loop does not change that: its address is the stack's
 *             and an offset of the turn
 *   writing   what makes `value` makes it in its place, if the stack has no other use in the loop
 *
 * Either takes a part that lies together (one index of the first dimension, all of the others; dimensions of
 * size 1 may stand before), aligned as all values are. Addresses are given to kernels turn by turn; so a
 * value that a region of its own or a transfer without slots takes or makes is copied, and so is a
 * collective's but in loops that take turns: those run on the host, where its addresses may change, too.
 */
#ifndef PROPAGATION_PLACES_H
#define PROPAGATION_PLACES_H

#include "propagation/program.h"

/* Sets body->counter, if it is known (ir/loops.h). `loop`: the instruction of its module; leaves[p] is the
 * array of what that carries, tuples taken apart, which is parameter p; NULL: p itself. */
void program_set_counter(Program *body, int32_t loop, const int32_t *leaves);

/* Sets `place` of all instructions and values; before program_fuse, which calls it. Time: instructions, and
 * turns for every index. */
AmStatus program_find_places(Program *program, AmError *error);

/* Sets `unset` of all loops, whose regions are finished: arrays of which every part is the place of a turn.
 */
AmStatus program_find_unset(Program *program, AmError *error);

/* [instruction] an index that only places were made of: it need not run. NULL: there is none. In the arena.
 */
AmStatus program_unused_indices(bool **unused, const Program *program, AmError *error);

#endif
