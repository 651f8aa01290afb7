/* The verifier: every instruction has the operands and the shape that its
 * operator implies, so that no later pass has to look.
 *
 * One row per opcode that has a rule; element-wise operators share one. What is
 * not in the table (collectives, custom calls, opcodes of other vendors) is
 * taken as it is: such instructions are never split, and never run without a
 * kernel of their own. Rules with windows, contractions and indices are in
 * verify_shapes.c.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ir/encodings.h"
#include "ir/verify_parts.h"

AmStatus verify_refuse(const Verifier *verifier, const IrInstruction *instruction, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const char *source = verifier->module->source;
    verifier->module->refused = instruction->message;
    if (instruction->source_file[0] == '\0') {
        return am_fail(verifier->error, AM_ERROR_INPUT, source, "instruction %s (%s): %s", instruction->name,
                       instruction->opcode_name, text);
    }
    return am_fail(verifier->error, AM_ERROR_INPUT, source, "instruction %s (%s, from %s:%d): %s",
                   instruction->name, instruction->opcode_name, instruction->source_file,
                   instruction->source_line, text);
}

AmStatus verify_shape(const Verifier *verifier, const IrInstruction *instruction, const IrShape *found,
                      const IrShape *expected) {
    if (ir_shape_equal(found, expected)) return AM_OK;
    Text have = {0}, want = {0};
    ir_shape_append(&have, found);
    ir_shape_append(&want, expected);
    AmStatus status = verify_refuse(verifier, instruction, "found the shape %.200s, expected %.200s",
                                    have.data ? have.data : "", want.data ? want.data : "");
    text_free(&have);
    text_free(&want);
    return status;
}

AmStatus verify_dimensions(const Verifier *verifier, const IrInstruction *instruction,
                           const int64_t *dimensions, int32_t count, int32_t rank, const char *what) {
    uint32_t seen = 0;
    for (int32_t i = 0; i < count; i++) {
        int64_t dimension = dimensions[i];
        if (dimension < 0 || dimension >= rank || (seen >> dimension & 1)) {
            return verify_refuse(verifier, instruction, "%s names dimension %lld twice or outside of rank %d",
                                 what, (long long)dimension, rank);
        }
        seen |= (uint32_t)1 << dimension;
    }
    return AM_OK;
}

AmStatus verify_arrays(const Verifier *verifier, const IrInstruction *instruction) {
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        if (dtype_bits(verify_operand(verifier, instruction, k)->type) > 0) continue;
        return verify_refuse(verifier, instruction, "operand %d is no array", k);
    }
    return AM_OK;
}

AmStatus verify_calls(const Verifier *verifier, const IrInstruction *instruction, int32_t calls,
                      int32_t parameters) {
    if (instruction->called_count != calls) {
        return verify_refuse(verifier, instruction, "it calls %d computations, expected %d",
                             instruction->called_count, calls);
    }
    for (int32_t i = 0; i < calls; i++) {
        const IrComputation *called = &verifier->module->computations[instruction->called[i]];
        if (called->parameter_count == parameters) continue;
        return verify_refuse(verifier, instruction, "computation %s takes %d parameters, expected %d",
                             called->name, called->parameter_count, parameters);
    }
    return AM_OK;
}

static AmStatus same_dimensions(const Verifier *verifier, const IrInstruction *instruction, int32_t k) {
    const IrShape *operand = verify_operand(verifier, instruction, k);
    IrShape expected = *operand;
    expected.type = instruction->shape.type;
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

static AmStatus same_type(const Verifier *verifier, const IrInstruction *instruction, Dtype found,
                          Dtype expected) {
    if (found == expected) return AM_OK;
    return verify_refuse(verifier, instruction, "found the type %s, expected %s", dtype_name(found),
                         dtype_name(expected));
}

/* Operands and result alike. */
static AmStatus verify_elementwise(const Verifier *verifier, const IrInstruction *instruction) {
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, k),
                         &instruction->shape));
    }
    return AM_OK;
}

static AmStatus verify_convert(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    return same_dimensions(verifier, instruction, 0);
}

static bool is_direction(const char *text) {
    static const char *const directions[] = {"EQ", "NE", "GE", "GT", "LE", "LT"};
    for (size_t i = 0; i < sizeof directions / sizeof *directions; i++) {
        if (strcmp(text, directions[i]) == 0) return true;
    }
    return false;
}

