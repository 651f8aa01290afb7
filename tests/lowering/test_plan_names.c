/* Names that all forms of a model's layers share: paths with the layer at any place, and operators. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "lowering/plan_file/instruction_names.h"

#define MODEL SOURCE_DIR "/datasets/models/gpt2_tiny/model.hlo.pb"

static void test_keys(void **state) {
    (void)state;
    static const char *const paths[] = {"p['blocks'][0]['mlp'][1]['w']",
                                        "p['blocks'][1]['mlp'][1]['w']",
                                        "p['blocks'][0]['mlp'][0]['w']",
                                        "p['layer_0']['b']",
                                        "p['layer_1']['b']",
                                        "p['table']"};
    enum { COUNT = sizeof paths / sizeof *paths };
    IrParameter parameters[COUNT] = {0};
    IrRoles roles = {.parameters = parameters, .parameter_count = COUNT};
    Arena arena = {0};
    ParameterKeys keys;
    int32_t *layers;
    for (int32_t p = 0; p < COUNT; p++) parameters[p].path = paths[p];
    assert_int_equal(parameter_keys_make(&keys, &arena, &roles, NULL), AM_OK);
    for (int32_t p = 0; p < COUNT; p++) assert_int_equal(parameter_keys_find(&keys, paths[p]), p);
    /* parts of split stacks */
    assert_int_equal(parameter_keys_find(&keys, "p['blocks']['mlp'][1]['w'][1]"), 1);
    assert_int_equal(parameter_keys_find(&keys, "p['blocks']['mlp'][0]['w'][0]"), 2);
    assert_int_equal(parameter_keys_find(&keys, "p['layers']['b'][1]"), 4);
    assert_int_equal(parameter_keys_find(&keys, "p['layers']['b'][2]"), -1);
    assert_int_equal(parameter_keys_find(&keys, "p['layers']['c'][1]"), -1);
    /* stacks */
    assert_int_equal(parameter_keys_layers(&keys, &arena, &layers, "p['blocks']['mlp'][1]['w']"), 2);
    assert_int_equal(layers[0], 0);
    assert_int_equal(layers[1], 1);
    assert_int_equal(parameter_keys_layers(&keys, &arena, &layers, "p['layers']['b']"), 2);
    assert_int_equal(layers[1], 4);
    assert_int_equal(parameter_keys_layers(&keys, &arena, &layers, "p['table']"), 0);
    assert_true(parameter_keys_have_layers(&keys));
    arena_free(&arena);
}

/* Every operator is found by its own name, and by one that no other operator has. */
static void test_operators(void **state) {
    (void)state;
    PlanContext *context;
    InstructionNames names;
    ParameterKeys keys;
    Arena arena = {0};
    AmError error = {0};
    assert_int_equal(plan_context_read(&context, MODEL, NULL, &error), AM_OK);
    assert_int_equal(instruction_names_make(&names, &arena, context, &error), AM_OK);
    assert_int_equal(parameter_keys_make(&keys, &arena, context->roles, &error), AM_OK);
    for (int32_t i = 0; i < names.count; i++) {
        Text name = {0};
        instruction_names_append(&name, &names, i);
        assert_int_equal(instruction_names_find(&names, &keys, name.data), i);
        text_append(&name, "x"); /* another weight, or no number */
        assert_int_equal(instruction_names_find(&names, &keys, name.data),
                         strstr(name.data, " at ") ? -1 : i);
        text_free(&name);
    }
    static const char *const wrong[] = {"",        "forward", "forward dot f32[1] 1/1",
                                        "1/1 at ", " 1/1",    "dot 9/9 at x"};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++)
        assert_int_equal(instruction_names_find(&names, &keys, wrong[k]), -1);
    arena_free(&arena);
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_keys), cmocka_unit_test(test_operators)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
