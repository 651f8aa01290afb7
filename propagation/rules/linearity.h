/* Partial values through operators: when u(parts, combined) = combined u(parts), so
 * that a reduction may take place after u instead of before it. */
#ifndef PROPAGATION_RULES_LINEARITY_H
#define PROPAGATION_RULES_LINEARITY_H

#include "ir/module.h"
#include "propagation/sharding/sbp.h"

typedef enum Linearity {
    LINEARITY_NONE,
    LINEARITY_MOVES,      /* hands on elements of operand 0: any reduction */
    LINEARITY_JOINS,      /* hands on elements of several operands: any reduction */
    LINEARITY_COMBINES,   /* is the reduction's operator, or subtracts sums */
    LINEARITY_REDUCES,    /* combines elements by the reduction's operator */
    LINEARITY_SCALES,     /* sums: linear in operand 0, the others being replicated */
    LINEARITY_MULTIPLIES, /* sums: linear in either of two operands, the other being replicated */
    LINEARITY_PAIRS,      /* sums: linear in both operands together */
    LINEARITY_MONOTONE,   /* maxima and minima: never falls, without rounding of its own */
    LINEARITY_EXCHANGES   /* negates: sums, and maxima become minima; not: and becomes or */
} Linearity;

/* Returns the class of the instruction: the column of its opcode, restricted by its attributes. */
Linearity linearity_of(const IrModule *module, const IrInstruction *instruction);

/* Returns whether the instruction, of that linearity, may use partial values without a reduction:
 * the operands `partial` (bits), partial by *reduction. *reduction becomes that of its result,
 * `*replicated` the operands (bits) that must be replicated if the others are partial. */
bool linearity_carries(const IrModule *module, const IrInstruction *instruction, Linearity linearity,
                       uint32_t partial, SbpReduction *reduction, uint32_t *replicated);

/* Returns whether the operator moves, adds or negates elements, so that in f32 it adds no rounding. */
bool linearity_is_exact(IrOpcode opcode);

/* Returns whether an instruction may use partial sums of a 16-bit type, whose parts are in f32
 * (linearity_is_16bit_product()), with the arguments of linearity_carries(). Only exact operators may,
 * computed in f32. A conversion to f32 returns the sums unchanged. */
bool linearity_carries_f32(const IrModule *module, const IrInstruction *instruction, Linearity linearity,
                           uint32_t partial, SbpReduction *reduction, uint32_t *replicated);

/* Returns the operands (bits) that must be made partial before the instruction can use the operands `partial`
 * without a reduction: an addend of a sum of parts is added by one device alone. */
uint32_t linearity_beside(const IrInstruction *instruction, uint32_t partial, SbpReduction reduction);

/* Decides about f32 sums: sums over devices are in f32 for products of 16-bit types: the partial product is
 * computed in f32, added in f32 and rounded once, as on one device. Operators that carry such parts
 * (linearity_carries_f32()) are computed in f32 as well, and their result is rounded at the reduction. */
static inline bool linearity_is_16bit(const IrInstruction *instruction) {
    return dtype_is_16bit_float(instruction->shape.type);
}
static inline bool linearity_is_16bit_product(const IrInstruction *instruction) {
    return ir_is_matrix_product(instruction->opcode) && linearity_is_16bit(instruction);
}

#endif
