/* Element-wise operators as CUDA C expressions: one row per operator and class
 * of types, the twins of executor/cpu/elementwise/element_*.c. Formulas of x and y
 * that CPUs share: executor/float_formulas.def.
 *
 * Any other expression has these names:
 *
 *     $1 to $3   the operands
 *     $T         the type of the result
 *     $U, $S     the unsigned and signed integers of its width
 *     $W         the unsigned integer in which sums and products wrap
 *     $B         its bits
 *     $f         the end of the name of a mathematical function ("f" for f32)
 *
 * Helpers such as divide_integer are in source_unit.c.
 */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "executor/cuda/codegen/source_text.h"

typedef enum TypeClass {
    FLOATING = 1,
    SIGNED = 2,
    UNSIGNED = 4,
    INTEGER = 6,
    PRED = 8,
    ANY = 15,
    COMPLEX = 16 /* see source_complex.c */
} TypeClass;

typedef struct OperatorRow {
    IrOpcode opcode;
    TypeClass classes; /* of operand 0 */
    const char *expression;
} OperatorRow;

/* Formulas of x, or of x and y, for FLOATING. */
static const struct {
    IrOpcode opcode;
    int32_t operand_count;
    const char *formula;
} formulas[] = {
#define UNARY_FORMULA(NAME, EXPRESSION)  {IR_##NAME, 1, #EXPRESSION},
#define BINARY_FORMULA(NAME, EXPRESSION) {IR_##NAME, 2, #EXPRESSION},
#include "executor/float_formulas.def"
#undef UNARY_FORMULA
#undef BINARY_FORMULA
};

static const OperatorRow operators[] = {
    {IR_ABS, SIGNED, "($T)($1 < 0 ? 0 - ($W)$1 : ($W)$1)"},
    {IR_ABS, UNSIGNED, "$1"},
    {IR_ADD, INTEGER, "($T)(($W)$1 + ($W)$2)"},
    {IR_ADD, PRED, "($T)($1 | $2)"},
    {IR_AND, INTEGER | PRED, "($T)($1 & $2)"},
    {IR_CLAMP, ANY, "least_of(greatest_of($2, $1), $3)"},
    {IR_COPY, ANY, "$1"},
    {IR_COUNT_LEADING_ZEROS, INTEGER, "($T)(__clzll((u64)($U)$1) - (64 - $B))"},
    {IR_DIVIDE, SIGNED, "divide_signed($1, $2)"},
    {IR_DIVIDE, UNSIGNED, "divide_unsigned($1, $2)"},
    {IR_ERF, FLOATING, "erf$f($1)"},
    {IR_EXPONENTIAL, FLOATING, "exp$f($1)"},
    {IR_EXPONENTIAL_MINUS_ONE, FLOATING, "expm1$f($1)"},
    {IR_IS_FINITE, FLOATING, "(pred)($1 - $1 == 0)"},
    {IR_LOG, FLOATING, "log$f($1)"},
    {IR_LOG_PLUS_ONE, FLOATING, "log1p$f($1)"},
    {IR_LOGISTIC, FLOATING, "1 / (1 + exp$f(-$1))"},
    {IR_MAXIMUM, FLOATING | INTEGER, "greatest_of($1, $2)"},
    {IR_MAXIMUM, PRED, "($T)($1 | $2)"},
    {IR_MINIMUM, FLOATING | INTEGER, "least_of($1, $2)"},
    {IR_MINIMUM, PRED, "($T)($1 & $2)"},
    {IR_MULHI, SIGNED, "($T)high_signed($1, $2, $B)"},
    {IR_MULHI, UNSIGNED, "($T)high_unsigned($1, $2, $B)"},
    {IR_MULTIPLY, INTEGER, "($T)(($W)$1 * ($W)$2)"},
    {IR_MULTIPLY, PRED, "($T)($1 & $2)"},
    {IR_NEGATE, INTEGER, "($T)(0 - ($W)$1)"},
    {IR_NOT, INTEGER, "($T)~$1"},
    {IR_NOT, PRED, "($T)!$1"},
    {IR_OR, INTEGER | PRED, "($T)($1 | $2)"},
    {IR_POPCNT, INTEGER, "($T)__popcll((u64)($U)$1)"},
    {IR_POWER, FLOATING, "($T)pow((f64)$1, (f64)$2)"}, /* 1 - 0.999^t (Adam) loses three digits */
    {IR_POWER, SIGNED, "($T)power_signed($1, $2)"},
    {IR_POWER, UNSIGNED, "($T)power_unsigned($1, $2)"},
    {IR_REMAINDER, SIGNED, "remainder_signed($1, $2)"},
    {IR_REMAINDER, UNSIGNED, "remainder_unsigned($1, $2)"},
    {IR_SELECT, ANY, "$1 ? $2 : $3"},
    {IR_SHIFT_LEFT, INTEGER, "($U)$2 < $B ? ($T)(($W)$1 << $2) : ($T)0"},
    {IR_SHIFT_RIGHT_ARITHMETIC, INTEGER, "($T)(($S)$1 >> (($U)$2 < $B ? ($S)$2 : ($S)($B - 1)))"},
    {IR_SHIFT_RIGHT_LOGICAL, INTEGER, "($U)$2 < $B ? ($T)(($U)$1 >> $2) : ($T)0"},
    {IR_SIGN, FLOATING, "$1 > 0 ? ($T)1 : $1 < 0 ? ($T)-1 : $1"},
    {IR_SIGN, SIGNED, "($T)(($1 > 0) - ($1 < 0))"},
    {IR_SIGN, UNSIGNED, "($T)($1 > 0)"},
    {IR_SUBTRACT, INTEGER, "($T)(($W)$1 - ($W)$2)"},
    {IR_TANH, FLOATING, "tanh$f($1)"},
    {IR_XOR, INTEGER | PRED, "($T)($1 ^ $2)"},
};

