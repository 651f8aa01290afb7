/* Files of tokens: every format's bytes by hand, and errors with their position. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files/file.h"
#include "base/files/token_file.h"
#include "tests/support/folder_case.h"

static int remove_folder(void **state) {
    (void)state;
    static const char *const names[] = {"a.bin", "a.idx", "a.u16", "a.u32", "a.npy", "a.txt"};
    return remove_files(names, sizeof names / sizeof *names);
}

static void clean(void) {
    unlink(in_folder("a.bin"));
    unlink(in_folder("a.idx"));
}

/* Bytes put together little-endian. */
typedef struct Bytes {
    unsigned char data[8192];
    size_t length;
} Bytes;

static void put(Bytes *bytes, uint64_t value, int width) {
    for (int k = 0; k < width; k++) bytes->data[bytes->length++] = (unsigned char)(value >> (8 * k));
}

static void put_text(Bytes *bytes, const char *text, size_t length) {
    memcpy(bytes->data + bytes->length, text, length);
    bytes->length += length;
}

static void save(const Bytes *bytes, const char *name) {
    assert_int_equal(file_write(in_folder(name), bytes->data, bytes->length, NULL), AM_OK);
}

/* The file holds 10, 11, 12, ... as many as `count`, of `type`. */
static void check_tokens(const char *name, const char *format, Dtype type, int64_t count) {
    TokenFile file;
    AmError error = {0};
    char bytes[8 * 64];
    int64_t tokens[64];
    assert_true(token_file_is(in_folder(name)) || strcmp(format, "numpy") == 0);
    if (token_file_open(&file, in_folder(name), &error) != AM_OK) fail_msg("%s: %s", name, error.text);
    assert_string_equal(file.format, format);
    assert_int_equal(file.type, type);
    assert_int_equal(file.count, count);
    for (int64_t first = 0; first < count; first++) {
        assert_int_equal(token_file_read(&file, first, count - first, 10 + count, bytes, tokens, &error),
                         AM_OK);
        for (int64_t k = 0; k < count - first; k++) assert_int_equal(tokens[k], 10 + first + k);
    }
    token_file_close(&file);
}

static void raw_tokens(void **state) {
    (void)state;
    clean();
    Bytes narrow = {0}, wide = {0};
    for (int k = 0; k < 20; k++) {
        put(&narrow, 10 + (uint64_t)k, 2);
        put(&wide, 10 + (uint64_t)k, 4);
    }
    save(&narrow, "a.bin");
    save(&narrow, "a.u16");
    save(&wide, "a.u32");
    check_tokens("a.bin", "raw", DTYPE_U16, 20);
    check_tokens("a.u16", "raw", DTYPE_U16, 20);
    check_tokens("a.u32", "raw", DTYPE_U32, 20);
}

static void put_llm_header(Bytes *bytes, uint64_t magic, uint64_t version, uint64_t count) {
    put(bytes, magic, 4);
    put(bytes, version, 4);
    put(bytes, count, 4);
    for (int k = 3; k < 256; k++) put(bytes, 0, 4);
}

static void llm_c_tokens(void **state) {
    (void)state;
    static const struct {
        uint64_t magic, version;
        int width;
        Dtype type;
    } kinds[] = {{20240520, 1, 2, DTYPE_U16}, {20240801, 7, 4, DTYPE_U32}};
    clean();
    for (int kind = 0; kind < 2; kind++) {
        Bytes bytes = {0};
        put_llm_header(&bytes, kinds[kind].magic, kinds[kind].version, 30);
        for (uint64_t k = 0; k < 30; k++) put(&bytes, 10 + k, kinds[kind].width);
        save(&bytes, "a.bin");
        check_tokens("a.bin", "llm.c", kinds[kind].type, 30);
    }
}

/* Three documents of 5 + 3, 0 and 4 tokens in four sequences. */
typedef struct Index {
    uint64_t version, code, lengths[4], firsts[4];
    int32_t misplaced; /* a sequence that begins a byte too late; -1: none */
    bool has_modes;
} Index;

static const Index GOOD = {
    .version = 1, .code = 8, .lengths = {5, 3, 0, 4}, .firsts = {0, 2, 3, 4}, .misplaced = -1};

