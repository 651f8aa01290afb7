/* Loops on c64: arithmetic, functions, and the way to and from real parts.
 *
 * A complex number is two f32 side by side. Products and quotients follow the
 * schoolbook formulas, so that infinities give what XLA gives, not what C's
 * Annex G asks for; functions are the C library's.
 */
#include <complex.h>
#include <string.h>

#include "executor/cpu/element.h"

#define LOOP_ARGUMENTS                                                     \
    void *out, const void *a, const void *b, const void *c, int64_t count, \
        const ElementParameter *parameter, const ElementTile *tile

#ifndef CMPLXF /* glibc defines it for GCC alone */
#define CMPLXF(real, imaginary) __builtin_complex((float)(real), (float)(imaginary))
#endif

typedef float complex Complex;

static inline Complex multiply(Complex x, Complex y) {
    float a = crealf(x), b = cimagf(x), c = crealf(y), d = cimagf(y);
    return CMPLXF(a * c - b * d, a * d + b * c);
}

/* In double, where no square of an f32 overflows. */
static inline Complex divide(Complex x, Complex y) {
    double a = crealf(x), b = cimagf(x), c = crealf(y), d = cimagf(y), norm = c * c + d * d;
    return CMPLXF((float)((a * c + b * d) / norm), (float)((b * c - a * d) / norm));
}

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

DEFINE_LOOP(add, Complex, Complex, x + y)
DEFINE_LOOP(subtract, Complex, Complex, x - y)
DEFINE_LOOP(product, Complex, Complex, multiply(x, y))
DEFINE_LOOP(quotient, Complex, Complex, divide(x, y))
DEFINE_LOOP(power, Complex, Complex, cpowf(x, y))
DEFINE_LOOP(negate, Complex, Complex, -x)
DEFINE_LOOP(copy, Complex, Complex, x)
DEFINE_LOOP(exponential, Complex, Complex, cexpf(x))
DEFINE_LOOP(logarithm, Complex, Complex, clogf(x))
DEFINE_LOOP(square_root, Complex, Complex, csqrtf(x))
DEFINE_LOOP(reciprocal_root, Complex, Complex, divide(1, csqrtf(x)))
DEFINE_LOOP(sine, Complex, Complex, csinf(x))
DEFINE_LOOP(cosine, Complex, Complex, ccosf(x))
DEFINE_LOOP(tangent, Complex, Complex, ctanhf(x))
DEFINE_LOOP(magnitude, float, Complex, cabsf(x))
DEFINE_LOOP(real_part, float, Complex, crealf(x))
DEFINE_LOOP(imaginary_part, float, Complex, cimagf(x))
DEFINE_LOOP(from_parts, Complex, float, CMPLXF(x, y))
DEFINE_LOOP(from_real, Complex, float, CMPLXF(x, 0))
DEFINE_LOOP(equal, uint8_t, Complex, x == y)
DEFINE_LOOP(unequal, uint8_t, Complex, x != y)

static const struct {
    IrOpcode opcode;
    Dtype from, to;
    ElementLoop *loop;
} rows[] = {
    {IR_ADD, DTYPE_C64, DTYPE_C64, add},
    {IR_SUBTRACT, DTYPE_C64, DTYPE_C64, subtract},
    {IR_MULTIPLY, DTYPE_C64, DTYPE_C64, product},
    {IR_DIVIDE, DTYPE_C64, DTYPE_C64, quotient},
    {IR_POWER, DTYPE_C64, DTYPE_C64, power},
    {IR_NEGATE, DTYPE_C64, DTYPE_C64, negate},
    {IR_COPY, DTYPE_C64, DTYPE_C64, copy},
    {IR_EXPONENTIAL, DTYPE_C64, DTYPE_C64, exponential},
    {IR_LOG, DTYPE_C64, DTYPE_C64, logarithm},
    {IR_SQRT, DTYPE_C64, DTYPE_C64, square_root},
    {IR_RSQRT, DTYPE_C64, DTYPE_C64, reciprocal_root},
    {IR_SINE, DTYPE_C64, DTYPE_C64, sine},
    {IR_COSINE, DTYPE_C64, DTYPE_C64, cosine},
    {IR_TANH, DTYPE_C64, DTYPE_C64, tangent},
    {IR_ABS, DTYPE_C64, DTYPE_F32, magnitude},
    {IR_REAL, DTYPE_C64, DTYPE_F32, real_part},
    {IR_IMAG, DTYPE_C64, DTYPE_F32, imaginary_part},
    {IR_COMPLEX, DTYPE_F32, DTYPE_C64, from_parts},
    {IR_CONVERT, DTYPE_F32, DTYPE_C64, from_real},
};

ElementLoop *element_complex_loop(IrOpcode opcode, Dtype from, Dtype to) {
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k].opcode == opcode && rows[k].from == from && rows[k].to == to) return rows[k].loop;
    return NULL;
}

ElementLoop *element_complex_compare_loop(const char *direction) {
    if (!direction) return NULL;
    return strcmp(direction, "EQ") == 0 ? equal : strcmp(direction, "NE") == 0 ? unequal : NULL;
}