static AmStatus verify_compare(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    const char *direction = instruction->attributes->comparison;
    if (!is_direction(direction)) {
        return verify_refuse(verifier, instruction,
                             "its direction is %.40s, expected EQ, NE, GE, GT, LE or LT", direction);
    }
    TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, 1),
                     verify_operand(verifier, instruction, 0)));
    TRY(same_dimensions(verifier, instruction, 0));
    return same_type(verifier, instruction, instruction->shape.type, DTYPE_PRED);
}

static AmStatus verify_is_finite(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    TRY(same_dimensions(verifier, instruction, 0));
    return same_type(verifier, instruction, instruction->shape.type, DTYPE_PRED);
}

static AmStatus verify_select(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    TRY(same_type(verifier, instruction, verify_operand(verifier, instruction, 0)->type, DTYPE_PRED));
    TRY(same_dimensions(verifier, instruction, 0));
    TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, 1), &instruction->shape));
    return verify_shape(verifier, instruction, verify_operand(verifier, instruction, 2), &instruction->shape);
}

/* The bounds may be scalars. */
static AmStatus verify_clamp(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    for (int32_t k = 0; k < 3; k++) {
        const IrShape *operand = verify_operand(verifier, instruction, k);
        if (k != 1 && operand->rank == 0) {
            TRY(same_type(verifier, instruction, operand->type, instruction->shape.type));
        } else {
            TRY(verify_shape(verifier, instruction, operand, &instruction->shape));
        }
    }
    return AM_OK;
}

static Dtype part_type(Dtype type) {
    return type == DTYPE_C64 ? DTYPE_F32 : type == DTYPE_C128 ? DTYPE_F64 : type;
}

/* abs, real and imag: a complex operand gives its part's type. */
static AmStatus verify_part(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    TRY(same_dimensions(verifier, instruction, 0));
    return same_type(verifier, instruction, instruction->shape.type,
                     part_type(verify_operand(verifier, instruction, 0)->type));
}

static AmStatus verify_complex(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, 1),
                     verify_operand(verifier, instruction, 0)));
    TRY(same_dimensions(verifier, instruction, 0));
    if (!dtype_is_complex(instruction->shape.type))
        return verify_refuse(verifier, instruction, "its type is not complex");
    return same_type(verifier, instruction, verify_operand(verifier, instruction, 0)->type,
                     part_type(instruction->shape.type));
}

/* Of another width: the last dimension holds the parts of the wider type. */
static AmStatus verify_bitcast_convert(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    const IrShape *operand = verify_operand(verifier, instruction, 0), *result = &instruction->shape;
    int32_t from = dtype_bits(operand->type), to = dtype_bits(result->type);
    if (from == to) return same_dimensions(verifier, instruction, 0);
    const IrShape *wide = from > to ? operand : result, *narrow = from > to ? result : operand;
    int32_t ratio = from > to ? from / to : to / from;
    IrShape expected = *narrow;
    expected.rank = wide->rank;
    bool matches = narrow->rank == wide->rank + 1 && narrow->dimensions[narrow->rank - 1] == ratio;
    expected.type = wide->type;
    if (matches && ir_shape_equal(&expected, wide)) return AM_OK;
    return verify_refuse(verifier, instruction,
                         "expected the last dimension to hold the %d parts of each element", ratio);
}

static AmStatus verify_first_operand(const Verifier *verifier, const IrInstruction *instruction) {
    return verify_shape(verifier, instruction, &instruction->shape, verify_operand(verifier, instruction, 0));
}

static AmStatus verify_stochastic_convert(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    TRY(same_dimensions(verifier, instruction, 0));
    return same_dimensions(verifier, instruction, 1);
}

static AmStatus verify_broadcast(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    const IrShape *operand = verify_operand(verifier, instruction, 0), *result = &instruction->shape;
    const IrAttributes *attributes = instruction->attributes;
    TRY(same_type(verifier, instruction, result->type, operand->type));
    if (attributes->dimension_count != operand->rank) {
        return verify_refuse(verifier, instruction, "it maps %d dimensions, its operand has %d",
                             attributes->dimension_count, operand->rank);
    }
    TRY(verify_dimensions(verifier, instruction, attributes->dimensions, operand->rank, result->rank,
                          "dimensions"));
    for (int32_t i = 0; i < operand->rank; i++) {
        int64_t to = attributes->dimensions[i];
        if (result->dimensions[to] == operand->dimensions[i]) continue;
        return verify_refuse(verifier, instruction,
                             "dimension %lld has size %lld, expected %lld as in the operand", (long long)to,
                             (long long)result->dimensions[to], (long long)operand->dimensions[i]);
    }
    return AM_OK;
}

