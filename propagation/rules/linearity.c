/* Operators through which partial values pass exactly.
 *
 *   sums      pass linear operators: moves, additions, scaling by a replicated value; a second
 *             operand that is moved with them must be partial too, or zero, which every part may
 *             add; an addend can be made partial at no cost
 *   maxima    pass monotone operators: moves, conversions without wrap, rounding to integers;
 *   (minima)  max(max_i a_i, b) = max_i max(a_i, b), so that a second operand may be replicated
 *   and, or   pass moves and themselves, as maxima do
 *   products  pass moves alone: another factor would count in every part
 *
 * Integers wrap, and a type that rounds or wraps in between would do so in every part: conversions
 * of sums do not pass. Negation of the least integer wraps. Sums of 16-bit products are exact in
 * that their parts are f32: they are moved, added and negated in f32 and rounded when they are
 * reduced.
 */
#include "propagation/rules/linearity.h"

#include "propagation/rules/rules_builder.h"

enum { MOST_OPERANDS = 31 };

static const uint8_t linearity_of_opcode[IR_OPCODE_COUNT + 1] = {
#define OPCODE(name, text, arity, rule, linearity, ...) [IR_##name] = LINEARITY_##linearity,
#include "ir/opcodes.def"
#undef OPCODE
};

/* Returns the operands whose elements the instruction hands on or combines. */
static uint32_t data_operands(const IrInstruction *instruction) {
    if (ir_is_product(instruction->opcode)) return 3u;
    uint32_t all = instruction->operand_count > MOST_OPERANDS ? 0 : (1u << instruction->operand_count) - 1;
    switch (instruction->opcode) {
    case IR_SELECT: return 6u;
    case IR_CONCATENATE: return all;
    case IR_ADD:
    case IR_SUBTRACT:
    case IR_MAXIMUM:
    case IR_MINIMUM:
    case IR_AND:
    case IR_OR:
    case IR_MULTIPLY:
    case IR_COMPLEX:
    case IR_PAD:
    case IR_DYNAMIC_UPDATE_SLICE: return 3u;
    default: return 1u;
    }
}

/* Returns the reduction that a reduce or reduce-window is, with an init value that parts may repeat. */
static SbpReduction reduction_of(const IrModule *module, const IrInstruction *instruction) {
    if (instruction->operand_count != 2 || instruction->called_count != 1) return SBP_REDUCTION_COUNT;
    SbpReduction reduction = sbp_reduction_of(ir_computation_operator(module, instruction->called[0]));
    bool splits =
        reduction != SBP_REDUCTION_COUNT && rule_may_repeat(module, instruction->operands[1], reduction);
    return splits ? reduction : SBP_REDUCTION_COUNT;
}

Linearity linearity_of(const IrModule *module, const IrInstruction *instruction) {
    Linearity linearity = (Linearity)linearity_of_opcode[instruction->opcode];
    if (instruction->operand_count > MOST_OPERANDS || instruction->shape.type == DTYPE_TUPLE)
        return LINEARITY_NONE;
    if (linearity == LINEARITY_REDUCES && reduction_of(module, instruction) == SBP_REDUCTION_COUNT)
        return LINEARITY_NONE;
    if (instruction->opcode == IR_DIVIDE && !dtype_is_floating(instruction->shape.type))
        return LINEARITY_NONE;
    return linearity;
}

/* Returns whether a replicated operand may be combined with parts: the reduction is idempotent. */
static bool may_repeat(SbpReduction reduction) {
    return reduction == SBP_MAX || reduction == SBP_MIN || reduction == SBP_AND || reduction == SBP_OR;
}

/* Returns whether the operands of `data` that are not partial may be combined with parts. */
static bool others_fit(const IrModule *module, const IrInstruction *instruction, uint32_t others,
                       SbpReduction reduction) {
    if (may_repeat(reduction)) return true;
    for (int32_t k = 0; k < instruction->operand_count; k++)
        if (others >> k & 1 &&
            (reduction != SBP_ADD || !rule_is_identity(module, instruction->operands[k], SBP_ADD)))
            return false;
    return true;
}

