/* Rows of arrays in files: any rows, in any order, are those of the array as a whole. */
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
#include <zip.h>

#include "base/files/array_rows.h"
#include "base/files/file.h"
#include "base/files/zip_place.h"
#include "tests/support/folder_case.h"

static int remove_folder(void **state) {
    (void)state;
    static const char *const names[] = {"a.npz", "a.npy", "a.safetensors"};
    return remove_files(names, sizeof names / sizeof *names);
}

enum { ROWS = 60, COLUMNS = 7 };
static int32_t values[ROWS * COLUMNS];
static const int64_t SHAPE[2] = {ROWS, COLUMNS}, OTHER_SHAPE[1] = {5};
static const ArrayToWrite ARRAYS[] = {{"before", DTYPE_S32, 1, OTHER_SHAPE, values},
                                      {"x", DTYPE_S32, 2, SHAPE, values}};

static void fill(void) {
    for (int k = 0; k < ROWS * COLUMNS; k++) values[k] = k * 3 + 1;
}

/* x in 60 rows of 7 elements, in 30 of 14 and in 420 of one. */
static void check_rows(const char *name) {
    static const int64_t cuts[] = {ROWS, ROWS / 2, ROWS * COLUMNS};
    ArrayFile file;
    AmError error = {0};
    int32_t data[ROWS * COLUMNS];
    if (array_file_open(&file, in_folder(name), &error) != AM_OK) fail_msg("%s", error.text);
    const ArrayEntry *entry = array_file_find(&file, "x");
    if (!entry) entry = &file.entries[0];
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        ArrayRows rows;
        if (array_rows_open(&rows, &file, entry, cuts[c], &error) != AM_OK) fail_msg("%s", error.text);
        int64_t width = ROWS * COLUMNS / cuts[c];
        assert_int_equal(rows.row_bytes, width * 4);
        for (int64_t first = cuts[c] - 1; first >= 0; first -= 7) {
            int64_t count = cuts[c] - first < 3 ? cuts[c] - first : 3;
            assert_int_equal(array_rows_read(&rows, first, count, data, &error), AM_OK);
            assert_memory_equal(data, values + first * width, (size_t)(count * width) * 4);
        }
        array_rows_close(&rows);
    }
    array_file_close(&file);
}

static void safetensors_rows(void **state) {
    (void)state;
    assert_int_equal(array_file_write(in_folder("a.safetensors"), ARRAYS, 2, NULL, NULL), AM_OK);
    check_rows("a.safetensors");
}

static void deflate_all(void) {
    int code;
    zip_t *archive = zip_open(in_folder("a.npz"), 0, &code);
    assert_non_null(archive);
    for (uint64_t k = 0; k < 2; k++) zip_set_file_compression(archive, k, ZIP_CM_DEFLATE, 9);
    assert_int_equal(zip_close(archive), 0);
}

static void npz_rows(void **state) {
    (void)state;
    assert_int_equal(array_file_write(in_folder("a.npz"), ARRAYS, 2, NULL, NULL), AM_OK);
    check_rows("a.npz");
    deflate_all();
    check_rows("a.npz");
}

/* The same file, with the checksum's claim or the data itself damaged: found when it is unpacked. */
static void damaged_npz(void **state) {
    (void)state;
    FileBytes bytes;
    assert_int_equal(array_file_write(in_folder("a.npz"), ARRAYS, 2, NULL, NULL), AM_OK);
    assert_int_equal(file_read(&bytes, in_folder("a.npz"), NULL), AM_OK);
    int64_t at = 0;
    while (memcmp(bytes.data + at, values, sizeof values) != 0) at++;
    bytes.data[at + 100] ^= 4;
    assert_int_equal(file_write(in_folder("a.npz"), bytes.data, (size_t)bytes.length, NULL), AM_OK);
    file_release(&bytes);
    ArrayFile file;
    ArrayRows rows;
    AmError error = {0};
    assert_int_equal(array_file_open(&file, in_folder("a.npz"), &error), AM_OK);
    assert_int_equal(array_rows_open(&rows, &file, array_file_find(&file, "x"), ROWS, &error),
                     AM_ERROR_INPUT);
    assert_int_equal(rows.file.descriptor, -1);
    array_file_close(&file);
}

/* Writes `values` as a .npy, column-major or not, of this shape. */
static void save_npy(int version, const char *shape, const int32_t *data) {
    char content[4096] = "\x93NUMPY", dict[256];
    snprintf(dict, sizeof dict, "{'descr': '<i4', 'fortran_order': %s, 'shape': %s, }\n",
             data == values ? "False" : "True", shape);
    size_t length = strlen(dict), at = version > 1 ? 12 : 10;
    content[6] = (char)version;
    content[8] = (char)length;
    memcpy(content + at, dict, length);
    memcpy(content + at + length, data, sizeof values);
    assert_int_equal(file_write(in_folder("a.npy"), content, at + length + sizeof values, NULL), AM_OK);
}