static AmStatus verify_reshape(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    int64_t before = ir_shape_elements(operand), after = ir_shape_elements(&instruction->shape);
    if (before != after) {
        return verify_refuse(verifier, instruction, "it makes %lld elements of %lld", (long long)after,
                             (long long)before);
    }
    return same_type(verifier, instruction, instruction->shape.type, operand->type);
}

static AmStatus verify_bitcast(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    int64_t before = ir_shape_bytes(verify_operand(verifier, instruction, 0));
    int64_t after = ir_shape_bytes(&instruction->shape);
    if (before == after) return AM_OK;
    return verify_refuse(verifier, instruction, "it makes %lld bytes of %lld", (long long)after,
                         (long long)before);
}

static AmStatus verify_transpose(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    const IrAttributes *attributes = instruction->attributes;
    if (attributes->dimension_count != operand->rank) {
        return verify_refuse(verifier, instruction, "it permutes %d dimensions, its operand has %d",
                             attributes->dimension_count, operand->rank);
    }
    TRY(verify_dimensions(verifier, instruction, attributes->dimensions, operand->rank, operand->rank,
                          "dimensions"));
    int64_t sizes[IR_MAX_RANK];
    for (int32_t i = 0; i < operand->rank; i++) sizes[i] = operand->dimensions[attributes->dimensions[i]];
    IrShape expected = {.type = operand->type, .rank = operand->rank, .dimensions = sizes};
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

static AmStatus verify_reverse(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    TRY(verify_first_operand(verifier, instruction));
    return verify_dimensions(verifier, instruction, instruction->attributes->dimensions,
                             instruction->attributes->dimension_count, instruction->shape.rank, "dimensions");
}

static AmStatus verify_iota(const Verifier *verifier, const IrInstruction *instruction) {
    if (instruction->attributes->dimension_count != 1) {
        return verify_refuse(verifier, instruction, "it has %d dimensions, expected the one it counts along",
                             instruction->attributes->dimension_count);
    }
    return verify_dimensions(verifier, instruction, instruction->attributes->dimensions, 1,
                             instruction->shape.rank, "iota_dimension");
}

static AmStatus verify_slice(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    const IrAttributes *attributes = instruction->attributes;
    int64_t sizes[IR_MAX_RANK];
    if (instruction->shape.rank != operand->rank)
        return verify_refuse(verifier, instruction, "it changes the rank");
    for (int32_t i = 0; i < operand->rank; i++) {
        int64_t start = attributes->slice_start[i], limit = attributes->slice_limit[i];
        if (limit > operand->dimensions[i]) {
            return verify_refuse(verifier, instruction,
                                 "it ends at %lld in dimension %d, which has size %lld", (long long)limit, i,
                                 (long long)operand->dimensions[i]);
        }
        int64_t stride = attributes->slice_stride[i];
        sizes[i] = (limit - start) / stride + ((limit - start) % stride != 0);
    }
    IrShape expected = {.type = operand->type, .rank = operand->rank, .dimensions = sizes};
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

/* Start indices follow as scalars, one per dimension, or as one vector. */
static AmStatus verify_start_indices(const Verifier *verifier, const IrInstruction *instruction,
                                     int32_t first, int32_t rank) {
    int32_t count = instruction->operand_count - first;
    for (int32_t k = first; k < instruction->operand_count; k++) {
        const IrShape *index = verify_operand(verifier, instruction, k);
        if (!dtype_is_integer(index->type))
            return verify_refuse(verifier, instruction, "its start indices are no integers");
        bool is_vector = count == 1 && index->rank == 1 && index->dimensions[0] == rank;
        if (is_vector) return AM_OK;
        if (index->rank != 0)
            return verify_refuse(verifier, instruction, "start index %d is no scalar", k - first);
    }
    if (count == rank) return AM_OK;
    return verify_refuse(verifier, instruction, "it has %d start indices, expected %d", count, rank);
}

static AmStatus verify_dynamic_slice(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    IrShape expected = {
        .type = operand->type, .rank = operand->rank, .dimensions = instruction->attributes->slice_sizes};
    if (instruction->shape.rank != operand->rank)
        return verify_refuse(verifier, instruction, "it changes the rank");
    TRY(verify_shape(verifier, instruction, &instruction->shape, &expected));
    for (int32_t i = 0; i < operand->rank; i++) {
        if (expected.dimensions[i] > operand->dimensions[i]) {
            return verify_refuse(verifier, instruction,
                                 "its slice is larger than its operand in dimension %d", i);
        }
    }
    return verify_start_indices(verifier, instruction, 1, operand->rank);
}

static AmStatus verify_dynamic_update_slice(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    TRY(verify_first_operand(verifier, instruction));
    const IrShape *update = verify_operand(verifier, instruction, 1), *result = &instruction->shape;
    if (update->rank != result->rank)
        return verify_refuse(verifier, instruction, "its update has another rank");
    TRY(same_type(verifier, instruction, update->type, result->type));
    for (int32_t i = 0; i < result->rank; i++) {
        if (update->dimensions[i] > result->dimensions[i]) {
            return verify_refuse(verifier, instruction,
                                 "its update is larger than its operand in dimension %d", i);
        }
    }
    return verify_start_indices(verifier, instruction, 2, result->rank);
}

/* Size = low + high + n + (n - 1) interior, where n > 0. */
static AmStatus verify_pad(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    const IrShape *operand = verify_operand(verifier, instruction, 0),
                  *value = verify_operand(verifier, instruction, 1);
    if (instruction->shape.rank != operand->rank)
        return verify_refuse(verifier, instruction, "it changes the rank");
    if (value->rank != 0) return verify_refuse(verifier, instruction, "its padding value is no scalar");
    TRY(same_type(verifier, instruction, value->type, operand->type));
    int64_t sizes[IR_MAX_RANK];
    for (int32_t i = 0; i < operand->rank; i++) {
        const IrPadding *padding = &instruction->attributes->padding[i];
        int64_t between = operand->dimensions[i] > 0 ? operand->dimensions[i] - 1 : 0, inner, size;
        bool overflow = __builtin_mul_overflow(between, padding->interior, &inner) ||
                        __builtin_add_overflow(operand->dimensions[i], inner, &size) ||
                        __builtin_add_overflow(size, padding->low, &size) ||
                        __builtin_add_overflow(size, padding->high, &size);
        if (overflow || size < 0)
            return verify_refuse(verifier, instruction, "dimension %d gets no valid size", i);
        sizes[i] = size;
    }
    IrShape expected = {.type = operand->type, .rank = operand->rank, .dimensions = sizes};
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

static AmStatus verify_concatenate(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    const IrShape *first = verify_operand(verifier, instruction, 0);
    if (instruction->attributes->dimension_count != 1) {
        return verify_refuse(verifier, instruction, "it names %d dimensions, expected 1",
                             instruction->attributes->dimension_count);
    }
    TRY(verify_dimensions(verifier, instruction, instruction->attributes->dimensions, 1, first->rank,
                          "dimensions"));
    int64_t along = instruction->attributes->dimensions[0], sizes[IR_MAX_RANK], total = 0;
    IrShape expected = {.type = first->type, .rank = first->rank, .dimensions = sizes};
    memcpy(sizes, first->dimensions, (size_t)first->rank * sizeof *sizes);
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        const IrShape *operand = verify_operand(verifier, instruction, k);
        if (operand->rank != first->rank)
            return verify_refuse(verifier, instruction, "operand %d has another rank", k);
        sizes[along] = operand->dimensions[along];
        TRY(verify_shape(verifier, instruction, operand, &expected));
        if (__builtin_add_overflow(total, operand->dimensions[along], &total)) {
            return verify_refuse(verifier, instruction, "its size does not fit 63 bits");
        }
    }
    sizes[along] = total;
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

static AmStatus verify_tuple(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *result = &instruction->shape;
    if (result->type != DTYPE_TUPLE || result->rank != instruction->operand_count) {
        return verify_refuse(verifier, instruction, "its shape is no tuple of %d elements",
                             instruction->operand_count);
    }
    for (int32_t k = 0; k < result->rank; k++) {
        TRY(verify_shape(verifier, instruction, &result->elements[k],
                         verify_operand(verifier, instruction, k)));
    }
    return AM_OK;
}

static AmStatus verify_get_tuple_element(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    int64_t index = instruction->attributes->tuple_index;
    if (operand->type != DTYPE_TUPLE || index < 0 || index >= operand->rank) {
        return verify_refuse(verifier, instruction, "its operand is no tuple with an element %lld",
                             (long long)index);
    }
    return verify_shape(verifier, instruction, &instruction->shape, &operand->elements[index]);
}

static AmStatus verify_call(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_calls(verifier, instruction, 1, instruction->operand_count));
    const IrComputation *called = &verifier->module->computations[instruction->called[0]];
    const IrInstruction *instructions = verifier->module->instructions;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, k),
                         &instructions[called->parameters[k]].shape));
    }
    return verify_shape(verifier, instruction, &instruction->shape, &instructions[called->root].shape);
}

