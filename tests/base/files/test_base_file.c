/* Files: compression by content, bounded expansion, atomic replacement. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files/file.h"
#include "tests/support/folder_case.h"

static int remove_folder(void **state) {
    (void)state;
    static const char *const names[] = {"a", "a.gz", "a.zst", "bomb.gz", "bomb.zst", "link", "cut"};
    return remove_files(names, sizeof names / sizeof *names);
}

static void assert_read_fails(const char *path, const char *part_of_message) {
    FileBytes bytes;
    AmError error = {0};
    assert_int_equal(file_read(&bytes, path, &error), AM_ERROR_INPUT);
    assert_string_equal(error.source, path);
    if (!strstr(error.text, part_of_message)) fail_msg("message was: %s", error.text);
    assert_null(bytes.data);
}

static void content_survives_every_compression(void **state) {
    (void)state;
    static const char *const names[] = {"a", "a.gz", "a.zst"};
    enum { LENGTH = 300000 };
    char *data = malloc(LENGTH);
    for (int i = 0; i < LENGTH; i++) data[i] = (char)((int64_t)i * i >> 3);
    for (int i = 0; i < 3; i++) {
        AmError error = {0};
        FileBytes bytes;
        assert_int_equal(file_write(in_folder(names[i]), data, LENGTH, &error), AM_OK);
        assert_int_equal(file_read(&bytes, in_folder(names[i]), &error), AM_OK);
        assert_int_equal(bytes.length, LENGTH);
        assert_memory_equal(bytes.data, data, LENGTH);
        assert_int_equal(bytes.data[LENGTH], 0);
        assert_true(i == 0 ? bytes.stored_length == LENGTH : bytes.stored_length < LENGTH);
        file_release(&bytes);
        assert_int_equal(file_write(in_folder(names[i]), "", 0, &error), AM_OK);
        assert_int_equal(file_read(&bytes, in_folder(names[i]), &error), AM_OK);
        assert_int_equal(bytes.length, 0);
        file_release(&bytes);
    }
    free(data);
}

static void several_members_are_joined(void **state) {
    (void)state;
    static const char *const names[] = {"a.gz", "a.zst"};
    for (int i = 0; i < 2; i++) {
        AmError error = {0};
        FileBytes twice;
        assert_int_equal(file_write(in_folder(names[i]), "half", 4, &error), AM_OK);
        char stored[200];
        FILE *stream = fopen(in_folder(names[i]), "rb");
        size_t length = fread(stored, 1, 100, stream);
        fclose(stream);
        memcpy(stored + length, stored, length);
        assert_int_equal(file_write(in_folder("a"), stored, 2 * length, &error), AM_OK);
        assert_int_equal(file_read(&twice, in_folder("a"), &error), AM_OK);
        assert_string_equal(twice.data, "halfhalf");
        file_release(&twice);
    }
}

static void truncated_and_corrupt_files_fail(void **state) {
    (void)state;
    static const char *const names[] = {"a.gz", "a.zst"};
    char text[5000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)(i * 2654435761u >> 13);
    for (int i = 0; i < 2; i++) {
        AmError error = {0};
        assert_int_equal(file_write(in_folder(names[i]), text, sizeof text, &error), AM_OK);
        char stored[8000];
        FILE *stream = fopen(in_folder(names[i]), "rb");
        size_t length = fread(stored, 1, sizeof stored, stream);
        fclose(stream);
        for (size_t cut = 5; cut < length; cut += 97) {
            assert_int_equal(file_write(in_folder("cut"), stored, cut, &error), AM_OK);
            assert_read_fails(in_folder("cut"), "truncated");
        }
        stored[length / 2] ^= 0x55;
        stored[length / 2 + 1] ^= 0x55;
        assert_int_equal(file_write(in_folder("cut"), stored, length, &error), AM_OK);
        FileBytes bytes;
        AmStatus status = file_read(&bytes, in_folder("cut"), &error);
        if (i == 0) assert_int_equal(status, AM_ERROR_INPUT); /* gzip always has a checksum */
        file_release(&bytes);
    }
}

static void small_file_cannot_fill_the_memory(void **state) {
    (void)state;
    enum { LENGTH = 200 << 20 };
    char *zeros = calloc(1, LENGTH);
    AmError error = {0};
    assert_int_equal(file_write(in_folder("bomb.zst"), zeros, LENGTH, &error), AM_OK);
    free(zeros);
    assert_read_fails(in_folder("bomb.zst"), "expands beyond");
}

static void missing_files_and_folders(void **state) {
    (void)state;
    assert_read_fails(in_folder("none"), "cannot be opened");
    assert_read_fails(folder, "is a directory");
    assert_read_fails("/dev/zero", "is a device");
    AmError error = {0};
    assert_int_equal(file_write(in_folder("none/a"), "x", 1, &error), AM_ERROR_USAGE);
}

static void writing_goes_through_links_and_leaves_the_old_file(void **state) {
    (void)state;
    AmError error = {0};
    FileBytes bytes;
    char target[256];
    snprintf(target, sizeof target, "%s", in_folder("a"));
    assert_int_equal(file_write(target, "old", 3, &error), AM_OK);
    assert_int_equal(symlink("a", in_folder("link")), 0);
    assert_int_equal(file_write(in_folder("link"), "new", 3, &error), AM_OK);
    assert_int_equal(file_read(&bytes, target, &error), AM_OK);
    assert_string_equal(bytes.data, "new");
    file_release(&bytes);
    FileWriter writer;
    assert_int_equal(file_writer_begin(&writer, target, &error), AM_OK);
    assert_int_equal(file_writer_add(&writer, "half", 4, &error), AM_OK);
    file_writer_abandon(&writer);
    assert_int_equal(file_read(&bytes, target, &error), AM_OK);
    assert_string_equal(bytes.data, "new");
    file_release(&bytes);
    assert_int_equal(file_write("/dev/null", "x", 1, &error), AM_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(content_survives_every_compression),
        cmocka_unit_test(several_members_are_joined),
        cmocka_unit_test(truncated_and_corrupt_files_fail),
        cmocka_unit_test(small_file_cannot_fill_the_memory),
        cmocka_unit_test(missing_files_and_folders),
        cmocka_unit_test(writing_goes_through_links_and_leaves_the_old_file),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
