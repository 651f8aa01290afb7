/* Helpers of the verifier's rules: comparison of shapes and types, checks of lists of dimension
 * numbers, and signatures of called computations.
 */
#include <stdio.h>

#include "ir/verify/verify_parts.h"

uint8_t verify_set_of(Dtype type) {
    if (dtype_bits(type) == 0) return VERIFY_OTHER;
    if (type == DTYPE_PRED) return VERIFY_PRED;
    if (dtype_is_complex(type)) return VERIFY_COMPLEX;
    if (dtype_is_floating(type)) return VERIFY_FLOATING;
    return dtype_is_signed(type) ? VERIFY_SIGNED : VERIFY_UNSIGNED;
}

AmStatus verify_nothing(const Verifier *verifier, const IrInstruction *instruction) {
    (void)verifier;
    (void)instruction;
    return AM_OK;
}

/* Returns whether types are alike: floating types of several widths are where the verifier is lax. */
static bool is_alike(const Verifier *verifier, Dtype found, Dtype expected) {
    return found == expected || (verifier->is_lax && dtype_is_floating(found) && dtype_is_floating(expected));
}

static bool is_alike_shape(const Verifier *verifier, const IrShape *found, const IrShape *expected) {
    if (!verifier->is_lax || found->rank != expected->rank ||
        !is_alike(verifier, found->type, expected->type))
        return ir_shape_equal(found, expected);
    if (found->type == DTYPE_TUPLE) {
        for (int32_t k = 0; k < found->rank; k++)
            if (!is_alike_shape(verifier, &found->elements[k], &expected->elements[k])) return false;
        return true;
    }
    IrShape same = *found;
    same.type = expected->type;
    return ir_shape_equal(&same, expected);
}

AmStatus verify_shape(const Verifier *verifier, const IrInstruction *instruction, const IrShape *found,
                      const IrShape *expected) {
    if (is_alike_shape(verifier, found, expected)) return AM_OK;
    Text have = {0}, want = {0};
    ir_shape_append(&have, found);
    ir_shape_append(&want, expected);
    AmStatus status = verify_refuse(verifier, instruction, "found the shape %.200s, expected %.200s",
                                    have.data ? have.data : "", want.data ? want.data : "");
    text_free(&have);
    text_free(&want);
    return status;
}

AmStatus verify_type(const Verifier *verifier, const IrInstruction *instruction, Dtype found,
                     Dtype expected) {
    if (is_alike(verifier, found, expected)) return AM_OK;
    return verify_refuse(verifier, instruction, "found the type %s, expected %s", dtype_name(found),
                         dtype_name(expected));
}

AmStatus verify_like(const Verifier *verifier, const IrInstruction *instruction, const IrShape *found,
                     const IrShape *like, Dtype type) {
    IrShape expected = *like;
    expected.type = type;
    return verify_shape(verifier, instruction, found, &expected);
}

AmStatus verify_same_dimensions(const Verifier *verifier, const IrInstruction *instruction, int32_t k) {
    return verify_like(verifier, instruction, &instruction->shape, verify_operand(verifier, instruction, k),
                       instruction->shape.type);
}

