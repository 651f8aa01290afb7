/* Numpy's .npy, and .npz: a zip archive with one .npy per array.
 *
 * A .npy is "\x93NUMPY", two version bytes, the header's length (u16 in version 1, u32 in 2 and 3), the
 * header and the data. The header is a Python dict literal with exactly the keys 'descr', 'fortran_order'
 * and 'shape'. A parser for that form alone reads the literal. Arrays of structures, text, dates and objects
 * have no element type here: they are listed as INVALID. Big-endian data is refused.
 *
 * Sizes in an archive are compared with the largest expansion of its bytes (deflate makes at most
 * 1032 bytes of one), so that no caller allocates by an invented number.
 */
#define _POSIX_C_SOURCE 200809L
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zip.h>
#include <zlib.h>

#include "base/files/array_format.h"
#include "base/files/zip_place.h"
#include "base/files/zip_write.h"
#include "base/text.h"

enum { PREFIX_BYTES = 12, LONGEST_HEADER = 1 << 20, DATA_ALIGNMENT = 64, DEFLATE_RATIO = 1032 };
enum { UNPACKED_AT_ONCE = 1 << 20, SMALL = 64 << 20 };

static const char *const TYPE_NAMES[DTYPE_COUNT] = {
#define NUMPY_NAME(name, text, number, bits, numpy, safetensors) [number] = numpy,
    DTYPE_LIST(NUMPY_NAME)
#undef NUMPY_NAME
};

/* The source of an array's bytes: a file, or one entry of an archive. */
typedef struct Source {
    FILE *stream;
    zip_file_t *entry;
} Source;

static bool read_exactly(Source source, void *data, int64_t bytes) {
    unsigned char *at = data;
    while (bytes > 0) {
        size_t part = bytes < (1 << 30) ? (size_t)bytes : (size_t)1 << 30;
        int64_t got =
            source.entry ? zip_fread(source.entry, at, part) : (int64_t)fread(at, 1, part, source.stream);
        if (got <= 0) return false;
        at += got;
        bytes -= got;
    }
    return true;
}

/* Returns the status of a failure of libzip: a lack of memory or file descriptors is not the input's
 * fault. */
static AmStatus status_of(zip_error_t *reason) {
    int cause = zip_error_system_type(reason) == ZIP_ET_SYS ? zip_error_code_system(reason) : 0;
    bool is_zlib = zip_error_system_type(reason) == ZIP_ET_ZLIB;
    if (zip_error_code_zip(reason) == ZIP_ER_MEMORY || cause == ENOMEM) return AM_ERROR_INTERNAL;
    if (is_zlib && zip_error_code_system(reason) == Z_MEM_ERROR) return AM_ERROR_INTERNAL;
    return cause == EMFILE || cause == ENFILE ? AM_ERROR_RUNTIME : AM_ERROR_INPUT;
}

/* Fails if the source's last read failed for a lack of memory. */
static AmStatus check_memory(Source source, const char *path, AmError *error) {
    if (!source.entry || status_of(zip_file_get_error(source.entry)) != AM_ERROR_INTERNAL) return AM_OK;
    return am_fail(error, AM_ERROR_INTERNAL, path, "cannot be read: out of memory");
}

/* Returns the type of "<f4" and similar. Kind and size decide. If several types share a name, the first row
 * counts, except that a raw byte is f8e4m3fn as documented. */
static Dtype type_from_description(const char *text) {
    if (strchr("<|=", text[0]) == NULL || !text[0]) return DTYPE_INVALID;
    if (strcmp(text + 1, "V1") == 0 || strcmp(text + 1, "f1") == 0) return DTYPE_F8E4M3FN;
    for (int i = 1; i < DTYPE_COUNT; i++) {
        if (TYPE_NAMES[i][0] && strcmp(TYPE_NAMES[i] + 1, text + 1) == 0) return (Dtype)i;
    }
    return DTYPE_INVALID;
}

/* Reader of the dict literal: `at` moves over the text, which ends in a NUL. */
typedef struct Literal {
    const char *at;
} Literal;

/* Skips white space and then the token. Returns false if another token is next. */
static bool accept(Literal *literal, const char *token) {
    while (isspace((unsigned char)*literal->at)) literal->at++;
    size_t length = strlen(token);
    if (strncmp(literal->at, token, length) != 0) return false;
    literal->at += length;
    return true;
}

