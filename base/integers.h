/* Arithmetic of integers: extremes, multiples and common divisors. */
#ifndef BASE_INTEGERS_H
#define BASE_INTEGERS_H

#include <stddef.h>
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

/* Returns the product of sizes from 1; 0 if one is smaller, or if the product is above `most`. */
static inline int64_t bounded_product(const int64_t *sizes, size_t count, int64_t most) {
    int64_t product = 1;
    for (size_t k = 0; k < count; k++) {
        if (sizes[k] < 1 || __builtin_mul_overflow(product, sizes[k], &product) || product > most) return 0;
    }
    return product;
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
