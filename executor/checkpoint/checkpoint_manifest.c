/* The manifest of a checkpoint: prints, reads and checks it.
 *
 * The digest comes last as `,"digest":"..."}` and covers all bytes before it; it is compared before
 * other fields are used. A manifest with a valid digest is still checked in full: a digest proves
 * that the text is unchanged, not that it is correct.
 */
#include "executor/checkpoint/checkpoint_manifest.h"

#include <stdio.h>
#include <string.h>

#include "base/files/file.h"
#include "base/files/json.h"
#include "ir/module.h"

enum { LONGEST_NAME = 64, MOST_RANKS = 1 << 20, TAIL_BYTES = 46 };
static const int64_t MOST_BYTES = (int64_t)1 << 60;

/* The file under construction, for messages. */
typedef struct ManifestReader {
    CheckpointManifest *manifest;
    Arena *arena;
    const char *source;
    AmError *error;
} ManifestReader;

static json_t *integers_to_json(const int64_t *values, int32_t count) {
    json_t *list = json_array();
    for (int32_t k = 0; k < count; k++) json_array_append_new(list, json_integer(values[k]));
    return list;
}

static json_t *part_to_json(const CheckpointPart *part, int32_t rank) {
    json_t *object = json_pack("{s:i, s:I, s:o, s:o}", "file", (int)part->file, "offset",
                               (json_int_t)part->offset, "start", integers_to_json(part->start, rank),
                               "extent", integers_to_json(part->extent, rank));
    bool is_cut = false;
    for (int32_t d = 0; d < rank; d++) is_cut |= part->blocks[d] > 1;
    if (is_cut) json_object_set_new(object, "blocks", integers_to_json(part->blocks, rank));
    json_object_set_new(object, "digest", json_string(part->digest));
    return object;
}

/* Appends the end of a manifest whose text before it is text[0..length). */
static void print_tail(char tail[TAIL_BYTES + 1], const char *text, size_t length) {
    char digest[DIGEST_ROOM];
    digest_bytes(digest, text, length);
    snprintf(tail, TAIL_BYTES + 1, ",\"digest\":\"%s\"}\n", digest);
}

AmStatus checkpoint_manifest_print(Text *text, const CheckpointManifest *manifest, AmError *error) {
    char tail[TAIL_BYTES + 1];
    json_t *files = json_array(), *tensors = json_array();
    for (int32_t f = 0; f < manifest->file_count; f++) {
        const CheckpointFile *file = &manifest->files[f];
        json_array_append_new(files, json_pack("{s:s, s:I, s:I, s:s}", "name", file->name, "bytes",
                                               (json_int_t)file->bytes, "header_bytes",
                                               (json_int_t)file->header_bytes, "digest", file->digest));
    }
    for (int32_t t = 0; t < manifest->tensor_count; t++) {
        const CheckpointTensor *tensor = &manifest->tensors[t];
        json_t *parts = json_array();
        for (int32_t p = 0; p < tensor->part_count; p++)
            json_array_append_new(parts, part_to_json(&tensor->parts[p], tensor->rank));
        json_array_append_new(
            tensors, json_pack("{s:s, s:s, s:o, s:o}", "path", tensor->path, "type", dtype_name(tensor->type),
                               "shape", integers_to_json(tensor->dimensions, tensor->rank), "parts", parts));
    }
    const CheckpointPosition *position = &manifest->position;
    json_t *root = json_pack("{s:s, s:s, s:s, s:I, s:{s:I, s:I, s:I, s:I, s:I}, s:i, s:o, s:o}", "format",
                             CHECKPOINT_FORMAT, "module", manifest->module, "plan", manifest->plan, "step",
                             (json_int_t)manifest->step, "data", "seed", (json_int_t)position->seed, "epoch",
                             (json_int_t)position->epoch, "batch", (json_int_t)position->batch, "batches",
                             (json_int_t)position->batches, "shuffled", (json_int_t)position->shuffled,
                             "ranks", (int)manifest->rank_count, "files", files, "tensors", tensors);
    if (!root) return am_fail_memory(error, 0);
    json_write(text, root, JSON_STYLE_COMPACT);
    json_decref(root);
    if (text->failed) return am_fail_memory(error, (int64_t)text->capacity);
    text->data[--text->length] = '\0'; /* the brace, which comes after the digest */
    print_tail(tail, text->data, text->length);
    text_append_string(text, tail);
    return text->failed ? am_fail_memory(error, (int64_t)text->capacity) : AM_OK;
}

