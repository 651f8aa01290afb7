/* Loops of the operators on f32 and f64, one row per operator.
 *
 * Maxima and minima propagate NaN; sign keeps NaN and signed zeros; remainder
 * takes the dividend's sign (facts of HLO, section 2). <tgmath.h> picks the
 * function of the element's own width.
 */
#include <tgmath.h>

#include "executor/cpu/element.h"

#define UNUSED_ARGUMENTS (void)a, (void)b, (void)c, (void)parameter, (void)tile
#define LOOP_ARGUMENTS                                                     \
    void *out, const void *a, const void *b, const void *c, int64_t count, \
        const ElementParameter *parameter, const ElementTile *tile

#define DEFINE_UNARY(NAME, TYPE, EXPRESSION)                       \
    static void NAME##_##TYPE(LOOP_ARGUMENTS) {                    \
        UNUSED_ARGUMENTS;                                          \
        TYPE *target = out;                                        \
        const TYPE *first = a;                                     \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < count; i++) { \
            TYPE x = first[i];                                     \
            target[i] = (TYPE)(EXPRESSION);                        \
        }                                                          \
    }
#define DEFINE_BINARY(NAME, TYPE, EXPRESSION)                      \
    static void NAME##_##TYPE(LOOP_ARGUMENTS) {                    \
        UNUSED_ARGUMENTS;                                          \
        TYPE *target = out;                                        \
        const TYPE *first = a, *second = b;                        \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < count; i++) { \
            TYPE x = first[i], y = second[i];                      \
            target[i] = (TYPE)(EXPRESSION);                        \
        }                                                          \
    }

#define UNARY_OPERATORS(X)              \
    X(ABS, fabs(x))                     \
    X(ACOS, acos(x))                    \
    X(ACOSH, acosh(x))                  \
    X(ASIN, asin(x))                    \
    X(ASINH, asinh(x))                  \
    X(ATAN, atan(x))                    \
    X(ATANH, atanh(x))                  \
    X(CBRT, cbrt(x))                    \
    X(CEIL, ceil(x))                    \
    X(COPY, x)                          \
    X(COSINE, cos(x))                   \
    X(COSH, cosh(x))                    \
    X(ERF, erf(x))                      \
    X(EXPONENTIAL, exp(x))              \
    X(EXPONENTIAL_MINUS_ONE, expm1(x))  \
    X(FLOOR, floor(x))                  \
    X(LOG, log(x))                      \
    X(LOG_PLUS_ONE, log1p(x))           \
    X(LOGISTIC, 1 / (1 + exp(-x)))      \
    X(NEGATE, -x)                       \
    X(ROUND_NEAREST_AFZ, round(x))      \
    X(ROUND_NEAREST_EVEN, rint(x))      \
    X(RSQRT, 1 / sqrt(x))               \
    X(SIGN, x > 0 ? 1 : x < 0 ? -1 : x) \
    X(SINE, sin(x))                     \
    X(SINH, sinh(x))                    \
    X(SQRT, sqrt(x))                    \
    X(TAN, tan(x))                      \
    X(TANH, tanh(x))

#define BINARY_OPERATORS(X)             \
    X(ADD, x + y)                       \
    X(ATAN2, atan2(x, y))               \
    X(DIVIDE, x / y)                    \
    X(MAXIMUM, x > y || x != x ? x : y) \
    X(MINIMUM, x < y || x != x ? x : y) \
    X(MULTIPLY, x *y)                   \
    X(POWER, pow(x, y))                 \
    X(REMAINDER, fmod(x, y))            \
    X(SUBTRACT, x - y)

#define DEFINE_UNARY_BOTH(NAME, EXPRESSION) \
    DEFINE_UNARY(NAME, float, EXPRESSION)   \
    DEFINE_UNARY(NAME, double, EXPRESSION)
#define DEFINE_BINARY_BOTH(NAME, EXPRESSION) \
    DEFINE_BINARY(NAME, float, EXPRESSION)   \
    DEFINE_BINARY(NAME, double, EXPRESSION)
