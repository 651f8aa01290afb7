/* Element types: queries on the table of dtype.h, and rounding of f32 to bf16 and f16.
 *
 * The kind of a type is the first letter of its name in HLO: f32 and bf16 are floating, s8 and u4 integers,
 * c64 complex.
 */
#include "base/dtype.h"

#include <string.h>

typedef struct DtypeRow {
    const char *name;
    int32_t bits;
} DtypeRow;

static const DtypeRow TABLE[DTYPE_COUNT] = {
#define DTYPE_ROW(name, text, number, bits, numpy, safetensors) [number] = {text, bits},
    DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
};

static bool is_known(Dtype type) {
    return (int)type >= 0 && type < DTYPE_COUNT;
}

const char *dtype_name(Dtype type) {
    return TABLE[is_known(type) ? type : DTYPE_INVALID].name;
}

Dtype dtype_from_name(const char *name) {
    for (int i = 1; i < DTYPE_COUNT; i++) {
        if (strcmp(TABLE[i].name, name) == 0) return (Dtype)i;
    }
    return DTYPE_INVALID;
}

int32_t dtype_bits(Dtype type) {
    return is_known(type) ? TABLE[type].bits : 0;
}

int64_t dtype_bytes(Dtype type) {
    return (dtype_bits(type) + 7) / 8;
}

/* Returns whether the type is floating. The first letter of its name in HLO is the kind: f32, bf16, s8, u4,
 * c64. */
bool dtype_is_floating(Dtype type) {
    return dtype_bits(type) > 0 && (dtype_name(type)[0] == 'f' || type == DTYPE_BF16);
}

bool dtype_is_integer(Dtype type) {
    return dtype_bits(type) > 0 && (dtype_name(type)[0] == 's' || dtype_name(type)[0] == 'u');
}

bool dtype_is_signed(Dtype type) {
    return dtype_bits(type) > 0 && type != DTYPE_PRED && dtype_name(type)[0] != 'u' &&
           type != DTYPE_F8E8M0FNU;
}

bool dtype_is_complex(Dtype type) {
    return type == DTYPE_C64 || type == DTYPE_C128;
}

Dtype dtype_real_part(Dtype type) {
    return type == DTYPE_C64 ? DTYPE_F32 : type == DTYPE_C128 ? DTYPE_F64 : type;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float dtype_bf16_to_float(uint16_t bits) {
    return float_of((uint32_t)bits << 16);
}

/* Adding 0x7FFF and the lowest kept bit rounds to nearest, ties to even; a
 * NaN keeps its sign and becomes quiet, so that it cannot round to infinity. */
uint16_t dtype_float_to_bf16(float value) {
    uint32_t bits = bits_of(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float dtype_f16_to_float(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    uint32_t exponent = bits >> 10 & 31, fraction = bits & 0x3FF;
    if (exponent == 31) return float_of(sign | 0x7F800000 | fraction << 13);
    if (exponent > 0) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    float subnormal = (float)fraction * 0x1p-24f;
    return sign ? -subnormal : subnormal;
}

uint16_t dtype_float_to_f16(float value) {
    uint32_t bits = bits_of(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t size = bits & 0x7FFFFFFF;
    if (size > 0x7F800000) return (uint16_t)(sign | 0x7E00 | (size >> 13 & 0x3FF));
    if (size >= 0x477FF000) return sign | 0x7C00; /* 65520 and above round to infinity */
    if (size < 0x38800000) {                      /* below 2^-14: a multiple of 2^-24 */
        float magic = 0.5f;                       /* its unit in the last place is 2^-24 */
        return (uint16_t)(sign | (bits_of(float_of(size) + magic) - bits_of(magic)));
    }
    size += 0xFFF + (size >> 13 & 1);
    return (uint16_t)(sign | ((size - 0x38000000) >> 13));
}
