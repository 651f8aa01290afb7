/* Tables of signatures: bytes at an offset, the first word of a text, the "format" of a JSON file.
 *
 * HLO in binary begins with field 1, a string: byte 0x0A. No other format of the
 * tables does.
 */
#include "base/files/file_format.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { HEAD_BYTES = 4096, SEARCHED_BYTES = 1 << 20, PREFIX_BYTES = 1 << 16 };

#define LOWER_JAX "jax.jit(f).lower(...).as_text(dialect=\"hlo\") writes HLO"
#define EXPORT    "export the training step as HLO, with automap_jax.export() from JAX"
#define DUMP      "a dump of XLA has the module as *before_optimizations*"
#define ARRAYS    "arrays are given by run --state or --data"

typedef struct Signature {
    const char *bytes;
    uint8_t length, offset;
    const char *name, *remedy;
} Signature;

static const Signature signatures[] = {
    {"ML\xefR", 4, 0, "MLIR bytecode (StableHLO)", LOWER_JAX},
    {"\x93NUMPY", 6, 0, "a NumPy array", ARRAYS},
    {"\x89HDF\r\n\x1a\n", 8, 0, "an HDF5 file", EXPORT},
    {"TFL3", 4, 4, "a TensorFlow Lite model", EXPORT},
    {"GGUF", 4, 0, "a GGUF model", EXPORT},
    {"\x7f"
     "ELF",
     4, 0, "an ELF binary", EXPORT},
    {"%PDF", 4, 0, "a PDF document", EXPORT},
    {"\x89PNG", 4, 0, "an image", EXPORT},
    {"\xff\xfe", 2, 0, "UTF-16 instead of UTF-8 text", "save it as UTF-8"},
    {"\xfe\xff", 2, 0, "UTF-16 instead of UTF-8 text", "save it as UTF-8"},
    {"SQLite format 3", 15, 0, "an SQLite database (such as a profile of Nsight)", EXPORT},
};

/* Entries of zip archives by a part of their names, which stand uncompressed in the archive. */
static const struct {
    const char *part, *name, *remedy;
} archives[] = {
    {"data.pkl", "a PyTorch archive", EXPORT},
    {"archive_format", "a PyTorch archive (torch.export)", EXPORT},
    {"serialized_exported_program", "a PyTorch archive (torch.export)", EXPORT},
    {".npy", "a NumPy archive (npz)", ARRAYS},
    {"config.json", "a Keras archive", EXPORT},
};

/* First words of texts. */
static const struct {
    const char *word;
    FileFormat format;
    const char *name, *remedy;
} texts[] = {
    {"HloModule", FILE_FORMAT_HLO, "an HLO module", NULL},
    {"module", FILE_FORMAT_OTHER, "StableHLO text (MLIR)", LOWER_JAX},
    {"builtin.module", FILE_FORMAT_OTHER, "StableHLO text (MLIR)", LOWER_JAX},
    {"\"builtin.module\"", FILE_FORMAT_OTHER, "StableHLO text (MLIR)", LOWER_JAX},
    {"func.func", FILE_FORMAT_OTHER, "StableHLO text (MLIR)", LOWER_JAX},
    {"#loc", FILE_FORMAT_OTHER, "StableHLO text (MLIR)", LOWER_JAX},
    {"{ lambda", FILE_FORMAT_OTHER, "a jaxpr", LOWER_JAX},
    {"BufferAssignment:", FILE_FORMAT_OTHER, "a buffer assignment of XLA", DUMP},
    {"HloLiveRange", FILE_FORMAT_OTHER, "a report of live ranges of XLA", DUMP},
    {"Memory Space:", FILE_FORMAT_OTHER, "a memory report of XLA", DUMP},
    {"Total bytes used:", FILE_FORMAT_OTHER, "a memory report of XLA", DUMP},
    {"xla_", FILE_FORMAT_OTHER, "a file of options of XLA", DUMP},
    {"; ModuleID", FILE_FORMAT_OTHER, "LLVM code", DUMP},
    {"import", FILE_FORMAT_OTHER, "Python source", EXPORT},
    {"from", FILE_FORMAT_OTHER, "Python source", EXPORT},
    {"#!/", FILE_FORMAT_OTHER, "a script", EXPORT},
    {"version https://git-lfs", FILE_FORMAT_OTHER, "a pointer of Git LFS", "git lfs pull fetches the file"},
    {"<!DOCTYPE", FILE_FORMAT_OTHER, "an HTML page", EXPORT},
    {"<html", FILE_FORMAT_OTHER, "an HTML page", EXPORT},
};

