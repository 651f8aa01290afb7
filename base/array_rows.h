/* Some rows of an array in a file, read by place: memory in proportion to what is asked for.
 *
 * A row is one of the equal parts into which the array's elements, in row-major order,
 * are cut: what one index of the first dimension has, or less. Arrays that lie in their
 * file as plain bytes are read there (pread, so a file may be larger than memory).
 * Others, deflated or column-major ones, are first written as such to a file of their own
 * that nobody else sees.
 */
#ifndef BASE_ARRAY_ROWS_H
#define BASE_ARRAY_ROWS_H

#include "base/array_file.h"
#include "base/file_part.h"

typedef struct ArrayRows {
    FileParts file; /* the array's, or one with its bytes alone */
    int64_t start;  /* of the array's first byte in it */
    int64_t rows, row_bytes;
} ArrayRows;

/* Cuts the array in `rows` rows, a divisor of its elements or 0. `file` may be closed before them,
 * but its path is kept for messages. */
AmStatus array_rows_open(ArrayRows *rows, ArrayFile *file, const ArrayEntry *entry, int64_t count,
                         AmError *error);
void array_rows_close(ArrayRows *rows);

/* Rows first .. first + count - 1 into data (count * row_bytes); allocates nothing. AM_ERROR_RUNTIME: the
 * file cannot be read, or is no longer as long as it was. */
AmStatus array_rows_read(const ArrayRows *rows, int64_t first, int64_t count, void *data, AmError *error);

#endif