static bool is_monotone(const IrModule *module, const IrInstruction *instruction) {
    if (instruction->opcode != IR_CONVERT) return true;
    Dtype from = module->instructions[instruction->operands[0]].shape.type, to = instruction->shape.type;
    if (dtype_is_complex(from) || dtype_is_complex(to) || to == DTYPE_PRED) return false;
    if (dtype_is_floating(to)) return true;
    if (from == DTYPE_PRED) return true;
    if (!dtype_is_integer(from) || !dtype_is_integer(to)) return false; /* NaN becomes 0 */
    if (dtype_is_signed(from) && !dtype_is_signed(to)) return false;
    int32_t room = dtype_bits(to) - (dtype_is_signed(to) && !dtype_is_signed(from) ? 1 : 0);
    return room >= dtype_bits(from);
}

/* Exchanges a reduction for that of the negated or inverted operand: a maximum of -x is a minimum of x. */
static bool exchange(const IrInstruction *instruction, SbpReduction *reduction) {
    static const SbpReduction other[SBP_REDUCTION_COUNT] = {
        [SBP_ADD] = SBP_ADD,           [SBP_MAX] = SBP_MIN, [SBP_MIN] = SBP_MAX,
        [SBP_MULTIPLY] = SBP_MULTIPLY, [SBP_AND] = SBP_OR,  [SBP_OR] = SBP_AND};
    bool is_extreme = *reduction == SBP_MAX || *reduction == SBP_MIN;
    bool is_bitwise = *reduction == SBP_AND || *reduction == SBP_OR;
    bool passes = instruction->opcode == IR_NOT
                      ? is_bitwise
                      : *reduction == SBP_ADD || (is_extreme && dtype_is_floating(instruction->shape.type));
    *reduction = other[*reduction];
    return passes;
}

bool linearity_carries(const IrModule *module, const IrInstruction *instruction, Linearity linearity,
                       uint32_t partial, SbpReduction *reduction, uint32_t *replicated) {
    uint32_t data = data_operands(instruction), all = (1u << instruction->operand_count) - 1;
    *replicated = all & ~partial;
    if (partial == 0 || partial & ~data) return false;
    switch (linearity) {
    case LINEARITY_MOVES: return true;
    case LINEARITY_JOINS: return others_fit(module, instruction, data & ~partial, *reduction);
    case LINEARITY_COMBINES:
        if (instruction->opcode == IR_SUBTRACT) return *reduction == SBP_ADD && partial == data;
        if (sbp_reduction_of(instruction->opcode) != *reduction) return false;
        return partial == data || may_repeat(*reduction);
    case LINEARITY_REDUCES: return reduction_of(module, instruction) == *reduction;
    case LINEARITY_SCALES: return *reduction == SBP_ADD;
    case LINEARITY_PAIRS: return *reduction == SBP_ADD && partial == data;
    case LINEARITY_MULTIPLIES: return *reduction == SBP_ADD && partial != data;
    case LINEARITY_MONOTONE:
        return (*reduction == SBP_MAX || *reduction == SBP_MIN) && is_monotone(module, instruction);
    case LINEARITY_EXCHANGES: return exchange(instruction, reduction);
    default: return false;
    }
}

bool linearity_is_exact(IrOpcode opcode) {
    switch (opcode) {
    case IR_COPY:
    case IR_RESHAPE:
    case IR_TRANSPOSE:
    case IR_ADD:
    case IR_SUBTRACT:
    case IR_NEGATE: return true;
    default: return false;
    }
}

bool linearity_carries_f32(const IrModule *module, const IrInstruction *instruction, Linearity linearity,
                           uint32_t partial, SbpReduction *reduction, uint32_t *replicated) {
    if (*reduction != SBP_ADD) return false;
    if (instruction->opcode == IR_CONVERT) {
        *replicated = 0;
        return partial == 1u && instruction->shape.type == DTYPE_F32;
    }
    return linearity_is_exact(instruction->opcode) &&
           linearity_carries(module, instruction, linearity, partial, reduction, replicated);
}

uint32_t linearity_beside(const IrInstruction *instruction, uint32_t partial, SbpReduction reduction) {
    bool adds = instruction->opcode == IR_ADD || instruction->opcode == IR_SUBTRACT;
    return adds && partial && reduction == SBP_ADD ? data_operands(instruction) & ~partial : 0;
}