/* "format": "automap-KIND-1" of automap's JSON files. */
static const struct {
    const char *kind;
    FileFormat format;
    const char *name, *remedy;
} documents[] = {
    {"plan", FILE_FORMAT_PLAN, "a plan", "PLAN stands before MODEL or after --plan"},
    {"cluster", FILE_FORMAT_CLUSTER, "a cluster", "a cluster is given by --cluster"},
    {"roles", FILE_FORMAT_ROLES, "a roles file", "roles are given by --roles"},
    {"profile", FILE_FORMAT_PROFILE, "a profile of measured operators", "a profile is given by --profile"},
    {"jax", FILE_FORMAT_OTHER, "an exported plan", "the plan is the file that automap search writes"},
    {"dtensor", FILE_FORMAT_OTHER, "an exported plan", "the plan is the file that automap search writes"},
    {"megatron", FILE_FORMAT_OTHER, "an exported plan", "the plan is the file that automap search writes"},
    {"torchtitan", FILE_FORMAT_OTHER, "an exported plan", "the plan is the file that automap search writes"},
    {"search", FILE_FORMAT_OTHER, "the report of a search", "the plan is the file of search -o"},
    {"checkpoint", FILE_FORMAT_OTHER, "a checkpoint's manifest",
     "run --resume --checkpoint reads its folder"},
};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static bool begins_with(const char *data, int64_t length, int64_t at, const char *bytes, size_t count) {
    return at >= 0 && length - at >= (int64_t)count && memcmp(data + at, bytes, count) == 0;
}

/* Returns whether the bytes occur in data[0..most). */
static bool contains(const char *data, int64_t length, int64_t most, const char *bytes, size_t count) {
    const char *at = data, *end = data + (length < most ? length : most);
    while (end - at >= (int64_t)count && (at = memchr(at, bytes[0], (size_t)(end - at))) != NULL) {
        if (end - at >= (int64_t)count && memcmp(at, bytes, count) == 0) return true;
        at++;
    }
    return false;
}

int64_t file_mark_bytes(const char *data, int64_t length) {
    return begins_with(data, length, 0, "\xef\xbb\xbf", 3) ? 3 : 0;
}

static int64_t after_space(const char *data, int64_t length, int64_t at) {
    while (at < length && isspace((unsigned char)data[at])) at++;
    return at;
}

/* Skips spaces and the lines of MLIR's and Python's comments. */
static int64_t after_comments(const char *data, int64_t length) {
    int64_t at = after_space(data, length, 0);
    while (begins_with(data, length, at, "//", 2) || begins_with(data, length, at, "# ", 2)) {
        const char *end = memchr(data + at, '\n', (size_t)(length - at));
        at = after_space(data, length, end ? end - data : length);
    }
    return at;
}

/* Returns the place after the string that begins at `at`, or `most`. */
static int64_t after_string(const char *data, int64_t most, int64_t at) {
    for (at++; at < most && data[at] != '"'; at++) at += data[at] == '\\';
    return at < most ? at + 1 : most;
}

/* Returns the place of the value of "format" in the outermost object, or -1. */
static int64_t find_format_value(const char *data, int64_t most) {
    int32_t depth = 0;
    int64_t at = 0;
    while (at < most) {
        bool is_key = depth == 1 && begins_with(data, most, at, "\"format\"", 8);
        depth += (data[at] == '{' || data[at] == '[') - (data[at] == '}' || data[at] == ']');
        at = data[at] == '"' ? after_string(data, most, at) : at + 1;
        if (!is_key) continue;
        int64_t value = after_space(data, most, at);
        if (value < most && data[value] == ':') return after_space(data, most, value + 1);
    }
    return -1;
}

