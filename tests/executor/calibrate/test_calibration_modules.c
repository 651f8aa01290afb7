/* The modules that a probe runs: each is read, is one step, and its class is one that a cluster file has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "cost/cluster/operator_curves.h"
#include "executor/calibrate/calibration_modules.h"
#include "executor/calibrate/probe_operators.h"
#include "ir/canonical/canonical.h"
#include "lowering/program/step_event.h"
#include "lowering/spmd/lower.h"

static void assert_one_step(const ProbeClass *class, const Text *text) {
    IrModule *module, *canonical;
    Program *program;
    Arena arena = {0};
    AmError error = {0};
    AmStatus status = ir_read_bytes(&module, class->name, text->data, (int64_t)text->length, &error);
    if (status != AM_OK) fail_msg("%s: %s\n%s", class->name, error.text, text->data);
    assert_int_equal(ir_canonicalize(&canonical, module, NULL), AM_OK);
    assert_int_equal(program_from_computation(&program, &arena, canonical, canonical->entry, false, NULL),
                     AM_OK);
    if (program->execution.step_count != 1)
        fail_msg("%s: %d steps\n%s", class->name, program->execution.step_count, text->data);
    arena_free(&arena);
    ir_module_free(canonical);
    ir_module_free(module);
}

static void every_module_is_one_step(void **state) {
    (void)state;
    for (int32_t k = 0; k < probe_class_count; k++) {
        const ProbeClass *class = &probe_classes[k];
        int64_t least[PROBE_MOST_DIMENSIONS] = {0}, more[PROBE_MOST_DIMENSIONS] = {0};
        Text text = {0};
        for (int32_t d = 0; d < class->dimensions; d++) {
            least[d] = class->sizes[d][0];
            more[d] = class->sizes[d][1];
        }
        class->text(&text, class->operation, least);
        assert_one_step(class, &text);
        text.length = 0;
        class->text(&text, class->operation, more);
        assert_one_step(class, &text);
        text.length = 0;
        if (class->less) {
            class->less(&text, class->operation, more);
            assert_one_step(class, &text);
        }
        text_free(&text);
    }
}

static void every_class_is_one_of_a_cluster_file(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int32_t dimensions, grows;
    } classes[] = {
#define OPERATOR_CLASS(name, text, dimensions, grows) {text, dimensions, grows},
#include "cost/cluster/operator_classes.def"
#undef OPERATOR_CLASS
    };
    assert_int_equal(probe_class_count, OPERATOR_FIRST_OF_LINKS);
    for (int32_t k = 0; k < probe_class_count; k++) {
        int32_t found = 0;
        while (found < OPERATOR_FIRST_OF_LINKS && strcmp(classes[found].name, probe_classes[k].name) != 0)
            found++;
        if (found == OPERATOR_FIRST_OF_LINKS) fail_msg("no class %s", probe_classes[k].name);
        assert_int_equal(probe_classes[k].dimensions, classes[found].dimensions);
        assert_true(probe_classes[k].rises <= classes[found].grows);
    }
}

typedef struct Told {
    StepEvent event;
    double seconds;
    const char *type;
} Told;

static AmStatus take(void *user, const char *type, const Program *program, int32_t step, double seconds,
                     AmError *error) {
    Told *told = user;
    (void)error;
    told->type = type;
    told->seconds = seconds;
    return step_event(&told->event, program, &program->execution.steps[step]) ? AM_OK : AM_ERROR_INTERNAL;
}

/* A product that a GPU's probe has measured is the event that a module's product of two matrices is. */
static void a_product_is_told_as_an_event(void **state) {
    (void)state;
    Told told = {0};
    const ProbeListener listener = {.on_operator = take, .user = &told, .type = "card"}, nobody = {0};
    assert_int_equal(probe_report_product(&nobody, DTYPE_F32, 64, 1e-6, NULL), AM_OK);
    assert_int_equal(probe_report_product(&listener, DTYPE_BF16, 64, 1e-6, NULL), AM_OK);
    assert_string_equal(told.event.key.data, "dot bf16[2],bf16[2]->bf16[2] over=1 over=0");
    assert_string_equal(told.type, "card");
    assert_true(told.seconds == 1e-6);
    assert_int_equal(told.event.size_count, 6);
    for (int32_t k = 0; k < 6; k++) assert_true(told.event.sizes[k] == 64);
    text_free(&told.event.key);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_is_told_as_an_event),
        cmocka_unit_test(every_module_is_one_step),
        cmocka_unit_test(every_class_is_one_of_a_cluster_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
