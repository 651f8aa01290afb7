/* Complex operators as CUDA C expressions, the twins of
 * executor/cpu/element_complex.c. A c64 is a structure of two f32 with operators
 * (source_unit.c); products and quotients follow the schoolbook formulas of the
 * CPU, functions are computed in f64 and rounded.
 */
#include <string.h>

#include "executor/cuda/source_text.h"

/* $1 and $2 are the operands. Types are those of registers. */
static const struct {
    IrOpcode opcode;
    Dtype from, to;
    int32_t operands;
    const char *expression;
} rows[] = {
    {IR_ABS, DTYPE_C64, DTYPE_F32, 1, "hypotf($1.re, $1.im)"},
    {IR_ADD, DTYPE_C64, DTYPE_C64, 2, "$1 + $2"},
    {IR_BROADCAST, DTYPE_C64, DTYPE_C64, 1, "$1"},
    {IR_COMPLEX, DTYPE_F32, DTYPE_C64, 2, "c64{$1, $2}"},
    {IR_CONVERT, DTYPE_F32, DTYPE_C64, 1, "c64{$1, 0.0f}"},
    {IR_COPY, DTYPE_C64, DTYPE_C64, 1, "$1"},
    {IR_COSINE, DTYPE_C64, DTYPE_C64, 1, "complex_cosine($1)"},
    {IR_DIVIDE, DTYPE_C64, DTYPE_C64, 2, "$1 / $2"},
    {IR_EXPONENTIAL, DTYPE_C64, DTYPE_C64, 1, "complex_exponential($1.re, $1.im)"},
    {IR_IMAG, DTYPE_C64, DTYPE_F32, 1, "$1.im"},
    {IR_LOG, DTYPE_C64, DTYPE_C64, 1, "complex_logarithm($1)"},
    {IR_MULTIPLY, DTYPE_C64, DTYPE_C64, 2, "$1 * $2"},
    {IR_NEGATE, DTYPE_C64, DTYPE_C64, 1, "c64{-$1.re, -$1.im}"},
    {IR_POWER, DTYPE_C64, DTYPE_C64, 2, "complex_power($1, $2)"},
    {IR_REAL, DTYPE_C64, DTYPE_F32, 1, "$1.re"},
    {IR_RESHAPE, DTYPE_C64, DTYPE_C64, 1, "$1"},
    {IR_RSQRT, DTYPE_C64, DTYPE_C64, 1, "c64{1.0f, 0.0f} / complex_root($1)"},
    {IR_SELECT, DTYPE_PRED, DTYPE_C64, 3, "$1 ? $2 : $3"},
    {IR_SINE, DTYPE_C64, DTYPE_C64, 1, "complex_sine($1)"},
    {IR_SQRT, DTYPE_C64, DTYPE_C64, 1, "complex_root($1)"},
    {IR_SUBTRACT, DTYPE_C64, DTYPE_C64, 2, "$1 - $2"},
    {IR_TANH, DTYPE_C64, DTYPE_C64, 1, "complex_tangent($1)"},
};

static const struct {
    const char *direction, *expression;
} comparisons[] = {
    {"EQ", "(pred)($1.re == $2.re && $1.im == $2.im)"},
    {"NE", "(pred)($1.re != $2.re || $1.im != $2.im)"},
};

static void expand(Text *out, const char *expression, const int32_t *operands) {
    for (const char *c = expression; *c; c++) {
        if (*c != '$') text_append_bytes(out, c, 1);
        else text_append(out, "v%d", operands[*++c - '1']);
    }
}

static Dtype held(Dtype type) {
    return type == DTYPE_BF16 || type == DTYPE_F16 ? DTYPE_F32 : type;
}

bool cuda_append_complex(Text *out, const ProgramFusionOp *op, const Dtype *types) {
    Dtype from = op->operand_count > 0 ? held(types[op->operands[0]]) : DTYPE_INVALID, to = op->type;
    for (int32_t k = op->opcode == IR_SELECT ? 1 : 0; k < op->operand_count; k++)
        if (held(types[op->operands[k]]) != (op->opcode == IR_SELECT ? to : from)) return false;
    if (op->opcode == IR_COMPARE) {
        const char *direction = op->attributes ? op->attributes->comparison : NULL;
        for (size_t k = 0; direction && k < sizeof comparisons / sizeof *comparisons; k++) {
            if (strcmp(comparisons[k].direction, direction) != 0) continue;
            expand(out, comparisons[k].expression, op->operands);
            return op->operand_count == 2 && to == DTYPE_PRED;
        }
        return false;
    }
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        if (rows[k].opcode != op->opcode || rows[k].from != from || rows[k].to != to) continue;
        expand(out, rows[k].expression, op->operands);
        return op->operand_count == rows[k].operands;
    }
    return false;
}
