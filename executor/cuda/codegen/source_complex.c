/* Complex operators as CUDA C expressions, the twins of
 * executor/cpu/elementwise/element_complex.c. A c64 is a structure of two f32 with operators,
 * a c128 one of two f64 (source_unit.c); products and quotients follow the
 * schoolbook formulas of the CPU, functions are computed in f64 and rounded.
 */
#include <string.h>

#include "executor/cuda/codegen/source_text.h"

/* Operands and results of an operator: complex numbers, or their parts. */
typedef enum Operands { WHOLE, TO_PART, FROM_PART } Operands;

/* $1, $2 and $3 are the operands, $C the complex type. */
static const struct {
    IrOpcode opcode;
    Operands operands;
    int32_t count;
    const char *expression;
} rows[] = {
    {IR_ADD, WHOLE, 2, "$1 + $2"},
    {IR_BROADCAST, WHOLE, 1, "$1"},
    {IR_CLAMP, WHOLE, 3, "complex_smaller(complex_larger($2, $1), $3)"},
    {IR_COMPLEX, FROM_PART, 2, "$C{$1, $2}"},
    {IR_COPY, WHOLE, 1, "$1"},
    {IR_DIVIDE, WHOLE, 2, "$1 / $2"},
    {IR_IMAG, TO_PART, 1, "$1.im"},
    {IR_MAXIMUM, WHOLE, 2, "complex_larger($1, $2)"},
    {IR_MINIMUM, WHOLE, 2, "complex_smaller($1, $2)"},
    {IR_MULTIPLY, WHOLE, 2, "$1 * $2"},
    {IR_NEGATE, WHOLE, 1, "$C{-$1.re, -$1.im}"},
    {IR_REAL, TO_PART, 1, "$1.re"},
    {IR_RESHAPE, WHOLE, 1, "$1"},
    {IR_SELECT, WHOLE, 3, "$1 ? $2 : $3"},
    {IR_SIGN, WHOLE, 1, "complex_sign($1)"},
    {IR_SUBTRACT, WHOLE, 2, "$1 - $2"},
};

/* Functions from c128 to c128. */
static const struct {
    IrOpcode opcode;
    int32_t count;
    const char *name;
} functions[] = {
    {IR_ACOS, 1, "complex_acos"},
    {IR_ACOSH, 1, "complex_acosh"},
    {IR_ASIN, 1, "complex_asin"},
    {IR_ASINH, 1, "complex_asinh"},
    {IR_ATAN, 1, "complex_atan"},
    {IR_ATAN2, 2, "complex_angle"},
    {IR_ATANH, 1, "complex_atanh"},
    {IR_COSINE, 1, "complex_cosine"},
    {IR_COSH, 1, "complex_cosh"},
    {IR_EXPONENTIAL, 1, "complex_exponential"},
    {IR_EXPONENTIAL_MINUS_ONE, 1, "complex_exponential_minus_one"},
    {IR_LOG, 1, "complex_logarithm"},
    {IR_LOG_PLUS_ONE, 1, "complex_logarithm_plus_one"},
    {IR_LOGISTIC, 1, "complex_logistic"},
    {IR_POWER, 2, "complex_power"},
    {IR_RSQRT, 1, "complex_reciprocal_root"},
    {IR_SINE, 1, "complex_sine"},
    {IR_SINH, 1, "complex_sinh"},
    {IR_SQRT, 1, "complex_root"},
    {IR_TAN, 1, "complex_tan"},
    {IR_TANH, 1, "complex_tanh"},
};

static const struct {
    const char *direction, *expression;
} comparisons[] = {
    {"EQ", "(pred)($1.re == $2.re && $1.im == $2.im)"},
    {"NE", "(pred)($1.re != $2.re || $1.im != $2.im)"},
};

/* Appends an expression in which $1, $2 and $3 are operands and $C is the C type. */
static void expand(Text *out, const char *expression, const ProgramFusionOp *op) {
    for (const char *c = expression; *c; c++) {
        if (*c != '$') text_append_bytes(out, c, 1);
        else if (*++c == 'C') text_append_string(out, cuda_value_type(op->type));
        else text_append(out, "v%d", op->operands[*c - '1']);
    }
}

