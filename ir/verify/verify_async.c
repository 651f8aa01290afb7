/* Rules of instructions that come in two halves, of tokens, and of what calls
 * the outside.
 *
 * The start of a copy or of an asynchronous call gives a tuple of its operands,
 * its result and something of the run time's own; the done takes that apart.
 * Operands of a done are its start, as XLA has it. A send or receive may be carried
 * through a tuple to its done. Pairs are counted in ir/verify/verify_module.c.
 */
#include <string.h>

#include "ir/text/hlo_text.h"
#include "ir/verify/verify_parts.h"

static AmStatus verify_comes_after(const Verifier *verifier, const IrInstruction *instruction, IrOpcode first,
                                   IrOpcode second) {
    IrOpcode opcode = verify_operand_opcode(verifier, instruction, 0);
    if (opcode == first || opcode == second) return AM_OK;
    return verify_refuse(verifier, instruction, "its operand is %s, expected %s", ir_opcode_name(opcode),
                         ir_opcode_name(first));
}

/* Checks element k of a tuple that operand 0 must be. */
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

/* Returns the part of a shape at a path through its tuples; NULL if missing. A buffer counts as its
 * array. */
static const Hlo__ShapeProto *part_of(const Hlo__ShapeProto *shape, const int64_t *path, size_t length) {
    for (size_t i = 0; i < length; i++) {
        bool is_tuple = shape->element_type == HLO__PRIMITIVE_TYPE__TUPLE;
        if (!is_tuple || path[i] < 0 || path[i] >= (int64_t)shape->n_tuple_shapes) return NULL;
        shape = shape->tuple_shapes[path[i]];
    }
    bool is_buffer = shape->element_type == HLO__PRIMITIVE_TYPE__BUFFER && shape->n_tuple_shapes == 1;
    return is_buffer ? shape->tuple_shapes[0] : shape;
}

/* Checks that a result that shares the memory of an operand has its shape. */
static AmStatus verify_aliases(const Verifier *verifier, const IrInstruction *instruction) {
    const Hlo__HloInstructionProto *message = instruction->message;
    for (size_t i = 0; i < message->n_output_operand_aliasing; i++) {
        const Hlo__OutputOperandAliasing *alias = message->output_operand_aliasing[i];
        const Hlo__ShapeProto *output =
            part_of(message->shape, alias->output_shape_index, alias->n_output_shape_index);
        const Hlo__ShapeProto *operand = NULL;
        if (alias->operand_index >= 0 && alias->operand_index < instruction->operand_count) {
            int32_t index = instruction->operands[alias->operand_index];
            operand = part_of(verifier->module->instructions[index].message->shape,
                              alias->operand_shape_index, alias->n_operand_shape_index);
        }
        if (output != NULL && operand != NULL && ir_shapes_match(output, operand)) continue;
        return verify_refuse(verifier, instruction,
                             "it lets a result share the memory of operand %lld, which has not its shape",
                             (long long)alias->operand_index);
    }
    return AM_OK;
}

/* Checks ((operands), result, ...). */
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
    TRY(verify_aliases(verifier, instruction));
    return verify_root(verifier, instruction, called, &tuple->elements[1]);
}

/* Checks that an update or a done has the computation and the thread of its start, where it has any. */
static AmStatus verify_continues(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_comes_after(verifier, instruction, IR_ASYNC_START, IR_ASYNC_UPDATE));
    const IrInstruction *start = instruction;
    while (start->opcode != IR_ASYNC_START && start->operand_count > 0) {
        start = &verifier->module->instructions[start->operands[0]];
        if (start->opcode != IR_ASYNC_START && start->opcode != IR_ASYNC_UPDATE) return AM_OK;
    }
    if (instruction->called_count > 0 && start->called_count > 0 &&
        instruction->called[0] != start->called[0]) {
        return verify_refuse(verifier, instruction, "it calls %s, expected %s as %s does",
                             verify_called(verifier, instruction, 0)->name,
                             verify_called(verifier, start, 0)->name, start->name);
    }
    const char *thread = instruction->message->async_execution_thread;
    /* An empty name means the main thread. */
    const char *name = start->message->async_execution_thread;
    const char *expected = name && *name ? name : "main";
    if (!thread || !*thread || strcmp(thread, expected) == 0) return AM_OK;
    return verify_refuse(verifier, instruction, "it runs on thread %.80s, expected %.80s as of %s", thread,
                         expected, start->name);
}

AmStatus verify_async_update(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_continues(verifier, instruction));
    TRY(verify_aliases(verifier, instruction));
    return verify_shape(verifier, instruction, &instruction->shape, verify_operand(verifier, instruction, 0));
}

AmStatus verify_async_done(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_continues(verifier, instruction));
    return verify_element(verifier, instruction, verify_operand(verifier, instruction, 0), 1,
                          &instruction->shape);
}

static AmStatus verify_token(const Verifier *verifier, const IrInstruction *instruction, int32_t k) {
    if (verify_operand(verifier, instruction, k)->type == DTYPE_TOKEN) return AM_OK;
    return verify_refuse(verifier, instruction, "operand %d is not a token", k);
}

/* Checks the shapes, which XLA does not compare: the code that forwards the operand relies on them. */
AmStatus verify_add_dependency(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_token(verifier, instruction, 1));
    if (verifier->is_lax) return AM_OK;
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