static AmStatus bad(const ManifestReader *self, const char *where, const char *what) {
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: %s", where, what);
}

static AmStatus read_digest(const ManifestReader *self, char digest[DIGEST_ROOM], json_t *object,
                            const char *where) {
    const char *text;
    TRY(json_get_string(&text, object, "digest", self->source, where, self->error));
    if (strlen(text) != DIGEST_ROOM - 1 || strspn(text, "0123456789abcdef") != DIGEST_ROOM - 1)
        return bad(self, where, "expected a digest of 32 hexadecimal digits");
    memcpy(digest, text, DIGEST_ROOM);
    return AM_OK;
}

/* Reads a list of integers from `least` up; its length must be *count, or is set if that is -1. */
static AmStatus read_integers(const ManifestReader *self, int64_t **values, int32_t *count, json_t *object,
                              const char *key, int64_t least, const char *where) {
    json_t *list;
    *values = NULL;
    TRY(json_get_array(&list, object, key, self->source, where, self->error));
    if (*count < 0 && json_array_size(list) <= IR_MAX_RANK) *count = (int32_t)json_array_size(list);
    if (*count < 0 || json_array_size(list) != (size_t)*count)
        return bad(self, where, "expected one number for each dimension");
    *values = ARENA_ARRAY(self->arena, int64_t, *count + 1);
    if (!*values) return am_fail_memory(self->error, *count * 8);
    for (int32_t k = 0; k < *count; k++) {
        const json_t *value = json_array_get(list, (size_t)k);
        (*values)[k] = json_is_integer(value) ? json_integer_value(value) : -1;
        if ((*values)[k] < least || (*values)[k] > MOST_BYTES)
            return bad(self, where, "a number is out of range");
    }
    return AM_OK;
}

/* Returns whether the part is within the tensor and its file; sets its bytes. */
static bool part_fits(CheckpointPart *part, const CheckpointTensor *tensor, const CheckpointFile *file) {
    int64_t elements = 1;
    for (int32_t d = 0; d < tensor->rank; d++) {
        int64_t size = tensor->dimensions[d], blocks = part->blocks[d], extent = part->extent[d];
        if (extent > size || blocks > extent || extent % blocks != 0 || size % blocks != 0) return false;
        if (part->start[d] > size / blocks - extent / blocks) return false;
        elements *= extent; /* at most the tensor's, which fit */
    }
    part->bytes = elements * dtype_bytes(tensor->type);
    return part->offset >= file->header_bytes && part->bytes <= file->bytes - part->offset;
}

static AmStatus read_part(const ManifestReader *self, CheckpointPart *part, const CheckpointTensor *tensor,
                          json_t *object, const char *where) {
    static const char *const keys[] = {"file", "offset", "start", "extent", "blocks", "digest", NULL};
    const CheckpointManifest *manifest = self->manifest;
    int32_t rank = tensor->rank;
    int64_t file;
    if (!json_is_object(object)) return bad(self, where, "expected an object");
    TRY(json_only_keys(object, keys, self->source, where, self->error));
    TRY(json_get_integer(&file, object, "file", 0, manifest->file_count - 1, self->source, where,
                         self->error));
    TRY(json_get_integer(&part->offset, object, "offset", 0, MOST_BYTES, self->source, where, self->error));
    TRY(read_integers(self, &part->start, &rank, object, "start", 0, where));
    TRY(read_integers(self, &part->extent, &rank, object, "extent", 1, where));
    if (json_object_get(object, "blocks")) {
        TRY(read_integers(self, &part->blocks, &rank, object, "blocks", 1, where));
    } else {
        part->blocks = ARENA_ARRAY(self->arena, int64_t, rank + 1);
        if (!part->blocks) return am_fail_memory(self->error, rank * 8);
        for (int32_t d = 0; d < rank; d++) part->blocks[d] = 1;
    }
    TRY(read_digest(self, part->digest, object, where));
    part->file = (int32_t)file;
    if (!part_fits(part, tensor, &manifest->files[file]))
        return bad(self, where, "the part is not within its tensor and file");
    return AM_OK;
}

