/* Rules of element-wise operators: operands and result have the same dimensions and the types that
 * the operator implies.
 *
 * Operands of one instruction have one type. XLA optionally accepts floating types of different
 * widths; kernels take one type per instruction, so that such a module is refused here.
 */
#include <string.h>

#include "ir/verify/verify_parts.h"

AmStatus verify_alike(const Verifier *verifier, const IrInstruction *instruction) {
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, k),
                         &instruction->shape));
    }
    return AM_OK;
}

AmStatus verify_convert(const Verifier *verifier, const IrInstruction *instruction) {
    return verify_same_dimensions(verifier, instruction, 0);
}

typedef struct ComparisonType {
    const char *name;
    uint8_t operands;
} ComparisonType;

static AmStatus verify_comparison_type(const Verifier *verifier, const IrInstruction *instruction) {
    static const ComparisonType types[] = {
        {"FLOAT", VERIFY_ANALYTIC},
        {"TOTALORDER", VERIFY_FLOATING},
        {"SIGNED", VERIFY_SIGNED},
        {"UNSIGNED", VERIFY_UNSIGNED | VERIFY_PRED},
    };
    const char *name = instruction->attributes->comparison_type;
    if (name == NULL) return AM_OK;
    Dtype operand = verify_operand(verifier, instruction, 0)->type;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, name) == 0 && (types[i].operands & verify_set_of(operand))) return AM_OK;
    }
    return verify_refuse(verifier, instruction, "it compares as %.40s, which is not for the type %s", name,
                         dtype_name(operand));
}

AmStatus verify_compare(const Verifier *verifier, const IrInstruction *instruction) {
    static const char *const directions[] = {"EQ", "NE", "GE", "GT", "LE", "LT"};
    const char *direction = instruction->attributes->comparison;
    bool is_known = false;
    for (size_t i = 0; i < sizeof directions / sizeof *directions; i++)
        is_known |= strcmp(direction, directions[i]) == 0;
    if (!is_known) {
        return verify_refuse(verifier, instruction,
                             "its direction is %.40s, expected EQ, NE, GE, GT, LE or LT", direction);
    }
    TRY(verify_comparison_type(verifier, instruction));
    TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, 1),
                     verify_operand(verifier, instruction, 0)));
    TRY(verify_same_dimensions(verifier, instruction, 0));
    return verify_type(verifier, instruction, instruction->shape.type, DTYPE_PRED);
}

AmStatus verify_is_finite(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_same_dimensions(verifier, instruction, 0));
    return verify_type(verifier, instruction, instruction->shape.type, DTYPE_PRED);
}

/* Checks for a scalar or an array of the result's dimensions. */
static AmStatus verify_scalar_or_alike(const Verifier *verifier, const IrInstruction *instruction, int32_t k,
                                       Dtype type) {
    const IrShape *operand = verify_operand(verifier, instruction, k);
    if (operand->rank == 0) return verify_type(verifier, instruction, operand->type, type);
    return verify_like(verifier, instruction, operand, &instruction->shape, type);
}

AmStatus verify_select(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_type(verifier, instruction, verify_operand(verifier, instruction, 0)->type, DTYPE_PRED));
    TRY(verify_scalar_or_alike(verifier, instruction, 0, DTYPE_PRED));
    TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, 1), &instruction->shape));
    return verify_shape(verifier, instruction, verify_operand(verifier, instruction, 2), &instruction->shape);
}

AmStatus verify_clamp(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_scalar_or_alike(verifier, instruction, 0, instruction->shape.type));
    TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, 1), &instruction->shape));
    return verify_scalar_or_alike(verifier, instruction, 2, instruction->shape.type);
}

/* Checks abs, real and imag: a complex operand gives its part's type. */
AmStatus verify_part(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_same_dimensions(verifier, instruction, 0));
    return verify_type(verifier, instruction, instruction->shape.type,
                       dtype_real_part(verify_operand(verifier, instruction, 0)->type));
}

AmStatus verify_complex(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, 1),
                     verify_operand(verifier, instruction, 0)));
    TRY(verify_same_dimensions(verifier, instruction, 0));
    return verify_type(verifier, instruction, verify_operand(verifier, instruction, 0)->type,
                       dtype_real_part(instruction->shape.type));
}

/* Checks a conversion to another width: the last dimension holds the parts of the wider type. Conversions
 * between complex numbers and other types are accepted, which XLA refuses. */
AmStatus verify_bitcast_convert(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *operand = verify_operand(verifier, instruction, 0), *result = &instruction->shape;
    int32_t from = dtype_bits(operand->type), to = dtype_bits(result->type);
    if (from == to) return verify_same_dimensions(verifier, instruction, 0);
    const IrShape *wide = from > to ? operand : result, *narrow = from > to ? result : operand;
    int32_t ratio = from > to ? from / to : to / from;
    IrShape expected = *narrow;
    expected.rank = wide->rank;
    expected.type = wide->type;
    bool matches = narrow->rank == wide->rank + 1 && narrow->dimensions[narrow->rank - 1] == ratio;
    if (matches && ir_shape_equal(&expected, wide)) return AM_OK;
    return verify_refuse(verifier, instruction,
                         "expected the last dimension to hold the %d parts of each element", ratio);
}

/* Checks that the second operand has random bits, as many as the first has. */
AmStatus verify_stochastic_convert(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *operand = verify_operand(verifier, instruction, 0),
                  *random = verify_operand(verifier, instruction, 1);
    bool is_wide_enough = verify_set_of(random->type) == VERIFY_UNSIGNED &&
                          dtype_bits(random->type) == dtype_bits(operand->type);
    if (verify_set_of(operand->type) != VERIFY_FLOATING || !is_wide_enough) {
        return verify_refuse(verifier, instruction,
                             "it converts %s by %s, expected floating by unsigned of the same width",
                             dtype_name(operand->type), dtype_name(random->type));
    }
    TRY(verify_same_dimensions(verifier, instruction, 0));
    return verify_same_dimensions(verifier, instruction, 1);
}

AmStatus verify_reduce_precision(const Verifier *verifier, const IrInstruction *instruction) {
    const IrAttributes *attributes = instruction->attributes;
    if (attributes->exponent_bits < 1 || attributes->mantissa_bits < 0) {
        return verify_refuse(
            verifier, instruction,
            "it keeps %d bits of the exponent and %d of the mantissa, expected 1 or more and 0 or more",
            attributes->exponent_bits, attributes->mantissa_bits);
    }
    return verify_alike(verifier, instruction);
}
