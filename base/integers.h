/* Arithmetic of integers: extremes, multiples and common divisors. */
#ifndef BASE_INTEGERS_H
#define BASE_INTEGERS_H

#include <stdint.h>

static inline int64_t larger_integer(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline int64_t smaller_integer(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Returns the least multiple of `unit`, above 0, that is not below `value`. */
static inline int64_t multiple_above(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* Returns the greatest common divisor of two numbers that are not negative; that of 0 and n is n. */
static inline int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#endif