static void save_index(const Index *index, int width) {
    Bytes bytes = {0};
    uint64_t place = 0;
    put_text(&bytes, "MMIDIDX\0", 9);
    put(&bytes, index->version, 8);
    put(&bytes, index->code, 1);
    put(&bytes, 4, 8);
    put(&bytes, 4, 8);
    for (int k = 0; k < 4; k++) put(&bytes, index->lengths[k], 4);
    for (int k = 0; k < 4; k++) {
        put(&bytes, place + (k == index->misplaced ? 1 : 0), 8);
        place += index->lengths[k] * (uint64_t)width;
    }
    for (int k = 0; k < 4; k++) put(&bytes, index->firsts[k], 8);
    for (int k = 0; k < 4 && index->has_modes; k++) put(&bytes, 0, 1);
    save(&bytes, "a.idx");
}

static void save_tokens(int width) {
    Bytes bytes = {0};
    for (uint64_t k = 0; k < 12; k++) put(&bytes, 10 + k, width);
    save(&bytes, "a.bin");
}

static void megatron_tokens(void **state) {
    (void)state;
    static const struct {
        uint64_t code;
        int width;
        Dtype type;
    } kinds[] = {{1, 1, DTYPE_U8},  {2, 1, DTYPE_S8},  {3, 2, DTYPE_S16},
                 {4, 4, DTYPE_S32}, {5, 8, DTYPE_S64}, {8, 2, DTYPE_U16}};
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        Index index = GOOD;
        index.code = kinds[kind].code;
        index.has_modes = kind % 2 == 1;
        save_index(&index, kinds[kind].width);
        save_tokens(kinds[kind].width);
        check_tokens("a.bin", "Megatron", kinds[kind].type, 12);
        check_tokens("a.idx", "Megatron", kinds[kind].type, 12);
        TokenFile file;
        assert_int_equal(token_file_open(&file, in_folder("a.idx"), NULL), AM_OK);
        assert_int_equal(file.documents, 3);
        token_file_close(&file);
    }
    clean();
}

static void numpy_tokens(void **state) {
    (void)state;
    static const char *const dicts[] = {"{'descr': '<i4', 'fortran_order': False, 'shape': (9,)}",
                                        "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 3)}",
                                        "{'descr': '<f4', 'fortran_order': False, 'shape': (9,)}"};
    for (int k = 0; k < 3; k++) {
        Bytes bytes = {0};
        put_text(&bytes, "\x93NUMPY\1\0", 8);
        put(&bytes, strlen(dicts[k]), 2);
        put_text(&bytes, dicts[k], strlen(dicts[k]));
        for (uint64_t i = 0; i < 9; i++) put(&bytes, 10 + i, 4);
        save(&bytes, "a.npy");
        if (k == 0) {
            check_tokens("a.npy", "numpy", DTYPE_S32, 9);
            continue;
        }
        TokenFile file;
        AmError error = {0};
        assert_int_equal(token_file_open(&file, in_folder("a.npy"), &error), AM_ERROR_INPUT);
        assert_non_null(strstr(error.text, "one row of integers"));
    }
}

static void check_refused(const char *name, const char *message) {
    TokenFile file;
    AmError error = {0};
    if (token_file_open(&file, in_folder(name), &error) != AM_ERROR_INPUT) fail_msg("expected: %s", message);
    if (!strstr(error.text, message)) fail_msg("'%s' is not '%s'", error.text, message);
    assert_true(error.source[0] != '\0');
    assert_int_equal(file.file.descriptor, -1);
}

static void bad_raw_files(void **state) {
    (void)state;
    clean();
    Bytes bytes = {0};
    save(&bytes, "a.bin");
    check_refused("a.bin", "is empty");
    put(&bytes, 1, 3);
    save(&bytes, "a.bin");
    check_refused("a.bin", "3 bytes are no whole number of tokens");
    check_refused("none.bin", "cannot be opened");
    assert_false(token_file_is(in_folder("none.bin")));
    save(&bytes, "a.txt");
    assert_false(token_file_is(in_folder("a.txt")));
    bytes = (Bytes){0};
    put_llm_header(&bytes, 20240520, 1, 4);
    put(&bytes, 1, 2);
    save(&bytes, "a.bin");
    check_refused("a.bin",
                  "byte 8: the header counts 4 tokens, which take 1032 bytes, but the file has 1026");
}

