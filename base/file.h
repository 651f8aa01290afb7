/* Files: whole-file reads and atomic writes, gzip and zstd opened by content.
 *
 * Decompression is bounded: a compressed file may grow to at most
 * FILE_EXPANSION_LIMIT bytes, and to at most 64 MiB + FILE_EXPANSION_RATIO
 * times its stored size, so a small hostile file cannot fill the memory.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/status.h"

#define FILE_EXPANSION_LIMIT ((int64_t)8 << 30)
#define FILE_EXPANSION_RATIO 1024

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
 * .gz or .zst is compressed. AM_ERROR_USAGE: the path cannot be created;
 * AM_ERROR_RUNTIME: writing failed half-way (the old file is untouched). */
AmStatus file_write(const char *path, const void *data, size_t length, AmError *error);

/* AM_ERROR_USAGE if file_write() to the path could not begin; to be asked before
 * hours of work whose result would be lost. Leaves nothing behind. */
AmStatus file_check_writable(const char *path, AmError *error);

/* The same in parts, never compressed: begin, add any number of times, then
 * commit (renames) or abandon (removes what was written). Each call may be made
 * after a failed one; abandon after commit does nothing. */
typedef struct FileWriter {
    FILE *stream;
    char *path, *part; /* the target, and the file beside it; part NULL: written in place */
} FileWriter;

AmStatus file_writer_begin(FileWriter *writer, const char *path, AmError *error);
AmStatus file_writer_add(FileWriter *writer, const void *data, size_t length, AmError *error);
AmStatus file_writer_commit(FileWriter *writer, AmError *error);
void file_writer_abandon(FileWriter *writer);

#endif
