/* Integer operators that depend on the number of significant bits. */
#ifndef EXECUTOR_CPU_INTEGER_BITS_H
#define EXECUTOR_CPU_INTEGER_BITS_H

#include <stdint.h>

static inline int32_t leading_zeros(uint64_t x, int32_t bits) {
    x = bits == 64 ? x : x & (((uint64_t)1 << bits) - 1);
    return x == 0 ? bits : __builtin_clzll(x) - (64 - bits);
}

static inline int32_t ones(uint64_t x, int32_t bits) {
    return __builtin_popcountll(bits == 64 ? x : x & (((uint64_t)1 << bits) - 1));
}

/* Returns the significant bits of a count or of the operand of a logical right shift. */
static inline uint64_t low(uint64_t x, int32_t bits) {
    return bits == 64 ? x : x & (((uint64_t)1 << bits) - 1);
}

/* Returns an unsigned value shifted as if its highest bit were a sign. */
static inline uint64_t shift_arithmetic(uint64_t x, uint64_t y, int32_t bits) {
    int64_t value = (int64_t)(x << (64 - bits)) >> (64 - bits);
    return (uint64_t)(value >> (y < (uint64_t)bits ? y : (uint64_t)bits - 1));
}

#endif
