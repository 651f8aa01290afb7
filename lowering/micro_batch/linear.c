/* Operators that carry a partial sum over time: those that carry it over devices
 * (propagation/rules/linearity.h), with three differences. An array of a loop that is zero so far counts
 * as a part, as zeros do. Conversions of sums to a wider floating type pass if the sum over
 * iterations has the wider type. In the entry, products wait for the sum: their other factor may be
 * known only after the iterations.
 */
#include "lowering/micro_batch/micro_batch_rewrite.h"
#include "propagation/rules/linearity.h"
#include "propagation/rules/rules_builder.h"

/* The kinds of an instruction's operands, as bits. */
typedef struct OperandKinds {
    uint32_t partial, zero, split;
    SbpReduction reduction;
    bool is_mixed; /* by different reductions */
} OperandKinds;

static OperandKinds classify_operands(const MicroBatchRewrite *self, const IrInstruction *instruction,
                                      int32_t i) {
    OperandKinds kinds = {.reduction = SBP_REDUCTION_COUNT};
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t producer, leaf;
        const IrShape *shape = &self->module->instructions[instruction->operands[k]].shape;
        if (shape->type == DTYPE_TUPLE) {
            kinds.is_mixed = true;
            continue;
        }
        micro_batch_operand(self, i, k, 0, &producer, &leaf);
        MicroBatchState state = *micro_batch_state(self, producer, leaf);
        bool may_be_array = shape->rank > 0 || instruction->shape.rank == 0 || instruction->opcode == IR_PAD;
        if (state.kind == TIME_SPLIT) kinds.split |= 1u << k;
        if (state.kind == TIME_PARTIAL) {
            kinds.is_mixed |= kinds.partial != 0 && kinds.reduction != state.reduction;
            kinds.partial |= 1u << k;
            kinds.reduction = state.reduction;
        } else if (may_be_array && (state.is_zero || rule_is_identity(self->module, producer, SBP_ADD))) {
            kinds.zero |= 1u << k;
        }
    }
    return kinds;
}

static bool widens(const MicroBatchRewrite *self, const IrInstruction *instruction) {
    Dtype from = self->module->instructions[instruction->operands[0]].shape.type,
          to = instruction->shape.type;
    return instruction->opcode == IR_CONVERT && dtype_is_floating(from) && dtype_is_floating(to) &&
           (micro_batch_rounds_sum(self, from) ? to == from : dtype_bits(to) >= dtype_bits(from));
}

bool micro_batch_is_linear(const MicroBatchRewrite *self, int32_t i, SbpReduction *reduction) {
    const IrInstruction *instruction = &self->module->instructions[i];
    Linearity linearity = linearity_of(self->module, instruction);
    uint32_t replicated;
    if (linearity == LINEARITY_NONE) return false; /* more operands than bits among them */
    OperandKinds kinds = classify_operands(self, instruction, i);
    bool is_product = linearity == LINEARITY_MULTIPLIES || linearity == LINEARITY_SCALES;
    if (kinds.is_mixed || kinds.split || (is_product && micro_batch_in_entry(self, i))) return false;
    *reduction = kinds.reduction;
    if (kinds.reduction == SBP_ADD && widens(self, instruction)) return true;
    if (linearity_carries(self->module, instruction, linearity, kinds.partial, reduction, &replicated))
        return true;
    *reduction = kinds.reduction;
    return kinds.reduction == SBP_ADD && kinds.zero != 0 &&
           linearity_carries(self->module, instruction, linearity, kinds.partial | kinds.zero, reduction,
                             &replicated);
}