/* Body and condition take the state; the body gives the next one. */
static AmStatus verify_while(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_calls(verifier, instruction, 2, 1));
    TRY(verify_first_operand(verifier, instruction));
    const IrInstruction *instructions = verifier->module->instructions;
    const IrComputation *body = &verifier->module->computations[instruction->called[0]];
    const IrComputation *condition = &verifier->module->computations[instruction->called[1]];
    TRY(verify_shape(verifier, instruction, &instructions[body->parameters[0]].shape, &instruction->shape));
    TRY(verify_shape(verifier, instruction, &instructions[body->root].shape, &instruction->shape));
    TRY(verify_shape(verifier, instruction, &instructions[condition->parameters[0]].shape,
                     &instruction->shape));
    IrShape flag = {.type = DTYPE_PRED};
    return verify_shape(verifier, instruction, &instructions[condition->root].shape, &flag);
}

/* Operands are the selector and one argument per branch. */
static AmStatus verify_conditional(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *selector = verify_operand(verifier, instruction, 0);
    bool selects = selector->rank == 0 && (selector->type == DTYPE_PRED || dtype_is_integer(selector->type));
    if (!selects) return verify_refuse(verifier, instruction, "its selector is no scalar pred or integer");
    TRY(verify_calls(verifier, instruction, instruction->operand_count - 1, 1));
    const IrInstruction *instructions = verifier->module->instructions;
    for (int32_t i = 0; i < instruction->called_count; i++) {
        const IrComputation *branch = &verifier->module->computations[instruction->called[i]];
        TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, i + 1),
                         &instructions[branch->parameters[0]].shape));
        TRY(verify_shape(verifier, instruction, &instruction->shape, &instructions[branch->root].shape));
    }
    return AM_OK;
}