/* Reads a quoted string without escapes, cut to the size of the buffer. */
static bool read_string(Literal *literal, char *text, size_t room) {
    if (!accept(literal, "'") && !accept(literal, "\"")) return false;
    char quote = literal->at[-1];
    size_t length = 0;
    for (; *literal->at && *literal->at != quote; literal->at++) {
        if (length + 1 < room) text[length++] = *literal->at;
    }
    text[length] = '\0';
    return accept(literal, quote == '\'' ? "'" : "\"");
}

/* Reads a description. One that is a list (a structure) is skipped to its bracket. */
static bool read_description(Literal *literal, char *text, size_t room) {
    text[0] = '\0';
    if (!accept(literal, "[")) return read_string(literal, text, room);
    for (int depth = 1; depth > 0; literal->at++) {
        if (!*literal->at) return false;
        depth += (*literal->at == '[') - (*literal->at == ']');
    }
    return true;
}

static bool read_shape(Literal *literal, ArrayEntry *entry) {
    if (!accept(literal, "(")) return false;
    while (!accept(literal, ")")) {
        accept(literal, "");
        char *end;
        if (!isdigit((unsigned char)*literal->at) || entry->rank == ARRAY_MAX_RANK) return false;
        entry->dimensions[entry->rank++] = strtoll(literal->at, &end, 10);
        literal->at = *end == 'L' ? end + 1 : end;
        if (!accept(literal, ",") && *literal->at != ')') return false;
    }
    return true;
}

/* Fills type, order and shape from the dict; false if it is not of that form. */
static bool read_dict(const char *text, ArrayEntry *entry, char *description, size_t room) {
    Literal literal = {text};
    int seen = 0;
    if (!accept(&literal, "{")) return false;
    while (!accept(&literal, "}")) {
        char key[32];
        if (!read_string(&literal, key, sizeof key) || !accept(&literal, ":")) return false;
        if (strcmp(key, "descr") == 0 && !(seen & 1)) {
            if (!read_description(&literal, description, room)) return false;
            seen |= 1;
        } else if (strcmp(key, "fortran_order") == 0 && !(seen & 2)) {
            entry->fortran_order = accept(&literal, "True");
            if (!entry->fortran_order && !accept(&literal, "False")) return false;
            seen |= 2;
        } else if (strcmp(key, "shape") == 0 && !(seen & 4)) {
            if (!read_shape(&literal, entry)) return false;
            seen |= 4;
        } else {
            return false;
        }
        if (!accept(&literal, ",") && *literal.at != '}') return false;
    }
    return seen == 7;
}

/* Reads prefix and dict from the start of `source`, which holds `size` bytes
 * in all, and checks that the data fills the rest. `header_bytes` is where the
 * data begins. */
static AmStatus read_header(Source source, int64_t size, ArrayEntry *entry, int64_t *header_bytes,
                            const char *path, AmError *error) {
    unsigned char prefix[PREFIX_BYTES];
    if (!read_exactly(source, prefix, 10) || memcmp(prefix, "\x93NUMPY", 6) != 0 || prefix[6] < 1 ||
        prefix[6] > 3) {
        TRY(check_memory(source, path, error));
        return am_fail(error, AM_ERROR_INPUT, path, "array '%s' does not begin as a .npy of version 1 to 3",
                       entry->name);
    }
    int64_t length = prefix[8] | prefix[9] << 8;
    *header_bytes = 10 + length;
    if (prefix[6] > 1) {
        if (!read_exactly(source, prefix + 10, 2)) length = size;
        else length |= (int64_t)prefix[10] << 16 | (int64_t)prefix[11] << 24;
        *header_bytes = PREFIX_BYTES + length;
    }
    if (length > LONGEST_HEADER || *header_bytes > size) {
        return am_fail(error, AM_ERROR_INPUT, path, "array '%s': header length %" PRId64 " exceeds its file",
                       entry->name, length);
    }
    char *text = calloc(1, (size_t)length + 1);
    if (!text) return am_fail_memory(error, length + 1);
    char description[64];
    bool good = read_exactly(source, text, length) && read_dict(text, entry, description, sizeof description);
    free(text);
    if (!good) {
        TRY(check_memory(source, path, error));
        return am_fail(
            error, AM_ERROR_INPUT, path,
            "array '%s': header is not {'descr', 'fortran_order', 'shape'} of at most %d dimensions",
            entry->name, ARRAY_MAX_RANK);
    }
    if (description[0] == '>') {
        return am_fail(error, AM_ERROR_INPUT, path, "array '%s' is big-endian ('%s'), expected little-endian",
                       entry->name, description);
    }
    entry->type = type_from_description(description);
    entry->is_raw_byte = entry->type == DTYPE_F8E4M3FN;
    if (entry->type == DTYPE_INVALID) return AM_OK;
    if (!array_byte_count(entry->type, entry->dimensions, entry->rank, &entry->bytes) ||
        entry->bytes != size - *header_bytes) {
        return am_fail(error, AM_ERROR_INPUT, path,
                       "array '%s': %" PRId64 " bytes of data do not match its type and shape", entry->name,
                       size - *header_bytes);
    }
    return AM_OK;
}