static const struct {
    const char *direction, *expression, *total;
} comparisons[] = {
    {"EQ", "(pred)($1 == $2)", "(pred)(total_order($1) == total_order($2))"},
    {"NE", "(pred)($1 != $2)", "(pred)(total_order($1) != total_order($2))"},
    {"GE", "(pred)($1 >= $2)", "(pred)(total_order($1) >= total_order($2))"},
    {"GT", "(pred)($1 > $2)", "(pred)(total_order($1) > total_order($2))"},
    {"LE", "(pred)($1 <= $2)", "(pred)(total_order($1) <= total_order($2))"},
    {"LT", "(pred)($1 < $2)", "(pred)(total_order($1) < total_order($2))"},
};

/* The replacements of $T, $U, $S, $W, $B, $f, per type of value. */
typedef struct TypeRow {
    Dtype type;
    TypeClass class;
    const char *name, *as_unsigned, *as_signed, *wrapping, *bits, *suffix;
    const char *least, *most; /* integers, for saturation */
} TypeRow;

static const TypeRow types_of_values[] = {
    {DTYPE_PRED, PRED, "pred", "u8", "s8", "u32", "8", "", NULL, NULL},
    {DTYPE_S8, SIGNED, "s8", "u8", "s8", "u32", "8", "", "-128", "127"},
    {DTYPE_S16, SIGNED, "s16", "u16", "s16", "u32", "16", "", "-32768", "32767"},
    {DTYPE_S32, SIGNED, "s32", "u32", "s32", "u32", "32", "", "-2147483647 - 1", "2147483647"},
    {DTYPE_S64, SIGNED, "s64", "u64", "s64", "u64", "64", "", "-9223372036854775807ll - 1",
     "9223372036854775807ll"},
    {DTYPE_U8, UNSIGNED, "u8", "u8", "s8", "u32", "8", "", "0", "255"},
    {DTYPE_U16, UNSIGNED, "u16", "u16", "s16", "u32", "16", "", "0", "65535"},
    {DTYPE_U32, UNSIGNED, "u32", "u32", "s32", "u32", "32", "", "0", "4294967295u"},
    {DTYPE_U64, UNSIGNED, "u64", "u64", "s64", "u64", "64", "", "0", "18446744073709551615ull"},
    {DTYPE_F32, FLOATING, "f32", "u32", "s32", "u32", "32", "f", NULL, NULL},
    {DTYPE_F64, FLOATING, "f64", "u64", "s64", "u64", "64", "", NULL, NULL},
    {DTYPE_C64, COMPLEX, "c64", "u64", "s64", "u64", "64", "", NULL, NULL},
    {DTYPE_C128, COMPLEX, "c128", "u64", "s64", "u64", "128", "", NULL, NULL},
};

