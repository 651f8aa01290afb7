/* Loops on c64 and c128: arithmetic, functions, and the way to and from real parts.
 *
 * A complex number is two numbers side by side. Products follow the schoolbook
 * formula, so that infinities give what XLA gives; quotients are C's, which scale
 * the divisor, so that no square overflows, and give infinities their due (C17,
 * Annex G). A size with a NaN is NaN. Functions are the C library's. Maxima and minima compare real parts,
 * then imaginary ones. <tgmath.h> picks the function of the element's own width.
 */
#include <tgmath.h>

#include <string.h>

#include "executor/array/scalar64.h"
#include "executor/cpu/element.h"

#define LOOP_ARGUMENTS                                                     \
    void *out, const void *a, const void *b, const void *c, int64_t count, \
        const ElementParameter *parameter, const ElementTile *tile

typedef float Single;
typedef double Twice;
typedef float complex ComplexSingle;
typedef double complex ComplexTwice;

#define DEFINE_ARITHMETIC(WIDTH)                                                                \
    static inline Complex##WIDTH make_##WIDTH(WIDTH real, WIDTH imaginary) {                    \
        union {                                                                                 \
            WIDTH parts[2];                                                                     \
            Complex##WIDTH value;                                                               \
        } both = {{real, imaginary}};                                                           \
        return both.value;                                                                      \
    }                                                                                           \
    static inline Complex##WIDTH product_##WIDTH(Complex##WIDTH x, Complex##WIDTH y) {          \
        WIDTH p = creal(x), q = cimag(x), r = creal(y), s = cimag(y);                           \
        return make_##WIDTH(p * r - q * s, p * s + q * r);                                      \
    }                                                                                           \
    static inline Complex##WIDTH sign_##WIDTH(Complex##WIDTH x) {                               \
        WIDTH size = cabs(x);                                                                   \
        return size == 0 ? x : make_##WIDTH(creal(x) / size, cimag(x) / size);                  \
    }                                                                                           \
    static inline WIDTH size_##WIDTH(Complex##WIDTH x) {                                        \
        bool has_nan = creal(x) != creal(x) || cimag(x) != cimag(x);                            \
        return has_nan ? (WIDTH)NAN : cabs(x);                                                  \
    }                                                                                           \
    /* exp(p) (cos q + i sin q) - 1, where the real part is expm1(p) cos q - 2 sin^2(q / 2). */ \
    static inline Complex##WIDTH exponential_minus_one_##WIDTH(Complex##WIDTH x) {              \
        WIDTH p = creal(x), q = cimag(x), half = sin(q / 2);                                    \
        return make_##WIDTH(expm1(p) * cos(q) - 2 * half * half, q == 0 ? q : exp(p) * sin(q)); \
    }                                                                                           \
    /* |1 + x|^2 - 1 = p (2 + p) + q^2 keeps small x. */                                        \
    static inline Complex##WIDTH log_plus_one_##WIDTH(Complex##WIDTH x) {                       \
        WIDTH p = creal(x), q = cimag(x), size = fabs(p) + fabs(q);                             \
        WIDTH real = size < (WIDTH)0.5 ? log1p(p * (2 + p) + q * q) / 2 : log(hypot(1 + p, q)); \
        return make_##WIDTH(real, atan2(q, 1 + p));                                             \
    }                                                                                           \
    /* atan2(y, x) = -i log((x + i y) / sqrt(x^2 + y^2)) */                                     \
    static inline Complex##WIDTH angle_##WIDTH(Complex##WIDTH y, Complex##WIDTH x) {            \
        Complex##WIDTH turned = x + make_##WIDTH(-cimag(y), creal(y));                          \
        Complex##WIDTH root = sqrt(product_##WIDTH(x, x) + product_##WIDTH(y, y));              \
        Complex##WIDTH logarithm = log(turned / root);                                          \
        return make_##WIDTH(cimag(logarithm), -creal(logarithm));                               \
    }                                                                                           \
    static inline bool precedes_##WIDTH(Complex##WIDTH x, Complex##WIDTH y) {                   \
        return creal(x) < creal(y) || (creal(x) == creal(y) && cimag(x) < cimag(y));            \
    }                                                                                           \
    static inline bool has_nan_##WIDTH(Complex##WIDTH x) {                                      \
        return creal(x) != creal(x) || cimag(x) != cimag(x);                                    \
    }                                                                                           \
    static inline Complex##WIDTH larger_##WIDTH(Complex##WIDTH x, Complex##WIDTH y) {           \
        return has_nan_##WIDTH(x) || precedes_##WIDTH(y, x) ? x : y;                            \
    }                                                                                           \
    static inline Complex##WIDTH smaller_##WIDTH(Complex##WIDTH x, Complex##WIDTH y) {          \
        return has_nan_##WIDTH(x) || precedes_##WIDTH(x, y) ? x : y;                            \
    }                                                                                           \
    static inline Complex##WIDTH logistic_##WIDTH(Complex##WIDTH x) {                           \
        return make_##WIDTH(1, 0) / (make_##WIDTH(1, 0) + exp(-x));                             \
    }                                                                                           \
    static inline Complex##WIDTH reciprocal_root_##WIDTH(Complex##WIDTH x) {                    \
        return make_##WIDTH(1, 0) / sqrt(x);                                                    \
    }
