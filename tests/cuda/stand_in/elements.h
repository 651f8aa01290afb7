/* Elements of the floating types as the stand-in libraries of matrix products
 * and convolutions read and write them: 16-bit types round to nearest even.
 *
 * With STAND_IN_PERTURB=SEED sums are those of another library: terms are added in
 * f32 and in another order, results move by a unit in the last place, a transform
 * of a convolution leaves its errors, and an even seed ignores tf32. Numbers of few
 * bits stay, as their sums are exact in any order. */
#ifndef TESTS_CUDA_STAND_IN_ELEMENTS_H
#define TESTS_CUDA_STAND_IN_ELEMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef enum ElementType { ELEMENT_F32, ELEMENT_F64, ELEMENT_BF16, ELEMENT_F16 } ElementType;

static inline size_t element_bytes(ElementType type) {
    return type == ELEMENT_F64 ? 8 : type == ELEMENT_F32 ? 4 : 2;
}

static inline float element_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t element_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Drops the last `dropped` bits of the fraction, to nearest even; NaN and infinities stay. */
static inline float element_shorten(float value, int dropped) {
    uint32_t bits = element_bits(value), half = (UINT32_C(1) << (dropped - 1)) - 1;
    if ((bits & 0x7f800000u) == 0x7f800000u) return value;
    bits += half + (bits >> dropped & 1);
    return element_of_bits(bits & ~((UINT32_C(1) << dropped) - 1));
}

static inline float element_from_f16(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, fraction = bits & 0x3ffu;
    if (exponent == 31) return element_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent > 0) return element_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float tiny = (float)fraction * 0x1p-24f;
    return sign ? -tiny : tiny;
}

static inline uint16_t element_to_f16(float value) {
    uint32_t sign = element_bits(value) >> 16 & 0x8000u, size = element_bits(value) & 0x7fffffffu;
    if (size > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (size < 0x38800000u) /* subnormal: the sum with 0.5 rounds at the last place */
        return (uint16_t)(sign | (element_bits(element_of_bits(size) + 0.5f) - 0x3f000000u));
    size = element_bits(element_shorten(element_of_bits(size), 13));
    return (uint16_t)(sign | (size - 0x38000000u) >> 13);
}

static inline double element_load(const void *data, ElementType type, int64_t at) {
    switch (type) {
    case ELEMENT_F64: return ((const double *)data)[at];
    case ELEMENT_F32: return ((const float *)data)[at];
    case ELEMENT_BF16: return element_of_bits((uint32_t)((const uint16_t *)data)[at] << 16);
    default: return element_from_f16(((const uint16_t *)data)[at]);
    }
}

static inline void element_store(void *data, ElementType type, int64_t at, double value) {
    uint16_t *halves = data;
    switch (type) {
    case ELEMENT_F64: ((double *)data)[at] = value; break;
    case ELEMENT_F32: ((float *)data)[at] = (float)value; break;
    case ELEMENT_BF16: {
        uint32_t bits = element_bits(element_shorten((float)value, 16));
        halves[at] = (uint16_t)(value != value ? bits >> 16 | 0x40u : bits >> 16);
        break;
    }
    default: halves[at] = element_to_f16((float)value);
    }
}

/* STAND_IN_PERTURB, or 0. */
static inline uint64_t element_seed(void) {
    const char *text = getenv("STAND_IN_PERTURB");
    return text ? strtoull(text, NULL, 10) : 0;
}

/* A whole number in [-1, 1] that depends on seed and place alone. */
static inline int element_noise(uint64_t seed, int64_t at) {
    uint64_t mixed = (seed * UINT64_C(0x9e3779b97f4a7c15)) ^ ((uint64_t)at * UINT64_C(0xbf58476d1ce4e5b9));
    mixed = (mixed ^ (mixed >> 31)) * UINT64_C(0x94d049bb133111eb);
    return (int)((mixed >> 33) % 3) - 1;
}

/* A sum as another library rounds it, one unit in the last place of f32 away; unchanged without a seed. */
static inline double element_moved(uint64_t seed, double value, ElementType type, int64_t at) {
    uint32_t bits = element_bits((float)value);
    bool few_bits = (double)(float)value == value && (bits & 0xff) == 0;
    if (seed == 0 || type == ELEMENT_F64 || few_bits || value == (double)(int64_t)value) return value;
    return element_of_bits(bits + (uint32_t)element_noise(seed, at));
}

#endif
