/* Bit operators on integers of less than a byte, which are held in the low bits of s8 or u8. The program
 * rounds the result to these bits.
 */
#include "executor/cpu/element.h"
#include "executor/cpu/integer_bits.h"
#include "executor/cpu/vector/vector.h"

#define DEFINE_NARROW(NAME, EXPRESSION)                                 \
    void NAME(LOOP_ARGUMENTS) {                                         \
        (void)c, (void)tile;                                            \
        int32_t bits = dtype_bits(parameter->from);                     \
        bool is_signed = dtype_is_signed(parameter->from);              \
        uint8_t *target = out;                                          \
        const uint8_t *first = a, *second = b ? b : a;                  \
        for (int64_t i = 0; i < count; i++) {                           \
            uint64_t x = low(first[i], bits), y = low(second[i], bits); \
            int64_t p = is_signed ? (int8_t)first[i] : first[i];        \
            int64_t q = is_signed ? (int8_t)second[i] : second[i];      \
            (void)x, (void)y, (void)p, (void)q;                         \
            target[i] = (uint8_t)(EXPRESSION);                          \
        }                                                               \
    }
DEFINE_NARROW(element_narrow_leading_zeros, leading_zeros(x, bits))
DEFINE_NARROW(element_narrow_popcnt, ones(x, bits))
DEFINE_NARROW(element_narrow_shift_right, y < (uint64_t)bits ? x >> y : 0)
DEFINE_NARROW(element_narrow_shift_arithmetic, shift_arithmetic(x, y, bits))
DEFINE_NARROW(element_narrow_mulhi, p *q >> bits)
