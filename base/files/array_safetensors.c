/* Safetensors: a u64 header length N, N bytes of JSON, then the data.
 *
 * The header maps each name to {dtype, shape, data_offsets [begin, end)}, with
 * offsets relative to the data, little-endian and row-major; `__metadata__`
 * maps strings to strings. A reader must refuse headers above 100,000,000
 * bytes, names that occur twice, and data with holes or overlaps: together the
 * arrays cover the rest of the file exactly once.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/array_format.h"
#include "base/files/file.h"
#include "base/files/json.h"

enum { LONGEST_HEADER = 100000000, LENGTH_BYTES = 8, DATA_ALIGNMENT = 8 };

static const char *const TYPE_NAMES[DTYPE_COUNT] = {
#define SAFETENSORS_NAME(name, text, number, bits, numpy, safetensors) [number] = safetensors,
    DTYPE_LIST(SAFETENSORS_NAME)
#undef SAFETENSORS_NAME
};

AmStatus array_image_open(ArrayImage *image, const unsigned char *bytes, const char *source, AmError *error) {
    uint64_t length;
    memcpy(&length, bytes, LENGTH_BYTES);
    *image = (ArrayImage){.data = (const char *)bytes + LENGTH_BYTES + length};
    return json_parse(&image->header, source, (const char *)bytes + LENGTH_BYTES, (size_t)length, error);
}

void array_image_close(ArrayImage *image) {
    json_decref(image->header);
    image->header = NULL;
}

const void *array_image_find(const ArrayImage *image, const char *name, int64_t *bytes) {
    const json_t *offsets = json_object_get(json_object_get(image->header, name), "data_offsets");
    int64_t begin = json_integer_value(json_array_get(offsets, 0));
    *bytes = json_integer_value(json_array_get(offsets, 1)) - begin;
    return image->data + begin;
}

const char *array_image_metadata(const ArrayImage *image, const char *key) {
    return json_string_value(json_object_get(json_object_get(image->header, "__metadata__"), key));
}

bool array_file_names(Dtype type) {
    return TYPE_NAMES[type][0] != '\0';
}

/* Fills `entry` from its JSON object; `location` becomes data_offsets[0]. */
static AmStatus read_entry(ArrayEntry *entry, json_t *object, const char *where, const char *source,
                           int64_t data_bytes, AmError *error) {
    static const char *const keys[] = {"dtype", "shape", "data_offsets", NULL};
    const char *type;
    json_t *shape, *offsets;
    TRY(json_get_string(&type, object, "dtype", source, where, error));
    TRY(json_get_array(&shape, object, "shape", source, where, error));
    TRY(json_get_array(&offsets, object, "data_offsets", source, where, error));
    TRY(json_only_keys(object, keys, source, where, error));
    entry->type = DTYPE_INVALID;
    for (int i = 1; i < DTYPE_COUNT; i++)
        if (TYPE_NAMES[i][0] && strcmp(TYPE_NAMES[i], type) == 0) entry->type = (Dtype)i;
    if (entry->type == DTYPE_INVALID) {
        return am_fail(error, AM_ERROR_INPUT, source, "%s.dtype: unknown type '%s'", where, type);
    }
    if (json_array_size(shape) > ARRAY_MAX_RANK) {
        return am_fail(error, AM_ERROR_INPUT, source, "%s.shape: more than %d dimensions", where,
                       ARRAY_MAX_RANK);
    }
    entry->rank = (int32_t)json_array_size(shape);
    for (int32_t i = 0; i < entry->rank; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        entry->dimensions[i] = json_is_integer(size) ? (int64_t)json_integer_value(size) : -1;
    }
    if (!array_byte_count(entry->type, entry->dimensions, entry->rank, &entry->bytes)) {
        return am_fail(error, AM_ERROR_INPUT, source, "%s.shape: expected sizes from 0 up", where);
    }
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last)) {
        return am_fail(error, AM_ERROR_INPUT, source, "%s.data_offsets: expected two integers", where);
    }
    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin || end > data_bytes) {
        return am_fail(error, AM_ERROR_INPUT, source,
                       "%s.data_offsets: [%" PRId64 ", %" PRId64 ") is outside the data of %" PRId64 " bytes",
                       where, begin, end, data_bytes);
    }
    if (end - begin != entry->bytes) {
        return am_fail(error, AM_ERROR_INPUT, source,
                       "%s.data_offsets: %" PRId64 " bytes, but type and shape take %" PRId64, where,
                       end - begin, entry->bytes);
    }
    entry->location = begin;
    return AM_OK;
}

