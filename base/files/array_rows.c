/* Reads rows of an array in a file by position: memory is proportional to the rows read.
 *
 * Rows of a row-major array are read from the file itself, or from its unpacked bytes in a private file if
 * it is compressed. array_rows_open() writes a column-major array row-major into such a file first (turn()),
 * a few megabytes at once.
 */
#define _GNU_SOURCE /* F_DUPFD_CLOEXEC */
#include "base/files/array_rows.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/array_format.h"

static const int64_t TURNED_AT_ONCE = (int64_t)4 << 20;

/* Opens a descriptor of its own on the array's file, or on its unpacked bytes. */
static AmStatus open_bytes(ArrayRows *rows, ArrayFile *file, const ArrayEntry *entry, AmError *error) {
    struct ArrayFileHandle *handle = file->handle;
    if (handle->format->find(file, entry, &rows->start)) {
        int descriptor = fcntl(fileno(handle->stream), F_DUPFD_CLOEXEC, 0);
        rows->file = (FileParts){.descriptor = descriptor, .bytes = handle->size, .path = file->path};
        if (descriptor >= 0) return AM_OK;
        return am_fail_system(error, AM_ERROR_RUNTIME, file->path, errno, "cannot be opened");
    }
    TRY(file_parts_make(&rows->file, file->path, entry->bytes, error));
    return handle->format->unpack(file, entry, &rows->file, error);
}

/* Returns the row-major position of element `at` of one index of the first dimension, counted
 * column-major. */
static int64_t place_in_slice(const ArrayEntry *entry, int64_t at, int64_t elements) {
    int64_t place = 0, stride = elements;
    for (int32_t d = 1; d < entry->rank; d++) {
        stride /= entry->dimensions[d];
        place += at % entry->dimensions[d] * stride;
        at /= entry->dimensions[d];
    }
    return place;
}

/* Reads row-major slices first .. first + count - 1 of the first dimension from a column-major
 * array, in which `count` elements are contiguous for every index of the other dimensions. */
static AmStatus gather_columns(const ArrayRows *rows, const ArrayEntry *entry, int64_t first, int64_t count,
                               char *column, char *slices, AmError *error) {
    int64_t width = dtype_bytes(entry->type), slice_bytes = entry->bytes / entry->dimensions[0];
    int64_t columns = slice_bytes / width;
    for (int64_t c = 0; c < columns; c++) {
        char *target = slices + place_in_slice(entry, c, columns) * width;
        TRY(file_parts_read(&rows->file, rows->start + (c * entry->dimensions[0] + first) * width,
                            count * width, column, error));
        for (int64_t k = 0; k < count; k++)
            memcpy(target + k * slice_bytes, column + k * width, (size_t)width);
    }
    return AM_OK;
}

/* Writes a column-major array row-major into a file of its own, and reads that from now on. */
static AmStatus turn(ArrayRows *rows, const ArrayEntry *entry, AmError *error) {
    int64_t length = entry->dimensions[0], slice_bytes = entry->bytes / length;
    int64_t at_once = TURNED_AT_ONCE / slice_bytes > 0 ? TURNED_AT_ONCE / slice_bytes : 1;
    if (at_once > length) at_once = length;
    FileParts turned = {.descriptor = -1};
    AmStatus status = AM_OK;
    char *slices = malloc((size_t)(at_once * slice_bytes));
    char *column = malloc((size_t)(at_once * dtype_bytes(entry->type)));
    if (!slices || !column) {
        status = am_fail_memory(error, at_once * slice_bytes);
        goto fail;
    }
    TRY_OR_FAIL(file_parts_make(&turned, rows->file.path, entry->bytes, error));
    for (int64_t first = 0; first < length; first += at_once) {
        int64_t count = length - first < at_once ? length - first : at_once;
        TRY_OR_FAIL(gather_columns(rows, entry, first, count, column, slices, error));
        TRY_OR_FAIL(file_parts_add(&turned, slices, count * slice_bytes, error));
    }
    file_parts_close(&rows->file);
    rows->file = turned;
    rows->start = 0;
    turned.descriptor = -1;
fail:
    file_parts_close(&turned);
    free(slices);
    free(column);
    return status;
}

AmStatus array_rows_open(ArrayRows *rows, ArrayFile *file, const ArrayEntry *entry, int64_t count,
                         AmError *error) {
    *rows = (ArrayRows){.file = {.descriptor = -1}, .rows = count};
    if (entry->type == DTYPE_INVALID)
        return am_fail(error, AM_ERROR_INPUT, file->path, "array '%s' is not of numbers", entry->name);
    if (count > 0) rows->row_bytes = entry->bytes / count;
    AmStatus status = open_bytes(rows, file, entry, error);
    if (status == AM_OK && entry->fortran_order && entry->rank > 1 && entry->bytes > 0)
        status = turn(rows, entry, error);
    if (status != AM_OK) array_rows_close(rows);
    return status;
}

void array_rows_close(ArrayRows *rows) {
    file_parts_close(&rows->file);
}

AmStatus array_rows_read(const ArrayRows *rows, int64_t first, int64_t count, void *data, AmError *error) {
    if (count <= 0 || rows->row_bytes == 0) return AM_OK;
    return file_parts_read(&rows->file, rows->start + first * rows->row_bytes, count * rows->row_bytes, data,
                           error);
}
