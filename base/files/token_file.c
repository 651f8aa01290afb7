/* Reads files of tokens: raw integers, NumPy arrays, and Megatron's .bin with .idx.
 *
 * Megatron's .idx is "MMIDIDX\0\0", u64 1, u8 type, u64 sequences, u64 documents + 1, and three lists. They
 * are the length of each sequence (i32), its first byte in the .bin (i64), and the sequence with which each
 * document begins (i64), the last one past the end. Some have a byte for each sequence after that. Sequences
 * lie one after the other, which is checked piece by piece, so that the index takes no memory however many
 * there are.
 */
#define _POSIX_C_SOURCE 200809L
#include "base/files/token_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/array_file.h"
#include "base/files/array_rows.h"
#include "base/files/little_endian.h"
#include "base/suffix.h"

enum { LLM_C_HEADER = 1024, INDEX_HEADER = 34, INDEX_PIECE = 4096 };

static const char MEGATRON_MAGIC[] = "MMIDIDX\0"; /* nine bytes with the last NUL */

/* Reads the first bytes of a file, with zeros after its end. False: it cannot be read. */
static bool read_start(const char *path, unsigned char *start, int64_t bytes) {
    FileParts file;
    memset(start, 0, (size_t)bytes);
    if (file_parts_open(&file, path, NULL) != AM_OK) return false;
    bool good = file_parts_read(&file, 0, bytes < file.bytes ? bytes : file.bytes, start, NULL) == AM_OK;
    file_parts_close(&file);
    return good;
}

/* Sets the ending of a path, in place of one of four characters. */
static void set_ending(char *path, const char ending[5]) {
    memcpy(path + strlen(path) - 4, ending, 5);
}

/* Returns NAME.idx beside NAME.bin, if it is Megatron's, on the C heap; or NULL. */
static char *find_index(const char *path) {
    unsigned char start[9];
    if (!has_suffix(path, ".bin") && !has_suffix(path, ".idx")) return NULL;
    char *index = strdup(path);
    if (!index) return NULL;
    set_ending(index, ".idx");
    if (read_start(index, start, sizeof start) && memcmp(start, MEGATRON_MAGIC, sizeof start) == 0)
        return index;
    free(index);
    return NULL;
}

/* llm.c's two kinds of file. */
typedef struct LlmHeader {
    uint64_t magic, version;
    Dtype type;
} LlmHeader;

static const LlmHeader LLM_HEADERS[] = {{20240520, 1, DTYPE_U16}, {20240801, 7, DTYPE_U32}};

static const LlmHeader *find_llm_header(const unsigned char *start) {
    for (size_t k = 0; k < sizeof LLM_HEADERS / sizeof *LLM_HEADERS; k++)
        if (little_endian_read(start, 4) == LLM_HEADERS[k].magic &&
            little_endian_read(start + 4, 4) == LLM_HEADERS[k].version)
            return &LLM_HEADERS[k];
    return NULL;
}

bool token_file_is(const char *path) {
    static const char *const suffixes[] = {".bin", ".idx", ".u16", ".u32"};
    unsigned char start[16];
    if (!read_start(path, start, sizeof start)) return false;
    if (memcmp(start, MEGATRON_MAGIC, 9) == 0 || find_llm_header(start)) return true;
    if (memcmp(start, "PK\3\4", 4) == 0 || memcmp(start, "\x93NUMPY", 6) == 0) return false;
    for (size_t k = 0; k < sizeof suffixes / sizeof *suffixes; k++)
        if (has_suffix(path, suffixes[k])) return true;
    return false;
}

static AmStatus open_llm(TokenFile *file, const unsigned char *start, const LlmHeader *header,
                         AmError *error) {
    file->format = "llm.c";
    file->type = header->type;
    file->start = LLM_C_HEADER;
    file->count = (int64_t)little_endian_read(start + 8, 4);
    int64_t expected = LLM_C_HEADER + file->count * dtype_bytes(file->type);
    if (file->count <= INT32_MAX && expected == file->file.bytes) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, file->path,
                   "byte 8: the header counts %" PRId64 " tokens, which take %" PRId64
                   " bytes, but the file has %" PRId64,
                   file->count, expected, file->file.bytes);
}

static AmStatus open_raw(TokenFile *file, AmError *error) {
    file->format = "raw";
    file->type = has_suffix(file->path, ".u32") ? DTYPE_U32 : DTYPE_U16;
    int64_t width = dtype_bytes(file->type);
    file->count = file->file.bytes / width;
    if (file->file.bytes % width == 0) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, file->path,
                   "%" PRId64 " bytes are no whole number of tokens of %" PRId64 " bytes: truncated?",
                   file->file.bytes, width);
}

