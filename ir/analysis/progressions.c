/* Progressions by operator: values whose element k is first + k step.
 *
 * Constants and iotas begin them; sums, differences, and products with a constant continue them. The
 * arithmetic is exact in 64 bits, and the result is unknown if an element is outside of its type.
 */
#include "ir/analysis/progressions.h"

#include <string.h>

static const IrProgression unknown;

/* Returns the number of elements along the only dimension above 1, or 1; 0: there are several. */
static int64_t length_of(const IrShape *shape) {
    int64_t length = 1;
    for (int32_t d = 0; d < shape->rank; d++) {
        if (shape->dimensions[d] == 1) continue;
        if (length > 1) return 0;
        length = shape->dimensions[d];
    }
    return length;
}

static int64_t element_of(const IrLiteral *literal, Dtype type, int64_t k) {
    int32_t narrow;
    int64_t wide;
    if (type == DTYPE_S64) {
        memcpy(&wide, (const char *)literal->data + 8 * k, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const char *)literal->data + 4 * k, sizeof narrow);
    return narrow;
}

static IrProgression progression_of_constant(const IrInstruction *instruction) {
    const IrLiteral *literal = instruction->literal;
    Dtype type = instruction->shape.type;
    int64_t length = length_of(&instruction->shape);
    if (!literal || !literal->data || length <= 0 || literal->bytes < length * dtype_bytes(type))
        return unknown;
    IrProgression made = {true, element_of(literal, type, 0), 0};
    if (length > 1 && __builtin_sub_overflow(element_of(literal, type, 1), made.first, &made.step))
        return unknown;
    for (int64_t k = 1; k < length; k++) {
        int64_t difference;
        if (__builtin_sub_overflow(element_of(literal, type, k), element_of(literal, type, k - 1),
                                   &difference) ||
            difference != made.step)
            return unknown;
    }
    return made;
}

/* Indices along a dimension of size 1 are 0. */
static IrProgression progression_of_iota(const IrInstruction *instruction) {
    const IrAttributes *attributes = instruction->attributes;
    int64_t d = attributes->dimension_count > 0 ? attributes->dimensions[0] : 0;
    if (instruction->shape.rank == 0) return unknown;
    return (IrProgression){true, 0, instruction->shape.dimensions[d] > 1};
}

/* Returns whether all elements are numbers of the type, so that none has wrapped. */
static bool fits(const IrProgression *made, const IrShape *shape) {
    int64_t length = length_of(shape), last, most = shape->type == DTYPE_S32 ? INT32_MAX : INT64_MAX;
    if (__builtin_mul_overflow(made->step, length - 1, &last) ||
        __builtin_add_overflow(last, made->first, &last))
        return false;
    return made->first <= most && made->first >= -most && last <= most && last >= -most;
}

IrProgression ir_progression(const IrInstruction *instruction, const IrProgression *const *operands) {
    const IrShape *shape = &instruction->shape;
    bool is_integer = shape->type == DTYPE_S32 || shape->type == DTYPE_S64;
    if (!is_integer || length_of(shape) <= 0) return unknown;
    if (instruction->opcode == IR_CONSTANT) return progression_of_constant(instruction);
    if (instruction->opcode == IR_IOTA) return progression_of_iota(instruction);
    int32_t count = instruction->operand_count;
    if (count < 1 || count > 2) return unknown;
    for (int32_t k = 0; k < count; k++)
        if (!operands[k]->is_known) return unknown;
    IrProgression made = *operands[0];
    const IrProgression *other = operands[count - 1];
    bool overflows = false;
    switch (instruction->opcode) {
    case IR_RESHAPE:
    case IR_BROADCAST:
    case IR_TRANSPOSE:
    case IR_COPY: return made;
    case IR_ADD:
        overflows = __builtin_add_overflow(made.first, other->first, &made.first) ||
                    __builtin_add_overflow(made.step, other->step, &made.step);
        break;
    case IR_SUBTRACT:
        overflows = __builtin_sub_overflow(made.first, other->first, &made.first) ||
                    __builtin_sub_overflow(made.step, other->step, &made.step);
        break;
    case IR_MULTIPLY:
        if (made.step != 0 && other->step != 0) return unknown;
        overflows = __builtin_mul_overflow(made.step, other->first, &made.step) ||
                    (other->step != 0 && __builtin_mul_overflow(made.first, other->step, &made.step)) ||
                    __builtin_mul_overflow(made.first, other->first, &made.first);
        break;
    default: return unknown;
    }
    return !overflows && fits(&made, shape) ? made : unknown;
}