/* Returns the name of a 16-bit floating type, which is computed in f32, rounded by the helper NAME_round,
 * and moved by NAME_load and NAME_store; NULL for other types. */
static const char *name_of_16bit(Dtype type) {
    return type == DTYPE_BF16 ? "bf16" : type == DTYPE_F16 ? "f16" : NULL;
}

static Dtype held(Dtype type) {
    return name_of_16bit(type) ? DTYPE_F32 : type;
}

static const TypeRow *row_of(Dtype type) {
    for (size_t k = 0; k < sizeof types_of_values / sizeof *types_of_values; k++)
        if (types_of_values[k].type == held(type)) return &types_of_values[k];
    return NULL;
}

bool cuda_has_arithmetic(Dtype type) {
    return cuda_has_operators(type) && !dtype_is_complex(type);
}

bool cuda_has_operators(Dtype type) {
    return row_of(type) != NULL;
}

const char *cuda_word(int64_t bytes) {
    static const char *const words[] = {[1] = "u8", [2] = "u16", [4] = "u32", [8] = "u64", [16] = "b128"};
    return words[bytes];
}

const char *cuda_value_type(Dtype type) {
    const TypeRow *row = row_of(type);
    return row ? row->name : cuda_word(dtype_bytes(type));
}

const char *cuda_memory_type(Dtype type) {
    return name_of_16bit(type) ? "u16" : cuda_value_type(type);
}

void cuda_append_load(Text *out, Dtype type, const char *text) {
    if (name_of_16bit(type)) text_append(out, "%s_load(%s)", name_of_16bit(type), text);
    else text_append_string(out, text);
}

void cuda_append_store(Text *out, Dtype type, const char *text) {
    if (name_of_16bit(type)) text_append(out, "%s_store(%s)", name_of_16bit(type), text);
    else text_append_string(out, text);
}

/* Appends a conversion: floating to integer saturates and takes NaN to 0, integers wrap, pred is "not 0". */
static void append_unrounded_convert(Text *out, const TypeRow *from, const TypeRow *to, const char *text) {
    if (from == to) text_append_string(out, text);
    else if (to->class == PRED) text_append(out, "(pred)(%s != 0)", text);
    else if (from->class == FLOATING && to->least)
        text_append(out, "saturate<%s>(%s, %s, %s)", to->name, text, to->least, to->most);
    else text_append(out, "(%s)%s", to->name, text);
}

void cuda_append_convert(Text *out, Dtype from, Dtype to, const char *text) {
    bool rounds = name_of_16bit(to) && from != to;
    if (rounds) text_append(out, "%s_round(", name_of_16bit(to));
    append_unrounded_convert(out, row_of(from), row_of(to), text);
    if (rounds) text_append_string(out, ")");
}

/* Appends an expression in which $1, $2 and $3 are operands and letters are names of the type. */
static void expand(Text *out, const char *expression, const TypeRow *row, const int32_t *operands) {
    for (const char *c = expression; *c; c++) {
        if (*c != '$') {
            text_append_bytes(out, c, 1);
            continue;
        }
        switch (*++c) {
        case 'T': text_append_string(out, row->name); break;
        case 'U': text_append_string(out, row->as_unsigned); break;
        case 'S': text_append_string(out, row->as_signed); break;
        case 'W': text_append_string(out, row->wrapping); break;
        case 'B': text_append_string(out, row->bits); break;
        case 'f': text_append_string(out, row->suffix); break;
        default: text_append(out, "v%d", operands[*c - '1']); break;
        }
    }
}

