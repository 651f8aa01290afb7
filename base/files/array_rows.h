/* Reads rows of an array in a file by position: memory is proportional to the rows read.
 *
 * A row is one of the equal parts of the array's elements in row-major order: the elements of one
 * index of the first dimension, or fewer. Arrays stored as plain bytes are read in their file
 * (pread, so that a file may be larger than memory). Other arrays, deflated or column-major, are
 * first written as plain bytes to a private temporary file.
 */
#ifndef BASE_FILES_ARRAY_ROWS_H
#define BASE_FILES_ARRAY_ROWS_H

#include "base/files/array_file.h"
#include "base/files/file_part.h"

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

/* Reads rows first .. first + count - 1 into data (count * row_bytes); allocates nothing.
 * AM_ERROR_RUNTIME: the file cannot be read, or its length has changed. */
AmStatus array_rows_read(const ArrayRows *rows, int64_t first, int64_t count, void *data, AmError *error);

#endif