static FileFormat find_document(const char *data, int64_t length, const char **name, const char **remedy) {
    static const char prefix[] = "\"automap-";
    int64_t most = length < HEAD_BYTES ? length : HEAD_BYTES, value = find_format_value(data, most);
    bool is_own = value >= 0 && begins_with(data, most, value, prefix, sizeof prefix - 1);
    for (size_t k = 0; k < COUNT(documents) && is_own; k++) {
        size_t count = strlen(documents[k].kind);
        if (!begins_with(data, most, value + 9, documents[k].kind, count) ||
            !begins_with(data, most, value + 9 + (int64_t)count, "-", 1))
            continue;
        *name = documents[k].name;
        *remedy = documents[k].remedy;
        return documents[k].format;
    }
    if (!contains(data, length, HEAD_BYTES, "\"computations\"", 14) &&
        !contains(data, length, HEAD_BYTES, "\"hloModule\"", 11))
        return FILE_FORMAT_UNKNOWN;
    *name = "an HLO module";
    return FILE_FORMAT_HLO;
}

static FileFormat find_text(const char *data, int64_t length, const char **name, const char **remedy) {
    int64_t at = after_comments(data, length);
    for (size_t k = 0; k < COUNT(texts); k++) {
        size_t count = strlen(texts[k].word);
        if (!begins_with(data, length, at, texts[k].word, count)) continue;
        char next = at + (int64_t)count < length ? data[at + (int64_t)count] : ' ';
        bool is_word = isalpha((unsigned char)texts[k].word[count - 1]) && texts[k].word[0] != '#';
        if (is_word && (isalnum((unsigned char)next) || next == '_')) continue;
        *name = texts[k].name;
        *remedy = texts[k].remedy;
        return texts[k].format;
    }
    return FILE_FORMAT_UNKNOWN;
}

static bool is_safetensors(const unsigned char *bytes, int64_t length) {
    uint64_t header = 0;
    if (length < 10 || bytes[8] != '{') return false;
    for (int k = 7; k >= 0; k--) header = header << 8 | bytes[k];
    return header >= 2 && header <= (uint64_t)length;
}

/* Recognises jax.export: a flatbuffer (a small offset in its first four bytes) that holds MLIR bytecode. */
static bool is_jax_export(const unsigned char *bytes, int64_t length) {
    return length > 64 && bytes[0] >= 4 && bytes[1] == 0 && bytes[2] == 0 && bytes[3] == 0 &&
           contains((const char *)bytes, length, SEARCHED_BYTES, "ML\xefR", 4);
}

/* Recognises TensorFlow's SavedModel and ONNX, which begin with field 1, a small number, then a message or
 * string as field 2. */
static bool is_varint_message(const unsigned char *bytes, int64_t length) {
    return length > 3 && bytes[0] == 0x08 && bytes[1] < 0x20 && (bytes[2] == 0x12 || bytes[2] == 0x1a);
}

static FileFormat find_signature(const char *data, int64_t length, const char **name, const char **remedy) {
    for (size_t k = 0; k < COUNT(signatures); k++) {
        const Signature *row = &signatures[k];
        if (!begins_with(data, length, row->offset, row->bytes, row->length)) continue;
        *name = row->name;
        *remedy = row->remedy;
        return FILE_FORMAT_OTHER;
    }
    return FILE_FORMAT_UNKNOWN;
}

static FileFormat find_binary(const char *data, int64_t length, const char **name, const char **remedy) {
    const unsigned char *bytes = (const unsigned char *)data;
    *remedy = EXPORT;
    if (begins_with(data, length, 0, "PK\x03\x04", 4)) {
        *name = "a zip archive";
        for (size_t k = 0; k < COUNT(archives); k++) {
            if (!contains(data, length, SEARCHED_BYTES, archives[k].part, strlen(archives[k].part))) continue;
            *name = archives[k].name;
            *remedy = archives[k].remedy;
            break;
        }
        return FILE_FORMAT_OTHER;
    }
    *name = NULL;
    if (length > 2 && bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5 && data[length - 1] == '.')
        *name = "a Python pickle";
    else if (is_safetensors(bytes, length)) {
        *name = "a safetensors file";
        *remedy = ARRAYS;
    } else if (is_jax_export(bytes, length)) {
        *name = "a serialized jax.export module";
        *remedy = LOWER_JAX;
    } else if (is_varint_message(bytes, length)) {
        *name = bytes[1] == 1 && bytes[2] == 0x12 ? "a TensorFlow SavedModel" : "an ONNX model";
    }
    if (*name) return FILE_FORMAT_OTHER;
    if (bytes[0] != 0x0A || length < 3) return FILE_FORMAT_UNKNOWN;
    *name = "a binary HLO module";
    *remedy = NULL;
    return FILE_FORMAT_HLO;
}

