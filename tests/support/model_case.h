/* Common code of tests that plan a model of the zoo: the model and its derived data. */
#ifndef TESTS_SUPPORT_MODEL_CASE_H
#define TESTS_SUPPORT_MODEL_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "propagation/plan/plan.h"

/* Release with plan_context_free(). Large models are packed. */
static inline PlanContext *read_model(const char *name) {
    PlanContext *context;
    AmError error = {0};
    char path[512];
    snprintf(path, sizeof path, SOURCE_DIR "/datasets/models/%s/model.hlo.pb", name);
    FILE *plain = fopen(path, "rb");
    if (plain) fclose(plain);
    else snprintf(path, sizeof path, SOURCE_DIR "/datasets/models/%s/model.hlo.pb.zst", name);
    if (access(path, R_OK) != 0) strcat(path, ".zst");
    if (plan_context_read(&context, path, NULL, &error) != AM_OK)
        fail_msg("%s: %s", error.source, error.text);
    return context;
}

/* Reads a module from HLO text. Release with plan_context_free(). */
static inline PlanContext *read_model_text(const char *text) {
    PlanContext *context;
    AmError error = {0};
    char path[] = "/tmp/automap-model-XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    FILE *file = fdopen(descriptor, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    AmStatus status = plan_context_read(&context, path, NULL, &error);
    assert_int_equal(remove(path), 0);
    if (status != AM_OK)
        fail_msg("%s:%lld: %s in\n%s", error.source, (long long)error.line, error.text, text);
    return context;
}

#endif
