/* Arithmetic progressions: arrays of integers first + step * index along their only dimension above 1.
 *
 *     iota s32[128]                        0, 1, 2, ...     first 0, step 1
 *     constant s32[1,128] {-32, -31, ...}                   first -32, step 1
 *     subtract(iota, broadcast(32))                         the same
 *
 * Tracing folds such an array into a constant where it can, and computes it elsewhere, as the positions of a
 * window of attention in the forward and the backward pass.
 */
#ifndef IR_ANALYSIS_PROGRESSIONS_H
#define IR_ANALYSIS_PROGRESSIONS_H

#include "ir/module.h"

typedef struct IrProgression {
    bool is_known;
    int64_t first, step; /* step 0: all elements are alike */
} IrProgression;

/* Returns the progression of an instruction's value, from those of its operands. */
IrProgression ir_progression(const IrInstruction *instruction, const IrProgression *const *operands);

#endif