static void npy_rows_of_all_versions(void **state) {
    (void)state;
    int32_t turned[ROWS * COLUMNS];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) turned[c * ROWS + r] = values[r * COLUMNS + c];
    for (int version = 1; version <= 3; version++) {
        save_npy(version, "(60, 7)", values);
        check_rows("a.npy");
        save_npy(version, "(60, 7)", turned);
        check_rows("a.npy");
    }
}

static void column_major_of_three_dimensions(void **state) {
    (void)state;
    int32_t turned[ROWS * COLUMNS];
    for (int i = 0; i < 10; i++)
        for (int j = 0; j < 6; j++)
            for (int k = 0; k < 7; k++) turned[i + 10 * (j + 6 * k)] = values[(i * 6 + j) * 7 + k];
    save_npy(1, "(10, 6, 7)", turned);
    check_rows("a.npy");
}

static void change_while_reading(void **state) {
    (void)state;
    ArrayFile file;
    ArrayRows rows;
    AmError error = {0};
    int32_t data[COLUMNS];
    assert_int_equal(array_file_write(in_folder("a.safetensors"), ARRAYS, 2, NULL, NULL), AM_OK);
    assert_int_equal(array_file_open(&file, in_folder("a.safetensors"), NULL), AM_OK);
    assert_int_equal(array_rows_open(&rows, &file, array_file_find(&file, "x"), ROWS, NULL), AM_OK);
    assert_int_equal(array_rows_read(&rows, 3, 1, data, &error), AM_OK);
    assert_int_equal(truncate(in_folder("a.safetensors"), 200), 0);
    assert_int_equal(array_rows_read(&rows, 3, 1, data, &error), AM_ERROR_RUNTIME);
    assert_non_null(strstr(error.text, "has changed while it was read"));
    array_rows_close(&rows);
    array_file_close(&file);
}

/* Checks the bytes at the offsets of entries that libzip reports as stored; a deflated entry has no
 * offset. */
static void places_in_archives(void **state) {
    (void)state;
    FileParts file;
    int64_t place, length;
    int32_t data[ROWS * COLUMNS];
    assert_int_equal(array_file_write(in_folder("a.npz"), ARRAYS, 2, NULL, NULL), AM_OK);
    assert_int_equal(file_parts_open(&file, in_folder("a.npz"), NULL), AM_OK);
    assert_true(zip_find_stored(&file, 1, &place, &length));
    assert_true(length > (int64_t)sizeof values);
    int64_t at = place + length - (int64_t)sizeof values;
    assert_int_equal(file_parts_read(&file, at, sizeof values, data, NULL), AM_OK);
    assert_memory_equal(data, values, sizeof values);
    assert_false(zip_find_stored(&file, 2, &place, &length));
    file_parts_close(&file);
    deflate_all();
    assert_int_equal(file_parts_open(&file, in_folder("a.npz"), NULL), AM_OK);
    assert_false(zip_find_stored(&file, 1, &place, &length));
    file_parts_close(&file);
}

/* Whatever byte of the archive's own records is damaged, a place that is found lies inside of the file. */
static void damaged_archives(void **state) {
    (void)state;
    FileBytes bytes;
    assert_int_equal(array_file_write(in_folder("a.npz"), ARRAYS, 2, NULL, NULL), AM_OK);
    assert_int_equal(file_read(&bytes, in_folder("a.npz"), NULL), AM_OK);
    for (int64_t at = bytes.length - 200; at < bytes.length; at++) {
        for (int bit = 0; bit < 8; bit += 7) {
            FileParts file;
            int64_t place, length;
            bytes.data[at] ^= (char)(1 << bit);
            assert_int_equal(file_write(in_folder("a.npz"), bytes.data, (size_t)bytes.length, NULL), AM_OK);
            bytes.data[at] ^= (char)(1 << bit);
            assert_int_equal(file_parts_open(&file, in_folder("a.npz"), NULL), AM_OK);
            if (zip_find_stored(&file, 1, &place, &length))
                assert_true(place >= 0 && length >= 0 && place + length <= file.bytes);
            file_parts_close(&file);
        }
    }
    file_release(&bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(safetensors_rows),
        cmocka_unit_test(npz_rows),
        cmocka_unit_test(damaged_npz),
        cmocka_unit_test(npy_rows_of_all_versions),
        cmocka_unit_test(column_major_of_three_dimensions),
        cmocka_unit_test(change_while_reading),
        cmocka_unit_test(places_in_archives),
        cmocka_unit_test(damaged_archives),
    };
    fill();
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
