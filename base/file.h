/* Files: whole-file reads and atomic writes, gzip and zstd opened by content.
 *
 * Decompression is bounded: a compressed file may grow to at most
 * FILE_EXPANSION_LIMIT bytes, so a small hostile file cannot fill the memory.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

#define FILE_EXPANSION_LIMIT ((int64_t)8 << 30)

typedef struct FileBytes {
    const char *name; /* for messages: the path, or "<stdin>" */
    char *data;       /* NUL-terminated after `length`; C heap */
    int64_t length;   /* after decompression */
    int64_t stored_length;
} FileBytes;

/* Reads a path or "-" (stdin). AM_ERROR_INPUT names the file and the reason. */
AmStatus file_read(FileBytes *bytes, const char *path, AmError *error);
void file_release(FileBytes *bytes);

/* Writes beside the target, then renames; "-" is stdout. A path that ends in
 * .gz or .zst is compressed. */
AmStatus file_write(const char *path, const void *data, size_t length, AmError *error);

#endif
