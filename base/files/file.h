/* Files: whole-file reads and atomic writes, gzip and zstd opened by content.
 *
 * Decompression is bounded: a compressed file may grow to FILE_EXPANSION_RATIO times its stored
 * size and at most FILE_EXPANSION_LIMIT bytes, or to FILE_EXPANSION_ALWAYS bytes if that is more. The
 * variable AUTOMAP_EXPANSION_MB replaces FILE_EXPANSION_ALWAYS. The output is the window of a zstd frame, so
 * that decoding takes no memory beside it.
 */
#ifndef BASE_FILES_FILE_H
#define BASE_FILES_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/status.h"

#define FILE_EXPANSION_ALWAYS ((int64_t)64 << 20)
#define FILE_EXPANSION_LIMIT  ((int64_t)8 << 30)
#define FILE_EXPANSION_RATIO  200

typedef struct FileBytes {
    const char *name; /* for messages: the path, or "<stdin>" */
    char *data;       /* NUL-terminated after `length`; C heap */
    int64_t length;   /* after decompression */
    int64_t stored_length;
} FileBytes;

/* Reads a path or "-" (stdin), without the byte order mark of UTF-8 text. AM_ERROR_INPUT names the file and
 * the reason, such as text in UTF-16. */
AmStatus file_read(FileBytes *bytes, const char *path, AmError *error);
/* Reads a file that another user may have placed: AM_ERROR_INPUT if it is not a regular file. Symbolic
 * links are not followed, and a pipe is not waited for. */
AmStatus file_read_regular(FileBytes *bytes, const char *path, AmError *error);
/* Opens a file for reading under the rules of file_read_regular(); *file is its descriptor, or -1.
 * AM_ERROR_INPUT if it is not a regular file. */
AmStatus file_open_regular(int *file, const char *path, AmError *error);
/* Fails with AM_ERROR_INPUT, as file_read() gives, if there is no file of this name; AM_OK for "-". */
AmStatus file_check_exists(const char *path, AmError *error);
void file_release(FileBytes *bytes);

/* Writes a new file, then renames it to the target, whose mode it takes over; a symbolic link is followed to
 * the file that it names. Until then the file has no name where the file system supports that (O_TMPFILE),
 * else "PATH.part-RANDOM". "-" is stdout. A path that ends in .gz or .zst is compressed. AM_ERROR_USAGE: the
 * path cannot be created; AM_ERROR_RUNTIME: writing failed half-way (the old file is untouched). */
AmStatus file_write(const char *path, const void *data, size_t length, AmError *error);

/* Fails with AM_ERROR_USAGE if file_write() to the path could not begin; to be called before hours of work
 * whose result would be lost. Leaves no file. */
AmStatus file_check_writable(const char *path, AmError *error);

/* A file that is written in parts, never compressed: begin, add any number of times, then commit (renames
 * it to the target, as file_write()) or abandon (removes the written part). Each call may follow a failed
 * one; abandon after commit does nothing. */
typedef struct FileWriter {
    FILE *stream;
    char *path, *part; /* the target, and the file beside it; part NULL: written in place */
    bool is_nameless;  /* `part` is empty until the commit */
    bool is_closed;    /* stdout is a closed pipe: further output is dropped, without an error */
    int cause;         /* errno of the first failure; 0: none */
} FileWriter;

/* Opens a file that a rename cannot replace, to write from its begin. A named pipe that no program reads
 * would be waited for without an end, also after an interrupt: after five seconds NULL, and errno is EPIPE.
 */
FILE *file_open_in_place(const char *path);

AmStatus file_writer_begin(FileWriter *writer, const char *path, AmError *error);
AmStatus file_writer_add(FileWriter *writer, const void *data, size_t length, AmError *error);
AmStatus file_writer_commit(FileWriter *writer, AmError *error);
/* Flushes the stream. Returns false if stdout is a closed pipe. */
bool file_writer_flush(FileWriter *writer);
void file_writer_abandon(FileWriter *writer);

#endif
