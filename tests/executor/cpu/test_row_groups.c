/* Row groups: the same bits as step by step, from teams of any size and from a back end that cannot join the
 * steps. Values that a group alone uses have no memory. */
#include "tests/support/row_group_case.h"

/* `m` depends on a parameter alone, and is read last. */
static const char late_pad[] =
    "HloModule late\nENTRY main {\n"
    "p = f32[150,150] parameter(0) x = f32[150,150] parameter(1) o = f32[] constant(0)\n"
    "q = f32[140,150] slice(p), slice={[0:140], [0:150]} m = f32[150,150] pad(q, o), padding=0_10x0_0\n"
    "a = f32[150,150] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "b = f32[150,150] dot(a, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "c = f32[150,150] dot(b, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "ROOT r = f32[150,150] subtract(c, m) }\n";

static KernelDevice *open_team(int32_t threads) {
    KernelDevice *device;
    AmError error = {0};
    assert_int_equal(kernels_cpu.open(&device, &(KernelOptions){.threads = threads}, &error), AM_OK);
    assert_int_equal(kernels_cpu.finish(device, &error), AM_OK);
    return device;
}

/* `steps` of the only group, `internal` values in it. */
static void check(const char *text, int32_t steps, int32_t internal) {
    RowGroupCase alone;
    row_group_open(&alone, text, false, &kernel_device_cpu);
    for (int32_t way = 0; way < 3; way++) {
        RowGroupCase together;
        KernelBackEnd apart = kernels_cpu;
        apart.join_rows = NULL;
        KernelDevice one_by_one = {.back_end = &apart};
        KernelDevice *device = way == 2 ? &one_by_one : open_team(way == 0 ? 1 : 3);
        row_group_open(&together, text, true, device);
        const Program *program = together.program;
        assert_int_equal(program->execution.row_group_count, steps > 0);
        if (steps > 0) assert_int_equal(program->execution.row_groups[0].count, steps);
        assert_int_equal(row_group_internal(program), internal);
        assert_true(program->allocation.bytes <= alone.program->allocation.bytes);
        row_group_compare(&alone, &together);
        row_group_close(&together);
        if (way < 2) kernels_cpu.close(device);
    }
    row_group_close(&alone);
}

static void test_norms(void **state) {
    (void)state;
    check(NORM("f32", "3", "37", "96"), 5, 3);
    check(NORM("f32", "2", "70", "1536"), 5, 3);
    check(NORM("f64", "5", "9", "7"), 5, 3);
    check(NORM("bf16", "4", "50", "130"), 5, 3);
    check(NORM("f32", "1", "64", "3072"), 5, 3);
}

static void test_softmax(void **state) {
    (void)state;
    check(SOFTMAX("45", "8", "100"), 5, 3);
    check(SOFTMAX("33", "8", "1029"), 5, 3);
    check(SOFTMAX("200", "4", "3"), 5, 3);
}

static void test_a_value_of_other_rows_is_kept(void **state) {
    (void)state;
    check(row_group_shared_vector, 4, 2);
}

static void test_other_rows_are_not_joined(void **state) {
    (void)state;
    check(row_group_transposed, 2, 0);
}

/* It takes no memory before: three arrays live at a time instead of four. */
static void test_large_constants_come_late(void **state) {
    (void)state;
    RowGroupCase alone, late;
    row_group_open(&alone, late_pad, false, &kernel_device_cpu);
    row_group_open(&late, late_pad, true, &kernel_device_cpu);
    assert_true(late.program->allocation.bytes + 80000 < alone.program->allocation.bytes);
    row_group_compare(&alone, &late);
    row_group_close(&alone);
    row_group_close(&late);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_a_value_of_other_rows_is_kept),
        cmocka_unit_test(test_other_rows_are_not_joined),
        cmocka_unit_test(test_large_constants_come_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
