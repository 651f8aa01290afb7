/* Imports of files in tests: the cluster of several files, and a file of a given text. */
#ifndef TESTS_SUPPORT_IMPORTED_H
#define TESTS_SUPPORT_IMPORTED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cost/cluster_import/import.h"

#define SAMPLE(name) SOURCE_DIR "/tests/data/imports/" name

typedef struct Imported {
    Arena arena;
    AmError error;
    json_t *description;
    Cluster *cluster;
    char warning[512]; /* the first one */
} Imported;

/* Imports the files (NULL ends the list) and reads the cluster that they give. */
static AmStatus import_paths(Imported *self, const char *type, const char *between,
                             const char *const *paths) {
    *self = (Imported){0};
    Import import;
    AmStatus status = import_begin(&import, &self->arena, type, between, &self->error);
    for (; status == AM_OK && *paths; paths++) status = import_add(&import, *paths, &self->error);
    if (status == AM_OK) status = import_finish(&self->description, &import, &self->error);
    if (import.warnings.count > 0)
        snprintf(self->warning, sizeof self->warning, "%s", import.warnings.texts[0]);
    import_end(&import);
    if (status == AM_OK)
        status = cluster_from_json(&self->cluster, &self->arena, self->description, "<import>", &self->error);
    return status;
}
#define IMPORT(self, type, between, ...) \
    import_paths(self, type, between, (const char *const[]){__VA_ARGS__, NULL})

static void end(Imported *self) {
    if (self->cluster) cluster_free(self->cluster);
    json_decref(self->description);
    arena_free(&self->arena);
}

static char path[] = "/tmp/automap-import-XXXXXX";

/* Fixtures of the group of tests: the file at `path`. */
static int make_file(void **state) {
    (void)state;
    int file = mkstemp(path);
    return file < 0 ? -1 : close(file);
}

static int remove_file(void **state) {
    (void)state;
    return unlink(path);
}

/* The file at `path`, with this text. */
static const char *write_file(const char *text, size_t length) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    fclose(file);
    return path;
}

#endif