static AmStatus read_tensor(const ManifestReader *self, CheckpointTensor *tensor, json_t *object,
                            const char *where) {
    static const char *const keys[] = {"path", "type", "shape", "parts", NULL};
    const char *type;
    int64_t elements = 1;
    if (!json_is_object(object)) return bad(self, where, "expected an object");
    TRY(json_only_keys(object, keys, self->source, where, self->error));
    TRY(json_get_string(&tensor->path, object, "path", self->source, where, self->error));
    TRY(json_get_string(&type, object, "type", self->source, where, self->error));
    tensor->path = arena_copy_string(self->arena, tensor->path);
    tensor->type = dtype_from_name(type);
    if (tensor->type == DTYPE_INVALID || dtype_bits(tensor->type) == 0)
        return bad(self, where, "the type is not one of numbers");
    tensor->rank = -1;
    int64_t *dimensions;
    TRY(read_integers(self, &dimensions, &tensor->rank, object, "shape", 0, where));
    tensor->dimensions = dimensions;
    for (int32_t d = 0; d < tensor->rank; d++) {
        if (tensor->dimensions[d] > 0 && elements > MOST_BYTES / 16 / tensor->dimensions[d])
            return bad(self, where, "the tensor is too large");
        elements *= tensor->dimensions[d];
    }
    tensor->bytes = elements * dtype_bytes(tensor->type);
    json_t *parts;
    TRY(json_get_array(&parts, object, "parts", self->source, where, self->error));
    tensor->part_count = (int32_t)json_array_size(parts);
    tensor->parts = ARENA_ARRAY(self->arena, CheckpointPart, tensor->part_count + 1);
    if (!tensor->parts) return am_fail_memory(self->error, (int64_t)json_array_size(parts));
    for (int32_t p = 0; p < tensor->part_count; p++) {
        char place[96];
        snprintf(place, sizeof place, "%s.parts[%d]", where, (int)p);
        TRY(read_part(self, &tensor->parts[p], tensor, json_array_get(parts, (size_t)p), place));
    }
    return AM_OK;
}

/* Reads a file; only names in the directory itself are allowed. */
static AmStatus read_file(const ManifestReader *self, CheckpointFile *file, json_t *object,
                          const char *where) {
    static const char *const keys[] = {"name", "bytes", "header_bytes", "digest", NULL};
    if (!json_is_object(object)) return bad(self, where, "expected an object");
    TRY(json_only_keys(object, keys, self->source, where, self->error));
    TRY(json_get_string(&file->name, object, "name", self->source, where, self->error));
    if (!*file->name || *file->name == '.' || strlen(file->name) > LONGEST_NAME || strchr(file->name, '/'))
        return bad(self, where, "expected the name of a file beside the manifest");
    file->name = arena_copy_string(self->arena, file->name);
    TRY(json_get_integer(&file->bytes, object, "bytes", 0, MOST_BYTES, self->source, where, self->error));
    TRY(json_get_integer(&file->header_bytes, object, "header_bytes", 0, file->bytes, self->source, where,
                         self->error));
    return read_digest(self, file->digest, object, where);
}

