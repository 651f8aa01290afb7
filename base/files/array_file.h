/* Named arrays in files: .npz (stored or deflated, by libzip), .npy, safetensors.
 *
 * A file is opened and indexed first (names, types, shapes; headers checked
 * against the file's size); data is read array by array into the caller's
 * memory, row-major little-endian. In npz, bf16 and f8 are raw |V2 / |V1.
 */
#ifndef BASE_FILES_ARRAY_FILE_H
#define BASE_FILES_ARRAY_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/text.h"

#define ARRAY_MAX_RANK 16

typedef struct ArrayEntry {
    const char *name;
    Dtype type; /* as stored; |V2 reads as BF16, |V1 as F8E4M3FN, numpy's text or dates as INVALID */
    int32_t rank;
    int64_t dimensions[ARRAY_MAX_RANK];
    int64_t bytes;
    bool fortran_order;
    bool is_raw_byte; /* |V1, which may be any f8 or f4 */
    int64_t location; /* safetensors: offset of the data; npz: index in the archive */
} ArrayEntry;

typedef struct ArrayFile {
    Arena arena;
    const char *path;
    ArrayEntry *entries;
    int32_t count;
    const char **metadata; /* pairs key, value, ..., NULL (safetensors), or NULL */
    struct ArrayFileHandle *handle;
} ArrayFile;

/* Opens a file of arrays. A plain .npy holds one array, named as the file without ".npy". After a failure
 * `file` is empty; closing it again is harmless. */
AmStatus array_file_open(ArrayFile *file, const char *path, AmError *error);
const ArrayEntry *array_file_find(const ArrayFile *file, const char *name);
/* Returns the value of a key of the metadata; NULL where there is none. */
const char *array_file_metadata(const ArrayFile *file, const char *key);
/* Reads the whole array, row-major, into data (entry->bytes long). */
AmStatus array_file_read(ArrayFile *file, const ArrayEntry *entry, void *data, AmError *error);
void array_file_close(ArrayFile *file);

/* A safetensors file in the program's own bytes, which array_file_write() wrote: its layout is not
 * checked. */
typedef struct ArrayImage {
    struct json_t *header;
    const char *data; /* after the header */
} ArrayImage;

/* Opens an image of a file; `source` names the bytes in errors. */
AmStatus array_image_open(ArrayImage *image, const unsigned char *bytes, const char *source, AmError *error);
void array_image_close(ArrayImage *image);
/* Returns the data of an array, unaligned; *bytes is 0 without an array of this name. */
const void *array_image_find(const ArrayImage *image, const char *name, int64_t *bytes);
/* Returns the value of a key of the metadata, which the image owns; NULL without the key. */
const char *array_image_metadata(const ArrayImage *image, const char *key);

/* An array to be written; `data` stays the caller's. */
typedef struct ArrayToWrite {
    const char *name;
    Dtype type;
    int32_t rank;
    const int64_t *dimensions;
    const void *data;
} ArrayToWrite;

/* Writes a file by suffix: .safetensors or .npz. The file is written under another name, then
 * renamed. `metadata` is pairs key, value, ..., NULL (safetensors only) or NULL. */
AmStatus array_file_write(const char *path, const ArrayToWrite *arrays, int32_t count,
                          const char *const *metadata, AmError *error);

/* Returns whether safetensors has a name for the type. */
bool array_file_names(Dtype type);
/* Writes the beginning of a safetensors file: the length, then the header as JSON, padded with spaces so that
 * data is aligned to 8. The arrays' data follow without gaps. */
AmStatus array_file_header(Text *header, const ArrayToWrite *arrays, int32_t count,
                           const char *const *metadata, const char *path, AmError *error);

/* Fails with AM_ERROR_USAGE if array_file_write() to the path could not begin: the suffix or the place.
 * Leaves no file after a failure. */
AmStatus array_file_check_writable(const char *path, AmError *error);

#endif
