/* A file that stays open and is read part by part, by position.
 *
 * Reading is thread-safe, and no data is kept in memory. A file that is written to meanwhile would
 * give a mixture: its length is checked with every read, and a change is an error.
 */
#ifndef BASE_FILES_FILE_PART_H
#define BASE_FILES_FILE_PART_H

#include <stdint.h>

#include "base/status.h"

typedef struct FileParts {
    int descriptor;
    int64_t bytes;    /* of the file when it was opened */
    const char *path; /* for messages; the caller's */
} FileParts;

/* Fails with AM_ERROR_INPUT: cannot be opened, or is no regular file. Afterwards `descriptor` is -1. */
AmStatus file_parts_open(FileParts *file, const char *path, AmError *error);
/* Makes an empty private file that is removed when it is closed, for `bytes` to be added: a few
 * megabytes stay in memory, more goes to TMPDIR or /tmp. AM_ERROR_RUNTIME: cannot be made. */
AmStatus file_parts_make(FileParts *file, const char *path, int64_t bytes, AmError *error);
/* Appends bytes; `bytes` of the file grows. */
AmStatus file_parts_add(FileParts *file, const void *data, int64_t bytes, AmError *error);
void file_parts_close(FileParts *file); /* harmless where descriptor is -1 */

/* Reads exactly `count` bytes from `place`, which lie inside of the file. AM_ERROR_RUNTIME: it cannot be read
 * or has another length than when it was opened. */
AmStatus file_parts_read(const FileParts *file, int64_t place, int64_t count, void *data, AmError *error);

#endif
