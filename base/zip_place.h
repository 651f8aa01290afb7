/* Where a stored entry of a zip archive lies in its file, so that parts of it can be read.
 *
 * The archive's end record (or, beyond 4 GiB, the zip64 one) says where the central
 * directory is; its headers lead to the local ones, behind which the data begins
 * (PKWARE's application note, 4.3). An entry that is deflated or encrypted has no such place.
 */
#ifndef BASE_ZIP_PLACE_H
#define BASE_ZIP_PLACE_H

#include <stdbool.h>

#include "base/file_part.h"

/* Place and length of entry number `index`'s data. False where it is not stored as it is, or where the
 * archive is not plain enough to tell. */
bool zip_find_stored(const FileParts *file, int64_t index, int64_t *place, int64_t *length);

#endif
