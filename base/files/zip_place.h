/* The position of a stored entry of a zip archive in its file, for reading parts of it.
 *
 * The archive's end record (or, beyond 4 GiB, the zip64 one) has the position of the central
 * directory; its headers refer to the local ones, after which the data begins (PKWARE's application
 * note, 4.3). A deflated or encrypted entry has no such position.
 */
#ifndef BASE_FILES_ZIP_PLACE_H
#define BASE_FILES_ZIP_PLACE_H

#include <stdbool.h>

#include "base/files/file_part.h"

/* Finds the position and length of entry number `index`'s data. False if it is compressed or encrypted, or if
 * the archive uses unsupported features. */
bool zip_find_stored(const FileParts *file, int64_t index, int64_t *place, int64_t *length);

#endif