/* Transposes column-major to row-major: walks the target in order, and adds up the place in the source for
 * each element. */
static void transpose_fortran(const ArrayEntry *entry, const unsigned char *source, unsigned char *target) {
    size_t width = (size_t)dtype_bytes(entry->type);
    int64_t index[ARRAY_MAX_RANK] = {0}, strides[ARRAY_MAX_RANK], stride = 1, at = 0;
    for (int32_t i = 0; i < entry->rank; i++) {
        strides[i] = stride;
        stride *= entry->dimensions[i];
    }
    for (int64_t element = 0; element < stride; element++) {
        memcpy(target + (size_t)element * width, source + (size_t)at * width, width);
        for (int32_t i = entry->rank - 1; i >= 0; i--) {
            at += strides[i];
            if (++index[i] < entry->dimensions[i]) break;
            at -= strides[i] * entry->dimensions[i];
            index[i] = 0;
        }
    }
}

static AmStatus read_data(Source source, const ArrayEntry *entry, void *data, const char *path,
                          AmError *error) {
    bool reorder = entry->fortran_order && entry->rank > 1;
    unsigned char *target = reorder ? malloc((size_t)entry->bytes) : data;
    if (!target) return am_fail_memory(error, entry->bytes);
    AmStatus status = AM_OK;
    if (!read_exactly(source, target, entry->bytes)) {
        status = check_memory(source, path, error);
        if (status == AM_OK)
            status = am_fail(error, AM_ERROR_INPUT, path, "array '%s': its data is truncated or corrupt",
                             entry->name);
    } else if (reorder) {
        transpose_fortran(entry, target, data);
    }
    if (reorder) free(target);
    return status;
}

static AmStatus npy_open(ArrayFile *file, AmError *error) {
    const char *slash = strrchr(file->path, '/');
    char *name = arena_copy_string(&file->arena, slash ? slash + 1 : file->path);
    file->entries = ARENA_ARRAY(&file->arena, ArrayEntry, 1);
    if (!name || !file->entries) return am_fail_memory(error, (int64_t)sizeof *file->entries);
    char *suffix = strrchr(name, '.');
    if (suffix && strcmp(suffix, ".npy") == 0) *suffix = '\0';
    file->entries[0].name = name;
    file->count = 1;
    rewind(file->handle->stream);
    return read_header((Source){.stream = file->handle->stream}, file->handle->size, &file->entries[0],
                       &file->entries[0].location, file->path, error);
}

static AmStatus npy_read(ArrayFile *file, const ArrayEntry *entry, void *data, AmError *error) {
    if (fseeko(file->handle->stream, (off_t)entry->location, SEEK_SET) != 0) {
        return am_fail(error, AM_ERROR_INPUT, file->path, "cannot be read from byte %" PRId64,
                       entry->location);
    }
    return read_data((Source){.stream = file->handle->stream}, entry, data, file->path, error);
}

static bool npy_find(ArrayFile *file, const ArrayEntry *entry, int64_t *place) {
    (void)file;
    *place = entry->location;
    return true;
}

