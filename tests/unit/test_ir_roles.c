/* Roles, pairs, loss and phases: every committed model against the exporter's
 * own account of it, then small modules for the cases that models lack. */
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

#include "ir/canonical.h"
#include "ir/roles.h"

#define MODELS SOURCE_DIR "/datasets/models"

typedef struct Case {
    IrModule *module, *canonical;
    IrRoles *roles;
    Arena arena;
    AmError error;
} Case;

static void open_case(Case *c, const char *path) {
    *c = (Case){0};
    if (ir_read(&c->module, path, &c->error) != AM_OK) fail_msg("%s: %s", path, c->error.text);
    if (ir_canonicalize(&c->canonical, c->module, &c->error) != AM_OK)
        fail_msg("%s: %s", path, c->error.text);
}

static void close_case(Case *c) {
    ir_module_free(c->canonical);
    ir_module_free(c->module);
    arena_free(&c->arena);
}

static const char *model_file(const char *model, char path[512]) {
    snprintf(path, 512, MODELS "/%s/model.hlo.pb", model);
    if (access(path, R_OK) != 0) snprintf(path, 512, MODELS "/%s/model.hlo.pb.zst", model);
    return path;
}

static const char *roles_file(const char *model, char path[512]) {
    snprintf(path, 512, MODELS "/%s/model.roles.json", model);
    return path;
}

static void check_model(const char *model) {
    char path[512];
    Case c;
    IrRoles *told;
    open_case(&c, model_file(model, path));
    assert_int_equal(ir_find_roles(&c.roles, &c.arena, c.canonical, NULL, &c.error), AM_OK);
    if (ir_find_roles(&told, &c.arena, c.canonical, roles_file(model, path), &c.error) != AM_OK)
        fail_msg("%s: %s", c.error.source, c.error.text);
    assert_int_equal(c.roles->loss, told->loss);
    for (int32_t p = 0; p < told->parameter_count; p++) {
        const IrParameter *found = &c.roles->parameters[p], *expected = &told->parameters[p];
        if (found->role != expected->role || found->output != expected->output)
            fail_msg("%s: %s: found %s, output %d, expected %s, output %d", model, found->path,
                     ir_role_name(found->role), found->output, ir_role_name(expected->role),
                     expected->output);
    }
    for (int32_t i = 0; i < c.canonical->computations[0].count; i++)
        assert_int_equal(c.roles->phases[i], told->phases[i]);
    close_case(&c);
}

/* Data flow alone finds what the exporter knows from the pytrees. */
static void every_model_as_exported(void **state) {
    (void)state;
    DIR *directory = opendir(MODELS);
    assert_non_null(directory);
    int models = 0;
    for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        char path[512];
        if (entry->d_name[0] == '.' || access(roles_file(entry->d_name, path), R_OK) != 0) continue;
        check_model(entry->d_name);
        models++;
    }
    closedir(directory);
    assert_true(models >= 10);
}

/* XLA aliases donated buffers by shape; the pairs cross here, with a warning. */
static void swapped_states(void **state) {
    (void)state;
    for (int with_file = 0; with_file < 2; with_file++) {
        char path[512];
        Case c;
        open_case(&c, model_file("two_swapped", path));
        const char *roles = with_file ? roles_file("two_swapped", path) : NULL;
        assert_int_equal(ir_find_roles(&c.roles, &c.arena, c.canonical, roles, &c.error), AM_OK);
        assert_int_equal(c.roles->parameters[0].output, 1);
        assert_int_equal(c.roles->parameters[1].output, 0);
        assert_int_equal(c.roles->loss, 2);
        assert_string_equal(c.roles->parameters[0].paired_by, with_file ? "roles file" : "data flow");
        assert_int_equal(c.canonical->warnings.count, 1);
        assert_non_null(strstr(c.canonical->warnings.texts[0], "2 donated parameters"));
        close_case(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_as_exported),
        cmocka_unit_test(swapped_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