static bool is_text(const char *data, int64_t length) {
    int64_t most = length < HEAD_BYTES ? length : HEAD_BYTES;
    for (int64_t k = 0; k < most; k++) {
        unsigned char c = (unsigned char)data[k];
        if (c == 0x7F || (c < ' ' && (c < '\t' || c > '\r'))) return false;
    }
    return true;
}

static FileFormat find_format(const char *data, int64_t length, const char **name, const char **remedy) {
    int64_t mark = file_mark_bytes(data, length);
    *name = *remedy = NULL;
    data += mark;
    length -= mark;
    if (length == 0 || find_signature(data, length, name, remedy) != FILE_FORMAT_UNKNOWN)
        return length == 0 ? FILE_FORMAT_UNKNOWN : FILE_FORMAT_OTHER;
    if (!is_text(data, length)) return find_binary(data, length, name, remedy);
    FileFormat format = find_text(data, length, name, remedy);
    int64_t first = after_space(data, length, 0);
    if (format != FILE_FORMAT_UNKNOWN || first == length || data[first] != '{') return format;
    return find_document(data, length, name, remedy);
}

FileFormat file_format_of(const char *data, int64_t length, const char **name) {
    const char *found, *remedy;
    FileFormat format = find_format(data, length, &found, &remedy);
    if (name) *name = found;
    return format;
}

AmStatus file_format_expect(FileFormat expected, const char *source, const char *data, int64_t length,
                            AmError *error) {
    static const char *const names[] = {[FILE_FORMAT_HLO] = "an HLO module",
                                        [FILE_FORMAT_PLAN] = "a plan",
                                        [FILE_FORMAT_CLUSTER] = "a cluster",
                                        [FILE_FORMAT_ROLES] = "a roles file",
                                        [FILE_FORMAT_PROFILE] = "a profile of measured operators",
                                        [FILE_FORMAT_HINTS] = "hints"};
    const char *name, *remedy;
    FileFormat format = find_format(data, length, &name, &remedy);
    int64_t first = after_space(data, length, file_mark_bytes(data, length));
    bool is_json = first == length || data[first] == '{' || data[first] == '[';
    if (format == FILE_FORMAT_UNKNOWN && expected == FILE_FORMAT_CLUSTER && !is_json)
        return am_fail(error, AM_ERROR_INPUT, source,
                       "expected a cluster in JSON; automap cluster --import reads hostfiles and topologies");
    if (format == FILE_FORMAT_UNKNOWN || format == expected) return AM_OK;
    bool has_remedy = remedy && (expected == FILE_FORMAT_HLO || format != FILE_FORMAT_OTHER);
    return am_fail(error, AM_ERROR_INPUT, source, "this is %s, expected %s%s%s", name, names[expected],
                   has_remedy ? "; " : "", has_remedy ? remedy : "");
}

FileFormat file_format_of_path(const char *path) {
    FileFormat format = FILE_FORMAT_UNKNOWN;
    struct stat facts;
    bool is_regular = stat(path, &facts) == 0 && S_ISREG(facts.st_mode); /* a pipe is not waited for */
    char *data = is_regular ? malloc(PREFIX_BYTES) : NULL;
    FILE *stream = data ? fopen(path, "rb") : NULL;
    if (stream) {
        size_t length = fread(data, 1, PREFIX_BYTES, stream);
        format = file_format_of(data, (int64_t)length, NULL);
        fclose(stream);
    }
    free(data);
    return format;
}