/* Lengths and places of the sequences, a piece at a time. `*tokens`: their sum. */
static AmStatus check_sequences(const FileParts *index, int64_t sequences, int64_t width, int64_t *tokens,
                                AmError *error) {
    unsigned char lengths[INDEX_PIECE * 4], places[INDEX_PIECE * 8];
    *tokens = 0;
    for (int64_t k = 0; k < sequences; k++) {
        int64_t at = k % INDEX_PIECE, left = sequences - k;
        if (at == 0) {
            int64_t part = left < INDEX_PIECE ? left : INDEX_PIECE;
            TRY(file_parts_read(index, INDEX_HEADER + 4 * k, part * 4, lengths, error));
            TRY(file_parts_read(index, INDEX_HEADER + 4 * sequences + 8 * k, part * 8, places, error));
        }
        int32_t length = (int32_t)little_endian_read(lengths + at * 4, 4);
        int64_t place = (int64_t)little_endian_read(places + at * 8, 8);
        if (length < 0)
            return am_fail(error, AM_ERROR_INPUT, index->path,
                           "byte %" PRId64 ": sequence %" PRId64 " has length %" PRId32, INDEX_HEADER + 4 * k,
                           k, length);
        if (place != *tokens * width)
            return am_fail(error, AM_ERROR_INPUT, index->path,
                           "byte %" PRId64 ": sequence %" PRId64 " begins at byte %" PRId64
                           " of the tokens, expected %" PRId64,
                           INDEX_HEADER + 4 * sequences + 8 * k, k, place, *tokens * width);
        *tokens += length;
    }
    return AM_OK;
}

static AmStatus check_documents(const FileParts *index, int64_t start, int64_t documents, int64_t sequences,
                                AmError *error) {
    unsigned char firsts[INDEX_PIECE * 8];
    int64_t before = 0;
    for (int64_t k = 0; k < documents; k++) {
        int64_t at = k % INDEX_PIECE, left = documents - k;
        if (at == 0)
            TRY(file_parts_read(index, start + 8 * k, (left < INDEX_PIECE ? left : INDEX_PIECE) * 8, firsts,
                                error));
        int64_t first = (int64_t)little_endian_read(firsts + at * 8, 8);
        if (first < before || first > sequences || (k == 0 && first != 0) ||
            (k == documents - 1 && first != sequences))
            return am_fail(error, AM_ERROR_INPUT, index->path,
                           "byte %" PRId64 ": document %" PRId64 " begins with sequence %" PRId64
                           " of %" PRId64,
                           start + 8 * k, k, first, sequences);
        before = first;
    }
    return AM_OK;
}

static AmStatus open_megatron(TokenFile *file, const char *index_path, AmError *error) {
    FileParts index;
    TRY(file_parts_open(&index, index_path, error));
    file->format = "Megatron";
    AmStatus status = AM_OK;
    static const Dtype types[] = {DTYPE_INVALID, DTYPE_U8,  DTYPE_S8,  DTYPE_S16, DTYPE_S32,
                                  DTYPE_S64,     DTYPE_F64, DTYPE_F32, DTYPE_U16};
    unsigned char header[INDEX_HEADER];
    if (index.bytes < INDEX_HEADER)
        TRY_OR_FAIL(am_fail(error, AM_ERROR_INPUT, index.path,
                            "%" PRId64 " bytes: truncated, its header has %d", index.bytes, INDEX_HEADER));
    TRY_OR_FAIL(file_parts_read(&index, 0, INDEX_HEADER, header, error));
    if (little_endian_read(header + 9, 8) != 1)
        TRY_OR_FAIL(am_fail(error, AM_ERROR_INPUT, index.path, "byte 9: version %" PRIu64 ", expected 1",
                            little_endian_read(header + 9, 8)));
    unsigned code = header[17];
    file->type = code < sizeof types / sizeof *types ? types[code] : DTYPE_INVALID;
    if (!dtype_is_integer(file->type))
        TRY_OR_FAIL(
            am_fail(error, AM_ERROR_INPUT, index.path, "byte 17: type %u is not one of integers", code));
    uint64_t sequences = little_endian_read(header + 18, 8), documents = little_endian_read(header + 26, 8);
    uint64_t most = (uint64_t)index.bytes / 8;
    bool fits = sequences <= most && documents <= most;
    int64_t firsts = fits ? INDEX_HEADER + 12 * (int64_t)sequences : 0;
    int64_t end = fits ? firsts + 8 * (int64_t)documents : 0;
    if (!fits || (end != index.bytes && end + (int64_t)sequences != index.bytes))
        TRY_OR_FAIL(am_fail(error, AM_ERROR_INPUT, index.path,
                            "byte 18: %" PRIu64 " sequences and %" PRIu64
                            " documents do not take its %" PRId64 " bytes",
                            sequences, documents, index.bytes));
    file->documents = documents > 0 ? (int64_t)documents - 1 : 0;
    TRY_OR_FAIL(check_sequences(&index, (int64_t)sequences, dtype_bytes(file->type), &file->count, error));
    status = check_documents(&index, firsts, (int64_t)documents, (int64_t)sequences, error);
fail:
    file_parts_close(&index);
    TRY(status);
    int64_t expected = file->count * dtype_bytes(file->type);
    if (expected == file->file.bytes) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, file->path,
                   "has %" PRId64 " bytes, but its .idx counts %" PRId64 " tokens, which take %" PRId64,
                   file->file.bytes, file->count, expected);
}

