/* Strided boxes: the one way in which the CPU moves elements.
 *
 * A box has dimensions and, for each side, a stride in elements per dimension.
 * Broadcast is stride 0, transpose permuted strides, slice and pad a scaled
 * stride and an offset, reverse a negative stride; concatenate and collectives
 * are several boxes. Elements are moved by size, whatever their type.
 */
#ifndef EXECUTOR_ARRAY_STRIDED_H
#define EXECUTOR_ARRAY_STRIDED_H

#include <stdbool.h>
#include <stdint.h>

/* Strides of a dense row-major array, in elements. */
void strided_row_major(int64_t *strides, const int64_t *dimensions, int32_t rank);
/* Returns the product of the dimensions. */
int64_t strided_elements(const int64_t *dimensions, int32_t rank);

/* Joins neighbouring dimensions that both sides step through as one and drops
 * those of size 1; in place; returns the new rank. `b` may be NULL. */
int32_t strided_coalesce(int64_t *dimensions, int64_t *a, int64_t *b, int32_t rank);

/* Copies out[sum i*out_strides] = in[sum i*in_strides] for every index i of the box. element_bytes is 1, 2,
 * 4, 8 or 16. The two sides do not overlap. */
void strided_copy(void *out, const int64_t *out_strides, const void *in, const int64_t *in_strides,
                  const int64_t *dimensions, int32_t rank, int64_t element_bytes);

/* Loads elements first .. first+count-1 of the box, in row-major order, packed into `out`. */
void strided_load(void *out, const void *in, const int64_t *strides, const int64_t *dimensions, int32_t rank,
                  int64_t first, int64_t count, int64_t element_bytes);
/* Stores packed elements, the inverse: to their places. Strides must not be 0. */
void strided_store(void *out, const void *in, const int64_t *strides, const int64_t *dimensions, int32_t rank,
                   int64_t first, int64_t count, int64_t element_bytes);

/* Sets `count` elements to the one at `value`. */
void strided_fill(void *out, const void *value, int64_t count, int64_t element_bytes);

/* Advances a row-major index; returns false after the last one. */
bool strided_next(int64_t *index, const int64_t *dimensions, int32_t rank);

#endif
