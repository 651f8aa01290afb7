/* Loops of the operators on f32 and f64, one row per operator: those of float_formulas.def, which GPUs share,
 * and those here.
 *
 * Maxima and minima propagate NaN; sign keeps NaN and signed zeros; remainder takes the dividend's sign.
 * <tgmath.h> picks the function of the element's own width.
 */
#include <tgmath.h>

#include "executor/cpu/vector/functions.h"
#include "executor/cpu/vector/vector.h"

/* Vectorized for f32, the C library's for f64. */
#define BOTH(SINGLE, DOUBLE, x) _Generic((x), float : SINGLE, double : DOUBLE)(x)

#define DEFINE_UNARY(NAME, TYPE, EXPRESSION)                     \
    static void NAME##_##TYPE(LOOP_ARGUMENTS) {                  \
        UNUSED_ARGUMENTS;                                        \
        TYPE *target = out;                                      \
        const TYPE *first = a;                                   \
        VECTOR_INDEPENDENT for (int64_t i = 0; i < count; i++) { \
            TYPE x = first[i];                                   \
            target[i] = (TYPE)(EXPRESSION);                      \
        }                                                        \
    }
#define DEFINE_BINARY(NAME, TYPE, EXPRESSION)                    \
    static void NAME##_##TYPE(LOOP_ARGUMENTS) {                  \
        UNUSED_ARGUMENTS;                                        \
        TYPE *target = out;                                      \
        const TYPE *first = a, *second = b;                      \
        VECTOR_INDEPENDENT for (int64_t i = 0; i < count; i++) { \
            TYPE x = first[i], y = second[i];                    \
            target[i] = (TYPE)(EXPRESSION);                      \
        }                                                        \
    }

#define UNARY_OPERATORS(X)                                   \
    X(COPY, x)                                               \
    X(ERF, BOTH(vector_erf, (erf), x))                       \
    X(EXPONENTIAL, BOTH(vector_exp, (exp), x))               \
    X(EXPONENTIAL_MINUS_ONE, BOTH(vector_expm1, (expm1), x)) \
    X(LOG, BOTH(vector_log, (log), x))                       \
    X(LOG_PLUS_ONE, BOTH(vector_log1p, (log1p), x))          \
    X(LOGISTIC, 1 / (1 + BOTH(vector_exp, (exp), -x)))       \
    X(SIGN, x > 0 ? 1 : x < 0 ? -1 : x)                      \
    X(TANH, BOTH(vector_tanh, (tanh), x))

#define BINARY_OPERATORS(X)             \
    X(MAXIMUM, x > y || x != x ? x : y) \
    X(MINIMUM, x < y || x != x ? x : y) \
    X(POWER, pow(x, y))

#define DEFINE_UNARY_BOTH(NAME, EXPRESSION) \
    DEFINE_UNARY(NAME, float, EXPRESSION)   \
    DEFINE_UNARY(NAME, double, EXPRESSION)
#define DEFINE_BINARY_BOTH(NAME, EXPRESSION) \
    DEFINE_BINARY(NAME, float, EXPRESSION)   \
    DEFINE_BINARY(NAME, double, EXPRESSION)
UNARY_OPERATORS(DEFINE_UNARY_BOTH)
BINARY_OPERATORS(DEFINE_BINARY_BOTH)
#define UNARY_FORMULA  DEFINE_UNARY_BOTH
#define BINARY_FORMULA DEFINE_BINARY_BOTH
#include "executor/float_formulas.def"
#undef UNARY_FORMULA
#undef BINARY_FORMULA

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
#define UNARY_FORMULA         ROW
#define BINARY_FORMULA        ROW
#include "executor/float_formulas.def"
    UNARY_OPERATORS(ROW) BINARY_OPERATORS(ROW){IR_IS_FINITE, IS_FINITE_float, IS_FINITE_double},
};

ElementLoop *VECTOR_NAME(vector_floating)(IrOpcode opcode, Dtype type) {
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k].opcode == opcode)
            return type == DTYPE_F32 ? rows[k].single : type == DTYPE_F64 ? rows[k].twice : NULL;
    return NULL;
}
