/* Which operators give the sum of what they give for parts of a sum.
 *
 *     u(a1 + a2) = u(a1) + u(a2)
 *
 * for the operands that are partial, the others being whole; an operand of zeros
 * counts as partial. Conversions to a wider floating type are taken as exact.
 * Products wait for the sum where they can: what they multiply by may itself
 * be known after the turns only.
 */
#include "propagation/rules_builder.h"
#include "propagation/time_axis.h"

typedef enum LinearKind {
    LINEAR_JOINT,   /* all operands of the mask partial, the others whole */
    LINEAR_PRODUCT, /* one operand partial, the other whole */
    LINEAR_WIDENING,
    LINEAR_ADDING, /* the operand partial: reduce that only adds */
    LINEAR_FLOATING
} LinearKind;

typedef struct LinearRow {
    IrOpcode opcode;
    LinearKind kind;
    uint32_t operands; /* bits: operands that may be partial */
} LinearRow;

#define ALL_OPERANDS UINT32_MAX

static const LinearRow rows[] = {
    {IR_ADD, LINEAR_JOINT, 3},
    {IR_SUBTRACT, LINEAR_JOINT, 3},
    {IR_NEGATE, LINEAR_JOINT, 1},
    {IR_COPY, LINEAR_JOINT, 1},
    {IR_TRANSPOSE, LINEAR_JOINT, 1},
    {IR_RESHAPE, LINEAR_JOINT, 1},
    {IR_BROADCAST, LINEAR_JOINT, 1},
    {IR_SLICE, LINEAR_JOINT, 1},
    {IR_REVERSE, LINEAR_JOINT, 1},
    {IR_DYNAMIC_SLICE, LINEAR_JOINT, 1},
    {IR_DYNAMIC_UPDATE_SLICE, LINEAR_JOINT, 3},
    {IR_CONCATENATE, LINEAR_JOINT, ALL_OPERANDS},
    {IR_PAD, LINEAR_JOINT, 3},
    {IR_SELECT, LINEAR_JOINT, 6},
    {IR_GATHER, LINEAR_JOINT, 1},
    {IR_MULTIPLY, LINEAR_PRODUCT, 3},
    {IR_DOT, LINEAR_PRODUCT, 3},
    {IR_CONVOLUTION, LINEAR_PRODUCT, 3},
    {IR_DIVIDE, LINEAR_FLOATING, 1},
    {IR_CONVERT, LINEAR_WIDENING, 1},
    {IR_REDUCE, LINEAR_ADDING, 1},
};

/* Adds up without anything of its own: the sum of sums of parts is the sum of all. */
static bool only_adds(const IrModule *module, const IrInstruction *reduce) {
    return reduce->operand_count == 2 && reduce->called_count == 1 &&
           sbp_reduction_of(ir_computation_operator(module, reduce->called[0])) == SBP_ADD &&
           rule_is_identity(module, reduce->operands[1], SBP_ADD);
}

bool time_is_linear(const TimeAxis *self, int32_t i) {
    const IrInstruction *instruction = &self->module->instructions[i];
    const LinearRow *row = NULL;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        if (rows[r].opcode == instruction->opcode) row = &rows[r];
    if (!row || instruction->shape.type == DTYPE_TUPLE) return false;
    bool is_product = row->kind == LINEAR_PRODUCT || row->kind == LINEAR_FLOATING;
    if (is_product && time_in_entry(self, i)) return false;
    int32_t partial = 0;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t producer, leaf;
        if (self->module->instructions[instruction->operands[k]].shape.type == DTYPE_TUPLE) return false;
        time_operand(self, i, k, 0, &producer, &leaf);
        TimeState state = *time_state(self, producer, leaf);
        bool may_be = k < 32 ? row->operands >> k & 1 : row->operands == ALL_OPERANDS;
        if (state.kind == TIME_SPLIT) return false;
        if (state.kind == TIME_PARTIAL) {
            if (!may_be || state.reduction != SBP_ADD) return false;
            partial++;
        } else if (may_be && row->kind == LINEAR_JOINT) {
            if (!state.is_zero && !rule_is_identity(self->module, producer, SBP_ADD)) return false;
        }
    }
    const IrShape *operand = &self->module->instructions[instruction->operands[0]].shape;
    switch (row->kind) {
    case LINEAR_JOINT: return partial > 0;
    case LINEAR_PRODUCT: return partial == 1;
    case LINEAR_FLOATING: return partial == 1 && dtype_is_floating(operand->type);
    case LINEAR_WIDENING:
        return dtype_is_floating(operand->type) && dtype_is_floating(instruction->shape.type) &&
               dtype_bits(instruction->shape.type) >= dtype_bits(operand->type);
    default: return partial == 1 && only_adds(self->module, instruction);
    }
}
