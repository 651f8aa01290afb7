/* Array files: written arrays read back; damaged headers fail cleanly. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zip.h>

#include "base/files/array_file.h"
#include "base/files/file.h"
#include "base/random.h"
#include "tests/support/folder_case.h"

static int remove_folder(void **state) {
    (void)state;
    static const char *const names[] = {"a.npz", "a.npy", "a.safetensors", "damaged"};
    return remove_files(names, sizeof names / sizeof *names);
}

static const float WEIGHTS[6] = {1, -2, 3.5f, INFINITY, 1e-40f, 6};
static const int32_t COUNTER[1] = {-7};
static const uint16_t BRAIN[3] = {0x3F80, 0xC000, 0x7FC1};
static const int64_t MATRIX_SHAPE[2] = {2, 3}, VECTOR_SHAPE[1] = {3}, EMPTY_SHAPE[2] = {0, 5};

static const ArrayToWrite ARRAYS[] = {{"params['w']", DTYPE_F32, 2, MATRIX_SHAPE, WEIGHTS},
                                      {"step", DTYPE_S32, 0, NULL, COUNTER},
                                      {"a/b", DTYPE_BF16, 1, VECTOR_SHAPE, BRAIN},
                                      {"empty", DTYPE_F64, 2, EMPTY_SHAPE, ""}};
enum { ARRAY_COUNT = sizeof ARRAYS / sizeof *ARRAYS };

static void check_arrays(ArrayFile *file) {
    assert_int_equal(file->count, ARRAY_COUNT);
    for (int i = 0; i < ARRAY_COUNT; i++) {
        AmError error = {0};
        const ArrayEntry *entry = array_file_find(file, ARRAYS[i].name);
        assert_non_null(entry);
        assert_int_equal(entry->type, ARRAYS[i].type);
        assert_int_equal(entry->rank, ARRAYS[i].rank);
        if (entry->rank)
            assert_memory_equal(entry->dimensions, ARRAYS[i].dimensions, 8 * (size_t)entry->rank);
        unsigned char data[64];
        assert_int_equal(array_file_read(file, entry, data, &error), AM_OK);
        assert_memory_equal(data, ARRAYS[i].data, (size_t)entry->bytes);
    }
    assert_null(array_file_find(file, "none"));
}

static void written_files_read_back(void **state) {
    (void)state;
    static const char *const names[] = {"a.npz", "a.safetensors"};
    static const char *const metadata[] = {"step", "20", "format", "automap", NULL};
    for (int i = 0; i < 2; i++) {
        AmError error = {0};
        ArrayFile file;
        assert_int_equal(array_file_write(in_folder(names[i]), ARRAYS, ARRAY_COUNT, metadata, &error), AM_OK);
        assert_int_equal(array_file_open(&file, in_folder(names[i]), &error), AM_OK);
        check_arrays(&file);
        if (i == 1) {
            assert_string_equal(file.metadata[0], "step");
            assert_string_equal(file.metadata[3], "automap");
            assert_null(file.metadata[4]);
        }
        array_file_close(&file);
    }
}

static void writing_twice_gives_equal_bytes(void **state) {
    (void)state;
    static const char *const names[] = {"a.npz", "a.safetensors"};
    for (int i = 0; i < 2; i++) {
        AmError error = {0};
        FileBytes first, second;
        assert_int_equal(array_file_write(in_folder(names[i]), ARRAYS, ARRAY_COUNT, NULL, &error), AM_OK);
        assert_int_equal(file_read(&first, in_folder(names[i]), &error), AM_OK);
        assert_int_equal(array_file_write(in_folder(names[i]), ARRAYS, ARRAY_COUNT, NULL, &error), AM_OK);
        assert_int_equal(file_read(&second, in_folder(names[i]), &error), AM_OK);
        assert_int_equal(first.length, second.length);
        assert_memory_equal(first.data, second.data, (size_t)first.length);
        file_release(&first);
        file_release(&second);
    }
}

static void refused_writes(void **state) {
    (void)state;
    AmError error = {0};
    ArrayToWrite same_name[] = {ARRAYS[0], ARRAYS[0]};
    assert_int_equal(array_file_write(in_folder("a.txt"), ARRAYS, 1, NULL, &error), AM_ERROR_USAGE);
    assert_int_equal(array_file_write(in_folder("a.safetensors"), same_name, 2, NULL, &error),
                     AM_ERROR_USAGE);
    assert_int_equal(array_file_write(in_folder("a.npz"), same_name, 2, NULL, &error), AM_ERROR_USAGE);
    assert_int_equal(array_file_write(in_folder("none/a.npz"), ARRAYS, 1, NULL, &error), AM_ERROR_USAGE);
}

/* Writes a .npy with this dict and data, and opens it. */
static AmStatus open_npy(ArrayFile *file, int version, const char *dict, const void *data, size_t bytes,
                         AmError *error) {
    char content[512] = "\x93NUMPY";
    size_t length = strlen(dict), at = version > 1 ? 12 : 10;
    content[6] = (char)version;
    content[8] = (char)length;
    memcpy(content + at, dict, length);
    memcpy(content + at + length, data, bytes);
    AmError write_error = {0};
    assert_int_equal(file_write(in_folder("a.npy"), content, at + length + bytes, &write_error), AM_OK);
    return array_file_open(file, in_folder("a.npy"), error);
}

