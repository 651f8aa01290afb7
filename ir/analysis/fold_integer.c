/* The operators that fold, and the ranges of the types. */
#include "ir/analysis/fold_integer.h"

#include <string.h>

bool ir_integer_fits(Dtype type, int64_t number) {
    int32_t bits = dtype_bits(type) - dtype_is_signed(type);
    if (type == DTYPE_PRED) return number == 0 || number == 1;
    int64_t limit = bits >= 62 ? INT64_C(1) << 62 : INT64_C(1) << bits;
    return number < limit && number >= (dtype_is_signed(type) ? -limit : 0);
}

static bool compare(int64_t *result, const char *comparison, int64_t a, int64_t b) {
    if (!comparison) return false;
    if (strcmp(comparison, "EQ") == 0) *result = a == b;
    else if (strcmp(comparison, "NE") == 0) *result = a != b;
    else if (strcmp(comparison, "LT") == 0) *result = a < b;
    else if (strcmp(comparison, "LE") == 0) *result = a <= b;
    else if (strcmp(comparison, "GT") == 0) *result = a > b;
    else if (strcmp(comparison, "GE") == 0) *result = a >= b;
    else return false;
    return true;
}

bool ir_fold_integer(int64_t *result, IrOpcode opcode, const char *comparison, Dtype type,
                     const int64_t *of) {
    bool is_known = true;
    switch (opcode) {
    case IR_ADD: is_known = !__builtin_add_overflow(of[0], of[1], result); break;
    case IR_SUBTRACT: is_known = !__builtin_sub_overflow(of[0], of[1], result); break;
    case IR_MULTIPLY: is_known = !__builtin_mul_overflow(of[0], of[1], result); break;
    case IR_NEGATE: is_known = !__builtin_sub_overflow(0, of[0], result); break;
    case IR_MINIMUM: *result = of[0] < of[1] ? of[0] : of[1]; break;
    case IR_MAXIMUM: *result = of[0] > of[1] ? of[0] : of[1]; break;
    case IR_REMAINDER:
        if (of[1] < 1) return false;
        *result = of[0] % of[1];
        break;
    case IR_CLAMP: *result = of[1] < of[0] ? of[0] : of[1] > of[2] ? of[2] : of[1]; break;
    case IR_SELECT: *result = of[0] ? of[1] : of[2]; break;
    case IR_CONVERT:
    case IR_COPY:
    case IR_BROADCAST: *result = of[0]; break;
    case IR_COMPARE: is_known = compare(result, comparison, of[0], of[1]); break;
    case IR_AND: /* of bits, where they are more than one */
        is_known = type == DTYPE_PRED;
        *result = of[0] & of[1];
        break;
    case IR_OR:
        is_known = type == DTYPE_PRED;
        *result = of[0] | of[1];
        break;
    case IR_NOT:
        is_known = type == DTYPE_PRED;
        *result = !of[0];
        break;
    default: return false;
    }
    return is_known && ir_integer_fits(type, *result);
}