static AmStatus read_lists(const ManifestReader *self, json_t *root) {
    CheckpointManifest *manifest = self->manifest;
    json_t *files, *tensors;
    char where[64];
    TRY(json_get_array(&files, root, "files", self->source, "$", self->error));
    TRY(json_get_array(&tensors, root, "tensors", self->source, "$", self->error));
    manifest->files = ARENA_ARRAY(self->arena, CheckpointFile, json_array_size(files) + 1);
    manifest->tensors = ARENA_ARRAY(self->arena, CheckpointTensor, json_array_size(tensors) + 1);
    if (self->arena->failed) return am_fail_memory(self->error, (int64_t)json_array_size(tensors));
    for (size_t f = 0; f < json_array_size(files); f++) {
        snprintf(where, sizeof where, "$.files[%zu]", f);
        TRY(read_file(self, &manifest->files[f], json_array_get(files, f), where));
        manifest->file_count++;
    }
    for (size_t t = 0; t < json_array_size(tensors); t++) {
        snprintf(where, sizeof where, "$.tensors[%zu]", t);
        TRY(read_tensor(self, &manifest->tensors[t], json_array_get(tensors, t), where));
        manifest->tensor_count++;
    }
    return self->arena->failed ? am_fail_memory(self->error, 0) : AM_OK;
}

AmStatus checkpoint_manifest_parse_share(CheckpointManifest *share, Arena *arena, const char *source,
                                         const char *text, int64_t length, AmError *error) {
    char tail[TAIL_BYTES + 1];
    json_t *root = NULL;
    ManifestReader self = {share, arena, source, error};
    *share = (CheckpointManifest){.source = source};
    bool is_whole = length > TAIL_BYTES;
    if (is_whole) print_tail(tail, text, (size_t)(length - TAIL_BYTES));
    if (!is_whole || memcmp(text + length - TAIL_BYTES, tail, TAIL_BYTES) != 0)
        return am_fail(error, AM_ERROR_INPUT, source,
                       "damaged: the digest at its end is not that of its text");
    TRY(json_parse(&root, source, text, (size_t)length, error));
    AmStatus status = AM_OK;
    static const char *const keys[] = {"format", "module", "plan",    "step",   "data",
                                       "ranks",  "files",  "tensors", "digest", NULL};
    static const char *const data_keys[] = {"seed", "epoch", "batch", "batches", "shuffled", NULL};
    CheckpointPosition *position = &share->position;
    json_t *data;
    int64_t ranks, seed, shuffled;
    if (!json_is_object(root)) TRY_OR_FAIL(bad(&self, "$", "expected an object"));
    TRY_OR_FAIL(json_check_format(root, CHECKPOINT_FORMAT, source, error));
    TRY_OR_FAIL(json_only_keys(root, keys, source, "$", error));
    TRY_OR_FAIL(json_get_string(&share->module, root, "module", source, "$", error));
    TRY_OR_FAIL(json_get_string(&share->plan, root, "plan", source, "$", error));
    share->module = arena_copy_string(arena, share->module);
    share->plan = arena_copy_string(arena, share->plan);
    TRY_OR_FAIL(json_get_integer(&share->step, root, "step", 0, MOST_BYTES, source, "$", error));
    TRY_OR_FAIL(json_get_object(&data, root, "data", source, "$", error));
    TRY_OR_FAIL(json_only_keys(data, data_keys, source, "$.data", error));
    TRY_OR_FAIL(json_get_integer(&seed, data, "seed", INT64_MIN, INT64_MAX, source, "$.data", error));
    TRY_OR_FAIL(json_get_integer(&position->epoch, data, "epoch", 0, MOST_BYTES, source, "$.data", error));
    TRY_OR_FAIL(json_get_integer(&position->batch, data, "batch", 0, MOST_BYTES, source, "$.data", error));
    TRY_OR_FAIL(
        json_get_integer(&position->batches, data, "batches", 0, MOST_BYTES, source, "$.data", error));
    TRY_OR_FAIL(json_get_integer(&shuffled, data, "shuffled", 0, 1, source, "$.data", error));
    TRY_OR_FAIL(json_get_integer(&ranks, root, "ranks", 1, MOST_RANKS, source, "$", error));
    position->seed = (uint64_t)seed;
    position->shuffled = shuffled == 1;
    share->rank_count = (int32_t)ranks;
    status = read_lists(&self, root);
fail:
    json_decref(root);
    return status;
}

