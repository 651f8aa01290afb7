/* Rules of reducing operators: over whole dimensions, over a sliding window, or from the results
 * back to the window's positions.
 *
 *   n' = (n - 1) base_dilation + 1 (0 where n = 0), plus low and high padding,
 *   which must leave it 0 or more; w' = (w - 1) window_dilation + 1;
 *   result: (n' - w') / stride + 1, or 0 where w' > n'
 *
 * Inputs, initial values, and the parameters and results of the computation have one element type
 * each. XLA accepts different floating widths; no kernel does.
 */
#include "ir/verify/verify_parts.h"

/* Operands are inputs of one shape, then as many scalars of their types. Each
 * input gives `dimensions` (rank of them); several inputs give a tuple. XLA lets one give a tuple of one. */
static AmStatus verify_reduced(const Verifier *verifier, const IrInstruction *instruction, int32_t rank,
                               const int64_t *dimensions) {
    int32_t inputs = instruction->operand_count / 2;
    if (instruction->operand_count % 2 != 0) {
        return verify_refuse(verifier, instruction,
                             "it has %d operands, expected inputs and as many initial values",
                             instruction->operand_count);
    }
    const IrShape *result = &instruction->shape, *first = verify_operand(verifier, instruction, 0);
    bool is_tuple = result->type == DTYPE_TUPLE;
    bool may_be_tuple = inputs > 1 || verifier->is_lax;
    if (is_tuple ? !may_be_tuple || result->rank != inputs : inputs > 1) {
        return verify_refuse(verifier, instruction, "its shape is no tuple of %d elements", inputs);
    }
    TRY(verify_calls(verifier, instruction, 1, instruction->operand_count));
    TRY(verify_combiner(verifier, instruction, verify_called(verifier, instruction, 0), inputs));
    for (int32_t k = 0; k < inputs; k++) {
        const IrShape *input = verify_operand(verifier, instruction, k);
        IrShape same = *first, scalar = {.type = input->type};
        same.type = input->type;
        TRY(verify_shape(verifier, instruction, input, &same));
        TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, inputs + k), &scalar));
        const IrShape *found = is_tuple ? &result->elements[k] : result;
        IrShape expected = {.type = input->type, .rank = rank, .dimensions = dimensions};
        TRY(verify_shape(verifier, instruction, found, &expected));
    }
    return AM_OK;
}

AmStatus verify_reduce(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *input = verify_operand(verifier, instruction, 0);
    const IrAttributes *attributes = instruction->attributes;
    TRY(verify_dimensions(verifier, instruction, attributes->dimensions, attributes->dimension_count,
                          input->rank, "dimensions"));
    int64_t kept[IR_MAX_RANK];
    int32_t rank = 0;
    for (int32_t d = 0; d < input->rank; d++) {
        if (!int_list_contains(attributes->dimensions, attributes->dimension_count, d))
            kept[rank++] = input->dimensions[d];
    }
    return verify_reduced(verifier, instruction, rank, kept);
}

/* Slides the window over `input`; sizes gets its positions per dimension. */
static AmStatus slide(const Verifier *verifier, const IrInstruction *instruction, const IrShape *input,
                      int64_t *sizes) {
    const IrAttributes *attributes = instruction->attributes;
    if (attributes->window_count != input->rank) {
        return verify_refuse(verifier, instruction, "its window has %d dimensions, its operand has %d",
                             attributes->window_count, input->rank);
    }
    for (int32_t i = 0; i < input->rank; i++) {
        sizes[i] = ir_window_positions(input->dimensions[i], &attributes->window[i]);
        if (sizes[i] < 0)
            return verify_refuse(verifier, instruction, "its window has no valid size in dimension %d", i);
    }
    return AM_OK;
}

AmStatus verify_reduce_window(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *input = verify_operand(verifier, instruction, 0);
    int64_t sizes[IR_MAX_RANK];
    TRY(slide(verifier, instruction, input, sizes));
    return verify_reduced(verifier, instruction, input->rank, sizes);
}

/* Checks select-and-scatter: the first computation selects a window's element, the second adds to it. */
AmStatus verify_select_and_scatter(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    int64_t sizes[IR_MAX_RANK];
    TRY(slide(verifier, instruction, operand, sizes));
    TRY(verify_calls(verifier, instruction, 2, 2));
    const IrComputation *select = verify_called(verifier, instruction, 0);
    IrShape source = {.type = operand->type, .rank = operand->rank, .dimensions = sizes};
    IrShape scalar = {.type = operand->type}, flag = {.type = DTYPE_PRED};
    for (int32_t k = 0; k < 2; k++) {
        TRY(verify_parameter(verifier, instruction, select, k, &scalar));
    }
    TRY(verify_root(verifier, instruction, select, &flag));
    TRY(verify_combiner(verifier, instruction, verify_called(verifier, instruction, 1), 1));
    TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, 1), &source));
    TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, 2), &scalar));
    return verify_shape(verifier, instruction, &instruction->shape, operand);
}
