/* Common code of tests of operators with computations: runs the entry of a module given as HLO text
 * once on given values. */
#ifndef TESTS_SUPPORT_MODULE_CASE_H
#define TESTS_SUPPORT_MODULE_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "executor/program/executable.h"
#include "ir/canonical/canonical.h"
#include "lowering/spmd/lower.h"

typedef struct ModuleCase {
    Arena arena;
    IrModule *module, *canonical;
    Program *program;
    Executable *entry;
    char *memory;
    AmError error;
} ModuleCase;

/* AM_OK, or why it cannot be run; self->error says more. */
static inline AmStatus module_open(ModuleCase *self, const char *text) {
    *self = (ModuleCase){0};
    TRY(ir_read_bytes(&self->module, "test", text, (int64_t)strlen(text), &self->error));
    TRY(ir_canonicalize(&self->canonical, self->module, &self->error));
    TRY(program_from_computation(&self->program, &self->arena, self->canonical, self->canonical->entry, false,
                                 &self->error));
    TRY(executable_prepare(&self->entry, &self->arena, &kernel_device_cpu, NULL, self->program, false,
                           &self->error));
    return executable_allocate(self->entry, &self->memory, NULL, &self->error);
}

/* Sets the parameters and runs it. */
static inline void module_run(ModuleCase *self, const void *const *parameters) {
    for (int32_t k = 0; k < self->program->roles->parameter_count; k++)
        memcpy(executable_parameter(self->entry, k), parameters[k],
               (size_t)ir_shape_bytes(&self->program->values[self->program->parameters[k]].shape));
    assert_int_equal(executable_run(self->entry, &self->error), AM_OK);
}

static inline void module_close(ModuleCase *self) {
    free(self->memory);
    arena_free(&self->arena);
    ir_module_free(self->canonical);
    ir_module_free(self->module);
}

/* Runs with `parameters` [number of parameters]; compares output 0 with `bytes` of `expected`. */
static inline void check_run(ModuleCase *self, const void *const *parameters, const void *expected,
                             size_t bytes) {
    module_run(self, parameters);
    assert_memory_equal(executable_output(self->entry, 0), expected, bytes);
}

/* The same for a module that is run once. */
static inline void check_module(const char *text, const void *const *parameters, const void *expected,
                                size_t bytes) {
    ModuleCase self;
    if (module_open(&self, text) != AM_OK) fail_msg("%s", self.error.text);
    check_run(&self, parameters, expected, bytes);
    module_close(&self);
}

/* The module is refused, with a message that holds `reason`. */
static inline void check_refused(const char *text, const char *reason) {
    ModuleCase self;
    assert_int_equal(module_open(&self, text), AM_ERROR_INPUT);
    if (!strstr(self.error.text, reason)) fail_msg("'%s' does not say '%s'", self.error.text, reason);
    module_close(&self);
}

#endif