static AmStatus read_metadata(ArrayFile *file, json_t *object, AmError *error) {
    if (!json_is_object(object)) {
        return am_fail(error, AM_ERROR_INPUT, file->path, "$.__metadata__: expected an object");
    }
    file->metadata = ARENA_ARRAY(&file->arena, const char *, 2 * json_object_size(object) + 1);
    if (!file->metadata) return am_fail_memory(error, (int64_t)json_object_size(object));
    const char *key;
    json_t *value;
    int32_t count = 0;
    json_object_foreach(object, key, value) {
        if (!json_is_string(value)) {
            return am_fail(error, AM_ERROR_INPUT, file->path, "$.__metadata__.%s: expected a string", key);
        }
        file->metadata[count++] = arena_copy_string(&file->arena, key);
        file->metadata[count++] = arena_copy_string(&file->arena, json_string_value(value));
    }
    return AM_OK;
}

/* Orders by offset; at equal offsets the empty array comes first. */
static int compare_places(const void *left, const void *right) {
    const ArrayEntry *a = left, *b = right;
    if (a->location != b->location) return a->location < b->location ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static AmStatus check_coverage(const ArrayFile *file, int64_t data_bytes, AmError *error) {
    int64_t covered = 0;
    for (int32_t i = 0; i < file->count; i++) {
        const ArrayEntry *entry = &file->entries[i];
        if (entry->location != covered) {
            return am_fail(error, AM_ERROR_INPUT, file->path,
                           "$.%s: data begins at %" PRId64 ", expected %" PRId64 " (a hole or an overlap)",
                           entry->name, entry->location, covered);
        }
        covered += entry->bytes;
    }
    if (covered == data_bytes) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, file->path,
                   "%" PRId64 " bytes of data, but the arrays take %" PRId64, data_bytes, covered);
}

static AmStatus read_header(ArrayFile *file, json_t *root, int64_t data_start, AmError *error) {
    int64_t data_bytes = file->handle->size - data_start;
    if (!json_is_object(root)) {
        return am_fail(error, AM_ERROR_INPUT, file->path, "$: expected an object");
    }
    file->entries = ARENA_ARRAY(&file->arena, ArrayEntry, json_object_size(root));
    if (!file->entries) return am_fail_memory(error, (int64_t)json_object_size(root));
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        if (strcmp(key, "__metadata__") == 0) {
            TRY(read_metadata(file, value, error));
            continue;
        }
        ArrayEntry *entry = &file->entries[file->count++];
        entry->name = arena_copy_string(&file->arena, key);
        char where[256];
        snprintf(where, sizeof where, "$.%s", key);
        TRY(read_entry(entry, value, where, file->path, data_bytes, error));
    }
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, compare_places);
    TRY(check_coverage(file, data_bytes, error));
    for (int32_t i = 0; i < file->count; i++) file->entries[i].location += data_start;
    return AM_OK;
}

static AmStatus safetensors_open(ArrayFile *file, AmError *error) {
    FILE *stream = file->handle->stream;
    unsigned char prefix[LENGTH_BYTES];
    rewind(stream);
    if (fread(prefix, 1, sizeof prefix, stream) != sizeof prefix) {
        return am_fail(error, AM_ERROR_INPUT, file->path, "byte 0: truncated, expected a header length");
    }
    uint64_t length = 0;
    for (int i = 0; i < LENGTH_BYTES; i++) length |= (uint64_t)prefix[i] << (8 * i);
    if (length > LONGEST_HEADER || (int64_t)length > file->handle->size - LENGTH_BYTES) {
        return am_fail(error, AM_ERROR_INPUT, file->path,
                       "byte 0: header length %" PRIu64 " exceeds the file or the format's limit of %d bytes",
                       length, LONGEST_HEADER);
    }
    char *header = malloc(length + 1);
    if (!header) return am_fail_memory(error, (int64_t)length + 1);
    AmStatus status = AM_OK;
    json_t *root = NULL;
    if (fread(header, 1, length, stream) != length) {
        status = am_fail(error, AM_ERROR_INPUT, file->path, "byte 8: the header cannot be read");
        goto fail;
    }
    TRY_OR_FAIL(json_parse(&root, file->path, header, length, error));
    status = read_header(file, root, LENGTH_BYTES + (int64_t)length, error);
fail:
    json_decref(root);
    free(header);
    return status;
}