/* Appends a formula: x and y become operands, and names of functions get the suffix of the type. */
static void expand_formula(Text *out, const char *formula, const TypeRow *row, const int32_t *operands) {
    for (size_t length; *formula; formula += length) {
        for (length = 0; isalnum((unsigned char)formula[length]);) length++;
        if (length == 0) text_append_bytes(out, formula, length = 1);
        else if (length == 1 && (*formula == 'x' || *formula == 'y'))
            text_append(out, "v%d", operands[*formula - 'x']);
        else text_append(out, "%.*s%s", (int)length, formula, formula[length] == '(' ? row->suffix : "");
    }
}

static void append_floating(Text *out, double value, bool single) {
    char digits[64];
    snprintf(digits, sizeof digits, single ? "%.9g" : "%.17g", value);
    bool whole = !strpbrk(digits, ".e");
    text_append(out, "%s%s%s", digits, whole ? ".0" : "", single ? "f" : "");
}

static void append_single(Text *out, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isfinite(value)) append_floating(out, value, true);
    else text_append(out, "bits_as<f32>(0x%08xu)", bits);
}

void cuda_append_double(Text *out, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isfinite(value)) append_floating(out, value, false);
    else text_append(out, "bits_as<f64>(0x%016llxull)", (unsigned long long)bits);
}

/* Appends a scalar literal; values without digits (infinities, NaN) are written by their bits. */
static bool append_constant(Text *out, const ProgramFusionOp *op) {
    union {
        int8_t s8;
        int16_t s16;
        int32_t s32;
        int64_t s64;
        uint8_t u8;
        uint16_t u16;
        uint32_t u32;
        uint64_t u64;
        float f32;
        double f64;
        float c64[2];
        double c128[2];
    } value = {.u64 = 0};
    if (!op->literal || !op->literal->data || op->literal->bytes < dtype_bytes(op->type)) return false;
    memcpy(&value, op->literal->data, (size_t)dtype_bytes(op->type));
    if (op->type == DTYPE_BF16) value.f32 = dtype_bf16_to_float(value.u16);
    if (op->type == DTYPE_F16) value.f32 = dtype_f16_to_float(value.u16);
    switch (held(op->type)) {
    case DTYPE_PRED: text_append(out, "%d", value.u8 != 0); return true;
    case DTYPE_S8: text_append(out, "%d", value.s8); return true;
    case DTYPE_S16: text_append(out, "%d", value.s16); return true;
    case DTYPE_S32: text_append(out, "(s32)%lldll", (long long)value.s32); return true;
    case DTYPE_S64: text_append(out, "(s64)%lluull", (unsigned long long)value.u64); return true;
    case DTYPE_U8: text_append(out, "%u", value.u8); return true;
    case DTYPE_U16: text_append(out, "%u", value.u16); return true;
    case DTYPE_U32: text_append(out, "%uu", value.u32); return true;
    case DTYPE_U64: text_append(out, "%lluull", (unsigned long long)value.u64); return true;
    case DTYPE_F32: append_single(out, value.f32); return true;
    case DTYPE_F64: cuda_append_double(out, value.f64); return true;
    case DTYPE_C64:
        text_append_string(out, "c64{");
        append_single(out, value.c64[0]);
        text_append_string(out, ", ");
        append_single(out, value.c64[1]);
        text_append_string(out, "}");
        return true;
    case DTYPE_C128:
        text_append_string(out, "c128{");
        cuda_append_double(out, value.c128[0]);
        text_append_string(out, ", ");
        cuda_append_double(out, value.c128[1]);
        text_append_string(out, "}");
        return true;
    default: return false;
    }
}

