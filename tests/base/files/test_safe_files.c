/* Files and folders that another user could have placed: links, pipes, modes. */
#define _XOPEN_SOURCE 700
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/files/disk.h"
#include "base/files/file.h"
#include "base/files/private_folder.h"

static char folder[] = "/tmp/automap-safe-XXXXXX";

static int setup(void **state) {
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static void put(const char *path) {
    AmError error = {0};
    assert_int_equal(file_write(path, "kept", 4, &error), AM_OK);
}

static bool exists(const char *path) {
    struct stat facts;
    return lstat(path, &facts) == 0;
}

/* Removing a link leaves the folder that it names; a folder's links are removed, not followed. */
static void test_removal(void **state) {
    (void)state;
    AmError error = {0};
    mkdir("docs", 0777);
    put("docs/a");
    assert_int_equal(symlink("docs", "link"), 0);
    assert_int_equal(disk_remove(&disk_calls, "link", &error), AM_OK);
    assert_false(exists("link"));
    assert_true(exists("docs/a"));
    mkdir("part", 0777);
    assert_int_equal(symlink("../docs", "part/link"), 0);
    assert_int_equal(disk_remove(&disk_calls, "part", &error), AM_OK);
    assert_false(exists("part"));
    assert_true(exists("docs/a"));
    assert_int_equal(disk_remove(&disk_calls, "nowhere", &error), AM_OK);
}

/* A name that is taken by a link or a pipe is replaced, not written through. */
static void test_disk_files(void **state) {
    (void)state;
    AmError error = {0};
    FileBytes bytes;
    put("target");
    assert_int_equal(symlink("target", "name"), 0);
    assert_int_equal(disk_write_file(&disk_calls, "name", "new", 3, &error), AM_OK);
    assert_int_equal(mkfifo("pipe", 0600), 0);
    assert_int_equal(disk_write_file(&disk_calls, "pipe", "new", 3, &error), AM_OK);
    assert_int_equal(file_read_regular(&bytes, "target", &error), AM_OK);
    assert_string_equal(bytes.data, "kept");
    file_release(&bytes);
    assert_int_equal(file_read_regular(&bytes, "pipe", &error), AM_OK);
    assert_string_equal(bytes.data, "new");
    file_release(&bytes);
    mkdir("real", 0777);
    assert_int_equal(symlink("real", "linked"), 0);
    assert_int_equal(disk_make_directory(&disk_calls, "linked", true, &error), AM_OK);
    assert_int_equal(disk_make_directory(&disk_calls, "linked", false, &error), AM_ERROR_RUNTIME);
}

static void test_regular_files_only(void **state) {
    (void)state;
    FileBytes bytes;
    AmError error = {0};
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(file_read_regular(&bytes, "fifo", &error), AM_ERROR_INPUT); /* not waited for */
    assert_string_equal(error.text, "is not a regular file");
    put("plain");
    assert_int_equal(symlink("plain", "alias"), 0);
    error = (AmError){0};
    assert_int_equal(file_read_regular(&bytes, "alias", &error), AM_ERROR_INPUT);
    assert_non_null(strstr(error.text, "symbolic link"));
}

static void test_modes(void **state) {
    (void)state;
    struct stat facts;
    put("private");
    assert_int_equal(chmod("private", 0600), 0);
    put("private");
    assert_int_equal(stat("private", &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0600);
    mode_t before = umask(027);
    put("fresh");
    umask(before);
    assert_int_equal(stat("fresh", &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0640);
}

/* Temporary files have unpredictable names, and an abandoned one leaves no file. */
static void test_temporary_names(void **state) {
    (void)state;
    AmError error = {0};
    FileWriter writer;
    char predicted[64];
    snprintf(predicted, sizeof predicted, "out.part-%ld", (long)getpid());
    put("victim");
    assert_int_equal(symlink("victim", predicted), 0);
    put("out");
    assert_int_equal(file_writer_begin(&writer, "out2", &error), AM_OK);
    assert_int_equal(file_writer_add(&writer, "x", 1, &error), AM_OK);
    file_writer_abandon(&writer);
    assert_false(exists("out2"));
    FileBytes bytes;
    assert_int_equal(file_read(&bytes, "victim", &error), AM_OK);
    assert_string_equal(bytes.data, "kept");
    file_release(&bytes);
}

static void test_private_folders(void **state) {
    (void)state;
    char path[128], link_name[128];
    snprintf(path, sizeof path, "%s/cache/automap/kernels", folder);
    assert_null(private_folder_make(path));
    assert_null(private_folder_make(path));
    assert_int_equal(chmod(path, 0755), 0);
    assert_null(private_folder_make(path));
    assert_int_equal(chmod(path, 0770), 0);
    assert_non_null(private_folder_make(path));
    assert_int_equal(chmod(path, 0700), 0);
    snprintf(link_name, sizeof link_name, "%s/cache/linked", folder);
    assert_int_equal(symlink(path, link_name), 0);
    assert_non_null(private_folder_make(link_name));
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_string_equal(private_folder_make(path), "belongs to another user");
    }
}

static void test_system_failures(void **state) {
    (void)state;
    static const struct {
        int cause;
        AmStatus code;
    } cases[] = {{ENOENT, AM_ERROR_INPUT},
                 {ENOMEM, AM_ERROR_INTERNAL},
                 {EMFILE, AM_ERROR_RUNTIME},
                 {ENFILE, AM_ERROR_RUNTIME}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        AmError error = {0};
        assert_int_equal(am_fail_system(&error, AM_ERROR_INPUT, "file", cases[k].cause, "cannot be opened"),
                         cases[k].code);
        assert_string_equal(error.source, "file");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_removal),
                                       cmocka_unit_test(test_disk_files),
                                       cmocka_unit_test(test_regular_files_only),
                                       cmocka_unit_test(test_modes),
                                       cmocka_unit_test(test_temporary_names),
                                       cmocka_unit_test(test_private_folders),
                                       cmocka_unit_test(test_system_failures)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
