/* Writes the module that a rewrite into micro-batches makes; private to the emit files of this folder.
 *
 * rewrite.c writes the entry, emit_loops.c the loops over micro-batches, one after another by level, and
 * emit_slices.c slices, accumulations and other instructions that the original does not have.
 */
#ifndef LOWERING_MICRO_BATCH_EMIT_LOOPS_H
#define LOWERING_MICRO_BATCH_EMIT_LOOPS_H

#include "ir/canonical/compose.h"
#include "lowering/micro_batch/micro_batch_rewrite.h"

/* The destination of instructions: the entry, the body of a loop over micro-batches, or a region of
 * a loop in it. */
typedef struct MicroBatchBlock {
    int32_t computation;
    int32_t iteration; /* s32[]: which micro-batch; -1 in the entry */
    int32_t origin;    /* the instruction of the original that is being served */
    int32_t level;     /* -1 in the entry */
} MicroBatchBlock;

/* An array that the loop of iterations carries. */
typedef struct MicroBatchCarry {
    IrShape shape;
    int32_t initial; /* in the entry */
    int32_t inside;  /* in the body */
    int32_t next;    /* in the body */
    int32_t result;  /* in the entry, afterwards; set for those that change */
} MicroBatchCarry;

typedef struct MicroBatchEmitter {
    MicroBatchRewrite *rewrite;
    IrComposer composer;
    Arena *arena; /* of the new module */
    /* by instruction of the original: values in the block that has them, -1 */
    int32_t *full;    /* entry or region: the full value, or the tuple of them */
    int32_t *own;     /* in the loop being written: the split or partial value */
    int32_t *average; /* entry: the mean of estimates */
    int32_t *stacked; /* [state]: in the entry, the parts of all iterations, -1 */
    /* the loop being written */
    MicroBatchBlock body;
    MicroBatchCarry *carries;
    int32_t carry_count, carry_capacity;
    int32_t *invariant; /* [instruction of the new entry]: its value in the body, -1 */
    int32_t invariant_count;
    int32_t *copied; /* [computation of the original]: its copy, -1 */
} MicroBatchEmitter;

/* ---- emit_slices.c: instructions without a counterpart in the original ---- */

/* Appends an operator with operands of the block; attributes may be NULL. */
int32_t micro_batch_add(MicroBatchEmitter *self, const MicroBatchBlock *block, IrOpcode opcode,
                        const IrShape *shape, const int32_t *operands, int32_t operand_count,
                        const IrAttributes *attributes);
const IrShape *micro_batch_shape_of(const MicroBatchEmitter *self, const MicroBatchBlock *block,
                                    int32_t value);
/* Returns the shape of one micro-batch's part, and that of one iteration where the full value has M. */
IrShape micro_batch_part_shape(MicroBatchEmitter *self, const IrShape *shape, MicroBatchState state);
int32_t micro_batch_constant(MicroBatchEmitter *self, const MicroBatchBlock *block, Dtype type, double value);
/* Returns an array of zeros, or of the identity of a reduction. */
int32_t micro_batch_filled(MicroBatchEmitter *self, const MicroBatchBlock *block, const IrShape *shape,
                           SbpReduction reduction);
int32_t micro_batch_convert(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t value, Dtype type);
int32_t micro_batch_element(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t tuple,
                            int32_t index);
/* Returns leaf `leaf` of a value; an array is its own leaf. */
int32_t micro_batch_leaf(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t value, int32_t leaf);
int32_t micro_batch_tuple(MicroBatchEmitter *self, const MicroBatchBlock *block, const int32_t *values,
                          int32_t count);
/* Cuts the micro-batch's part out of a full value. */
int32_t micro_batch_cut(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t value,
                        MicroBatchState state);
/* Returns the shape in which the parts of all iterations are stacked: rows, iterations, unit in place of the
 * dimension. */
IrShape micro_batch_stack_shape(MicroBatchEmitter *self, const IrShape *full, MicroBatchState state);
/* Puts the iteration's part into the stack. */
int32_t micro_batch_stack(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t stack, int32_t part,
                          const IrShape *full, MicroBatchState state);
/* Returns the micro-batch's part of an iota. */
int32_t micro_batch_iota(MicroBatchEmitter *self, const MicroBatchBlock *block, const IrInstruction *iota,
                         MicroBatchState state);

#endif
