/* Private interface of array_file.c and its formats.
 *
 * A format fills file->entries from an index that it checks against the size of the file, and reads
 * one entry at a time. Writers get arrays that array_file_write has already checked.
 */
#ifndef BASE_FILES_ARRAY_FORMAT_H
#define BASE_FILES_ARRAY_FORMAT_H

#include <stdio.h>

#include "base/files/array_file.h"
#include "base/files/file_part.h"

typedef struct ArrayFormat {
    AmStatus (*open)(ArrayFile *file, AmError *error);
    AmStatus (*read)(ArrayFile *file, const ArrayEntry *entry, void *data, AmError *error);
    /* The offset of the entry's bytes in the file, in row- or column-major order; false: they are
     * not stored as plain bytes. */
    bool (*find)(ArrayFile *file, const ArrayEntry *entry, int64_t *place);
    /* Appends the bytes of an entry, one after the other, to `to`; NULL where find() is always true. */
    AmStatus (*unpack)(ArrayFile *file, const ArrayEntry *entry, FileParts *to, AmError *error);
    AmStatus (*write)(const char *path, const ArrayToWrite *arrays, int32_t count,
                      const char *const *metadata, AmError *error);
} ArrayFormat;

struct ArrayFileHandle {
    const ArrayFormat *format;
    FILE *stream;        /* npy, safetensors */
    struct zip *archive; /* npz */
    int64_t size;        /* of the file in bytes */
};

extern const ArrayFormat ARRAY_FORMAT_NPY, ARRAY_FORMAT_NPZ, ARRAY_FORMAT_SAFETENSORS;

/* Multiplies the elements by the element size; false when negative or beyond 2^62 bytes. */
bool array_byte_count(Dtype type, const int64_t *dimensions, int32_t rank, int64_t *bytes);

#endif