static bool append_comparison(Text *out, const ProgramFusionOp *op, Dtype operand) {
    const IrAttributes *attributes = op->attributes;
    if (!attributes || !attributes->comparison || op->operand_count != 2) return false;
    const TypeRow *row = row_of(operand);
    bool total = attributes->comparison_type && strcmp(attributes->comparison_type, "TOTALORDER") == 0;
    for (size_t k = 0; k < sizeof comparisons / sizeof *comparisons; k++) {
        if (strcmp(comparisons[k].direction, attributes->comparison) != 0) continue;
        bool by_rank = total && row->class == FLOATING;
        expand(out, by_rank ? comparisons[k].total : comparisons[k].expression, row, op->operands);
        return true;
    }
    return false;
}

/* Appends the bits of a value as another type of the same width; a 16-bit float is widened or narrowed on
 * the way. */
static bool append_bitcast(Text *out, const ProgramFusionOp *op, Dtype operand) {
    char value[32];
    const char *from = name_of_16bit(operand), *to = name_of_16bit(op->type);
    if (op->operand_count != 1 || dtype_bits(operand) != dtype_bits(op->type)) return false;
    snprintf(value, sizeof value, "v%d", op->operands[0]);
    if (from && to) text_append(out, "%s_load(%s_store(%s))", to, from, value);
    else if (from) text_append(out, "(%s)%s_store(%s)", cuda_value_type(op->type), from, value);
    else if (to) text_append(out, "%s_load((u16)%s)", to, value);
    else text_append(out, "bits_as<%s>(%s)", cuda_value_type(op->type), value);
    return true;
}

static bool append_reduced_precision(Text *out, const ProgramFusionOp *op) {
    const IrAttributes *attributes = op->attributes;
    bool twice = op->type == DTYPE_F64;
    int32_t exponent = twice ? 11 : 8, fraction = twice ? 52 : 23;
    if (!attributes || (held(op->type) != DTYPE_F32 && !twice) || op->operand_count != 1 ||
        attributes->mantissa_bits < 0 || attributes->exponent_bits < 1)
        return false;
    text_append(out, "reduce_precision<%s, %d, %d>(v%d, %d, %d)", twice ? "f64, u64, s64" : "f32, u32, s32",
                exponent, fraction, op->operands[0],
                attributes->exponent_bits < exponent ? attributes->exponent_bits : exponent,
                attributes->mantissa_bits < fraction ? attributes->mantissa_bits : fraction);
    return true;
}

/* Towards zero, or away from it with the probability of the rest, by operand 1, random bits. */
static bool append_stochastic_convert(Text *out, const ProgramFusionOp *op, const Dtype *types) {
    if (op->operand_count != 2) return false;
    const TypeRow *from = row_of(types[op->operands[0]]), *to = row_of(op->type);
    Dtype random = types[op->operands[1]];
    if (from->class != FLOATING || to->class != SIGNED || row_of(random)->class != UNSIGNED) return false;
    text_append(out, "saturate<%s>(stochastic((f64)v%d, v%d, %d), %s, %s)", to->name, op->operands[0],
                op->operands[1], dtype_bits(random), to->least, to->most);
    return true;
}

/* Appends an operator of the table. All operands but select's predicate have the type of the first. */
static bool append_table_row(Text *out, const ProgramFusionOp *op, Dtype operand, const Dtype *types) {
    IrOpcode opcode = op->opcode == IR_RESHAPE || op->opcode == IR_BROADCAST ? IR_COPY : op->opcode;
    bool selects = opcode == IR_SELECT, clamps = opcode == IR_CLAMP;
    Dtype common = selects || clamps ? op->type : operand;
    const TypeRow *row = row_of(common);
    for (int32_t k = selects ? 1 : 0; k < op->operand_count; k++)
        if (types[op->operands[k]] != common) return false;
    if (opcode != IR_IS_FINITE && op->type != common) return false;
    for (size_t k = 0; k < sizeof formulas / sizeof *formulas; k++) {
        if (formulas[k].opcode != opcode || row->class != FLOATING) continue;
        if (formulas[k].operand_count != op->operand_count) return false;
        expand_formula(out, formulas[k].formula, row, op->operands);
        return true;
    }
    for (size_t k = 0; k < sizeof operators / sizeof *operators; k++) {
        const OperatorRow *candidate = &operators[k];
        if (candidate->opcode != opcode || !(candidate->classes & row->class)) continue;
        int32_t most = 0;
        for (const char *c = candidate->expression; *c; c++)
            if (*c == '$' && c[1] >= '1' && c[1] <= '3' && c[1] - '0' > most) most = c[1] - '0';
        if (most != op->operand_count) return false;
        expand(out, candidate->expression, row, op->operands);
        return true;
    }
    return false;
}