DEFINE_ARITHMETIC(Single)
DEFINE_ARITHMETIC(Twice)

#define DEFINE_LOOP(NAME, OUT, IN, EXPRESSION)    \
    static void NAME(LOOP_ARGUMENTS) {            \
        (void)c, (void)parameter, (void)tile;     \
        OUT *target = out;                        \
        const IN *first = a, *second = b ? b : a; \
        for (int64_t i = 0; i < count; i++) {     \
            IN x = first[i], y = second[i];       \
            (void)y;                              \
            target[i] = (EXPRESSION);             \
        }                                         \
    }

/* Opcode, result, operand, expression; Complex and Real stand for a width's own types. */
#define OPERATORS(X, WIDTH)                                                                           \
    X(WIDTH, ADD, Complex##WIDTH, Complex##WIDTH, x + y)                                              \
    X(WIDTH, SUBTRACT, Complex##WIDTH, Complex##WIDTH, x - y)                                         \
    X(WIDTH, MULTIPLY, Complex##WIDTH, Complex##WIDTH, product_##WIDTH(x, y))                         \
    X(WIDTH, DIVIDE, Complex##WIDTH, Complex##WIDTH, x / y)                                           \
    X(WIDTH, POWER, Complex##WIDTH, Complex##WIDTH, pow(x, y))                                        \
    X(WIDTH, ATAN2, Complex##WIDTH, Complex##WIDTH, angle_##WIDTH(x, y))                              \
    X(WIDTH, MAXIMUM, Complex##WIDTH, Complex##WIDTH, larger_##WIDTH(x, y))                           \
    X(WIDTH, MINIMUM, Complex##WIDTH, Complex##WIDTH, smaller_##WIDTH(x, y))                          \
    X(WIDTH, NEGATE, Complex##WIDTH, Complex##WIDTH, -x)                                              \
    X(WIDTH, COPY, Complex##WIDTH, Complex##WIDTH, x)                                                 \
    X(WIDTH, SIGN, Complex##WIDTH, Complex##WIDTH, sign_##WIDTH(x))                                   \
    X(WIDTH, EXPONENTIAL, Complex##WIDTH, Complex##WIDTH, exp(x))                                     \
    X(WIDTH, EXPONENTIAL_MINUS_ONE, Complex##WIDTH, Complex##WIDTH, exponential_minus_one_##WIDTH(x)) \
    X(WIDTH, LOG, Complex##WIDTH, Complex##WIDTH, log(x))                                             \
    X(WIDTH, LOG_PLUS_ONE, Complex##WIDTH, Complex##WIDTH, log_plus_one_##WIDTH(x))                   \
    X(WIDTH, LOGISTIC, Complex##WIDTH, Complex##WIDTH, logistic_##WIDTH(x))                           \
    X(WIDTH, SQRT, Complex##WIDTH, Complex##WIDTH, sqrt(x))                                           \
    X(WIDTH, RSQRT, Complex##WIDTH, Complex##WIDTH, reciprocal_root_##WIDTH(x))                       \
    X(WIDTH, SINE, Complex##WIDTH, Complex##WIDTH, sin(x))                                            \
    X(WIDTH, COSINE, Complex##WIDTH, Complex##WIDTH, cos(x))                                          \
    X(WIDTH, TAN, Complex##WIDTH, Complex##WIDTH, tan(x))                                             \
    X(WIDTH, TANH, Complex##WIDTH, Complex##WIDTH, tanh(x))                                           \
    X(WIDTH, SINH, Complex##WIDTH, Complex##WIDTH, sinh(x))                                           \
    X(WIDTH, COSH, Complex##WIDTH, Complex##WIDTH, cosh(x))                                           \
    X(WIDTH, ASIN, Complex##WIDTH, Complex##WIDTH, asin(x))                                           \
    X(WIDTH, ACOS, Complex##WIDTH, Complex##WIDTH, acos(x))                                           \
    X(WIDTH, ATAN, Complex##WIDTH, Complex##WIDTH, atan(x))                                           \
    X(WIDTH, ASINH, Complex##WIDTH, Complex##WIDTH, asinh(x))                                         \
    X(WIDTH, ACOSH, Complex##WIDTH, Complex##WIDTH, acosh(x))                                         \
    X(WIDTH, ATANH, Complex##WIDTH, Complex##WIDTH, atanh(x))                                         \
    X(WIDTH, ABS, WIDTH, Complex##WIDTH, size_##WIDTH(x))                                             \
    X(WIDTH, REAL, WIDTH, Complex##WIDTH, creal(x))                                                   \
    X(WIDTH, IMAG, WIDTH, Complex##WIDTH, cimag(x))                                                   \
    X(WIDTH, COMPLEX, Complex##WIDTH, WIDTH, make_##WIDTH(x, y))

#define DEFINE_OPERATOR(WIDTH, OPCODE, OUT, IN, EXPRESSION) DEFINE_LOOP(OPCODE##_##WIDTH, OUT, IN, EXPRESSION)
OPERATORS(DEFINE_OPERATOR, Single)
OPERATORS(DEFINE_OPERATOR, Twice)
DEFINE_LOOP(equal_Single, uint8_t, ComplexSingle, x == y)
DEFINE_LOOP(equal_Twice, uint8_t, ComplexTwice, x == y)
DEFINE_LOOP(unequal_Single, uint8_t, ComplexSingle, x != y)
DEFINE_LOOP(unequal_Twice, uint8_t, ComplexTwice, x != y)

/* clamp(least, x, most) = min(max(least, x), most) */
#define DEFINE_CLAMP(WIDTH)                                                           \
    static void clamp_##WIDTH(LOOP_ARGUMENTS) {                                       \
        (void)parameter, (void)tile;                                                  \
        Complex##WIDTH *target = out;                                                 \
        const Complex##WIDTH *least = a, *value = b, *most = c;                       \
        for (int64_t i = 0; i < count; i++)                                           \
            target[i] = smaller_##WIDTH(larger_##WIDTH(value[i], least[i]), most[i]); \
    }
DEFINE_CLAMP(Single)
DEFINE_CLAMP(Twice)

/* Converts a real or a complex type to a complex one, part by part. */
static void convert(LOOP_ARGUMENTS) {
    (void)b, (void)c, (void)tile;
    Scalar64 run[SCALAR64_RUN];
    Dtype from = dtype_real_part(parameter->from), to = dtype_real_part(parameter->to);
    bool has_parts = from != parameter->from;
    int64_t parts = has_parts ? 2 : 1, in_bytes = dtype_bytes(from), out_bytes = dtype_bytes(to);
    for (int64_t at = 0; at < count; at += SCALAR64_RUN) {
        int64_t n = count - at < SCALAR64_RUN ? count - at : SCALAR64_RUN;
        const char *in = (const char *)a + at * parts * in_bytes;
        char *target = (char *)out + at * 2 * out_bytes;
        scalar64_load(run, in, from, n, parts);
        scalar64_store(target, to, run, scalar64_kind(from), n, 2);
        if (has_parts) scalar64_load(run, in + in_bytes, from, n, 2);
        else memset(run, 0, sizeof run);
        scalar64_store(target + out_bytes, to, run, scalar64_kind(from), n, 2);
    }
}

#define C_Single DTYPE_C64
#define C_Twice  DTYPE_C128
static const struct {
    IrOpcode opcode;
    Dtype complex_type;
    ElementLoop *loop;
} rows[] = {
#define ROW(WIDTH, OPCODE, OUT, IN, EXPRESSION) {IR_##OPCODE, C_##WIDTH, OPCODE##_##WIDTH},
    OPERATORS(ROW, Single) OPERATORS(ROW, Twice){IR_CLAMP, DTYPE_C64, clamp_Single},
    {IR_CLAMP, DTYPE_C128, clamp_Twice},
};

ElementLoop *element_complex_loop(IrOpcode opcode, Dtype from, Dtype to) {
    Dtype complex_type = dtype_is_complex(from) ? from : to;
    bool gives_real = opcode == IR_ABS || opcode == IR_REAL || opcode == IR_IMAG;
    if (opcode == IR_CONVERT) return dtype_is_complex(to) ? convert : NULL;
    if (to != (gives_real ? dtype_real_part(complex_type) : complex_type)) return NULL;
    if (from != (opcode == IR_COMPLEX ? dtype_real_part(complex_type) : complex_type)) return NULL;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k].opcode == opcode && rows[k].complex_type == complex_type) return rows[k].loop;
    return NULL;
}

ElementLoop *element_complex_compare_loop(const char *direction, Dtype type) {
    if (!direction) return NULL;
    bool single = type == DTYPE_C64;
    if (strcmp(direction, "EQ") == 0) return single ? equal_Single : equal_Twice;
    return strcmp(direction, "NE") != 0 ? NULL : single ? unequal_Single : unequal_Twice;
}
