/* reduce-precision on f32 and f64. */
#include <tgmath.h>

#include "executor/cpu/vector/vector.h"

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