AmStatus verify_each_operand(const Verifier *verifier, const IrInstruction *instruction,
                             const IrShape *result, int32_t first) {
    int32_t count = instruction->operand_count - first;
    if (count == 1) {
        return verify_shape(verifier, instruction, result, verify_operand(verifier, instruction, first));
    }
    if (result->type != DTYPE_TUPLE || result->rank != count) {
        return verify_refuse(verifier, instruction, "its shape is no tuple of %d elements", count);
    }
    for (int32_t k = 0; k < count; k++) {
        TRY(verify_shape(verifier, instruction, &result->elements[k],
                         verify_operand(verifier, instruction, first + k)));
    }
    return AM_OK;
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

AmStatus verify_one_dimension(const Verifier *verifier, const IrInstruction *instruction, int32_t rank,
                              int64_t *dimension) {
    const IrAttributes *attributes = instruction->attributes;
    if (attributes->dimension_count != 1) {
        return verify_refuse(verifier, instruction, "it names %d dimensions, expected 1",
                             attributes->dimension_count);
    }
    *dimension = attributes->dimensions[0];
    return verify_dimensions(verifier, instruction, attributes->dimensions, 1, rank, "dimensions");
}

AmStatus verify_calls(const Verifier *verifier, const IrInstruction *instruction, int32_t calls,
                      int32_t parameters) {
    if (instruction->called_count != calls) {
        return verify_refuse(verifier, instruction, "it calls %d computations, expected %d",
                             instruction->called_count, calls);
    }
    for (int32_t i = 0; i < calls; i++) {
        const IrComputation *called = verify_called(verifier, instruction, i);
        if (called->parameter_count == parameters) continue;
        return verify_refuse(verifier, instruction, "computation %s takes %d parameters, expected %d",
                             called->name, called->parameter_count, parameters);
    }
    return AM_OK;
}

/* Checks a shape of a called computation. */
static AmStatus verify_signature(const Verifier *verifier, const IrInstruction *instruction,
                                 const IrComputation *computation, const char *what, int32_t number,
                                 const IrShape *found, const IrShape *expected) {
    if (is_alike_shape(verifier, found, expected)) return AM_OK;
    char whose[32] = "";
    if (number >= 0) snprintf(whose, sizeof whose, " %d", number);
    Text have = {0}, want = {0};
    ir_shape_append(&have, found);
    ir_shape_append(&want, expected);
    AmStatus status = verify_refuse(
        verifier, instruction, "%s%s of computation %.100s: found the shape %.150s, expected %.150s", what,
        whose, computation->name, have.data ? have.data : "", want.data ? want.data : "");
    text_free(&have);
    text_free(&want);
    return status;
}

AmStatus verify_parameter(const Verifier *verifier, const IrInstruction *instruction,
                          const IrComputation *computation, int32_t k, const IrShape *expected) {
    return verify_signature(verifier, instruction, computation, "parameter", k,
                            verify_parameter_shape(verifier, computation, k), expected);
}

AmStatus verify_root(const Verifier *verifier, const IrInstruction *instruction,
                     const IrComputation *computation, const IrShape *expected) {
    return verify_signature(verifier, instruction, computation, "the result", -1,
                            verify_root_shape(verifier, computation), expected);
}

AmStatus verify_combiner(const Verifier *verifier, const IrInstruction *instruction,
                         const IrComputation *computation, int32_t count) {
    if (computation->parameter_count != 2 * count) {
        return verify_refuse(verifier, instruction, "computation %.100s takes %d parameters, expected %d",
                             computation->name, computation->parameter_count, 2 * count);
    }
    const IrShape *root = verify_root_shape(verifier, computation);
    bool is_tuple = count > 1 || (verifier->is_lax && instruction->shape.type == DTYPE_TUPLE);
    if (is_tuple && (root->type != DTYPE_TUPLE || root->rank != count)) {
        return verify_refuse(verifier, instruction, "computation %.100s gives no tuple of %d elements",
                             computation->name, count);
    }
    for (int32_t k = 0; k < count; k++) {
        IrShape scalar = {.type = verify_operand(verifier, instruction, k)->type};
        TRY(verify_parameter(verifier, instruction, computation, k, &scalar));
        TRY(verify_parameter(verifier, instruction, computation, count + k, &scalar));
        const IrShape *found = is_tuple ? &root->elements[k] : root;
        TRY(verify_signature(verifier, instruction, computation, "the result", -1, found, &scalar));
    }
    return AM_OK;
}

bool verify_same_layout(const IrShape *a, const IrShape *b) {
    for (int32_t i = 0; i < a->rank; i++) {
        int64_t row_major = a->rank - 1 - i;
        int64_t in_a = a->minor_to_major ? a->minor_to_major[i] : row_major;
        int64_t in_b = b->minor_to_major ? b->minor_to_major[i] : row_major;
        if (in_a != in_b) return false;
    }
    return true;
}

bool verify_is_shape(const Hlo__ShapeProto *shape, const IrShape *expected) {
    if ((int)shape->element_type != (int)expected->type) return false;
    bool is_tuple = expected->type == DTYPE_TUPLE;
    size_t rank = is_tuple ? shape->n_tuple_shapes : shape->n_dimensions;
    if (rank != (size_t)expected->rank) return false;
    for (size_t i = 0; i < rank; i++) {
        if (is_tuple ? !verify_is_shape(shape->tuple_shapes[i], &expected->elements[i])
                     : shape->dimensions[i] != expected->dimensions[i])
            return false;
    }
    return true;
}
