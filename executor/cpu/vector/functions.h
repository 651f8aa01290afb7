/* Elementary functions of f32 as straight lines, which compilers vectorize.
 *
 * Arguments are reduced exactly (n ln 2 is split so that n times the upper
 * part has no rounding error), polynomials are minimax fits of the relative
 * error (Lawson's iteration; their errors, stated below, lie well under half an
 * ulp), special values are chosen at the end. No step is a fused multiply-add.
 * Largest errors, from tests against long double: in tests/executor/cpu/test_vector.c.
 */
#ifndef EXECUTOR_CPU_VECTOR_FUNCTIONS_H
#define EXECUTOR_CPU_VECTOR_FUNCTIONS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LN2_UPPER 0x1.62e4p-1f /* 15 bits */
#define LN2_LOWER 0x1.7f7d1cp-20f

static inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float with_sign(float magnitude, float sign) {
    return float_of_bits((bits_of_float(magnitude) & 0x7fffffffu) | (bits_of_float(sign) & 0x80000000u));
}

/* Returns 2^k for -126 <= k <= 127; anything where the result is not used. */
static inline float power_of_two(int32_t k) {
    return float_of_bits(((uint32_t)k + 127) << 23);
}

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2; returns r. Adding 1.5 * 2^23 rounds to an integer. */
static inline float reduce_exponent(float x, int32_t *n) {
    const float shift = 0x1.8p23f;
    float shifted = x * 0x1.715476p+0f + shift;
    float whole = shifted - shift;
    *n = (int32_t)(bits_of_float(shifted) - bits_of_float(shift));
    return (x - whole * LN2_UPPER) - whole * LN2_LOWER;
}

/* Returns e^r - 1 for |r| <= ln 2 / 2 as r + r^2 p(r); error 2^-34. */
static inline float exp_reduced(float r) {
    float p = 0x1.9f089ap-13f;
    p = p * r + 0x1.6d8d02p-10f;
    p = p * r + 0x1.11127p-7f;
    p = p * r + 0x1.55548ep-5f;
    p = p * r + 0x1.555554p-3f;
    p = p * r + 0.5f;
    return r * r * p + r;
}

/* Returns e^x. Below -103.98 it is 0, above 88.73 infinite; values out of range are computed at 0, far from
 * subnormal numbers, which are slow. 2^n in two factors, as it may be subnormal or reach 2^128. */
static inline float vector_exp(float x) {
    int32_t n;
    float inside = x < -104.0f ? 0.0f : x;
    inside = inside > 89.0f ? 89.0f : inside;
    float q = 1.0f + exp_reduced(reduce_exponent(inside, &n));
    int32_t half = n >> 1;
    float y = q * power_of_two(half) * power_of_two(n - half);
    return x < -104.0f ? 0.0f : y;
}

/* Returns 2^n (e^r - 1) + (2^n - 1), halved until the end so that 2^128 does not occur. */
static inline float vector_expm1(float x) {
    int32_t n;
    float inside = x < -25.0f ? -25.0f : x;
    inside = inside > 89.0f ? 89.0f : inside;
    float q = exp_reduced(reduce_exponent(inside, &n));
    float scale = power_of_two(n - 1);
    float y = 2.0f * (scale * q + (scale - 0.5f));
    y = n == 0 ? q : y;
    return x == 0.0f ? x : y;
}

/* Returns log(1+f) for 1+f in [sqrt(1/2), sqrt 2), times 2^e, plus `rest`: f - f^2/2 + f^3 p(f); error
 * 2^-30. */
static inline float log_reduced(float f, float e, float rest) {
    float p = 0x1.1457a2p-4f;
    p = p * f - 0x1.de3c14p-4f;
    p = p * f + 0x1.e6f06cp-4f;
    p = p * f - 0x1.fc2208p-4f;
    p = p * f + 0x1.233768p-3f;
    p = p * f - 0x1.555c4ep-3f;
    p = p * f + 0x1.99a4b6p-3f;
    p = p * f - 0x1.000006p-2f;
    p = p * f + 0x1.555548p-2f;
    float square = f * f;
    float y = square * f * p + e * LN2_LOWER + rest;
    y = y - 0.5f * square;
    return (f + y) + e * LN2_UPPER;
}

/* Splits x = (1+f) 2^e with 1+f in [sqrt(1/2), sqrt 2), for positive normal x; returns f. */
static inline float split_logarithm(float x, float *e) {
    uint32_t bits = bits_of_float(x) + (0x3f800000u - 0x3f3504f3u);
    *e = (float)((int32_t)(bits >> 23) - 127);
    return float_of_bits((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
}

static inline float vector_log(float x) {
    float tiny = x < 0x1p-126f ? 1.0f : 0.0f, e;
    float f = split_logarithm(x < 0x1p-126f ? x * 0x1p23f : x, &e);
    float y = log_reduced(f, e - 23.0f * tiny, 0.0f);
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return x < INFINITY ? y : x; /* infinite and NaN */
}

/* Returns log(u) + c/u where u = 1+x rounded and c is what rounding lost. */
static inline float vector_log1p(float x) {
    float u = 1.0f + x, e;
    float lost = x >= 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
    float f = split_logarithm(u, &e);
    float y = log_reduced(f, e, lost / u);
    y = x == 0.0f ? x : y;
    y = x == -1.0f ? -INFINITY : y;
    y = x < -1.0f ? NAN : y;
    return x < INFINITY ? y : x;
}

/* Returns x + x^3 p(x^2), error 2^-28, or 1 - 2/(e^2x + 1); NaN passes through vector_exp(). */
static inline float vector_tanh(float x) {
    float magnitude = fabsf(x), square = x * x;
    float p = -0x1.75e1cap-8f;
    p = p * square + 0x1.52269ap-6f;
    p = p * square - 0x1.b83c5ap-5f;
    p = p * square + 0x1.110726p-3f;
    p = p * square - 0x1.555532p-2f;
    float small = x + x * square * p;
    float large = 1.0f - 2.0f / (vector_exp(2.0f * magnitude) + 1.0f);
    return with_sign(magnitude < 0.625f ? small : large, x);
}

/* Returns x p(x^2) below 1, error 2^-30; above, 1 - e^q with q(x) = log erfc(x) on [1, 4], 2^-30 of erf. */
static inline float vector_erf(float x) {
    float magnitude = fabsf(x), square = x * x;
    float p = 0x1.496a3p-14f;
    p = p * square - 0x1.a3f7p-11f;
    p = p * square + 0x1.5405b2p-8f;
    p = p * square - 0x1.b7f90ep-6f;
    p = p * square + 0x1.ce2cf8p-4f;
    p = p * square - 0x1.81273ep-2f;
    p = p * square + 0x1.20dd74p+0f;
    float b = magnitude > 4.0f ? 4.0f : magnitude;
    float q = 0x1.852d52p-13f;
    q = q * b - 0x1.814cep-9f;
    q = q * b + 0x1.654224p-6f;
    q = q * b - 0x1.a60a84p-4f;
    q = q * b - 0x1.46c584p-1f;
    q = q * b - 0x1.2085b2p+0f;
    q = q * b - 0x1.72e6a8p-12f;
    float large = 1.0f - vector_exp(q);
    return magnitude < 1.0f ? x * p : with_sign(large, x);
}

/* Rounds to the precision of bf16, ties to even; a NaN becomes quiet and keeps its sign. */
static inline uint32_t bf16_bits_of(float value) {
    uint32_t bits = bits_of_float(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    return (bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded;
}

#endif
