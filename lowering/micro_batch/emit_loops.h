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
    int32_t *full;        /* entry or region: the full value, or the tuple of them */
    int32_t *own;         /* in the loop being written: the split or partial value */
    int32_t *average;     /* entry: the mean of estimates */
    int32_t *stacked;     /* [state]: in the entry, the parts of all iterations, -1 */
    int32_t *copy_values; /* [copy]: in the loop being written */
    /* the rows of the part being written: of each settings.micro_batches rows, `part_count` from `part_first`
     * on; of a loop the one of its iteration */
    int64_t part_first, part_count;
    int32_t replica;              /* that is being written */
    MicroBatchReplicas *replicas; /* parts that are written one beside another; NULL: in loops */
    /* the loop being written */
    MicroBatchBlock body;
    MicroBatchCarry *carries;
    int32_t carry_count, carry_capacity;
    int32_t *invariant; /* [instruction of the new entry]: its value in the body, -1 */
    int32_t invariant_count;
    int32_t *copied; /* [computation of the original]: its copy, -1 */
} MicroBatchEmitter;

/* ---- emit_loops.c ---- */

/* What leaves a loop: a combination of its iterations' values, their parts put together, the mean of
 * estimates, or the value of the last iteration. */
typedef enum ResultKind { RESULT_SUM, RESULT_STACK, RESULT_AVERAGE, RESULT_LAST, RESULT_KINDS } ResultKind;

/* Returns whether a result of value i, of its leaf 0 but for stacks, leaves the loop of this level. */
bool micro_batch_leaves_loop(const MicroBatchRewrite *rewrite, int32_t i, int32_t leaf, int32_t level,
                             ResultKind kind);
/* Returns whether values of this type are added in f32. */
bool micro_batch_sums_in_f32(const MicroBatchRewrite *rewrite, Dtype type);
/* Emits the values of instruction i in the iterations: its own value and copies. */
void micro_batch_emit_inside(MicroBatchEmitter *self, MicroBatchBlock *block, int32_t i);
/* Emits the instructions after the loop for a result. */
void micro_batch_finish_result(MicroBatchEmitter *self, int32_t i, int32_t leaf, ResultKind kind,
                               int32_t result);

/* ---- emit_replicas.c ---- */

/* Emits what the loop of a level computes once for each replica, one beside another, and adds up the sums. */
AmStatus micro_batch_emit_replicas(MicroBatchEmitter *self, int32_t level, AmError *error);
/* Notes the replica (-1: none) of the instructions of the entry that have been emitted since the last note.
 */
void micro_batch_note_replica(MicroBatchEmitter *self, int32_t replica);

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
/* Puts the parts of all replicas together. */
int32_t micro_batch_join(MicroBatchEmitter *self, const MicroBatchBlock *block, const int32_t *parts,
                         const IrShape *full, MicroBatchState state);
/* Puts the iteration's part into the stack. */
int32_t micro_batch_stack(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t stack, int32_t part,
                          const IrShape *full, MicroBatchState state);
/* Returns the micro-batch's part of an iota. */
int32_t micro_batch_iota(MicroBatchEmitter *self, const MicroBatchBlock *block, const IrInstruction *iota,
                         MicroBatchState state);

#endif