static AmStatus open_entry(ArrayFile *file, int64_t index, Source *source, AmError *error) {
    source->entry = zip_fopen_index(file->handle->archive, (zip_uint64_t)index, 0);
    if (source->entry) return AM_OK;
    return am_fail(error, status_of(zip_get_error(file->handle->archive)), file->path,
                   "entry %" PRId64 " cannot be opened: %s", index, zip_strerror(file->handle->archive));
}

static AmStatus npz_index_entry(ArrayFile *file, int64_t index, AmError *error) {
    zip_stat_t facts;
    if (zip_stat_index(file->handle->archive, (zip_uint64_t)index, 0, &facts) != 0 || !facts.name) {
        return am_fail(error, AM_ERROR_INPUT, file->path, "entry %" PRId64 " cannot be read", index);
    }
    size_t length = strlen(facts.name);
    if (length < 4 || strcmp(facts.name + length - 4, ".npy") != 0) {
        return am_fail(error, AM_ERROR_INPUT, file->path, "entry '%s' is not a .npy", facts.name);
    }
    bool bounded = facts.comp_size <= (zip_uint64_t)file->handle->size &&
                   facts.size <= (facts.comp_method == ZIP_CM_STORE ? facts.comp_size
                                                                    : (facts.comp_size + 1) * DEFLATE_RATIO);
    if (!bounded) {
        return am_fail(error, AM_ERROR_INPUT, file->path,
                       "entry '%s' claims more bytes than the file can hold", facts.name);
    }
    ArrayEntry *entry = &file->entries[file->count++];
    entry->name = arena_copy_bytes(&file->arena, facts.name, length - 4);
    entry->location = index;
    if (!entry->name) return am_fail_memory(error, (int64_t)length);
    Source source = {0};
    int64_t header_bytes;
    TRY(open_entry(file, index, &source, error));
    AmStatus status = read_header(source, (int64_t)facts.size, entry, &header_bytes, file->path, error);
    zip_fclose(source.entry);
    return status;
}

static AmStatus npz_open(ArrayFile *file, AmError *error) {
    int code;
    errno = 0;
    file->handle->archive = zip_open(file->path, ZIP_RDONLY, &code);
    /* libzip takes an archive for damaged when it has no memory for the directory. */
    if (!file->handle->archive && errno == ENOMEM) code = ZIP_ER_MEMORY;
    if (!file->handle->archive) {
        zip_error_t reason;
        zip_error_init_with_code(&reason, code);
        AmStatus status = am_fail(error, status_of(&reason), file->path, "is not a readable zip archive: %s",
                                  zip_error_strerror(&reason));
        zip_error_fini(&reason);
        return status;
    }
    int64_t count = zip_get_num_entries(file->handle->archive, 0);
    if (count > INT32_MAX) return am_fail(error, AM_ERROR_INPUT, file->path, "has too many entries");
    file->entries = ARENA_ARRAY(&file->arena, ArrayEntry, count);
    if (!file->entries) return am_fail_memory(error, count * (int64_t)sizeof(ArrayEntry));
    for (int64_t i = 0; i < count; i++) TRY(npz_index_entry(file, i, error));
    return AM_OK;
}

/* Opens an entry's .npy and reads its header, so that its data comes next. */
static AmStatus open_data(ArrayFile *file, const ArrayEntry *entry, Source *source, AmError *error) {
    int64_t header_bytes = 0;
    ArrayEntry again = {.name = entry->name};
    zip_stat_t facts;
    TRY(open_entry(file, entry->location, source, error));
    if (zip_stat_index(file->handle->archive, (zip_uint64_t)entry->location, 0, &facts) != 0) facts.size = 0;
    AmStatus status = read_header(*source, (int64_t)facts.size, &again, &header_bytes, file->path, error);
    if (status != AM_OK) zip_fclose(source->entry);
    return status;
}

/* Checks the checksum by reading to the end. */
static AmStatus check_end(Source source, const ArrayFile *file, const ArrayEntry *entry, AmError *error) {
    char past_end;
    if (zip_fread(source.entry, &past_end, 1) == 0) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, file->path, "array '%s' has a wrong checksum", entry->name);
}