static void npy_versions_and_column_major(void **state) {
    (void)state;
    static const int16_t columns[6] = {1, 4, 2, 5, 3, 6};
    for (int version = 1; version <= 3; version++) {
        ArrayFile file;
        AmError error = {0};
        assert_int_equal(open_npy(&file, version,
                                  "{'descr': '<i2', 'fortran_order': True, 'shape': (2, 3), }\n", columns,
                                  sizeof columns, &error),
                         AM_OK);
        assert_string_equal(file.entries[0].name, "a");
        int16_t rows[6];
        assert_int_equal(array_file_read(&file, &file.entries[0], rows, &error), AM_OK);
        for (int i = 0; i < 6; i++) assert_int_equal(rows[i], i + 1);
        array_file_close(&file);
    }
}

static void npy_types(void **state) {
    (void)state;
    static const struct {
        const char *description;
        Dtype type;
    } cases[] = {{"'<V2'", DTYPE_BF16},     {"'|V2'", DTYPE_BF16},
                 {"'|V1'", DTYPE_F8E4M3FN}, {"'|b1'", DTYPE_PRED},
                 {"'|i1'", DTYPE_S8},       {"'<f2'", DTYPE_F16},
                 {"'<c8'", DTYPE_C64},      {"'<U1'", DTYPE_INVALID},
                 {"'|O'", DTYPE_INVALID},   {"[('x', '<f4')]", DTYPE_INVALID}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dict[128];
        snprintf(dict, sizeof dict, "{\"descr\": %s, 'fortran_order': False, 'shape': (1,)}",
                 cases[i].description);
        ArrayFile file;
        AmError error = {0};
        assert_int_equal(open_npy(&file, 1, dict, "12345678", (size_t)dtype_bytes(cases[i].type), &error),
                         AM_OK);
        assert_int_equal(file.entries[0].type, cases[i].type);
        char data[8];
        AmStatus expected = cases[i].type == DTYPE_INVALID ? AM_ERROR_INPUT : AM_OK;
        assert_int_equal(array_file_read(&file, &file.entries[0], data, &error), expected);
        array_file_close(&file);
    }
}

static void bad_npy_headers(void **state) {
    (void)state;
    static const char *const bad[] = {
        "{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4",
        "{'descr': [[[[",
        "",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ArrayFile file;
        AmError error = {0};
        assert_int_equal(open_npy(&file, 1, bad[i], "1234", 4, &error), AM_ERROR_INPUT);
        assert_true(error.text[0] != '\0');
        assert_null(file.handle);
    }
}

static AmStatus open_safetensors(ArrayFile *file, const char *header, size_t data_bytes, AmError *error) {
    char content[1024] = {0};
    size_t length = strlen(header);
    content[0] = (char)length;
    content[1] = (char)(length >> 8);
    memcpy(content + 8, header, length);
    AmError write_error = {0};
    assert_int_equal(file_write(in_folder("a.safetensors"), content, 8 + length + data_bytes, &write_error),
                     AM_OK);
    return array_file_open(file, in_folder("a.safetensors"), error);
}