/* One operand gives an array, several a tuple of arrays. */
static AmStatus verify_sort(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    TRY(verify_calls(verifier, instruction, 1, 2 * instruction->operand_count));
    const IrShape *first = verify_operand(verifier, instruction, 0);
    TRY(verify_dimensions(verifier, instruction, instruction->attributes->dimensions,
                          instruction->attributes->dimension_count, first->rank, "dimensions"));
    for (int32_t k = 1; k < instruction->operand_count; k++) {
        IrShape expected = *first;
        expected.type = verify_operand(verifier, instruction, k)->type;
        TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, k), &expected));
    }
    return instruction->operand_count == 1 ? verify_first_operand(verifier, instruction)
                                           : verify_tuple(verifier, instruction);
}

/* Rules by opcode; element-wise ones are in by their class. */
static VerifyFunction *const rules[IR_OPCODE_COUNT + 1] = {
    [IR_ABS] = verify_part,
    [IR_BITCAST] = verify_bitcast,
    [IR_BITCAST_CONVERT] = verify_bitcast_convert,
    [IR_BROADCAST] = verify_broadcast,
    [IR_CALL] = verify_call,
    [IR_CHOLESKY] = verify_first_operand,
    [IR_CLAMP] = verify_clamp,
    [IR_COMPARE] = verify_compare,
    [IR_COMPLEX] = verify_complex,
    [IR_CONCATENATE] = verify_concatenate,
    [IR_CONDITIONAL] = verify_conditional,
    [IR_CONVERT] = verify_convert,
    [IR_CONVOLUTION] = verify_convolution,
    [IR_DOT] = verify_dot,
    [IR_DYNAMIC_SLICE] = verify_dynamic_slice,
    [IR_DYNAMIC_UPDATE_SLICE] = verify_dynamic_update_slice,
    [IR_GATHER] = verify_gather,
    [IR_GET_TUPLE_ELEMENT] = verify_get_tuple_element,
    [IR_IMAG] = verify_part,
    [IR_IOTA] = verify_iota,
    [IR_IS_FINITE] = verify_is_finite,
    [IR_OPT_BARRIER] = verify_first_operand,
    [IR_PAD] = verify_pad,
    [IR_REAL] = verify_part,
    [IR_REDUCE] = verify_reduce,
    [IR_REDUCE_WINDOW] = verify_reduce_window,
    [IR_RESHAPE] = verify_reshape,
    [IR_REVERSE] = verify_reverse,
    [IR_SCATTER] = verify_scatter,
    [IR_SELECT] = verify_select,
    [IR_SELECT_AND_SCATTER] = verify_select_and_scatter,
    [IR_SLICE] = verify_slice,
    [IR_SORT] = verify_sort,
    [IR_STOCHASTIC_CONVERT] = verify_stochastic_convert,
    [IR_TRANSPOSE] = verify_transpose,
    [IR_TUPLE] = verify_tuple,
    [IR_WHILE] = verify_while,
};

