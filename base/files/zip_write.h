/* A zip archive of stored entries, written part by part.
 *
 * Equal content gives equal bytes: every entry has the time 1980-01-01. Sizes and places beyond 32 bits, and
 * more than 65534 entries, use the zip64 records. Memory holds the directory alone. The target appears when
 * the archive is complete, as with FileWriter (base/files/file.h).
 */
#ifndef BASE_FILES_ZIP_WRITE_H
#define BASE_FILES_ZIP_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "base/files/file.h"
#include "base/status.h"
#include "base/text.h"

typedef struct ZipWriter {
    FileWriter file;
    Text directory; /* the central headers so far */
    uint64_t place; /* bytes of the entries so far */
    uint64_t count; /* entries so far */
} ZipWriter;

/* Begins an archive that replaces `path` at its commit; errors as those of file_writer_begin(). */
AmStatus zip_writer_begin(ZipWriter *writer, const char *path, AmError *error);
/* Adds the entry `name` (UTF-8), whose content is `head` and then `data`. AM_ERROR_USAGE: the name is longer
 * than 65535 bytes; AM_ERROR_RUNTIME: writing failed; AM_ERROR_INTERNAL: no memory. */
AmStatus zip_writer_add(ZipWriter *writer, const char *name, const void *head, size_t head_bytes,
                        const void *data, size_t data_bytes, AmError *error);
/* Writes the directory and puts the archive in place. */
AmStatus zip_writer_commit(ZipWriter *writer, AmError *error);
/* Removes a part that is not committed; releases memory. May follow each of the other functions. */
void zip_writer_abandon(ZipWriter *writer);

#endif
