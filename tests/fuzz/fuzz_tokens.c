/* Files of tokens: raw, llm.c, a .npy, and Megatron's index.
 *
 * The first byte of the input says which: 0 to 2 are the suffixes of one file; 3 is an index, the
 * rest of whose bytes is split into NAME.idx and NAME.bin by the two that follow. What is
 * opened is read to its end.
 */
#define _XOPEN_SOURCE 700
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files/token_file.h"
#include "tests/fuzz/fuzz.h"

static char folder[] = "/tmp/automap_fuzz_XXXXXX";
static const char *const suffixes[] = {"bin", "u32", "npy", "idx"};

static const char *path_of(const char *suffix) {
    static char path[64];
    snprintf(path, sizeof path, "%s/a.%s", folder, suffix);
    return path;
}

static void remove_all(void) {
    for (int k = 0; k < 4; k++) unlink(path_of(suffixes[k]));
}

static void leave(void) {
    remove_all();
    rmdir(folder);
}

static void save(const char *suffix, const uint8_t *data, size_t size) {
    FILE *stream = fopen(path_of(suffix), "wb");
    fuzz_check(stream && fwrite(data, 1, size, stream) == size && fclose(stream) == 0, "writing the input",
               NULL);
}

static void read_all(const char *suffix) {
    enum { PIECE = 256 };
    TokenFile file;
    AmError error = {0};
    int64_t tokens[PIECE], bytes[PIECE];
    (void)token_file_is(path_of(suffix));
    if (token_file_open(&file, path_of(suffix), &error) != AM_OK) {
        fuzz_check(error.text[0], "a refusal without words", NULL);
        return;
    }
    int64_t width = dtype_bytes(file.type);
    fuzz_check(file.count >= 0 && file.start + file.count * width <= file.file.bytes,
               "more tokens than bytes", NULL);
    for (int64_t first = 0; first < file.count; first += PIECE) {
        int64_t count = file.count - first < PIECE ? file.count - first : PIECE;
        AmStatus status = token_file_read(&file, first, count, 0, bytes, tokens, &error);
        fuzz_check(status == AM_OK || status == AM_ERROR_INPUT, "reading", &error);
        if (status != AM_OK) break;
    }
    token_file_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool has_folder;
    if (!has_folder) {
        fuzz_check(mkdtemp(folder) != NULL, "a folder", NULL);
        atexit(leave);
    }
    has_folder = true;
    if (size < 3) return 0;
    int kind = data[0] % 4;
    size_t split = (size_t)data[1] | (size_t)data[2] << 8, rest = size - 3;
    if (split > rest) split = rest;
    remove_all();
    if (kind == 3) save("bin", data + 3 + split, rest - split);
    save(suffixes[kind], data + 3, kind == 3 ? split : rest);
    read_all(suffixes[kind]);
    return 0;
}
