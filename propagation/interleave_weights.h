/* Zero-bubble: the part of a backward turn that can wait (Qi et al. 2023, ZB-H1).
 *
 * A turn of the backward pass does two things: it brings the gradient to the stage before,
 * which waits for it, and it adds up gradients of weights, for which nobody waits before the last
 * turn. So the loop of the backward pass is cut in two (loop fission), by what the instructions of its body
 * lead to:
 *
 *   second (B)   what leads to a transfer, and to what later turns of that need
 *   third  (W)   what leads to nothing but arrays that are carried along, with a product of matrices, a
 *                convolution, a scatter or a collective on the way; without, it stays with B
 *
 * Both count turns. W takes what B has made from stacks, turn m in place m modulo their number, as
 * interleave_stacks.c knows them between F and B; what is cheap to make of what never changes, such as a
 * slice of what F left, W makes itself. W adds up in the order of B's turns, so results are the same bit for
 * bit.
 */
#ifndef PROPAGATION_INTERLEAVE_WEIGHTS_H
#define PROPAGATION_INTERLEAVE_WEIGHTS_H

#include "propagation/interleave.h"

typedef struct WaitingPart {
    int32_t count;   /* arrays whose new values can wait; 0: the loop stays whole */
    bool *waits;     /* [instruction of the body]: only W runs it */
    bool *is_copied; /* [instruction of the body]: W runs it too */
    bool *crosses;   /* [value of the body]: B makes it and W takes it */
    /* [operand of the loop] */
    bool *is_later;  /* W makes its next value */
    bool *is_common; /* the condition reads it: both carry it */
    bool *is_taken;  /* never changed, and W reads it */
    bool *is_kept;   /* B has it: all but those that only W reads or makes */
} WaitingPart;

/* The part of a loop's body that can wait; in the arena. Time: instructions x rounds, a round more for each
 * chain of carried arrays. */
AmStatus waiting_part_find(WaitingPart *part, Arena *arena, const ProgramInstruction *loop, AmError *error);

/* Cuts loop `*second` of a program, which stands right behind `*first`, in two that stand there; what passes
 * between them has `kept` places. The program has other instruction numbers then. Regions must be finished
 * again. */
AmStatus waiting_part_split(Program *program, int32_t *first, int32_t *second, int32_t *third,
                            const WaitingPart *part, int32_t kept, int32_t turns, AmError *error);

#endif