static AmStatus safetensors_read(ArrayFile *file, const ArrayEntry *entry, void *data, AmError *error) {
    FILE *stream = file->handle->stream;
    if (fseeko(stream, (off_t)entry->location, SEEK_SET) == 0 &&
        fread(data, 1, (size_t)entry->bytes, stream) == (size_t)entry->bytes) {
        return AM_OK;
    }
    return am_fail(error, AM_ERROR_INPUT, file->path, "array '%s' cannot be read: %s", entry->name,
                   ferror(stream) ? strerror(errno) : "the file became shorter");
}

static bool safetensors_find(ArrayFile *file, const ArrayEntry *entry, int64_t *place) {
    (void)file;
    *place = entry->location;
    return true;
}

AmStatus array_file_header(Text *header, const ArrayToWrite *arrays, int32_t count,
                           const char *const *metadata, const char *path, AmError *error) {
    json_t *root = json_object();
    AmStatus status = AM_OK;
    if (metadata && metadata[0]) {
        json_t *pairs = json_object();
        json_object_set_new(root, "__metadata__", pairs);
        for (; metadata[0]; metadata += 2) json_object_set_new(pairs, metadata[0], json_string(metadata[1]));
    }
    int64_t begin = 0;
    for (int32_t i = 0; i < count; i++) {
        const ArrayToWrite *array = &arrays[i];
        const char *type = TYPE_NAMES[array->type];
        int64_t bytes;
        if (!type[0] || json_object_get(root, array->name) ||
            !array_byte_count(array->type, array->dimensions, array->rank, &bytes)) {
            status = am_fail(error, AM_ERROR_USAGE, path, "array '%s': %s", array->name,
                             type[0] ? "this name is taken" : "its type does not exist in safetensors");
            goto fail;
        }
        json_t *shape = json_array();
        for (int32_t k = 0; k < array->rank; k++)
            json_array_append_new(shape, json_integer(array->dimensions[k]));
        json_object_set_new(root, array->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", type, "shape", shape, "data_offsets",
                                      (json_int_t)begin, (json_int_t)(begin + bytes)));
        begin += bytes;
    }
    text_append_bytes(header, "\0\0\0\0\0\0\0\0", LENGTH_BYTES);
    json_write(header, root, JSON_STYLE_COMPACT);
    while (header->length % DATA_ALIGNMENT && !header->failed) text_append_string(header, " ");
    if (header->failed) {
        status = am_fail_memory(error, (int64_t)header->length);
        goto fail;
    }
    uint64_t length = header->length - LENGTH_BYTES;
    for (int i = 0; i < LENGTH_BYTES; i++) header->data[i] = (char)(unsigned char)(length >> (8 * i));
fail:
    json_decref(root);
    return status;
}

static AmStatus safetensors_write(const char *path, const ArrayToWrite *arrays, int32_t count,
                                  const char *const *metadata, AmError *error) {
    Text header = {0};
    FileWriter writer = {0};
    AmStatus status = AM_OK;
    TRY_OR_FAIL(array_file_header(&header, arrays, count, metadata, path, error));
    TRY_OR_FAIL(file_writer_begin(&writer, path, error));
    TRY_OR_FAIL(file_writer_add(&writer, header.data, header.length, error));
    for (int32_t i = 0; i < count; i++) {
        int64_t bytes = 0;
        array_byte_count(arrays[i].type, arrays[i].dimensions, arrays[i].rank, &bytes);
        TRY_OR_FAIL(file_writer_add(&writer, arrays[i].data, (size_t)bytes, error));
    }
    status = file_writer_commit(&writer, error);
fail:
    file_writer_abandon(&writer);
    text_free(&header);
    return status;
}

const ArrayFormat ARRAY_FORMAT_SAFETENSORS = {
    .open = safetensors_open, .read = safetensors_read, .find = safetensors_find, .write = safetensors_write};
