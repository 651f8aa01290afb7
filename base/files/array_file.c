/* Arrays in files: finds the format by content and hands over to it.
 *
 * "PK" starts a zip archive (npz), "\x93NUMPY" an array of numpy's (npy), and
 * a safetensors file has the '{' of its header as the ninth byte.
 */
#define _POSIX_C_SOURCE 200809L
#include "base/files/array_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>

#include "base/files/array_format.h"
#include "base/files/file.h"

bool array_byte_count(Dtype type, const int64_t *dimensions, int32_t rank, int64_t *bytes) {
    bool empty = false;
    for (int32_t i = 0; i < rank; i++) {
        if (dimensions[i] < 0) return false;
        empty |= dimensions[i] == 0;
    }
    int64_t count = dtype_bytes(type);
    for (int32_t i = 0; i < rank && !empty; i++) {
        if (count > ((int64_t)1 << 62) / dimensions[i]) return false;
        count *= dimensions[i];
    }
    *bytes = empty ? 0 : count;
    return true;
}

typedef struct Signature {
    const char *bytes;
    size_t at, length;
    const ArrayFormat *format;
} Signature;

static const Signature SIGNATURES[] = {{"PK\x03\x04", 0, 4, &ARRAY_FORMAT_NPZ},
                                       {"PK\x05\x06", 0, 4, &ARRAY_FORMAT_NPZ}, /* an empty archive */
                                       {"\x93NUMPY", 0, 6, &ARRAY_FORMAT_NPY},
                                       {"{", 8, 1, &ARRAY_FORMAT_SAFETENSORS}};

static const ArrayFormat *format_of(const char *start, size_t length) {
    for (size_t i = 0; i < sizeof SIGNATURES / sizeof *SIGNATURES; i++) {
        const Signature *row = &SIGNATURES[i];
        if (length >= row->at + row->length && memcmp(start + row->at, row->bytes, row->length) == 0) {
            return row->format;
        }
    }
    return NULL;
}

