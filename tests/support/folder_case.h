/* A folder for the files of a test program: make_folder() is the group's setup, and its teardown ends with
 * remove_files(). The source defines _XOPEN_SOURCE 700 and includes cmocka.h before. */
#ifndef TESTS_SUPPORT_FOLDER_CASE_H
#define TESTS_SUPPORT_FOLDER_CASE_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[] = "/tmp/automap_test_XXXXXX";

/* The path of a file in the folder. Valid until the fourth call after it. */
static inline const char *in_folder(const char *name) {
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof *paths, "%s/%s", folder, name);
    return path;
}

static inline int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

/* Removes these files, where they exist, and the folder. Fails if another file remains, such as a temporary
 * one. */
static inline int remove_files(const char *const *names, size_t count) {
    for (size_t k = 0; k < count; k++) unlink(in_folder(names[k]));
    return rmdir(folder);
}

#endif
