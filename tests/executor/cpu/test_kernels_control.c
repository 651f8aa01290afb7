/* Loops, branches, fusions and markers on values made by hand. */
#include <stdio.h>
#include <unistd.h>

#include "lowering/spmd/lower.h"
#include "tests/support/module_case.h"

/* (a, b, n): while n > 0 { a, b = b, a + b; n-- }, so Fibonacci; a swap of overwritten values. */
static const char loop[] = "HloModule m\n"
                           "condition {\n"
                           "  s = (s32[2], s32[2], s32[]) parameter(0)\n"
                           "  n = s32[] get-tuple-element(s), index=2\n"
                           "  zero = s32[] constant(0)\n"
                           "  ROOT c = pred[] compare(n, zero), direction=GT\n"
                           "}\n"
                           "body {\n"
                           "  s = (s32[2], s32[2], s32[]) parameter(0)\n"
                           "  a = s32[2] get-tuple-element(s), index=0\n"
                           "  b = s32[2] get-tuple-element(s), index=1\n"
                           "  n = s32[] get-tuple-element(s), index=2\n"
                           "  one = s32[] constant(1)\n"
                           "  sum = s32[2] add(a, b)\n"
                           "  less = s32[] subtract(n, one)\n"
                           "  ROOT r = (s32[2], s32[2], s32[]) tuple(b, sum, less)\n"
                           "}\n"
                           "ENTRY e {\n"
                           "  a = s32[2] parameter(0)\n"
                           "  b = s32[2] parameter(1)\n"
                           "  n = s32[] parameter(2)\n"
                           "  t = (s32[2], s32[2], s32[]) tuple(a, b, n)\n"
                           "  w = (s32[2], s32[2], s32[]) while(t), condition=condition, body=body\n"
                           "  ROOT r = s32[2] get-tuple-element(w), index=0\n"
                           "}\n";

static void test_while(void **state) {
    (void)state;
    ModuleCase c;
    if (module_open(&c, loop) != AM_OK) fail_msg("%s", c.error.text);
    const int32_t a[] = {0, 2}, b[] = {1, 1}, counts[] = {10, 0, 1};
    const int32_t expected[][2] = {{55, 123}, {0, 2}, {1, 1}};
    for (int k = 0; k < 3; k++)
        check_run(&c, (const void *[]){a, b, &counts[k]}, expected[k], sizeof expected[k]);
    module_close(&c);
}

/* Filling an array one element an turn changes it where it lies, without a copy of it. */
static void test_loop_fills_in_place(void **state) {
    (void)state;
    const char *text = "HloModule m\n"
                       "condition {\n"
                       "  s = (s32[5], s32[]) parameter(0)\n"
                       "  i = s32[] get-tuple-element(s), index=1\n"
                       "  n = s32[] constant(5)\n"
                       "  ROOT c = pred[] compare(i, n), direction=LT\n"
                       "}\n"
                       "body {\n"
                       "  s = (s32[5], s32[]) parameter(0)\n"
                       "  a = s32[5] get-tuple-element(s), index=0\n"
                       "  i = s32[] get-tuple-element(s), index=1\n"
                       "  square = s32[] multiply(i, i)\n"
                       "  part = s32[1] reshape(square)\n"
                       "  b = s32[5] dynamic-update-slice(a, part, i)\n"
                       "  one = s32[] constant(1)\n"
                       "  next = s32[] add(i, one)\n"
                       "  ROOT r = (s32[5], s32[]) tuple(b, next)\n"
                       "}\n"
                       "ENTRY e {\n"
                       "  a = s32[5] parameter(0)\n"
                       "  i = s32[] parameter(1)\n"
                       "  t = (s32[5], s32[]) tuple(a, i)\n"
                       "  w = (s32[5], s32[]) while(t), condition=condition, body=body\n"
                       "  ROOT r = s32[5] get-tuple-element(w), index=0\n"
                       "}\n";
    const int32_t array[] = {7, 7, 7, 7, 7}, first = 2, expected[] = {7, 7, 4, 9, 16};
    ModuleCase c;
    if (module_open(&c, text) != AM_OK) fail_msg("%s", c.error.text);
    check_run(&c, (const void *[]){array, &first}, expected, sizeof expected);
    const Program *body = c.program->instructions[0].regions.programs[0];
    assert_int_equal(body->execution.update_count, 2);
    assert_true(body->execution.updates[0].in_place);
    module_close(&c);
}

static const char branches[] = "HloModule m\n"
                               "first { x = f32[2] parameter(0) ROOT y = f32[2] negate(x) }\n"
                               "second { x = f32[2] parameter(0) ROOT y = f32[2] multiply(x, x) }\n"
                               "third { ROOT x = f32[2] parameter(0) }\n"
                               "ENTRY e {\n"
                               "  i = s32[] parameter(0)\n"
                               "  x = f32[2] parameter(1)\n"
                               "  z = f32[2] add(x, x)\n"
                               "  ROOT r = f32[2] conditional(i, x, x, z), "
                               "branch_computations={first, second, third}\n"
                               "}\n";