static void bad_indices(void **state) {
    (void)state;
    static const struct {
        Index index;
        const char *message;
    } cases[] = {
        {{.version = 2, .code = 8, .misplaced = -1}, "byte 9: version 2, expected 1"},
        {{.version = 1, .code = 6, .misplaced = -1}, "byte 17: type 6 is not one of integers"},
        {{.version = 1, .code = 200, .misplaced = -1}, "byte 17: type 200"},
        {{.version = 1, .code = 8, .lengths = {5, 3, UINT32_MAX, 4}, .misplaced = -1},
         "byte 42: sequence 2 has length -1"},
        {{.version = 1, .code = 8, .lengths = {5, 3, 0, 4}, .misplaced = 1},
         "byte 58: sequence 1 begins at byte 11 of the tokens, expected 10"},
        {{.version = 1, .code = 8, .lengths = {5, 3, 0, 5}, .firsts = {0, 2, 3, 4}, .misplaced = -1},
         "has 24 bytes, but its .idx counts 13 tokens, which take 26"},
        {{.version = 1, .code = 8, .lengths = {5, 3, 0, 4}, .firsts = {0, 3, 2, 4}, .misplaced = -1},
         "byte 98: document 2 begins with sequence 2 of 4"},
        {{.version = 1, .code = 8, .lengths = {5, 3, 0, 4}, .firsts = {0, 2, 3, 5}, .misplaced = -1},
         "byte 106: document 3 begins with sequence 5 of 4"},
    };
    save_tokens(2);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        save_index(&cases[k].index, 2);
        check_refused("a.bin", cases[k].message);
    }
    clean();
}

/* Cut anywhere, the index is refused or it is no index any more; and so with counts that are made up. */
static void truncated_indices(void **state) {
    (void)state;
    save_index(&GOOD, 2);
    save_tokens(2);
    FileBytes whole;
    assert_int_equal(file_read(&whole, in_folder("a.idx"), NULL), AM_OK);
    for (size_t length = 9; length < (size_t)whole.length; length++) {
        assert_int_equal(file_write(in_folder("a.idx"), whole.data, length, NULL), AM_OK);
        check_refused("a.bin", "");
    }
    for (int at = 18; at < 34; at++) {
        char *bytes = malloc((size_t)whole.length);
        memcpy(bytes, whole.data, (size_t)whole.length);
        bytes[at] = (char)0xFF;
        assert_int_equal(file_write(in_folder("a.idx"), bytes, (size_t)whole.length, NULL), AM_OK);
        check_refused("a.bin", "byte 18");
        free(bytes);
    }
    file_release(&whole);
    unlink(in_folder("a.bin"));
    check_refused("a.idx", "cannot be opened");
    clean();
}

static void tokens_beyond_the_vocabulary(void **state) {
    (void)state;
    clean();
    Bytes bytes = {0};
    for (uint64_t k = 0; k < 8; k++) put(&bytes, k == 5 ? 50300 : k, 2);
    save(&bytes, "a.bin");
    TokenFile file;
    AmError error = {0};
    char room[64];
    int64_t tokens[8];
    assert_int_equal(token_file_open(&file, in_folder("a.bin"), &error), AM_OK);
    assert_int_equal(token_file_read(&file, 0, 5, 50257, room, tokens, &error), AM_OK);
    assert_int_equal(token_file_read(&file, 0, 8, 50301, room, tokens, &error), AM_OK);
    assert_int_equal(token_file_read(&file, 3, 4, 50257, room, tokens, &error), AM_ERROR_INPUT);
    assert_non_null(strstr(error.text, "token 5 (byte 10) is 50300, expected 0 to 50256"));
    assert_non_null(strstr(error.source, "a.bin"));
    token_file_close(&file);
}

/* A file that grows or shrinks under the reader. */
static void changing_files(void **state) {
    (void)state;
    clean();
    Bytes bytes = {0};
    for (uint64_t k = 0; k < 100; k++) put(&bytes, k, 2);
    save(&bytes, "a.bin");
    TokenFile file;
    char room[64];
    int64_t tokens[8];
    assert_int_equal(token_file_open(&file, in_folder("a.bin"), NULL), AM_OK);
    for (int k = 0; k < 2; k++) {
        AmError error = {0};
        assert_int_equal(truncate(in_folder("a.bin"), k == 0 ? 150 : 300), 0);
        assert_int_equal(token_file_read(&file, 0, 8, 100, room, tokens, &error), AM_ERROR_RUNTIME);
        assert_non_null(
            strstr(error.text, k == 0 ? "it had 200 bytes and has 150" : "it had 200 bytes and has 300"));
    }
    token_file_close(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(raw_tokens),        cmocka_unit_test(llm_c_tokens),
        cmocka_unit_test(megatron_tokens),   cmocka_unit_test(numpy_tokens),
        cmocka_unit_test(bad_raw_files),     cmocka_unit_test(bad_indices),
        cmocka_unit_test(truncated_indices), cmocka_unit_test(tokens_beyond_the_vocabulary),
        cmocka_unit_test(changing_files),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
