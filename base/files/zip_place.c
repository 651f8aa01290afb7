/* The position of a stored entry of a zip archive in its file, for reading parts of it. Every number is
 * compared with the file's size. */
#include "base/files/zip_place.h"

#include <stdlib.h>
#include <string.h>

#include "base/files/little_endian.h"

enum {
    END_BYTES = 22,
    LOCATOR_BYTES = 20,
    END64_BYTES = 56,
    CENTRAL_BYTES = 46,
    LOCAL_BYTES = 30,
    LONGEST_COMMENT = 65535,
    EXTRA_ZIP64 = 1
};
static const uint64_t ELSEWHERE = 0xFFFFFFFFu; /* of 32 bits: the zip64 record has it */

/* Reads `bytes` from a place that begin with the record's signature. */
static bool read_record(const FileParts *file, uint64_t place, int64_t bytes, const char *signature,
                        unsigned char *record) {
    if (file->bytes < bytes || place > (uint64_t)(file->bytes - bytes)) return false;
    if (file_parts_read(file, (int64_t)place, bytes, record, NULL) != AM_OK) return false;
    return memcmp(record, signature, 4) == 0;
}

/* Finds the last end record whose comment ends where the file does. */
static bool find_end(const FileParts *file, int64_t *place, unsigned char end[END_BYTES]) {
    int64_t bytes = file->bytes < END_BYTES + LONGEST_COMMENT ? file->bytes : END_BYTES + LONGEST_COMMENT;
    unsigned char *tail = malloc((size_t)bytes + 1);
    bool found = false;
    if (tail && file_parts_read(file, file->bytes - bytes, bytes, tail, NULL) == AM_OK)
        for (int64_t at = bytes - END_BYTES; at >= 0 && !found; at--) {
            found = memcmp(tail + at, "PK\5\6", 4) == 0 &&
                    at + END_BYTES + (int64_t)little_endian_read(tail + at + 20, 2) == bytes;
            if (!found) continue;
            memcpy(end, tail + at, END_BYTES);
            *place = file->bytes - bytes + at;
        }
    free(tail);
    return found;
}

static bool find_directory(const FileParts *file, uint64_t *place) {
    unsigned char end[END_BYTES], locator[LOCATOR_BYTES], end64[END64_BYTES];
    int64_t at;
    if (!find_end(file, &at, end)) return false;
    *place = little_endian_read(end + 16, 4);
    if (*place != ELSEWHERE) return true;
    if (at < LOCATOR_BYTES ||
        !read_record(file, (uint64_t)(at - LOCATOR_BYTES), LOCATOR_BYTES, "PK\6\7", locator) ||
        !read_record(file, little_endian_read(locator + 8, 8), END64_BYTES, "PK\6\6", end64))
        return false;
    *place = little_endian_read(end64 + 48, 8);
    return true;
}

/* An entry's fields in a central header. */
typedef struct Stored {
    uint64_t length, packed, local;
} Stored;

/* Fields that do not fit 32 bits stand in the extra field 1, in this order. */
static bool read_wide_fields(Stored *stored, const unsigned char *extra, int64_t bytes) {
    uint64_t *fields[] = {&stored->length, &stored->packed, &stored->local};
    for (int64_t at = 0; at + 4 <= bytes;) {
        int64_t field = (int64_t)little_endian_read(extra + at + 2, 2), next = at + 4;
        if (next + field > bytes) return false;
        if (little_endian_read(extra + at, 2) != EXTRA_ZIP64) {
            at = next + field;
            continue;
        }
        for (int k = 0; k < 3; k++) {
            if (*fields[k] != ELSEWHERE) continue;
            if (next + 8 > at + 4 + field) return false;
            *fields[k] = little_endian_read(extra + next, 8);
            next += 8;
        }
        return true;
    }
    return true;
}

static bool read_central(const FileParts *file, uint64_t place, const unsigned char *header, Stored *stored) {
    unsigned char extra[65535];
    int64_t bytes = (int64_t)little_endian_read(header + 30, 2);
    bool is_plain = little_endian_read(header + 10, 2) == 0 && (little_endian_read(header + 8, 2) & 1) == 0;
    uint64_t at = place + CENTRAL_BYTES + little_endian_read(header + 28, 2);
    *stored = (Stored){little_endian_read(header + 24, 4), little_endian_read(header + 20, 4),
                       little_endian_read(header + 42, 4)};
    if (!is_plain || at > (uint64_t)file->bytes || bytes > file->bytes - (int64_t)at) return false;
    if (bytes > 0 && file_parts_read(file, (int64_t)at, bytes, extra, NULL) != AM_OK) return false;
    return read_wide_fields(stored, extra, bytes) && stored->length == stored->packed;
}

bool zip_find_stored(const FileParts *file, int64_t index, int64_t *place, int64_t *length) {
    unsigned char header[CENTRAL_BYTES], local[LOCAL_BYTES];
    uint64_t at;
    Stored stored;
    if (!find_directory(file, &at)) return false;
    for (int64_t k = 0;; k++) {
        if (!read_record(file, at, CENTRAL_BYTES, "PK\1\2", header)) return false;
        if (k == index) break;
        at += CENTRAL_BYTES + little_endian_read(header + 28, 2) + little_endian_read(header + 30, 2) +
              little_endian_read(header + 32, 2);
    }
    if (!read_central(file, at, header, &stored) ||
        !read_record(file, stored.local, LOCAL_BYTES, "PK\3\4", local))
        return false;
    uint64_t data =
        stored.local + LOCAL_BYTES + little_endian_read(local + 26, 2) + little_endian_read(local + 28, 2);
    if (data > (uint64_t)file->bytes || stored.length > (uint64_t)file->bytes - data) return false;
    *place = (int64_t)data;
    *length = (int64_t)stored.length;
    return true;
}