AmStatus checkpoint_manifest_parse(CheckpointManifest *manifest, Arena *arena, const char *source,
                                   const char *text, int64_t length, AmError *error) {
    TRY(checkpoint_manifest_parse_share(manifest, arena, source, text, length, error));
    /* Parts that are as many elements as the whole are the whole, where they are disjoint. */
    for (int32_t t = 0; t < manifest->tensor_count; t++) {
        const CheckpointTensor *tensor = &manifest->tensors[t];
        int64_t bytes = 0;
        for (int32_t p = 0; p < tensor->part_count && bytes <= tensor->bytes; p++)
            bytes += tensor->parts[p].bytes;
        if (bytes != tensor->bytes)
            return am_fail(error, AM_ERROR_INPUT, manifest->source,
                           "tensor '%.200s': its parts hold %s than the tensor", tensor->path,
                           bytes < tensor->bytes ? "less" : "more");
    }
    return AM_OK;
}

AmStatus checkpoint_manifest_read(CheckpointManifest *manifest, Arena *arena, const char *path,
                                  AmError *error) {
    FileBytes bytes = {0};
    const char *source = arena_copy_string(arena, path);
    if (!source) return am_fail_memory(error, (int64_t)strlen(path));
    AmStatus status = file_read_regular(&bytes, path, error);
    if (status == AM_OK)
        status = checkpoint_manifest_parse(manifest, arena, source, bytes.data, bytes.length, error);
    file_release(&bytes);
    return status;
}

AmStatus checkpoint_manifest_add(CheckpointManifest *manifest, Arena *arena, const CheckpointManifest *other,
                                 AmError *error) {
    int32_t files = manifest->file_count, more = other->file_count;
    CheckpointFile *list = ARENA_ARRAY(arena, CheckpointFile, files + more + 1);
    if (!list) return am_fail_memory(error, (int64_t)sizeof *list * (files + more));
    if (files) memcpy(list, manifest->files, sizeof *list * (size_t)files);
    if (more) memcpy(list + files, other->files, sizeof *list * (size_t)more);
    manifest->files = list;
    manifest->file_count += more;
    if (other->tensor_count != manifest->tensor_count)
        return am_fail(error, AM_ERROR_INTERNAL, other->source, "another number of tensors");
    for (int32_t t = 0; t < manifest->tensor_count; t++) {
        CheckpointTensor *tensor = &manifest->tensors[t];
        const CheckpointTensor *from = &other->tensors[t];
        if (strcmp(tensor->path, from->path) != 0 || tensor->rank != from->rank)
            return am_fail(error, AM_ERROR_INTERNAL, other->source, "another tensor than '%s'", tensor->path);
        int32_t count = tensor->part_count + from->part_count;
        CheckpointPart *parts = ARENA_ARRAY(arena, CheckpointPart, count + 1);
        if (!parts) return am_fail_memory(error, (int64_t)sizeof *parts * count);
        if (tensor->part_count) memcpy(parts, tensor->parts, sizeof *parts * (size_t)tensor->part_count);
        for (int32_t p = 0; p < from->part_count; p++) {
            parts[tensor->part_count + p] = from->parts[p];
            parts[tensor->part_count + p].file += files;
        }
        tensor->parts = parts;
        tensor->part_count = count;
    }
    return AM_OK;
}

const CheckpointTensor *checkpoint_manifest_find(const CheckpointManifest *manifest, const char *path) {
    for (int32_t t = 0; t < manifest->tensor_count; t++)
        if (strcmp(manifest->tensors[t].path, path) == 0) return &manifest->tensors[t];
    return NULL;
}
