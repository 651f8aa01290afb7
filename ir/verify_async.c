/* Rules of instructions that come in two halves, of tokens, and of what calls
 * the outside.
 *
 * The start of a copy or of an asynchronous call gives a tuple of its operands,
 * its result and something of the run time's own; the done takes that apart.
 * Operands of a done are its start, as XLA has it. Tuples of sends and receives
 * differ by platform and are taken as they are.
 */
#include "ir/verify_parts.h"

static AmStatus verify_comes_after(const Verifier *verifier, const IrInstruction *instruction, IrOpcode first,
                                   IrOpcode second) {
    IrOpcode opcode = verify_operand_opcode(verifier, instruction, 0);
    if (opcode == first || opcode == second) return AM_OK;
    return verify_refuse(verifier, instruction, "its operand is %s, expected %s", ir_opcode_name(opcode),
                         ir_opcode_name(first));
}

/* Element k of a tuple that operand 0 must be. */
static AmStatus verify_element(const Verifier *verifier, const IrInstruction *instruction,
                               const IrShape *tuple, int32_t k, const IrShape *expected) {
    if (tuple->type != DTYPE_TUPLE || tuple->rank <= k) {
        return verify_refuse(verifier, instruction, "there is no tuple of %d elements or more", k + 1);
    }
    return verify_shape(verifier, instruction, expected, &tuple->elements[k]);
}

AmStatus verify_copy_start(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    IrShape parts[3] = {*operand, *operand, {.type = DTYPE_U32}};
    IrShape expected = {.type = DTYPE_TUPLE, .rank = 3, .elements = parts};
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

AmStatus verify_copy_done(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_comes_after(verifier, instruction, IR_COPY_START, IR_COPY_START));
    return verify_element(verifier, instruction, verify_operand(verifier, instruction, 0), 0,
                          &instruction->shape);
}

/* ((operands), result, ...) */
AmStatus verify_async_start(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *tuple = &instruction->shape;
    TRY(verify_calls(verifier, instruction, 1, instruction->operand_count));
    const IrComputation *called = verify_called(verifier, instruction, 0);
    bool is_tuple = tuple->type == DTYPE_TUPLE && tuple->rank >= 2 &&
                    tuple->elements[0].type == DTYPE_TUPLE &&
                    tuple->elements[0].rank == instruction->operand_count;
    if (!is_tuple) {
        return verify_refuse(verifier, instruction,
                             "its shape does not begin with a tuple of its %d operands and its result",
                             instruction->operand_count);
    }
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        const IrShape *operand = verify_operand(verifier, instruction, k);
        TRY(verify_parameter(verifier, instruction, called, k, operand));
        TRY(verify_shape(verifier, instruction, &tuple->elements[0].elements[k], operand));
    }
    return verify_root(verifier, instruction, called, &tuple->elements[1]);
}

AmStatus verify_async_update(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_comes_after(verifier, instruction, IR_ASYNC_START, IR_ASYNC_UPDATE));
    return verify_shape(verifier, instruction, &instruction->shape, verify_operand(verifier, instruction, 0));
}

AmStatus verify_async_done(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_comes_after(verifier, instruction, IR_ASYNC_START, IR_ASYNC_UPDATE));
    return verify_element(verifier, instruction, verify_operand(verifier, instruction, 0), 1,
                          &instruction->shape);
}

static AmStatus verify_token(const Verifier *verifier, const IrInstruction *instruction, int32_t k) {
    if (verify_operand(verifier, instruction, k)->type == DTYPE_TOKEN) return AM_OK;
    return verify_refuse(verifier, instruction, "operand %d is no token", k);
}

/* XLA does not compare the shapes; what forwards the operand does rely on it. */
AmStatus verify_add_dependency(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_token(verifier, instruction, 1));
    return verify_shape(verifier, instruction, &instruction->shape, verify_operand(verifier, instruction, 0));
}

AmStatus verify_infeed(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_token(verifier, instruction, 0));
    if (instruction->shape.type == DTYPE_TUPLE && instruction->shape.rank > 0) return AM_OK;
    return verify_refuse(verifier, instruction, "its shape is no tuple of data and a token");
}

AmStatus verify_outfeed(const Verifier *verifier, const IrInstruction *instruction) {
    const Hlo__ShapeProto *shape = instruction->message->outfeed_shape;
    TRY(verify_token(verifier, instruction, 1));
    bool is_set = shape != NULL && (int)shape->element_type != 0;
    if (!is_set || verify_is_shape(shape, verify_operand(verifier, instruction, 0))) return AM_OK;
    return verify_refuse(verifier, instruction, "its outfeed_shape is not that of its operand");
}

/* The part of a shape at a path through its tuples; NULL where there is none. */
static const IrShape *part_of(const IrShape *shape, const int64_t *path, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (shape->type != DTYPE_TUPLE || path[i] < 0 || path[i] >= shape->rank) return NULL;
        shape = &shape->elements[path[i]];
    }
    return shape;
}

/* What a custom call gives is its own matter; what it says of its operands, and
 * of results that share their memory, must fit. */
AmStatus verify_custom_call(const Verifier *verifier, const IrInstruction *instruction) {
    const Hlo__HloInstructionProto *message = instruction->message;
    size_t operands = (size_t)instruction->operand_count;
    if (message->constrain_layout && message->n_operand_shapes_with_layout != operands) {
        return verify_refuse(verifier, instruction, "it constrains the layouts of %zu operands, expected %zu",
                             message->n_operand_shapes_with_layout, operands);
    }
    for (size_t k = 0; k < operands && message->constrain_layout; k++) {
        if (verify_is_shape(message->operand_shapes_with_layout[k],
                            verify_operand(verifier, instruction, (int32_t)k)))
            continue;
        return verify_refuse(verifier, instruction, "its layout of operand %zu is for another shape", k);
    }
    for (size_t i = 0; i < message->n_output_operand_aliasing; i++) {
        const Hlo__OutputOperandAliasing *alias = message->output_operand_aliasing[i];
        bool is_operand = alias->operand_index >= 0 && (size_t)alias->operand_index < operands;
        const IrShape *output =
            part_of(&instruction->shape, alias->output_shape_index, alias->n_output_shape_index);
        const IrShape *operand =
            is_operand ? part_of(verify_operand(verifier, instruction, (int32_t)alias->operand_index),
                                 alias->operand_shape_index, alias->n_operand_shape_index)
                       : NULL;
        if (output != NULL && operand != NULL && ir_shape_equal(output, operand)) continue;
        return verify_refuse(verifier, instruction,
                             "it lets a result share the memory of operand %lld, which has not its shape",
                             (long long)alias->operand_index);
    }
    return AM_OK;
}