static AmStatus npz_read(ArrayFile *file, const ArrayEntry *entry, void *data, AmError *error) {
    Source source = {0};
    TRY(open_data(file, entry, &source, error));
    AmStatus status = read_data(source, entry, data, file->path, error);
    if (status == AM_OK) status = check_end(source, file, entry, error);
    zip_fclose(source.entry);
    return status;
}

/* Small ones are unpacked too: that checks their checksum. */
static bool npz_find(ArrayFile *file, const ArrayEntry *entry, int64_t *place) {
    const struct ArrayFileHandle *handle = file->handle;
    FileParts parts = {.descriptor = fileno(handle->stream), .bytes = handle->size, .path = file->path};
    int64_t length;
    if (entry->bytes <= SMALL || !zip_find_stored(&parts, entry->location, place, &length)) return false;
    if (length < entry->bytes) return false;
    *place += length - entry->bytes; /* after the .npy's header */
    return true;
}

static AmStatus npz_unpack(ArrayFile *file, const ArrayEntry *entry, FileParts *to, AmError *error) {
    Source source = {0};
    AmStatus status = AM_OK;
    char *piece = malloc(UNPACKED_AT_ONCE);
    if (!piece) return am_fail_memory(error, UNPACKED_AT_ONCE);
    TRY_OR_FAIL(open_data(file, entry, &source, error));
    for (int64_t left = entry->bytes; left > 0 && status == AM_OK;) {
        int64_t part = left < UNPACKED_AT_ONCE ? left : UNPACKED_AT_ONCE;
        status = read_exactly(source, piece, part)
                     ? file_parts_add(to, piece, part, error)
                     : am_fail(error, AM_ERROR_INPUT, file->path,
                               "array '%s': its data is truncated or corrupt", entry->name);
        left -= part;
    }
    if (status == AM_OK) status = check_end(source, file, entry, error);
    zip_fclose(source.entry);
fail:
    free(piece);
    return status;
}

/* Makes the prefix of version 1 and the dict, padded so that the data starts at a multiple of 64. */
static void make_header(Text *text, const ArrayToWrite *array) {
    Text dict = {0};
    text_append(&dict, "{'descr': '%s', 'fortran_order': False, 'shape': (", TYPE_NAMES[array->type]);
    for (int32_t i = 0; i < array->rank; i++) {
        text_append(&dict, "%s%" PRId64, i ? ", " : "", array->dimensions[i]);
    }
    text_append_string(&dict, array->rank == 1 ? ",), }" : "), }");
    while ((10 + dict.length + 1) % DATA_ALIGNMENT && !dict.failed) text_append_string(&dict, " ");
    text_append_string(&dict, "\n");
    char prefix[10] = {
        '\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, (char)(dict.length & 255), (char)(dict.length >> 8)};
    text_append_bytes(text, prefix, sizeof prefix);
    if (dict.failed) text->failed = true;
    else text_append_bytes(text, dict.data, dict.length);
    text_free(&dict);
}

static AmStatus add_entry(ZipWriter *archive, const ArrayToWrite *array, AmError *error) {
    Text header = {0}, name = {0};
    int64_t bytes = 0;
    array_byte_count(array->type, array->dimensions, array->rank, &bytes);
    make_header(&header, array);
    text_append(&name, "%s.npy", array->name);
    AmStatus status = header.failed || name.failed
                          ? am_fail_memory(error, (int64_t)header.length)
                          : zip_writer_add(archive, name.data, header.data, header.length, array->data,
                                           (size_t)bytes, error);
    text_free(&header);
    text_free(&name);
    return status;
}

static AmStatus npz_write(const char *path, const ArrayToWrite *arrays, int32_t count,
                          const char *const *metadata, AmError *error) {
    (void)metadata;
    ZipWriter archive;
    AmStatus status = zip_writer_begin(&archive, path, error);
    for (int32_t i = 0; i < count && status == AM_OK; i++) status = add_entry(&archive, &arrays[i], error);
    if (status == AM_OK) status = zip_writer_commit(&archive, error);
    zip_writer_abandon(&archive);
    return status;
}

const ArrayFormat ARRAY_FORMAT_NPY = {.open = npy_open, .read = npy_read, .find = npy_find};
const ArrayFormat ARRAY_FORMAT_NPZ = {
    .open = npz_open, .read = npz_read, .find = npz_find, .unpack = npz_unpack, .write = npz_write};
