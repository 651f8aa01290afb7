/* Kernels that move elements, each against its definition written out as loops. */
#include "tests/support/kernel_case.h"

static void test_broadcast(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_BROADCAST);
    int32_t x = VALUE(c, DTYPE_F32, 3), y = VALUE(c, DTYPE_F32, 2, 3, 4);
    c->attributes = (IrAttributes){.dimension_count = 1, .dimensions = LIST(c, 1)};
    case_fill(c, x, 1);
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (int i = 0; i < 24; i++) assert_true(case_floats(c, y)[i] == case_floats(c, x)[i / 4 % 3]);
    case_free(c);
}

static void test_transpose(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_TRANSPOSE);
    enum { A = 5, B = 37, C = 19 };
    int32_t x = VALUE(c, DTYPE_F32, A, B, C), y = VALUE(c, DTYPE_F32, C, A, B);
    c->attributes = (IrAttributes){.dimension_count = 3, .dimensions = LIST(c, 2, 0, 1)};
    for (int i = 0; i < A * B * C; i++) case_floats(c, x)[i] = (float)i;
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (int k = 0; k < C; k++)
        for (int i = 0; i < A; i++)
            for (int j = 0; j < B; j++)
                assert_true(case_floats(c, y)[(k * A + i) * B + j] == (float)((i * B + j) * C + k));
    case_free(c);
}

static void test_transpose_of_two_bytes(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_TRANSPOSE);
    int32_t x = VALUE(c, DTYPE_BF16, 18, 33), y = VALUE(c, DTYPE_BF16, 33, 18);
    c->attributes = (IrAttributes){.dimension_count = 2, .dimensions = LIST(c, 1, 0)};
    uint16_t *in = c->memory[x], *out = c->memory[y];
    for (int i = 0; i < 18 * 33; i++) in[i] = (uint16_t)(i * 7);
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (int i = 0; i < 18; i++)
        for (int j = 0; j < 33; j++) assert_int_equal(out[j * 18 + i], in[i * 33 + j]);
    case_free(c);
}

static void test_slice_with_strides(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_SLICE);
    int32_t x = VALUE(c, DTYPE_F32, 6, 9), y = VALUE(c, DTYPE_F32, 2, 3);
    c->attributes = (IrAttributes){
        .slice_start = LIST(c, 1, 2), .slice_limit = LIST(c, 6, 9), .slice_stride = LIST(c, 3, 3)};
    case_fill(c, x, 2);
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            assert_true(case_floats(c, y)[i * 3 + j] == case_floats(c, x)[(1 + 3 * i) * 9 + 2 + 3 * j]);
    case_free(c);
}

/* Negative and interior padding against a walk over the operand. */
static void check_pad(int64_t low, int64_t high, int64_t interior) {
    enum { N = 7 };
    int64_t size = low + high + N + (N - 1) * interior;
    KernelCase *c = case_new(IR_PAD);
    int32_t x = VALUE(c, DTYPE_F32, N), value = case_value(c, DTYPE_F32, 0, NULL),
            y = VALUE(c, DTYPE_F32, size);
    IrPadding padding = {low, high, interior};
    c->attributes = (IrAttributes){.padding = &padding};
    for (int i = 0; i < N; i++) case_floats(c, x)[i] = (float)(i + 1);
    case_floats(c, value)[0] = -5;
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    float expected[64];
    for (int64_t i = 0; i < size; i++) expected[i] = -5;
    for (int64_t i = 0; i < N; i++) {
        int64_t at = low + i * (interior + 1);
        if (at >= 0 && at < size) expected[at] = (float)(i + 1);
    }
    for (int64_t i = 0; i < size; i++) assert_true(case_floats(c, y)[i] == expected[i]);
    case_free(c);
}

static void test_pad(void **state) {
    (void)state;
    for (int64_t low = -4; low <= 3; low++)
        for (int64_t high = -3; high <= 3; high++)
            for (int64_t interior = 0; interior <= 2; interior++)
                if (low + high + 7 + 6 * interior > 0) check_pad(low, high, interior);
}

static void test_concatenate_and_reverse(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_CONCATENATE);
    int32_t x = VALUE(c, DTYPE_F32, 2, 3), z = VALUE(c, DTYPE_F32, 2, 2), y = VALUE(c, DTYPE_F32, 2, 5);
    c->attributes = (IrAttributes){.dimension_count = 1, .dimensions = LIST(c, 1)};
    case_fill(c, x, 3);
    case_fill(c, z, 4);
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 5; j++)
            assert_true(case_floats(c, y)[i * 5 + j] ==
                        (j < 3 ? case_floats(c, x)[i * 3 + j] : case_floats(c, z)[i * 2 + j - 3]));
    case_free(c);

    c = case_new(IR_REVERSE);
    x = VALUE(c, DTYPE_F32, 2, 3, 4);
    y = VALUE(c, DTYPE_F32, 2, 3, 4);
    c->attributes = (IrAttributes){.dimension_count = 2, .dimensions = LIST(c, 0, 2)};
    case_fill(c, x, 5);
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 4; k++)
                assert_true(case_floats(c, y)[(i * 3 + j) * 4 + k] ==
                            case_floats(c, x)[((1 - i) * 3 + j) * 4 + 3 - k]);
    case_free(c);
}

static void test_iota_of_a_shard(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_IOTA);
    int32_t y = VALUE(c, DTYPE_S32, 3, 4);
    ProgramShard shard = {.start = LIST(c, 5, 0), .global = LIST(c, 16, 4)};
    c->attributes = (IrAttributes){.dimension_count = 1, .dimensions = LIST(c, 0)};
    c->instruction.compute.shard = &shard;
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (int i = 0; i < 12; i++) assert_int_equal(((int32_t *)c->memory[y])[i], 5 + i / 4);
    case_free(c);
}

static void test_dynamic_slice_clamps(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_DYNAMIC_SLICE);
    int32_t x = VALUE(c, DTYPE_F32, 5, 6), i = case_value(c, DTYPE_S32, 0, NULL);
    int32_t j = case_value(c, DTYPE_S32, 0, NULL), y = VALUE(c, DTYPE_F32, 2, 3);
    case_fill(c, x, 6);
    *(int32_t *)c->memory[i] = 9;  /* becomes 3 */
    *(int32_t *)c->memory[j] = -2; /* becomes 0 */
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (int a = 0; a < 2; a++)
        for (int b = 0; b < 3; b++)
            assert_true(case_floats(c, y)[a * 3 + b] == case_floats(c, x)[(3 + a) * 6 + b]);
    case_free(c);
}

static void test_refusal_names_the_opcode(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_FFT);
    VALUE(c, DTYPE_F32, 4);
    VALUE(c, DTYPE_F32, 4);
    assert_int_equal(case_run(c, NULL, 1), AM_ERROR_INPUT);
    assert_non_null(strstr(c->error.text, "'fft'"));
    case_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_transpose),
        cmocka_unit_test(test_transpose_of_two_bytes),
        cmocka_unit_test(test_slice_with_strides),
        cmocka_unit_test(test_pad),
        cmocka_unit_test(test_concatenate_and_reverse),
        cmocka_unit_test(test_iota_of_a_shard),
        cmocka_unit_test(test_dynamic_slice_clamps),
        cmocka_unit_test(test_refusal_names_the_opcode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