/* Opens a NumPy file: the tokens are the bytes of its array. */
static AmStatus open_numpy(TokenFile *file, AmError *error) {
    ArrayFile arrays;
    ArrayRows rows = {.file = {.descriptor = -1}};
    TRY(array_file_open(&arrays, file->path, error));
    const ArrayEntry *entry = &arrays.entries[0];
    AmStatus status = AM_OK;
    if (arrays.count != 1 || entry->rank != 1 || !dtype_is_integer(entry->type)) {
        status = am_fail(error, AM_ERROR_INPUT, file->path, "is not one row of integers, as tokens are");
        goto fail;
    }
    TRY_OR_FAIL(array_rows_open(&rows, &arrays, entry, entry->dimensions[0], error));
    file_parts_close(&file->file);
    file->file = rows.file;
    file->file.path = file->path;
    rows.file.descriptor = -1;
    file->format = "numpy";
    file->type = entry->type;
    file->start = rows.start;
    file->count = rows.rows;
fail:
    array_rows_close(&rows);
    array_file_close(&arrays);
    return status;
}

AmStatus token_file_open(TokenFile *file, const char *path, AmError *error) {
    *file = (TokenFile){.file = {.descriptor = -1}};
    char *index = find_index(path);
    file->path = strdup(path);
    if (!file->path) {
        free(index);
        return am_fail_memory(error, (int64_t)strlen(path));
    }
    if (index) set_ending(file->path, ".bin");
    AmStatus status = AM_OK;
    unsigned char start[16];
    TRY_OR_FAIL(file_parts_open(&file->file, file->path, error));
    if (file->file.bytes == 0)
        TRY_OR_FAIL(am_fail(error, AM_ERROR_INPUT, file->path, "is empty, expected tokens"));
    if (!index && !read_start(file->path, start, sizeof start))
        TRY_OR_FAIL(am_fail(error, AM_ERROR_INPUT, file->path, "cannot be read"));
    const LlmHeader *header = index ? NULL : find_llm_header(start);
    if (index) status = open_megatron(file, index, error);
    else if (header) status = open_llm(file, start, header, error);
    else if (memcmp(start, "\x93NUMPY", 6) == 0) status = open_numpy(file, error);
    else if (has_suffix(file->path, ".idx"))
        status = am_fail(error, AM_ERROR_INPUT, file->path, "byte 0: is no index of Megatron's ('MMIDIDX')");
    else status = open_raw(file, error);
fail:
    free(index);
    if (status != AM_OK) token_file_close(file);
    return status;
}

void token_file_close(TokenFile *file) {
    file_parts_close(&file->file);
    free(file->path);
    *file = (TokenFile){.file = {.descriptor = -1}};
}

static int64_t value_of(const unsigned char *at, Dtype type) {
    int64_t bits = dtype_bits(type);
    uint64_t value = little_endian_read(at, (int)(bits / 8));
    if (!dtype_is_signed(type) || bits == 64) return (int64_t)value;
    return (int64_t)(value << (64 - bits)) >> (64 - bits);
}

AmStatus token_file_read(const TokenFile *file, int64_t first, int64_t count, int64_t limit, void *bytes,
                         int64_t *tokens, AmError *error) {
    int64_t width = dtype_bytes(file->type), place = file->start + first * width;
    TRY(file_parts_read(&file->file, place, count * width, bytes, error));
    for (int64_t k = 0; k < count; k++) {
        int64_t token = value_of((const unsigned char *)bytes + k * width, file->type);
        tokens[k] = token;
        if (token >= 0 && (limit == 0 || token < limit)) continue;
        return am_fail(error, AM_ERROR_INPUT, file->path,
                       "token %" PRId64 " (byte %" PRId64 ") is %" PRId64 ", expected 0 to %" PRId64,
                       first + k, place + k * width, token, (limit ? limit : INT64_MAX) - 1);
    }
    return AM_OK;
}
