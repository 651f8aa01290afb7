/* Parameters of a validation module and their values in a training: by the last words of the paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "executor/run/validation_match.h"

enum { MOST = 6 };

typedef struct Given {
    const char *path;
    IrRole role;
    int64_t extent; /* of its one dimension */
} Given;

typedef struct Side {
    IrInstruction instructions[MOST];
    int64_t dimensions[MOST];
    IrParameter parameters[MOST];
    IrModule module;
    IrRoles roles;
    PlanContext context;
} Side;

static void make_side(Side *side, const Given *given) {
    memset(side, 0, sizeof *side);
    int32_t count = 0;
    for (; given[count].path; count++) {
        side->dimensions[count] = given[count].extent;
        side->instructions[count].shape =
            (IrShape){.type = DTYPE_F32, .rank = 1, .dimensions = &side->dimensions[count]};
        side->parameters[count] = (IrParameter){.number = count,
                                                .instruction = count,
                                                .path = given[count].path,
                                                .role = given[count].role,
                                                .output = -1};
    }
    side->module =
        (IrModule){.source = "grade.hlo", .instructions = side->instructions, .instruction_count = count};
    side->roles = (IrRoles){.parameters = side->parameters, .parameter_count = count};
    side->context = (PlanContext){.canonical = &side->module, .roles = &side->roles};
}

/* The sources, or the error's text. */
static const char *match(int32_t *sources, const Given *training, const Given *module,
                         const bool *is_in_data) {
    static char text[1100];
    static Side left, right;
    AmError error = {0};
    make_side(&left, training);
    make_side(&right, module);
    AmStatus status = validation_match(sources, &left.context, &right.context, is_in_data, &error);
    if (status == AM_OK) return "";
    assert_int_equal(status, AM_ERROR_INPUT);
    assert_string_equal(error.source, "grade.hlo");
    snprintf(text, sizeof text, "%s", error.text);
    return text;
}

static void test_common_words(void **state) {
    (void)state;
    assert_int_equal(validation_common_words("state['params'][0]['kernel']", "params[0]['kernel']"), 3);
    assert_int_equal(validation_common_words("state.params.layers.0.w", "model['layers.0.w']"), 3);
    assert_int_equal(validation_common_words("w", "w"), 1);
    assert_int_equal(validation_common_words("", ""), 0);
    assert_int_equal(validation_common_words("w", "raw"), 0);
    assert_int_equal(validation_common_words("params['a']['w']", "params['b']['w']"),
                     0);                                                   /* two words each differ */
    assert_int_equal(validation_common_words("w", "state.opt.mean.w"), 0); /* three more words */
}

static void test_sources(void **state) {
    (void)state;
    const Given training[] = {{"state['mean']['w']", IR_ROLE_OPTIMIZER, 4},
                              {"state['params']['w']", IR_ROLE_WEIGHT, 4},
                              {"state['params']['b']", IR_ROLE_WEIGHT, 2},
                              {"x", IR_ROLE_DATA, 8},
                              {0}};
    const Given module[] = {{"model['w']", IR_ROLE_CONSTANT, 4},
                            {"params['b']", IR_ROLE_DATA, 2}, /* taken for data, but not in it */
                            {"x", IR_ROLE_DATA, 8},
                            {"mask", IR_ROLE_CONSTANT, 8},
                            {0}};
    const bool is_in_data[MOST] = {false, false, true, true};
    int32_t sources[MOST];
    assert_string_equal(match(sources, training, module, is_in_data), "");
    const int32_t expected[] = {1, 2, -1, -1};
    assert_memory_equal(sources, expected, sizeof expected);
}

static void test_refusals(void **state) {
    (void)state;
    const bool nowhere[MOST] = {false};
    int32_t sources[MOST];
    const Given training[] = {
        {"a['w']", IR_ROLE_WEIGHT, 4}, {"b['w']", IR_ROLE_WEIGHT, 4}, {"x", IR_ROLE_DATA, 8}, {0}};
    const Given exact[] = {{"b['w']", IR_ROLE_WEIGHT, 4}, {0}},
                several[] = {{"c['w']", IR_ROLE_WEIGHT, 4}, {0}};
    assert_string_equal(match(sources, training, exact, nowhere), "");
    assert_int_equal(sources[0], 1);
    assert_string_equal(
        match(sources, training, several, nowhere),
        "parameter 'c['w']' matches 'a['w']' and 'b['w']' of the training: expected one path with "
        "its last words");
    const Given long_one[] = {{"a['w']", IR_ROLE_WEIGHT, 5}, {0}};
    assert_string_equal(match(sources, training, long_one, nowhere),
                        "parameter 'a['w']' is f32[5], expected f32[4] as 'a['w']' of the training");
    const Given missing[] = {{"x", IR_ROLE_DATA, 8}, {"a['v']", IR_ROLE_WEIGHT, 4}, {0}};
    assert_string_equal(
        match(sources, training, missing, nowhere),
        "no value for 'x' (data, f32[8]), 'a['v']' (weight, f32[4]): expected the path in the "
        "training or an array in --eval-data");
    const Given one[] = {{"params['w']", IR_ROLE_WEIGHT, 4}, {0}};
    const Given twice[] = {{"c['w']", IR_ROLE_WEIGHT, 4}, {"d['w']", IR_ROLE_WEIGHT, 4}, {0}};
    assert_string_equal(match(sources, one, twice, nowhere),
                        "parameters 'c['w']' and 'd['w']' both match 'params['w']' of the training");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_common_words), cmocka_unit_test(test_sources),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