/* The fewest operands of opcodes that take any number. */
static const int8_t fewest_operands[IR_OPCODE_COUNT + 1] = {
    [IR_CONCATENATE] = 1,
    [IR_CONDITIONAL] = 2,
    [IR_CONVOLUTION] = 2,
    [IR_DYNAMIC_RESHAPE] = 1,
    [IR_DYNAMIC_SLICE] = 1,
    [IR_DYNAMIC_UPDATE_SLICE] = 2,
    [IR_REDUCE] = 2,
    [IR_REDUCE_WINDOW] = 2,
    [IR_SCATTER] = 3,
    [IR_SORT] = 1,
    [IR_MAP] = 1,
    [IR_ALL_REDUCE] = 1,
    [IR_REDUCE_SCATTER] = 1,
    [IR_ALL_GATHER] = 1,
};

static bool is_elementwise(IrOpcode opcode) {
    static const char *const classes[IR_OPCODE_COUNT + 1] = {
#define OPCODE(name, text, arity, rule) [IR_##name] = #rule,
#include "ir/opcodes.def"
#undef OPCODE
        [IR_UNKNOWN] = "",
    };
    return strcmp(classes[opcode], "ELEMENTWISE") == 0;
}

/* What may give a tuple, a token or something opaque; all else that has a rule
 * gives one array. */
static const bool gives_any_shape[IR_OPCODE_COUNT + 1] = {
    [IR_CALL] = true,        [IR_CONDITIONAL] = true, [IR_COPY] = true,  [IR_GET_TUPLE_ELEMENT] = true,
    [IR_OPT_BARRIER] = true, [IR_REDUCE] = true,      [IR_SORT] = true,  [IR_REDUCE_WINDOW] = true,
    [IR_SCATTER] = true,     [IR_TUPLE] = true,       [IR_WHILE] = true,
};

static AmStatus verify_instruction(const Verifier *verifier, const IrInstruction *instruction) {
    int32_t arity = ir_opcode_arity(instruction->opcode);
    if (arity >= 0 && instruction->operand_count != arity) {
        return verify_refuse(verifier, instruction, "it has %d operands, expected %d",
                             instruction->operand_count, arity);
    }
    if (instruction->operand_count < fewest_operands[instruction->opcode]) {
        return verify_refuse(verifier, instruction, "it has %d operands, expected %d or more",
                             instruction->operand_count, fewest_operands[instruction->opcode]);
    }
    VerifyFunction *rule = rules[instruction->opcode];
    if (rule == NULL && is_elementwise(instruction->opcode)) rule = verify_elementwise;
    if (rule == NULL) return AM_OK;
    if (dtype_bits(instruction->shape.type) == 0 && !gives_any_shape[instruction->opcode]) {
        return verify_refuse(verifier, instruction, "its shape is no array");
    }
    return rule(verifier, instruction);
}

AmStatus ir_verify(IrModule *module, AmError *error) {
    Verifier verifier = {module, error};
    for (int32_t i = 0; i < module->instruction_count; i++) {
        TRY(verify_instruction(&verifier, &module->instructions[i]));
    }
    return AM_OK;
}