static void test_conditional(void **state) {
    (void)state;
    ModuleCase c;
    if (module_open(&c, branches) != AM_OK) fail_msg("%s", c.error.text);
    const float x[] = {3, -4};
    const float expected[][2] = {{-3, 4}, {9, 16}, {6, -8}};
    const struct {
        int32_t index, branch;
    } rows[] = {{0, 0}, {1, 1}, {2, 2}, {3, 2}, {-1, 2}, {INT32_MIN, 2}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        check_run(&c, (const void *[]){&rows[k].index, x}, expected[rows[k].branch], sizeof *expected);
    module_close(&c);
}

/* A pred takes the first branch when true. */
static void test_conditional_by_pred(void **state) {
    (void)state;
    const char *text = "HloModule m\n"
                       "yes { x = f32[] parameter(0) ROOT y = f32[] negate(x) }\n"
                       "no { ROOT x = f32[] parameter(0) }\n"
                       "ENTRY e {\n"
                       "  p = pred[] parameter(0)\n"
                       "  x = f32[] parameter(1)\n"
                       "  ROOT r = f32[] conditional(p, x, x), true_computation=yes, false_computation=no\n"
                       "}\n";
    const uint8_t flags[] = {1, 0};
    const float x = 7, expected[] = {-7, 7};
    for (int k = 0; k < 2; k++)
        check_module(text, (const void *[]){&flags[k], &x}, &expected[k], sizeof expected[k]);
}

static void test_fusion(void **state) {
    (void)state;
    const char *text = "HloModule m\n"
                       "fused { x = f32[3] parameter(0) y = f32[3] parameter(1)\n"
                       "  s = f32[3] add(x, y) ROOT r = f32[3] multiply(s, x) }\n"
                       "ENTRY e { x = f32[3] parameter(0) y = f32[3] parameter(1)\n"
                       "  ROOT r = f32[3] fusion(x, y), kind=kLoop, calls=fused }\n";
    const float x[] = {1, 2, 3}, y[] = {4, 5, -6}, expected[] = {5, 14, -9};
    check_module(text, (const void *[]){x, y}, expected, sizeof expected);
}

static void test_markers(void **state) {
    (void)state;
    const char *text = "HloModule m\n"
                       "ENTRY e { x = f32[2] parameter(0)\n"
                       "  ROOT r = f32[2] custom-call(x), custom_call_target=\"%s\" }\n";
    const float x[] = {1, 2};
    char named[256];
    snprintf(named, sizeof named, text, "Sharding");
    check_module(named, (const void *[]){x}, x, sizeof x);
    snprintf(named, sizeof named, text, "xla.sdy.FuncResultSharding");
    check_module(named, (const void *[]){x}, x, sizeof x);
    snprintf(named, sizeof named, text, "my_library");
    check_refused(named, "the custom call \"my_library\" is not known");
}

/* Every level mentions the next one twice: 2^40 instructions, refused at once. */
static void test_multiplying_computations(void **state) {
    (void)state;
    static char text[8192];
    size_t at = (size_t)snprintf(text, sizeof text, "HloModule m\nf0 { ROOT x = f32[] parameter(0) }\n");
    for (int k = 1; k <= 40; k++)
        at += (size_t)snprintf(text + at, sizeof text - at,
                               "f%d { x = f32[] parameter(0)\n"
                               "  y = f32[] fusion(x), kind=kLoop, calls=f%d\n"
                               "  ROOT z = f32[] fusion(y), kind=kLoop, calls=f%d }\n",
                               k, k - 1, k - 1);
    snprintf(text + at, sizeof text - at,
             "ENTRY e { x = f32[] parameter(0) ROOT y = f32[] fusion(x), kind=kLoop, calls=f40 }\n");
    char path[] = "/tmp/automap_test_XXXXXX";
    int file = mkstemp(path);
    assert_int_equal(write(file, text, strlen(text)), (ssize_t)strlen(text));
    close(file);
    Arena arena = {0};
    AmError error = {0};
    Program *program;
    PlanContext *context;
    assert_int_equal(plan_context_read(&context, path, NULL, &error), AM_OK);
    assert_int_equal(plan_lower_one_device(&program, &arena, context, &error), AM_ERROR_INPUT);
    assert_non_null(strstr(error.text, "instructions with the computations that it calls"));
    plan_context_free(context);
    arena_free(&arena);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_while),
        cmocka_unit_test(test_loop_fills_in_place),
        cmocka_unit_test(test_conditional),
        cmocka_unit_test(test_conditional_by_pred),
        cmocka_unit_test(test_fusion),
        cmocka_unit_test(test_markers),
        cmocka_unit_test(test_multiplying_computations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
