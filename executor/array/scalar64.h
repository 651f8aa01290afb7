/* Scalars of 64 bits: elements of any type as double, int64_t or uint64_t.
 *
 * Reductions, collectives and conversions load a run of elements, process it in the 64-bit type and
 * store it. Floating sums are therefore accumulated in double for every type (long sums lose no
 * accuracy and depend little on the order), integers wrap exactly as in their own width.
 */
#ifndef EXECUTOR_ARRAY_SCALAR64_H
#define EXECUTOR_ARRAY_SCALAR64_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "propagation/sharding/sbp.h"

#define SCALAR64_RUN 256 /* elements worked on at a time */

typedef enum Scalar64Kind { SCALAR64_FLOATING, SCALAR64_SIGNED, SCALAR64_UNSIGNED } Scalar64Kind;

typedef union Scalar64 {
    double floating;
    int64_t as_signed;
    uint64_t as_unsigned;
} Scalar64;

/* Returns whether a type has scalars: pred, all integers, all floating types; not complex ones. */
bool scalar64_supports(Dtype type);
Scalar64Kind scalar64_kind(Dtype type);
/* Loads elements; `stride` in elements between those that are read or written. */
void scalar64_load(Scalar64 *out, const void *data, Dtype type, int64_t count, int64_t stride);
/* Stores with the conversions of HLO: floating to integer saturates and takes NaN to 0, integers wrap,
 * pred is "not 0". */
void scalar64_store(void *out, Dtype type, const Scalar64 *values, Scalar64Kind kind, int64_t count,
                    int64_t stride);
/* Computes accumulator[i] = accumulator[i] op values[i]; maxima and minima propagate NaN. */
void scalar64_fold(Scalar64 *accumulator, const Scalar64 *values, Scalar64Kind kind, SbpReduction reduction,
                   int64_t count);
/* Returns one element as an index; unsigned values above the largest int64_t give that. */
int64_t scalar64_index(const void *data, Dtype type, int64_t at);

#endif
