/* Recognises files by content, for the error of a reader that received another kind of file.
 *
 * Known are automap's own JSON files by their "format", HLO, and the formats in which
 * frameworks store models and arrays. "m.mlir: StableHLO text, expected an HLO module;
 * jax.jit(f).lower(...).as_text(dialect=\"hlo\") writes one" is a typical result.
 */
#ifndef BASE_FILES_FILE_FORMAT_H
#define BASE_FILES_FILE_FORMAT_H

#include <stdint.h>

#include "base/status.h"

typedef enum FileFormat {
    FILE_FORMAT_UNKNOWN,
    FILE_FORMAT_HLO,
    FILE_FORMAT_PLAN,
    FILE_FORMAT_CLUSTER,
    FILE_FORMAT_ROLES,
    FILE_FORMAT_PROFILE,
    FILE_FORMAT_HINTS, /* only expected: such a file has no mark */
    FILE_FORMAT_OTHER  /* a format that no reader of these takes */
} FileFormat;

/* Returns the format of data[0..length); `*name` (may be NULL) is its name with an article, static, and NULL
 * for FILE_FORMAT_UNKNOWN. Reads at most a few kB and the names in a zip archive. */
FileFormat file_format_of(const char *data, int64_t length, const char **name);

/* Returns the bytes of a byte order mark of UTF-8 at the beginning of a text, which readers skip: 3 or 0. */
int64_t file_mark_bytes(const char *data, int64_t length);

/* Refuses data of a known format other than `expected`: AM_ERROR_INPUT names both formats and the remedy.
 * Data of the expected or of an unknown format is left to the reader. */
AmStatus file_format_expect(FileFormat expected, const char *source, const char *data, int64_t length,
                            AmError *error);

/* Reads the beginning of a file (not of "-") and returns its format; FILE_FORMAT_UNKNOWN where it cannot be
 * read. Compressed files are not opened. */
FileFormat file_format_of_path(const char *path);

#endif