static bool append_comparison(Text *out, const ProgramFusionOp *op) {
    const char *direction = op->attributes ? op->attributes->comparison : NULL;
    for (size_t k = 0; direction && k < sizeof comparisons / sizeof *comparisons; k++)
        if (strcmp(comparisons[k].direction, direction) == 0) {
            expand(out, comparisons[k].expression, op);
            return op->operand_count == 2 && op->type == DTYPE_PRED;
        }
    return false;
}

/* Returns the type as which a value is held in registers. */
static Dtype held(Dtype type) {
    return dtype_is_16bit_float(type) ? DTYPE_F32 : type;
}

/* Appends the size of a complex number; of one with a NaN it is a NaN. */
static bool append_size(Text *out, const ProgramFusionOp *op, Dtype from) {
    bool single = from == DTYPE_C64;
    text_append(out, "v%d.re != v%d.re || v%d.im != v%d.im ? %s : hypot%s(v%d.re, v%d.im)", op->operands[0],
                op->operands[0], op->operands[0], op->operands[0],
                single ? "bits_as<f32>(0x7fc00000u)" : "bits_as<f64>(0x7ff8000000000000ull)",
                single ? "f" : "", op->operands[0], op->operands[0]);
    return op->operand_count == 1 && op->type == dtype_real_part(from);
}

static bool append_conversion(Text *out, const ProgramFusionOp *op, Dtype from) {
    Dtype part = dtype_real_part(op->type);
    if (op->operand_count != 1 || part == op->type) return false;
    if (from == op->type) text_append(out, "v%d", op->operands[0]);
    else if (dtype_is_complex(from))
        text_append(out, "%s(v%d)", op->type == DTYPE_C64 ? "narrowed" : "widened", op->operands[0]);
    else
        text_append(out, "%s{(%s)v%d, 0}", cuda_value_type(op->type), cuda_value_type(part), op->operands[0]);
    return true;
}

static bool append_function(Text *out, const ProgramFusionOp *op, const char *name) {
    bool single = op->type == DTYPE_C64;
    text_append(out, "%s%s(", single ? "narrowed(" : "", name);
    for (int32_t k = 0; k < op->operand_count; k++)
        text_append(out, single ? "%swidened(v%d)" : "%sv%d", k > 0 ? ", " : "", op->operands[k]);
    text_append_string(out, single ? "))" : ")");
    return true;
}

/* Checks that the operands of an operator are of the types that its row says. */
static bool types_fit(const ProgramFusionOp *op, const Dtype *types, Operands operands) {
    Dtype whole = operands == TO_PART ? types[op->operands[0]] : op->type;
    Dtype expected = operands == FROM_PART ? dtype_real_part(whole) : whole;
    if (!dtype_is_complex(whole) || (operands == TO_PART && op->type != dtype_real_part(whole))) return false;
    for (int32_t k = op->opcode == IR_SELECT ? 1 : 0; k < op->operand_count; k++)
        if (held(types[op->operands[k]]) != expected) return false;
    return op->opcode != IR_SELECT || types[op->operands[0]] == DTYPE_PRED;
}

bool cuda_append_complex(Text *out, const ProgramFusionOp *op, const Dtype *types) {
    Dtype from = op->operand_count > 0 ? types[op->operands[0]] : DTYPE_INVALID;
    if (op->opcode == IR_COMPARE)
        return op->operand_count == 2 && types[op->operands[1]] == from && append_comparison(out, op);
    if (op->opcode == IR_CONVERT) return append_conversion(out, op, from);
    if (op->opcode == IR_ABS) return append_size(out, op, from);
    for (size_t k = 0; k < sizeof functions / sizeof *functions; k++)
        if (functions[k].opcode == op->opcode)
            return op->operand_count == functions[k].count && types_fit(op, types, WHOLE) &&
                   append_function(out, op, functions[k].name);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k].opcode == op->opcode && op->operand_count == rows[k].count &&
            types_fit(op, types, rows[k].operands)) {
            expand(out, rows[k].expression, op);
            return true;
        }
    return false;
}