static void bad_safetensors_headers(void **state) {
    (void)state;
    static const struct {
        const char *header, *message;
    } bad[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}",
         "4 bytes, but type and shape take 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "a hole or an overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         "8 bytes of data, but the arrays take 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", "outside the data"},
        {"{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", "unknown type 'F31'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "sizes from 0 up"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", "sizes from 0 up"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807,8],\"data_offsets\":[0,8]}}",
         "sizes from 0 up"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", "unknown key"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", "two integers"},
        {"{\"a\":3}", "expected an object"},
        {"{\"__metadata__\":{\"a\":1}}", "expected a string"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":"
         "[1],\"data_"
         "offsets\":[4,8]}}",
         "duplicate"},
        {"{\"a\":", "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ArrayFile file;
        AmError error = {0};
        assert_int_equal(open_safetensors(&file, bad[i].header, 8, &error), AM_ERROR_INPUT);
        if (!strstr(error.text, bad[i].message)) fail_msg("case %zu: %s", i, error.text);
    }
    ArrayFile file;
    AmError error = {0};
    assert_int_equal(open_safetensors(&file,
                                      "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}   ",
                                      8, &error),
                     AM_OK);
    array_file_close(&file);
}

/* Any damage may be noticed or not, but nothing crashes, hangs or allocates
 * by an absurd number. */
static void damaged_files_never_crash(void **state) {
    (void)state;
    static const char *const names[] = {"a.npz", "a.safetensors"};
    Random random;
    random_seed(&random, 1);
    for (int i = 0; i < 2; i++) {
        AmError error = {0};
        FileBytes good;
        assert_int_equal(array_file_write(in_folder(names[i]), ARRAYS, ARRAY_COUNT, NULL, &error), AM_OK);
        assert_int_equal(file_read(&good, in_folder(names[i]), &error), AM_OK);
        char *bytes = malloc((size_t)good.length);
        for (int round = 0; round < 1500; round++) {
            memcpy(bytes, good.data, (size_t)good.length);
            size_t length = round % 3 ? (size_t)good.length : (size_t)random_below(&random, good.length);
            for (int k = 0; k < 3 && length > 0; k++) {
                bytes[random_below(&random, (int64_t)length)] = (char)random_bits(&random);
            }
            error = (AmError){0};
            assert_int_equal(file_write(in_folder("damaged"), bytes, length, &error), AM_OK);
            ArrayFile file;
            if (array_file_open(&file, in_folder("damaged"), &error) != AM_OK) continue;
            for (int32_t k = 0; k < file.count; k++) {
                assert_true(file.entries[k].bytes <= good.length * 1100);
                char *data = malloc((size_t)file.entries[k].bytes + 1);
                array_file_read(&file, &file.entries[k], data, &error);
                free(data);
            }
            array_file_close(&file);
        }
        free(bytes);
        file_release(&good);
    }
}

/* Deflated entries, as numpy's savez_compressed makes them. */
static void deflated_entries_are_read(void **state) {
    (void)state;
    static char zeros[100000];
    static const int64_t shape[1] = {100000};
    ArrayToWrite array = {"zeros", DTYPE_U8, 1, shape, zeros};
    AmError error = {0};
    assert_int_equal(array_file_write(in_folder("a.npz"), &array, 1, NULL, &error), AM_OK);
    int code;
    zip_t *archive = zip_open(in_folder("a.npz"), 0, &code);
    zip_set_file_compression(archive, 0, ZIP_CM_DEFLATE, 9);
    assert_int_equal(zip_close(archive), 0);
    ArrayFile file;
    assert_int_equal(array_file_open(&file, in_folder("a.npz"), &error), AM_OK);
    assert_true(file.entries[0].bytes == 100000);
    char *data = malloc(100000);
    data[99999] = 1;
    assert_int_equal(array_file_read(&file, &file.entries[0], data, &error), AM_OK);
    assert_memory_equal(data, zeros, 100000);
    free(data);
    array_file_close(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_files_read_back),
        cmocka_unit_test(writing_twice_gives_equal_bytes),
        cmocka_unit_test(refused_writes),
        cmocka_unit_test(npy_versions_and_column_major),
        cmocka_unit_test(npy_types),
        cmocka_unit_test(bad_npy_headers),
        cmocka_unit_test(bad_safetensors_headers),
        cmocka_unit_test(damaged_files_never_crash),
        cmocka_unit_test(deflated_entries_are_read),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
