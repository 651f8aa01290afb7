/* Errors that a library may make where its sums go through a transform (Winograd): a bound for each element
 * and one for their mean, which a missing or wrong term exceeds. */
#ifndef TESTS_SUPPORT_ERROR_CASE_H
#define TESTS_SUPPORT_ERROR_CASE_H

#include <math.h>
#include <stdbool.h>

#include "base/dtype.h"

/* Errors so far, and the sizes of all sums: each the sum of the sizes of its terms. */
typedef struct CaseError {
    double unit; /* of rounding of the type */
    double sum, size;
} CaseError;

/* Half the distance from 1 to the next number of a floating type. */
static inline double case_unit(Dtype type) {
    return type == DTYPE_BF16 ? 0x1p-8 : type == DTYPE_F16 ? 0x1p-11 : type == DTYPE_F32 ? 0x1p-24 : 0x1p-53;
}

/* Adds one element; returns whether it lies within 32 units of the size of its sum. */
static inline bool case_bounds(CaseError *self, double value, double expected, double size) {
    self->sum += fabs(value - expected);
    self->size += size;
    return fabs(value - expected) <= 32 * self->unit * size;
}

/* Returns whether the mean error is within 4 units. */
static inline bool case_bounds_mean(const CaseError *self) {
    return self->sum <= 4 * self->unit * self->size;
}

#endif
