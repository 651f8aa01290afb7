/* sort and topk on values made by hand. */
#include <math.h>

#include "tests/support/module_case.h"

/* Sorts along dimension 0, descending; equal keys keep their order, the second operand follows. */
static void test_sort_of_pairs(void **state) {
    (void)state;
    const char *text =
        "HloModule m\n"
        "greater {\n"
        "  a = s32[] parameter(0) b = s32[] parameter(1)\n"
        "  v = s8[] parameter(2) w = s8[] parameter(3)\n"
        "  ROOT c = pred[] compare(a, b), direction=GT\n"
        "}\n"
        "ENTRY e {\n"
        "  k = s32[4,2] parameter(0)\n"
        "  v = s8[4,2] parameter(1)\n"
        "  s = (s32[4,2], s8[4,2]) sort(k, v), dimensions={0}, is_stable=true, to_apply=greater\n"
        "  ROOT r = s8[4,2] get-tuple-element(s), index=1\n"
        "}\n";
    const int32_t keys[] = {1, 5, 2, 5, 2, 7, -3, 5};
    const int8_t values[] = {10, 20, 11, 21, 12, 22, 13, 23};
    const int8_t expected[] = {11, 22, 12, 20, 10, 21, 13, 23};
    check_module(text, (const void *[]){keys, values}, expected, sizeof expected);
}

/* A comparator that is no order at all ends and loses nothing. */
static void test_sort_by_nonsense(void **state) {
    (void)state;
    const char *text = "HloModule m\n"
                       "always { a = s32[] parameter(0) b = s32[] parameter(1)\n"
                       "  ROOT c = pred[] constant(true) }\n"
                       "ENTRY e { k = s32[5] parameter(0)\n"
                       "  ROOT s = s32[5] sort(k), dimensions={0}, to_apply=always }\n";
    const int32_t keys[] = {1, 2, 3, 4, 5};
    ModuleCase c;
    if (module_open(&c, text) != AM_OK) fail_msg("%s", c.error.text);
    module_run(&c, (const void *[]){keys});
    int32_t seen = 0;
    for (int k = 0; k < 5; k++) seen |= 1 << ((const int32_t *)executable_output(c.entry, 0))[k];
    assert_int_equal(seen, 62);
    module_close(&c);
}

static const char topk[] = "HloModule m\n"
                           "ENTRY e {\n"
                           "  x = f32[2,5] parameter(0)\n"
                           "  t = (f32[2,3], s32[2,3]) topk(x), k=3, largest=true\n"
                           "  ROOT r = s32[2,3] get-tuple-element(t), index=1\n"
                           "}\n";

/* Equal values: the lower index first; NaN above infinity, -0 below 0. */
static void test_topk(void **state) {
    (void)state;
    const float x[] = {3, 7, 3, 7, 1, -0.0f, INFINITY, 0, NAN, -1};
    const int32_t expected[] = {1, 3, 0, 3, 1, 2};
    check_module(topk, (const void *[]){x}, expected, sizeof expected);
}

static void test_topk_of_integers(void **state) {
    (void)state;
    const char *text = "HloModule m\n"
                       "ENTRY e { x = s16[6] parameter(0)\n"
                       "  t = (s16[2], s32[2]) topk(x), k=2, largest=false\n"
                       "  ROOT r = s16[2] get-tuple-element(t), index=0 }\n";
    const int16_t x[] = {4, -3, 9, -32768, 32767, 0}, expected[] = {-32768, -3};
    check_module(text, (const void *[]){x}, expected, sizeof expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sort_of_pairs),
        cmocka_unit_test(test_sort_by_nonsense),
        cmocka_unit_test(test_topk),
        cmocka_unit_test(test_topk_of_integers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