/* Returns the number of buffers in a shape. */
static size_t count_buffers(const Hlo__ShapeProto *shape) {
    if (shape->element_type == HLO__PRIMITIVE_TYPE__BUFFER) return 1;
    size_t count = 0;
    for (size_t i = 0; i < shape->n_tuple_shapes; i++) count += count_buffers(shape->tuple_shapes[i]);
    return count;
}

static bool same_path(size_t a_count, const int64_t *a, size_t b_count, const int64_t *b) {
    bool is_same = a_count == b_count;
    for (size_t i = 0; i < a_count && is_same; i++) is_same = a[i] == b[i];
    return is_same;
}

/* Returns whether two aliases refer to the same part of the result or of the operand. */
static bool share_part(const Hlo__OutputOperandAliasing *a, const Hlo__OutputOperandAliasing *b) {
    bool is_output = same_path(a->n_output_shape_index, a->output_shape_index, b->n_output_shape_index,
                               b->output_shape_index);
    bool is_operand =
        a->operand_index == b->operand_index && same_path(a->n_operand_shape_index, a->operand_shape_index,
                                                          b->n_operand_shape_index, b->operand_shape_index);
    return is_output || is_operand;
}

/* Aliases that are compared with each other: their number times itself is the work. */
#define MOST_COMPARED 256

/* Checks that a buffer comes out once for each time that it goes in; Pin, Unpin and CreateBuffer turn arrays
 * into buffers and back. */
static AmStatus verify_buffers(const Verifier *verifier, const IrInstruction *instruction) {
    const Hlo__HloInstructionProto *message = instruction->message;
    const char *target = instruction->attributes->custom_call_target;
    size_t results = count_buffers(message->shape), operands = 0,
           aliases = message->n_output_operand_aliasing;
    for (int32_t k = 0; k < instruction->operand_count; k++)
        operands += count_buffers(verifier->module->instructions[instruction->operands[k]].message->shape);
    if (results + operands == 0) return AM_OK;
    bool is_pin = target && (strcmp(target, "Pin") == 0 || strcmp(target, "Unpin") == 0);
    if (target && strcmp(target, "CreateBuffer") == 0 && operands == 0 && results == 1) return AM_OK;
    if (is_pin && aliases != 1)
        return verify_refuse(verifier, instruction, "it has %zu aliases of an operand, expected 1", aliases);
    for (size_t i = 0; i < aliases && i < MOST_COMPARED; i++) {
        for (size_t k = 0; k < i; k++) {
            if (share_part(message->output_operand_aliasing[i], message->output_operand_aliasing[k]))
                return verify_refuse(verifier, instruction, "it has a buffer twice in its aliases");
        }
    }
    if (is_pin || (results == operands && aliases >= results)) return AM_OK;
    return verify_refuse(verifier, instruction,
                         "it takes %zu buffers, gives %zu and aliases %zu, expected as many", operands,
                         results, aliases);
}

/* Checks the seed that XLA's run time makes: one u64 without operands. */
static AmStatus verify_random_seed(const Verifier *verifier, const IrInstruction *instruction) {
    const char *target = instruction->attributes->custom_call_target;
    if (target == NULL || strcmp(target, "GetRngSeed") != 0) return AM_OK;
    if (instruction->operand_count == 0 && instruction->shape.type == DTYPE_U64) return AM_OK;
    return verify_refuse(verifier, instruction,
                         "GetRngSeed has %d operands and the type %s, expected 0 and u64",
                         instruction->operand_count, dtype_name(instruction->shape.type));
}

/* Checks a custom call. Its result is free; its statements about operands, and about results that share
 * their memory, must fit. */
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
    TRY(verify_random_seed(verifier, instruction));
    TRY(verify_buffers(verifier, instruction));
    return verify_aliases(verifier, instruction);
}

/* ------------------------------------------------------- Sends and receives */

/* Checks the data, a context and a token. */
AmStatus verify_recv(const Verifier *verifier, const IrInstruction *instruction) {
    if (instruction->shape.type == DTYPE_TUPLE && instruction->shape.rank > 0) return AM_OK;
    return verify_refuse(verifier, instruction, "its shape is no tuple that begins with the data");
}

static AmStatus verify_end_of(const Verifier *verifier, const IrInstruction *instruction, IrOpcode start) {
    const IrInstruction *operand = &verifier->module->instructions[instruction->operands[0]];
    if (operand->opcode != start && operand->opcode != IR_GET_TUPLE_ELEMENT) {
        return verify_refuse(verifier, instruction, "its operand is %s, expected %s or an element of a tuple",
                             operand->opcode_name, ir_opcode_name(start));
    }
    if (operand->opcode != start || operand->message->channel_id == instruction->message->channel_id)
        return AM_OK;
    return verify_refuse(verifier, instruction, "its channel is %lld, expected %lld as of its %s",
                         (long long)instruction->message->channel_id, (long long)operand->message->channel_id,
                         operand->opcode_name);
}
AmStatus verify_recv_done(const Verifier *verifier, const IrInstruction *instruction) {
    return verify_end_of(verifier, instruction, IR_RECV);
}
AmStatus verify_send_done(const Verifier *verifier, const IrInstruction *instruction) {
    return verify_end_of(verifier, instruction, IR_SEND);
}
