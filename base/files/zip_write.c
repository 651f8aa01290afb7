/* Stored entries of a zip archive, written, by APPNOTE 6.3.
 *
 * An archive is a local header and the content for each entry, then the directory of central headers, then
 * the end record. A field that its record cannot hold is all ones there, and stands in the extra field 1 or
 * in the zip64 end record.
 */
#include "base/files/zip_write.h"

#include <string.h>
#include <zlib.h>

enum {
    VERSION_PLAIN = 10,
    VERSION_ZIP64 = 45,
    MADE_BY = 3 << 8 | 63, /* Unix, version 6.3 */
    FLAG_UTF8 = 1 << 11,
    FIRST_DAY = 1 << 5 | 1, /* 1980-01-01 */
    EXTRA_ZIP64 = 1,
    LONGEST_NAME = 0xFFFF,
    END64_REST = 44 /* bytes of the zip64 end record after its length */
};
static const uint64_t WIDE = 0xFFFFFFFFu, MANY = 0xFFFFu;
static const uint32_t REGULAR_FILE = 0100666u << 16; /* with the mode rw-rw-rw- */

/* The common fields of both headers of an entry. */
typedef struct Entry {
    const char *name;
    size_t name_bytes;
    uint64_t bytes, place;
    uint32_t checksum;
} Entry;

static void put(Text *text, uint64_t value, int bytes) {
    char digits[8];
    for (int k = 0; k < bytes; k++) digits[k] = (char)(unsigned char)(value >> (8 * k));
    text_append_bytes(text, digits, (size_t)bytes);
}

static uint64_t at_most(uint64_t value, uint64_t limit) {
    return value < limit ? value : limit;
}

static bool is_ascii(const char *name) {
    while (*name && (unsigned char)*name < 0x80) name++;
    return !*name;
}

/* Appends the fields from the needed version to the length of the name, which both headers share. */
static void put_common(Text *text, const Entry *entry, bool is_wide) {
    put(text, is_wide ? VERSION_ZIP64 : VERSION_PLAIN, 2);
    put(text, is_ascii(entry->name) ? 0 : FLAG_UTF8, 2);
    put(text, 0, 2); /* stored */
    put(text, 0, 2); /* midnight */
    put(text, FIRST_DAY, 2);
    put(text, entry->checksum, 4);
    put(text, at_most(entry->bytes, WIDE), 4);
    put(text, at_most(entry->bytes, WIDE), 4);
    put(text, entry->name_bytes, 2);
}

static void put_local(Text *text, const Entry *entry) {
    bool is_wide = entry->bytes >= WIDE;
    text_append_bytes(text, "PK\3\4", 4);
    put_common(text, entry, is_wide);
    put(text, is_wide ? 20 : 0, 2);
    text_append_bytes(text, entry->name, entry->name_bytes);
    if (!is_wide) return;
    put(text, EXTRA_ZIP64, 2);
    put(text, 16, 2);
    put(text, entry->bytes, 8);
    put(text, entry->bytes, 8);
}

static void put_central(Text *text, const Entry *entry) {
    bool is_long = entry->bytes >= WIDE, is_far = entry->place >= WIDE;
    uint64_t extra = (is_long ? 16 : 0) + (is_far ? 8 : 0);
    text_append_bytes(text, "PK\1\2", 4);
    put(text, MADE_BY, 2);
    put_common(text, entry, extra > 0);
    put(text, extra ? extra + 4 : 0, 2);
    put(text, 0, 2); /* comment */
    put(text, 0, 2); /* disk */
    put(text, 0, 2); /* internal attributes */
    put(text, REGULAR_FILE, 4);
    put(text, at_most(entry->place, WIDE), 4);
    text_append_bytes(text, entry->name, entry->name_bytes);
    if (!extra) return;
    put(text, EXTRA_ZIP64, 2);
    put(text, extra, 2);
    if (is_long) put(text, entry->bytes, 8);
    if (is_long) put(text, entry->bytes, 8);
    if (is_far) put(text, entry->place, 8);
}

/* Appends the end records; the directory has `bytes` bytes and begins at `place`. */
static void put_end(Text *text, uint64_t count, uint64_t bytes, uint64_t place) {
    if (count >= MANY || bytes >= WIDE || place >= WIDE) {
        text_append_bytes(text, "PK\6\6", 4);
        put(text, END64_REST, 8);
        put(text, MADE_BY, 2);
        put(text, VERSION_ZIP64, 2);
        put(text, 0, 4); /* disk */
        put(text, 0, 4); /* disk of the directory */
        put(text, count, 8);
        put(text, count, 8);
        put(text, bytes, 8);
        put(text, place, 8);
        text_append_bytes(text, "PK\6\7", 4);
        put(text, 0, 4); /* disk of the zip64 end record */
        put(text, place + bytes, 8);
        put(text, 1, 4); /* disks */
    }
    text_append_bytes(text, "PK\5\6", 4);
    put(text, 0, 2); /* disk */
    put(text, 0, 2); /* disk of the directory */
    put(text, at_most(count, MANY), 2);
    put(text, at_most(count, MANY), 2);
    put(text, at_most(bytes, WIDE), 4);
    put(text, at_most(place, WIDE), 4);
    put(text, 0, 2); /* comment */
}

AmStatus zip_writer_begin(ZipWriter *writer, const char *path, AmError *error) {
    *writer = (ZipWriter){0};
    return file_writer_begin(&writer->file, path, error);
}

AmStatus zip_writer_add(ZipWriter *writer, const char *name, const void *head, size_t head_bytes,
                        const void *data, size_t data_bytes, AmError *error) {
    Entry entry = {name, strlen(name), (uint64_t)head_bytes + data_bytes, writer->place, 0};
    Text local = {0};
    AmStatus status = AM_OK;
    if (entry.name_bytes > LONGEST_NAME)
        return am_fail(error, AM_ERROR_USAGE, writer->file.path,
                       "the name of an entry is too long (expected at most %d bytes, got %zu)", LONGEST_NAME,
                       entry.name_bytes);
    entry.checksum = (uint32_t)crc32_z(0, head, head_bytes);
    if (data_bytes) entry.checksum = (uint32_t)crc32_z(entry.checksum, data, data_bytes);
    put_local(&local, &entry);
    put_central(&writer->directory, &entry);
    if (local.failed || writer->directory.failed) {
        status = am_fail_memory(error, (int64_t)writer->directory.length);
        goto fail;
    }
    TRY_OR_FAIL(file_writer_add(&writer->file, local.data, local.length, error));
    TRY_OR_FAIL(file_writer_add(&writer->file, head, head_bytes, error));
    TRY_OR_FAIL(file_writer_add(&writer->file, data, data_bytes, error));
    writer->place += local.length + entry.bytes;
    writer->count++;
fail:
    text_free(&local);
    return status;
}

AmStatus zip_writer_commit(ZipWriter *writer, AmError *error) {
    put_end(&writer->directory, writer->count, writer->directory.length, writer->place);
    if (writer->directory.failed) return am_fail_memory(error, (int64_t)writer->directory.length);
    TRY(file_writer_add(&writer->file, writer->directory.data, writer->directory.length, error));
    return file_writer_commit(&writer->file, error);
}

void zip_writer_abandon(ZipWriter *writer) {
    file_writer_abandon(&writer->file);
    text_free(&writer->directory);
    *writer = (ZipWriter){0};
}