static bool append_expression(Text *out, const ProgramFusionOp *op, const Dtype *types, const char *iota) {
    Dtype operand = op->operand_count > 0 ? types[op->operands[0]] : op->type;
    char value[32];
    if (op->opcode == IR_CONSTANT) return append_constant(out, op);
    if (op->opcode == IR_IOTA && dtype_is_complex(op->type)) {
        if (iota)
            text_append(out, "%s{(%s)%s, 0}", row_of(op->type)->name, row_of(dtype_real_part(op->type))->name,
                        iota);
        return iota != NULL;
    }
    if (dtype_is_complex(operand) || dtype_is_complex(op->type)) return cuda_append_complex(out, op, types);
    switch (op->opcode) {
    case IR_COMPARE: return op->type == DTYPE_PRED && append_comparison(out, op, operand);
    case IR_BITCAST_CONVERT: return append_bitcast(out, op, operand);
    case IR_REDUCE_PRECISION: return operand == op->type && append_reduced_precision(out, op);
    case IR_STOCHASTIC_CONVERT: return append_stochastic_convert(out, op, types);
    case IR_IOTA:
        if (iota) cuda_append_convert(out, DTYPE_S64, op->type, iota);
        return iota != NULL;
    case IR_CONVERT:
        if (op->operand_count != 1) return false;
        snprintf(value, sizeof value, "v%d", op->operands[0]);
        cuda_append_convert(out, operand, op->type, value);
        return true;
    default: return append_table_row(out, op, operand, types);
    }
}

bool cuda_operator_rounds(const ProgramFusionOp *op) {
    static const IrOpcode exact[] = {IR_SELECT,  IR_COPY,    IR_RESHAPE,        IR_BROADCAST, IR_CONSTANT,
                                     IR_IOTA,    IR_CONVERT, IR_CLAMP,          IR_NEGATE,    IR_ABS,
                                     IR_MAXIMUM, IR_MINIMUM, IR_BITCAST_CONVERT};
    if (!name_of_16bit(op->type)) return false;
    for (size_t k = 0; k < sizeof exact / sizeof *exact; k++)
        if (exact[k] == op->opcode) return false;
    return true;
}

bool cuda_append_operator(Text *out, const ProgramFusionOp *op, int32_t slot, Dtype *types,
                          const char *iota) {
    bool rounds = cuda_operator_rounds(op);
    bool arithmetic = op->opcode == IR_ADD || op->opcode == IR_SUBTRACT || op->opcode == IR_MULTIPLY;
    if (op->operand_count < 0 || op->operand_count > 3 || !row_of(op->type)) return false;
    for (int32_t k = 0; k < op->operand_count; k++)
        if (op->operands[k] < 0 || op->operands[k] >= slot || !row_of(types[op->operands[k]])) return false;
    types[slot] = op->type;
    text_append(out, "const %s v%d = ", cuda_value_type(op->type), slot);
    if (rounds && arithmetic && op->type == DTYPE_BF16) text_append_string(out, "bf16_round_result(");
    else if (rounds) text_append(out, "%s_round(", name_of_16bit(op->type));
    bool known = append_expression(out, op, types, iota);
    text_append_string(out, rounds ? ");\n" : ";\n");
    return known;
}