static int compare_names(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Sorts the names and fails with `code` if one occurs twice: reading by name would be a matter of luck. */
static AmStatus check_distinct(const char **names, int32_t count, AmStatus code, const char *path,
                               AmError *error) {
    if (count > 1) qsort(names, (size_t)count, sizeof *names, compare_names);
    for (int32_t i = 1; i < count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return am_fail(error, code, path, "array '%s' occurs twice", names[i]);
    return AM_OK;
}

static AmStatus check_entries(const ArrayFile *file, AmError *error) {
    size_t bytes = ((size_t)file->count + 1) * sizeof(char *);
    const char **names = malloc(bytes);
    if (!names) return am_fail_memory(error, (int64_t)bytes);
    for (int32_t i = 0; i < file->count; i++) names[i] = file->entries[i].name;
    AmStatus status = check_distinct(names, file->count, AM_ERROR_INPUT, file->path, error);
    free(names);
    return status;
}

static AmStatus check_arrays(const ArrayToWrite *arrays, int32_t count, const char *path, AmError *error) {
    size_t size = ((size_t)count + 1) * sizeof(char *);
    const char **names = malloc(size);
    if (!names) return am_fail_memory(error, (int64_t)size);
    AmStatus status = AM_OK;
    for (int32_t i = 0; i < count && status == AM_OK; i++) {
        int64_t bytes;
        names[i] = arrays[i].name;
        if (dtype_bytes(arrays[i].type) == 0 || arrays[i].rank > ARRAY_MAX_RANK ||
            !array_byte_count(arrays[i].type, arrays[i].dimensions, arrays[i].rank, &bytes))
            status = am_fail(error, AM_ERROR_USAGE, path,
                             "array '%s' has no type or size that can be written", arrays[i].name);
    }
    if (status == AM_OK) status = check_distinct(names, count, AM_ERROR_USAGE, path, error);
    free(names);
    return status;
}

AmStatus array_file_open(ArrayFile *file, const char *path, AmError *error) {
    *file = (ArrayFile){0};
    AmStatus status = AM_OK;
    file->path = arena_copy_string(&file->arena, path);
    file->handle = calloc(1, sizeof *file->handle);
    if (!file->path || !file->handle) {
        status = am_fail_memory(error, (int64_t)sizeof *file->handle);
        goto fail;
    }
    /* A pipe is refused, not waited for. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    FILE *stream = descriptor >= 0 ? fdopen(descriptor, "rb") : NULL;
    struct stat facts;
    if (!stream || fstat(descriptor, &facts) != 0) {
        int cause = errno;
        if (stream) fclose(stream);
        else if (descriptor >= 0) close(descriptor);
        status = am_fail_system(error, AM_ERROR_INPUT, path, cause, "cannot be opened");
        goto fail;
    }
    file->handle->stream = stream;
    file->handle->size = (int64_t)facts.st_size;
    if (!S_ISREG(facts.st_mode)) {
        status = am_fail(error, AM_ERROR_INPUT, path, "%s",
                         S_ISDIR(facts.st_mode) ? "is a folder, expected a file of arrays (automap convert "
                                                  "writes checkpoints to .safetensors or .npz)"
                                                : "is not a regular file");
        goto fail;
    }
    char start[16] = {0};
    size_t length = fread(start, 1, sizeof start, stream);
    file->handle->format = format_of(start, length);
    if (!file->handle->format) {
        status = am_fail(error, AM_ERROR_INPUT, path, "expected a file in npz, npy or safetensors format");
        goto fail;
    }
    TRY_OR_FAIL(file->handle->format->open(file, error));
    if (file->arena.failed) {
        status = am_fail_memory(error, (int64_t)file->arena.used);
        goto fail;
    }
    TRY_OR_FAIL(check_entries(file, error));
    return AM_OK;
fail:
    array_file_close(file);
    return status;
}

const ArrayEntry *array_file_find(const ArrayFile *file, const char *name) {
    for (int32_t i = 0; i < file->count; i++) {
        if (strcmp(file->entries[i].name, name) == 0) return &file->entries[i];
    }
    return NULL;
}

const char *array_file_metadata(const ArrayFile *file, const char *key) {
    const char *const *pairs = file->metadata;
    while (pairs && *pairs && strcmp(pairs[0], key) != 0) pairs += 2;
    return pairs && *pairs ? pairs[1] : NULL;
}

AmStatus array_file_read(ArrayFile *file, const ArrayEntry *entry, void *data, AmError *error) {
    if (entry->type == DTYPE_INVALID) {
        return am_fail(error, AM_ERROR_INPUT, file->path, "array '%s' is not of numbers", entry->name);
    }
    return entry->bytes ? file->handle->format->read(file, entry, data, error) : AM_OK;
}

void array_file_close(ArrayFile *file) {
    if (file->handle) {
        if (file->handle->stream) fclose(file->handle->stream);
        if (file->handle->archive) zip_discard(file->handle->archive);
        free(file->handle);
    }
    arena_free(&file->arena);
    *file = (ArrayFile){0};
}

static AmStatus format_to_write(const ArrayFormat **format, const char *path, AmError *error) {
    const char *suffix = strrchr(path, '.');
    *format = suffix && strcmp(suffix, ".npz") == 0           ? &ARRAY_FORMAT_NPZ
              : suffix && strcmp(suffix, ".safetensors") == 0 ? &ARRAY_FORMAT_SAFETENSORS
                                                              : NULL;
    if (*format) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, path, "expected a name ending in .safetensors or .npz");
}

AmStatus array_file_check_writable(const char *path, AmError *error) {
    const ArrayFormat *format;
    TRY(format_to_write(&format, path, error));
    return file_check_writable(path, error);
}

AmStatus array_file_write(const char *path, const ArrayToWrite *arrays, int32_t count,
                          const char *const *metadata, AmError *error) {
    const ArrayFormat *format;
    TRY(format_to_write(&format, path, error));
    TRY(check_arrays(arrays, count, path, error));
    return format->write(path, arrays, count, metadata, error);
}
