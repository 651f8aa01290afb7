/* Common code of tests of operators with attributes: runs generated kernels of the entry
 * computation of modules given as HLO text, and the CPU's kernels. */
#ifndef TESTS_SUPPORT_GENERATED_MODULE_H
#define TESTS_SUPPORT_GENERATED_MODULE_H

#include "generated_case.h"
#include "module_case.h"

enum { MOST_MODULES = 64 };

typedef struct GeneratedModules {
    Generated generated;
    ModuleCase modules[MOST_MODULES];
    int32_t count;
} GeneratedModules;

/* Adds the kernels of a module's entry; the rest of the text is "HloModule m\n". */
static inline void generated_add_text(GeneratedModules *self, const char *text) {
    char whole[4096];
    assert_true(self->count < MOST_MODULES);
    ModuleCase *module = &self->modules[self->count++];
    assert_true(snprintf(whole, sizeof whole, "HloModule m\n%s", text) < (int)sizeof whole);
    if (module_open(module, whole) != AM_OK) fail_msg("%s in\n%s", module->error.text, whole);
    int32_t before = self->generated.count;
    generated_add_program(&self->generated, module->program);
    if (self->generated.count == before) fail_msg("no new kernel of\n%s", text);
}

/* Compiles everything, compares it with the CPU's on corner cases (`corners`) and without, and releases
 * it. */
static inline void generated_finish(GeneratedModules *self, bool corners, double tolerance) {
    Random random;
    random_seed(&random, 5);
    generated_compile(&self->generated);
    generated_check_devices(&self->generated, "operators", getenv("AUTOMAP_FULL"));
    for (int32_t k = 0; k < self->generated.count; k++) {
        if (corners) generated_compare(&self->generated, k, true, tolerance, &random);
        generated_compare(&self->generated, k, false, tolerance, &random);
    }
    for (int32_t k = 0; k < self->count; k++) module_close(&self->modules[k]);
    generated_free(&self->generated);
    free(self);
}

#endif
