/* Archives as another reader finds them: many entries, names beyond ASCII, empty content, equal bytes, and
 * nothing left of an archive that is abandoned or has no folder. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zip.h>

#include "base/files/zip_write.h"

static char folder[] = "/tmp/automap_zip_XXXXXX";

static int setup(void **state) {
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    return chdir("/") == 0 && rmdir(folder) == 0 ? 0 : -1;
}

static int count_files(void) {
    int count = 0;
    DIR *names = opendir(".");
    const struct dirent *entry;
    assert_non_null(names);
    while ((entry = readdir(names))) count += entry->d_name[0] != '.';
    closedir(names);
    return count;
}

static void write_archive(const char *path, int count) {
    ZipWriter writer;
    AmError error = {0};
    assert_int_equal(zip_writer_begin(&writer, path, &error), AM_OK);
    for (int k = 0; k < count; k++) {
        char name[32];
        snprintf(name, sizeof name, k == 1 ? "\xc3\xa4-%d" : "entry-%d", k);
        assert_int_equal(zip_writer_add(&writer, name, "head", 4, &k, k % 3 ? sizeof k : 0, &error), AM_OK);
    }
    assert_int_equal(zip_writer_commit(&writer, &error), AM_OK);
    zip_writer_abandon(&writer);
}

/* Reads every entry by libzip, which compares checksums at the end. */
static void check_archive(const char *path, int count) {
    zip_t *archive = zip_open(path, ZIP_RDONLY | ZIP_CHECKCONS, NULL);
    assert_non_null(archive);
    assert_int_equal(zip_get_num_entries(archive, 0), count);
    for (int k = 0; k < count; k++) {
        char content[16], name[32];
        int value = 0;
        snprintf(name, sizeof name, k == 1 ? "\xc3\xa4-%d" : "entry-%d", k);
        assert_string_equal(zip_get_name(archive, (zip_uint64_t)k, 0), name);
        zip_file_t *entry = zip_fopen_index(archive, (zip_uint64_t)k, 0);
        assert_non_null(entry);
        assert_int_equal(zip_fread(entry, content, sizeof content), k % 3 ? 8 : 4);
        assert_int_equal(zip_fread(entry, content + 8, 1), 0);
        assert_memory_equal(content, "head", 4);
        memcpy(&value, content + 4, sizeof value);
        if (k % 3) assert_int_equal(value, k);
        zip_fclose(entry);
    }
    zip_discard(archive);
}

static void test_archives(void **state) {
    (void)state;
    static const int counts[] = {0, 3, 70000}; /* the last one takes the zip64 end record */
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        write_archive("a.zip", counts[k]);
        if (counts[k] > 0) check_archive("a.zip", counts[k]);
        assert_int_equal(unlink("a.zip"), 0);
    }
}

static void test_equal_bytes(void **state) {
    (void)state;
    FileBytes one, other;
    AmError error = {0};
    write_archive("a.zip", 5);
    write_archive("b.zip", 5);
    assert_int_equal(file_read(&one, "a.zip", &error), AM_OK);
    assert_int_equal(file_read(&other, "b.zip", &error), AM_OK);
    assert_int_equal(one.length, other.length);
    assert_memory_equal(one.data, other.data, (size_t)one.length);
    file_release(&one);
    file_release(&other);
    assert_int_equal(unlink("a.zip") | unlink("b.zip"), 0);
}

static void test_failures(void **state) {
    (void)state;
    ZipWriter writer;
    AmError error = {0};
    char *name = calloc(1, 70001);
    assert_non_null(name);
    memset(name, 'n', 70000);
    assert_int_equal(zip_writer_begin(&writer, "c.zip", &error), AM_OK);
    assert_int_equal(zip_writer_add(&writer, "x", "head", 4, NULL, 0, &error), AM_OK);
    assert_int_equal(zip_writer_add(&writer, name, "head", 4, NULL, 0, &error), AM_ERROR_USAGE);
    assert_string_equal(error.source, "c.zip");
    zip_writer_abandon(&writer);
    assert_int_equal(count_files(), 0);
    error = (AmError){0};
    assert_int_equal(zip_writer_begin(&writer, "none/c.zip", &error), AM_ERROR_USAGE);
    zip_writer_abandon(&writer);
    free(name);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_archives), cmocka_unit_test(test_equal_bytes),
                                       cmocka_unit_test(test_failures)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
