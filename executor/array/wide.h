/* Wide values: elements of any type as double, int64_t or uint64_t.
 *
 * Reductions, collectives and conversions load a run of elements, process it in the wide type and
 * store it. Floating sums are therefore accumulated in double for every type (long sums lose no
 * accuracy and hardly depend on the order), integers wrap exactly as in their own width.
 */
#ifndef EXECUTOR_ARRAY_WIDE_H
#define EXECUTOR_ARRAY_WIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "propagation/sharding/sbp.h"

#define WIDE_RUN 256 /* elements worked on at a time */

typedef enum WideKind { WIDE_FLOATING, WIDE_SIGNED, WIDE_UNSIGNED } WideKind;

typedef union Wide {
    double floating;
    int64_t as_signed;
    uint64_t as_unsigned;
} Wide;

/* pred, all integers, all floating types; not complex ones. */
bool wide_supports(Dtype type);
WideKind wide_kind(Dtype type);
/* `stride` in elements between those that are read or written. */
void wide_load(Wide *out, const void *data, Dtype type, int64_t count, int64_t stride);
/* Stores with the conversions of HLO: floating to integer saturates and takes NaN to 0, integers wrap,
 * pred is "not 0". */
void wide_store(void *out, Dtype type, const Wide *values, WideKind kind, int64_t count, int64_t stride);
/* accumulator[i] = accumulator[i] op values[i]; maxima and minima propagate NaN. */
void wide_fold(Wide *accumulator, const Wide *values, WideKind kind, SbpReduction reduction, int64_t count);
/* One element as an index; unsigned values above the largest int64_t give that. */
int64_t wide_index(const void *data, Dtype type, int64_t at);

#endif
