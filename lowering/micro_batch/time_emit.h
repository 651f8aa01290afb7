/* Writing the module of the turns (internal to time_emit*.c). */
#ifndef LOWERING_MICRO_BATCH_TIME_EMIT_H
#define LOWERING_MICRO_BATCH_TIME_EMIT_H

#include "ir/canonical/compose.h"
#include "lowering/micro_batch/time_axis.h"

/* The destination of instructions: the entry, the body of a loop over micro-batches, or a region of
 * a loop in it. */
typedef struct TimeBlock {
    int32_t computation;
    int32_t turn;   /* s32[]: which micro-batch; -1 in the entry */
    int32_t origin; /* the instruction of the original that is being served */
    int32_t level;  /* -1 in the entry */
} TimeBlock;

/* An array that the loop of turns carries. */
typedef struct TimeCarry {
    IrShape shape;
    int32_t initial; /* in the entry */
    int32_t inside;  /* in the body */
    int32_t next;    /* in the body */
    int32_t result;  /* in the entry, afterwards; set for those that change */
} TimeCarry;

typedef struct TimeEmitter {
    TimeAxis *axis;
    IrComposer composer;
    Arena *arena; /* of the new module */
    /* by instruction of the original: values in the block that has them, -1 */
    int32_t *whole;   /* entry or region: the whole value, or the tuple of them */
    int32_t *own;     /* in the loop being written: the split or partial value */
    int32_t *stacked; /* entry: the parts of all turns */
    int32_t *average; /* entry: the mean of estimates */
    /* the loop being written */
    TimeBlock body;
    TimeCarry *carries;
    int32_t carry_count, carry_capacity;
    int32_t *invariant; /* [instruction of the new entry]: its value in the body, -1 */
    int32_t invariant_count;
    int32_t *copied; /* [computation of the original]: its copy, -1 */
} TimeEmitter;

/* ---- time_emit_parts.c: instructions without a counterpart in the original ---- */

/* Appends an operator with operands of the block; attributes may be NULL. */
int32_t time_add(TimeEmitter *self, const TimeBlock *block, IrOpcode opcode, const IrShape *shape,
                 const int32_t *operands, int32_t operand_count, const IrAttributes *attributes);
const IrShape *time_shape_of(const TimeEmitter *self, const TimeBlock *block, int32_t value);
/* An array shape with these dimensions, which are copied. */
IrShape time_array_shape(TimeEmitter *self, Dtype type, int32_t rank, const int64_t *dimensions);
/* The shape of one micro-batch's part, and that of one turn where the whole has M. */
IrShape time_part_shape(TimeEmitter *self, const IrShape *shape, TimeState state);
int32_t time_constant(TimeEmitter *self, const TimeBlock *block, Dtype type, double value);
/* An array of zeros, or of the identity of a reduction. */
int32_t time_filled(TimeEmitter *self, const TimeBlock *block, const IrShape *shape, SbpReduction reduction);
int32_t time_convert(TimeEmitter *self, const TimeBlock *block, int32_t value, Dtype type);
int32_t time_element(TimeEmitter *self, const TimeBlock *block, int32_t tuple, int32_t index);
/* Leaf `leaf` of a value; an array is its own leaf. */
int32_t time_leaf(TimeEmitter *self, const TimeBlock *block, int32_t value, int32_t leaf);
int32_t time_tuple(TimeEmitter *self, const TimeBlock *block, const int32_t *values, int32_t count);
/* Cuts the micro-batch's part out of a whole value. */
int32_t time_cut(TimeEmitter *self, const TimeBlock *block, int32_t value, TimeState state);
/* The shape in which the parts of all turns are stacked: rows, turns, unit in place of the dimension. */
IrShape time_stack_shape(TimeEmitter *self, const IrShape *whole, TimeState state);
/* Puts the turn's part into the stack. */
int32_t time_stack(TimeEmitter *self, const TimeBlock *block, int32_t stack, int32_t part,
                   const IrShape *whole, TimeState state);
/* The micro-batch's part of an iota. */
int32_t time_iota(TimeEmitter *self, const TimeBlock *block, const IrInstruction *iota, TimeState state);

#endif