UNARY_OPERATORS(DEFINE_UNARY_BOTH)
BINARY_OPERATORS(DEFINE_BINARY_BOTH)

#define DEFINE_IS_FINITE(TYPE)                                                   \
    static void IS_FINITE_##TYPE(LOOP_ARGUMENTS) {                               \
        UNUSED_ARGUMENTS;                                                        \
        uint8_t *target = out;                                                   \
        const TYPE *first = a;                                                   \
        for (int64_t i = 0; i < count; i++) target[i] = isfinite(first[i]) != 0; \
    }
DEFINE_IS_FINITE(float)
DEFINE_IS_FINITE(double)

static const struct {
    IrOpcode opcode;
    ElementLoop *single, *twice;
} rows[] = {
#define ROW(NAME, EXPRESSION) {IR_##NAME, NAME##_float, NAME##_double},
    UNARY_OPERATORS(ROW) BINARY_OPERATORS(ROW){IR_IS_FINITE, IS_FINITE_float, IS_FINITE_double},
};

ElementLoop *element_floating_loop(IrOpcode opcode, Dtype type) {
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k].opcode == opcode)
            return type == DTYPE_F32 ? rows[k].single : type == DTYPE_F64 ? rows[k].twice : NULL;
    return NULL;
}

/* Rounds to nearest even at `mantissa_bits`, then overflows to infinity and
 * flushes to zero by the exponent's range. */
#define DEFINE_REDUCE_PRECISION(NAME, TYPE, WORD, FRACTION, EXPONENT)                               \
    static TYPE NAME##_value(TYPE value, int32_t exponent_bits, int32_t mantissa_bits) {            \
        union {                                                                                     \
            TYPE value;                                                                             \
            WORD bits;                                                                              \
        } word = {value};                                                                           \
        if (isnan(value) || isinf(value)) return value;                                             \
        int32_t dropped = FRACTION - mantissa_bits;                                                 \
        if (dropped > 0) {                                                                          \
            WORD last = word.bits >> dropped & 1;                                                   \
            word.bits += (((WORD)1 << (dropped - 1)) - 1) + last;                                   \
            word.bits &= ~(((WORD)1 << dropped) - 1);                                               \
        }                                                                                           \
        if (exponent_bits >= EXPONENT) return word.value;                                           \
        int32_t most = (1 << (exponent_bits - 1)) - 1, bias = (1 << (EXPONENT - 1)) - 1;            \
        int32_t exponent = (int32_t)(word.bits >> FRACTION & ((1 << EXPONENT) - 1)) - bias;         \
        if (exponent > most) return copysign((TYPE)INFINITY, value);                                \
        return exponent < 1 - most ? copysign((TYPE)0, value) : word.value;                         \
    }                                                                                               \
    void NAME(LOOP_ARGUMENTS) {                                                                     \
        (void)b, (void)c, (void)tile;                                                               \
        TYPE *target = out;                                                                         \
        const TYPE *first = a;                                                                      \
        for (int64_t i = 0; i < count; i++)                                                         \
            target[i] = NAME##_value(first[i], parameter->exponent_bits, parameter->mantissa_bits); \
    }
DEFINE_REDUCE_PRECISION(element_reduce_precision_single, float, uint32_t, 23, 8)
DEFINE_REDUCE_PRECISION(element_reduce_precision_double, double, uint64_t, 52, 11)

void element_round_bf16(LOOP_ARGUMENTS) {
    UNUSED_ARGUMENTS;
    float *target = out;
    const float *first = a;
    for (int64_t i = 0; i < count; i++) target[i] = dtype_bf16_to_float(dtype_float_to_bf16(first[i]));
}

void element_round_f16(LOOP_ARGUMENTS) {
    UNUSED_ARGUMENTS;
    float *target = out;
    const float *first = a;
    for (int64_t i = 0; i < count; i++) target[i] = dtype_f16_to_float(dtype_float_to_f16(first[i]));
}
