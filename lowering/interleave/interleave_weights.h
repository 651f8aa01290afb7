/* Zero-bubble: the part of a backward iteration that can wait (Qi et al. 2023, ZB-H1).
 *
 * An iteration of the backward pass does two things: it sends the gradient to the previous stage,
 * which waits for it, and it accumulates gradients of weights, which are not needed before the last
 * iteration. The loop of the backward pass is therefore split in two (loop fission), by the users
 * of the instructions of its body:
 *
 *   second (B)   ancestors of a transfer, and of values that later iterations of it need
 *   third  (W)   ancestors of carried arrays alone, through a matrix product, a convolution,
 *                a scatter or a collective; without one of these they stay in B
 *
 * Both count iterations. W reads the results of B from stacks, iteration m in place m modulo their
 * number, as interleave_stacks.c uses them between F and B. Values that are cheap to compute from
 * invariant arrays, such as a slice of a result of F, are recomputed in W. W accumulates in the
 * order of B's iterations, so that results are bit-identical.
 */
#ifndef LOWERING_INTERLEAVE_INTERLEAVE_WEIGHTS_H
#define LOWERING_INTERLEAVE_INTERLEAVE_WEIGHTS_H

#include "lowering/interleave/interleave.h"

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

/* Finds the part of a loop's body that can wait; in the arena. Time: instructions x rounds, a round more for
 * each chain of carried arrays. */
AmStatus waiting_part_find(WaitingPart *part, Arena *arena, const ProgramInstruction *loop, AmError *error);

/* Splits loop `*second` of a program, which directly follows `*first`, into two adjacent loops; the
 * values between them have `kept` places. Instruction numbers of the program change, and regions
 * must be finished again. */
AmStatus waiting_part_split(Program *program, int32_t *first, int32_t *second, int32_t *third,
                            const WaitingPart *part, int32_t kept, int32_t iterations, AmError *error);

#endif
