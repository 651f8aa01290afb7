/* Rules of operators that move elements or make them of nothing: the result's
 * shape follows from the operand's and the attributes.
 *
 *   slice:  (limit - start) / stride, rounded up
 *   pad:    low + n + (n - 1) interior + high, where n > 0
 *
 * bitcast is checked by its bytes, since its layouts may have tiles.
 */
#include <string.h>

#include "ir/verify/verify_parts.h"

AmStatus verify_broadcast(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *operand = verify_operand(verifier, instruction, 0), *result = &instruction->shape;
    const IrAttributes *attributes = instruction->attributes;
    TRY(verify_type(verifier, instruction, result->type, operand->type));
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

AmStatus verify_reshape(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    int64_t before = ir_shape_elements(operand), after = ir_shape_elements(&instruction->shape);
    if (before != after) {
        return verify_refuse(verifier, instruction, "it makes %lld elements of %lld", (long long)after,
                             (long long)before);
    }
    return verify_type(verifier, instruction, instruction->shape.type, operand->type);
}

/* Checks the operands after the first: the sizes that the dimensions really have. */
AmStatus verify_dynamic_reshape(const Verifier *verifier, const IrInstruction *instruction) {
    int32_t sizes = instruction->operand_count - 1;
    if (sizes != instruction->shape.rank) {
        return verify_refuse(verifier, instruction, "it has %d sizes, expected %d", sizes,
                             instruction->shape.rank);
    }
    for (int32_t k = 1; k <= sizes; k++) {
        TRY(verify_type(verifier, instruction, verify_operand(verifier, instruction, k)->type, DTYPE_S32));
    }
    return verify_reshape(verifier, instruction);
}

AmStatus verify_bitcast(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    if (dtype_bits(operand->type) == 0) {
        return verify_shape(verifier, instruction, &instruction->shape, operand);
    }
    int64_t before = ir_shape_bytes(operand), after = ir_shape_bytes(&instruction->shape);
    if ((before == after || verifier->is_lax) && dtype_bits(instruction->shape.type) > 0) return AM_OK;
    return verify_refuse(verifier, instruction, "it makes %lld bytes of %lld", (long long)after,
                         (long long)before);
}

AmStatus verify_transpose(const Verifier *verifier, const IrInstruction *instruction) {
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

AmStatus verify_reverse(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_shape(verifier, instruction, &instruction->shape, verify_operand(verifier, instruction, 0)));
    return verify_dimensions(verifier, instruction, instruction->attributes->dimensions,
                             instruction->attributes->dimension_count, instruction->shape.rank, "dimensions");
}

AmStatus verify_iota(const Verifier *verifier, const IrInstruction *instruction) {
    if (instruction->attributes->dimension_count != 1) {
        return verify_refuse(verifier, instruction, "it has %d dimensions, expected the one it counts along",
                             instruction->attributes->dimension_count);
    }
    return verify_dimensions(verifier, instruction, instruction->attributes->dimensions, 1,
                             instruction->shape.rank, "iota_dimension");
}

/* Accepts a constant: the builder compared its literal with its shape. */
AmStatus verify_constant(const Verifier *verifier, const IrInstruction *instruction) {
    Dtype type = instruction->shape.type;
    if (dtype_bits(type) > 0 || type == DTYPE_TUPLE) return AM_OK;
    return verify_refuse(verifier, instruction, "it has the type %s, which has no values", dtype_name(type));
}

AmStatus verify_slice(const Verifier *verifier, const IrInstruction *instruction) {
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

AmStatus verify_pad(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *operand = verify_operand(verifier, instruction, 0),
                  *value = verify_operand(verifier, instruction, 1);
    if (instruction->shape.rank != operand->rank)
        return verify_refuse(verifier, instruction, "it changes the rank");
    if (value->rank != 0) return verify_refuse(verifier, instruction, "its padding value is not a scalar");
    TRY(verify_type(verifier, instruction, value->type, operand->type));
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

AmStatus verify_concatenate(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *first = verify_operand(verifier, instruction, 0);
    int64_t along, sizes[IR_MAX_RANK], total = 0;
    TRY(verify_one_dimension(verifier, instruction, first->rank, &along));
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

AmStatus verify_get_dimension_size(const Verifier *verifier, const IrInstruction *instruction) {
    int64_t dimension;
    IrShape expected = {.type = DTYPE_S32};
    TRY(verify_one_dimension(verifier, instruction, verify_operand(verifier, instruction, 0)->rank,
                             &dimension));
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

/* Checks that the second operand is the size; the shape keeps the bound. */
AmStatus verify_set_dimension_size(const Verifier *verifier, const IrInstruction *instruction) {
    int64_t dimension;
    IrShape size = {.type = DTYPE_S32};
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    TRY(verify_one_dimension(verifier, instruction, operand->rank, &dimension));
    TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, 1), &size));
    return verify_shape(verifier, instruction, &instruction->shape, operand);
}
