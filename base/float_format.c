/* Decodes and encodes floating formats by their widths, bias and top.
 *
 * One formula covers normal and subnormal numbers: with quantum
 * q = 2^(e - mantissa bits) the code is ((e + bias - 1) << mantissa bits) plus
 * |x| / q.
 */
#include "base/float_format.h"

#include <math.h>

typedef enum Top { TOP_NONE, TOP_IEEE, TOP_FN, TOP_FNUZ, TOP_FINITE } Top;

typedef struct Format {
    Top top;
    int32_t exponent_bits, mantissa_bits, bias;
} Format;

static const Format FORMATS[DTYPE_COUNT] = {
    [DTYPE_F16] = {TOP_IEEE, 5, 10, 15},          [DTYPE_BF16] = {TOP_IEEE, 8, 7, 127},
    [DTYPE_F8E5M2] = {TOP_IEEE, 5, 2, 15},        [DTYPE_F8E4M3] = {TOP_IEEE, 4, 3, 7},
    [DTYPE_F8E3M4] = {TOP_IEEE, 3, 4, 3},         [DTYPE_F8E4M3FN] = {TOP_FN, 4, 3, 7},
    [DTYPE_F8E4M3B11FNUZ] = {TOP_FNUZ, 4, 3, 11}, [DTYPE_F8E4M3FNUZ] = {TOP_FNUZ, 4, 3, 8},
    [DTYPE_F8E5M2FNUZ] = {TOP_FNUZ, 5, 2, 16},    [DTYPE_F4E2M1FN] = {TOP_FINITE, 2, 1, 1},
    [DTYPE_F32] = {TOP_IEEE, 8, 23, 127},         [DTYPE_F64] = {TOP_IEEE, 11, 52, 1023},
};

static uint64_t ones(int32_t count) {
    return ((uint64_t)1 << count) - 1;
}

static uint64_t sign_bit(const Format *format) {
    return (uint64_t)1 << (format->exponent_bits + format->mantissa_bits);
}

/* Returns the largest code, without its sign, that is a finite number. */
static uint64_t largest_code(const Format *format) {
    uint64_t codes = sign_bit(format) - 1;
    if (format->top == TOP_IEEE) return codes - ones(format->mantissa_bits) - 1;
    return format->top == TOP_FN ? codes - 1 : codes;
}

static bool encode_nan(const Format *format, bool negative, uint64_t payload, uint64_t *bits) {
    uint64_t sign = negative ? sign_bit(format) : 0;
    switch (format->top) {
    case TOP_IEEE:
        if (payload > ones(format->mantissa_bits)) return false;
        if (payload == 0) payload = (uint64_t)1 << (format->mantissa_bits - 1);
        *bits = sign | ones(format->exponent_bits) << format->mantissa_bits | payload;
        return true;
    case TOP_FN: *bits = sign | (sign_bit(format) - 1); return payload == 0; /* one NaN of each sign */
    case TOP_FNUZ: *bits = sign_bit(format); return payload == 0;
    default: return false;
    }
}

/* Encodes f8e8m0fnu: an exponent alone, 2^(code - 127), with NaN at the top. */
static bool encode_exponent(double value, uint64_t *bits) {
    int exponent;
    if (isnan(value)) {
        *bits = 255;
        return true;
    }
    double mantissa = frexp(value, &exponent);
    if (!(value > 0) || isinf(value)) return false;
    int code = exponent - 1 + 127 + (mantissa >= 0.75);
    *bits = (uint64_t)code;
    return code >= 0 && code < 255;
}

bool float_format_encode(Dtype type, double value, uint64_t payload, uint64_t *bits) {
    if (type == DTYPE_F8E8M0FNU) return encode_exponent(value, bits);
    const Format *format = &FORMATS[type];
    if (isnan(value)) return encode_nan(format, signbit(value), payload, bits);
    uint64_t sign = signbit(value) ? sign_bit(format) : 0;
    double size = fabs(value);
    if (isinf(value)) {
        *bits = sign | (largest_code(format) + 1);
        return format->top == TOP_IEEE;
    }
    int exponent = 0, least = 1 - format->bias;
    if (size > 0) frexp(size, &exponent);
    exponent = size > 0 && exponent - 1 > least ? exponent - 1 : least;
    double steps = rint(ldexp(size, format->mantissa_bits - exponent));
    uint64_t code = ((uint64_t)(exponent - least) << format->mantissa_bits) + (uint64_t)steps;
    if (code > largest_code(format)) return false;
    *bits = format->top == TOP_FNUZ && code == 0 ? 0 : sign | code;
    return true;
}

uint64_t float_format_convert(Dtype type, double value) {
    const Format *format = &FORMATS[type];
    uint64_t bits;
    if (float_format_encode(type, value, 0, &bits)) return bits;
    uint64_t sign = signbit(value) ? sign_bit(format) : 0;
    if (type == DTYPE_F8E8M0FNU) return 255;
    if (format->top == TOP_FINITE) return isnan(value) ? sign_bit(format) : sign | largest_code(format);
    if (format->top == TOP_IEEE) return sign | (largest_code(format) + 1);
    return encode_nan(format, signbit(value), 0, &bits) ? bits : 0;
}

double float_format_decode(Dtype type, uint64_t bits) {
    if (type == DTYPE_F8E8M0FNU) return bits == 255 ? (double)NAN : ldexp(1.0, (int)bits - 127);
    const Format *format = &FORMATS[type];
    bool negative = (bits & sign_bit(format)) != 0;
    uint64_t code = bits & (sign_bit(format) - 1);
    double size;
    if (format->top == TOP_FNUZ && negative && code == 0) return (double)NAN;
    if (code > largest_code(format)) {
        bool is_infinite = format->top == TOP_IEEE && code == largest_code(format) + 1;
        size = is_infinite ? (double)INFINITY : (double)NAN;
    } else {
        int32_t exponent = (int32_t)(code >> format->mantissa_bits);
        uint64_t steps = code & ones(format->mantissa_bits);
        if (exponent > 0) steps += (uint64_t)1 << format->mantissa_bits;
        if (exponent == 0) exponent = 1;
        size = ldexp((double)steps, exponent - format->bias - format->mantissa_bits);
    }
    return negative ? -size : size;
}

bool float_format_nan(Dtype type, uint64_t bits, bool *negative, uint64_t *payload) {
    const Format *format = &FORMATS[type];
    bool is_ieee = format->top == TOP_IEEE;
    if (!isnan(float_format_decode(type, bits))) return false;
    *negative = (is_ieee || format->top == TOP_FN) && (bits & sign_bit(format));
    *payload = is_ieee ? bits & ones(format->mantissa_bits) : 0;
    if (is_ieee && *payload == (uint64_t)1 << (format->mantissa_bits - 1)) *payload = 0;
    return true;
}
