/* reduce, reduce-window and select-and-scatter against their definitions. */
#include <math.h>

#include "tests/support/kernel_case.h"

/* Reduces the dimensions of a [4, 3, 5, 300] array that `mask` names. */
static void check_reduce(unsigned mask, IrOpcode opcode) {
    enum { RANK = 4 };
    const int64_t sizes[RANK] = {4, 3, 5, 300};
    int64_t kept[RANK], reduced[RANK];
    int32_t kept_rank = 0, reduced_rank = 0;
    for (int32_t d = 0; d < RANK; d++) {
        if (mask >> d & 1) reduced[reduced_rank++] = d;
        else kept[kept_rank++] = sizes[d];
    }
    KernelCase *c = case_new(IR_REDUCE);
    int32_t x = case_value(c, DTYPE_F32, RANK, sizes), initial = case_value(c, DTYPE_F32, 0, NULL);
    int32_t y = case_value(c, DTYPE_F32, kept_rank, kept);
    c->attributes = (IrAttributes){.dimension_count = reduced_rank, .dimensions = reduced};
    c->instruction.compute.called = case_computation(c, opcode, DTYPE_F32, DTYPE_F32);
    case_fill(c, x, mask + 1);
    case_floats(c, initial)[0] = 2;
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    int64_t elements = ir_shape_elements(&c->values[y].shape);
    double *expected = malloc(sizeof(double) * (size_t)elements);
    for (int64_t i = 0; i < elements; i++) expected[i] = 2;
    for (int64_t i = 0; i < 4 * 3 * 5 * 300; i++) {
        int64_t index[RANK], left = i, at = 0;
        for (int32_t d = RANK - 1; d >= 0; d--) {
            index[d] = left % sizes[d];
            left /= sizes[d];
        }
        for (int32_t d = 0; d < RANK; d++)
            if (!(mask >> d & 1)) at = at * sizes[d] + index[d];
        double value = case_floats(c, x)[i];
        if (opcode == IR_ADD) expected[at] += value;
        else expected[at] = value > expected[at] ? value : expected[at];
    }
    for (int64_t i = 0; i < elements; i++) assert_true(case_floats(c, y)[i] == expected[i]);
    free(expected);
    case_free(c);
}

static void test_reduce_any_dimensions(void **state) {
    (void)state;
    for (unsigned mask = 0; mask < 16; mask++) {
        check_reduce(mask, IR_ADD);
        check_reduce(mask, IR_MAXIMUM);
    }
}

static void test_maximum_propagates_nan(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_REDUCE);
    int32_t x = VALUE(c, DTYPE_F32, 3), initial = case_value(c, DTYPE_F32, 0, NULL);
    int32_t y = case_value(c, DTYPE_F32, 0, NULL);
    c->attributes = (IrAttributes){.dimension_count = 1, .dimensions = LIST(c, 0)};
    c->instruction.compute.called = case_computation(c, IR_MAXIMUM, DTYPE_F32, DTYPE_F32);
    memcpy(case_floats(c, x), (float[]){1, NAN, 3}, 12);
    case_floats(c, initial)[0] = -INFINITY;
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    assert_true(isnan(case_floats(c, y)[0]));
    case_free(c);
}

static void test_reduce_of_pred_and_bf16(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_REDUCE);
    int32_t x = VALUE(c, DTYPE_PRED, 2, 3);
    case_value(c, DTYPE_PRED, 0, NULL);
    int32_t y = VALUE(c, DTYPE_PRED, 2);
    c->attributes = (IrAttributes){.dimension_count = 1, .dimensions = LIST(c, 1)};
    c->instruction.compute.called = case_computation(c, IR_OR, DTYPE_PRED, DTYPE_PRED);
    memcpy(c->memory[x], (uint8_t[]){0, 1, 0, 0, 0, 0}, 6);
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    assert_int_equal(((uint8_t *)c->memory[y])[0], 1);
    assert_int_equal(((uint8_t *)c->memory[y])[1], 0);
    case_free(c);

    /* 256 + 1 + 1 in bf16, step by step, would stay 256; accumulated wide it is 258. */
    c = case_new(IR_REDUCE);
    x = VALUE(c, DTYPE_BF16, 3);
    case_value(c, DTYPE_BF16, 0, NULL);
    y = case_value(c, DTYPE_BF16, 0, NULL);
    c->attributes = (IrAttributes){.dimension_count = 1, .dimensions = LIST(c, 0)};
    c->instruction.compute.called = case_computation(c, IR_ADD, DTYPE_BF16, DTYPE_BF16);
    for (int i = 0; i < 3; i++) ((uint16_t *)c->memory[x])[i] = dtype_float_to_bf16(i == 0 ? 256.0f : 1.0f);
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    assert_true(dtype_bf16_to_float(*(uint16_t *)c->memory[y]) == 258.0f);
    case_free(c);
}

/* argmax as JAX writes it, made of compare and select on the pairs (value, index). */
static void test_variadic_reduce_finds_the_largest(void **state) {
    (void)state;
    enum { ROWS = 3, COLUMNS = 50 };
    KernelCase *c = case_new(IR_REDUCE);
    int32_t x = VALUE(c, DTYPE_F32, ROWS, COLUMNS), n = VALUE(c, DTYPE_S32, ROWS, COLUMNS);
    int32_t least = case_value(c, DTYPE_F32, 0, NULL);
    case_value(c, DTYPE_S32, 0, NULL);
    case_value(c, DTYPE_F32, 1, LIST(c, ROWS));
    int32_t index = case_value(c, DTYPE_S32, 1, LIST(c, ROWS));
    static const IrAttributes none, greater = {.comparison = "GT"};
    static const int32_t compare[] = {2, 0}, choose_value[] = {4, 2, 0}, choose_index[] = {4, 3, 1},
                         both[] = {5, 6};
    static const int32_t parameters[] = {0, 1, 2, 3};
    for (int32_t k = 0; k < 8; k++)
        c->body[k] = (IrInstruction){.opcode = IR_PARAMETER,
                                     .opcode_name = "op",
                                     .name = "op",
                                     .attributes = &none,
                                     .shape = {.type = k % 2 ? DTYPE_S32 : DTYPE_F32}};
    c->body[4].opcode = IR_COMPARE;
    c->body[4].shape.type = DTYPE_PRED;
    c->body[4].operands = compare;
    c->body[4].operand_count = 2;
    c->body[4].attributes = &greater;
    c->body[5].opcode = c->body[6].opcode = IR_SELECT;
    c->body[5].shape.type = DTYPE_F32;
    c->body[6].shape.type = DTYPE_S32;
    c->body[5].operands = choose_value;
    c->body[6].operands = choose_index;
    c->body[5].operand_count = c->body[6].operand_count = 3;
    c->body[7].opcode = IR_TUPLE;
    c->body[7].shape.type = DTYPE_TUPLE;
    c->body[7].operands = both;
    c->body[7].operand_count = 2;
    c->module.instruction_count = 8;
    c->module.computation_count = 1;
    c->computations[0] = (IrComputation){
        .name = "argmax", .count = 8, .root = 7, .parameter_count = 4, .parameters = parameters};
    c->instruction.compute.called = 0;
    c->attributes = (IrAttributes){.dimension_count = 1, .dimensions = LIST(c, 1)};
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        case_floats(c, x)[i] = (float)(i * 37 % 101);
        ((int32_t *)c->memory[n])[i] = i % COLUMNS;
    }
    case_floats(c, least)[0] = -INFINITY;
    assert_int_equal(case_run(c, NULL, 2), AM_OK);
    for (int r = 0; r < ROWS; r++) {
        int best = 0;
        for (int i = 1; i < COLUMNS; i++)
            if (case_floats(c, x)[r * COLUMNS + i] > case_floats(c, x)[r * COLUMNS + best]) best = i;
        assert_int_equal(((int32_t *)c->memory[index])[r], best);
    }
    case_free(c);
}

enum { HEIGHT = 7, WIDTH = 6, CHANNELS = 5 };
static const IrWindowDimension pooling[3] = {
    {3, 2, 1, 1, 1, 1, false}, {2, 2, 0, 0, 1, 1, false}, {1, 1, 0, 0, 1, 1, false}};

static void test_reduce_window(void **state) {
    (void)state;
    for (int add = 0; add < 2; add++) {
        KernelCase *c = case_new(IR_REDUCE_WINDOW);
        int32_t x = VALUE(c, DTYPE_F32, HEIGHT, WIDTH, CHANNELS), initial = case_value(c, DTYPE_F32, 0, NULL);
        int32_t y = VALUE(c, DTYPE_F32, 4, 3, CHANNELS);
        c->attributes = (IrAttributes){.window = pooling, .window_count = 3};
        c->instruction.compute.called = case_computation(c, add ? IR_ADD : IR_MAXIMUM, DTYPE_F32, DTYPE_F32);
        case_fill(c, x, 9);
        case_floats(c, initial)[0] = add ? 0 : -INFINITY;
        assert_int_equal(case_run(c, NULL, 1), AM_OK);
        for (int p = 0; p < 4; p++)
            for (int q = 0; q < 3; q++)
                for (int k = 0; k < CHANNELS; k++) {
                    float expected = case_floats(c, initial)[0];
                    for (int i = 2 * p - 1; i < 2 * p + 2; i++)
                        for (int j = 2 * q; j < 2 * q + 2; j++) {
                            if (i < 0 || i >= HEIGHT) continue;
                            float value = case_floats(c, x)[(i * WIDTH + j) * CHANNELS + k];
                            if (add) expected += value;
                            else if (value > expected) expected = value;
                        }
                    assert_true(case_floats(c, y)[(p * 3 + q) * CHANNELS + k] == expected);
                }
        case_free(c);
    }
}

static void test_select_and_scatter(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_SELECT_AND_SCATTER);
    int32_t x = VALUE(c, DTYPE_F32, HEIGHT, WIDTH, CHANNELS), source = VALUE(c, DTYPE_F32, 4, 3, CHANNELS);
    case_value(c, DTYPE_F32, 0, NULL);
    int32_t y = VALUE(c, DTYPE_F32, HEIGHT, WIDTH, CHANNELS);
    static const IrAttributes not_less = {.comparison = "GE"};
    c->attributes = (IrAttributes){.window = pooling, .window_count = 3};
    c->instruction.compute.called = case_computation(c, IR_COMPARE, DTYPE_F32, DTYPE_PRED);
    c->body[2].attributes = &not_less;
    c->instruction.compute.called_second = case_computation(c, IR_ADD, DTYPE_F32, DTYPE_F32);
    case_fill(c, x, 10);
    case_fill(c, source, 11);
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    float expected[HEIGHT * WIDTH * CHANNELS] = {0};
    for (int p = 0; p < 4; p++)
        for (int q = 0; q < 3; q++)
            for (int k = 0; k < CHANNELS; k++) {
                int best = -1;
                for (int i = 2 * p - 1; i < 2 * p + 2; i++)
                    for (int j = 2 * q; j < 2 * q + 2; j++) {
                        int at = (i * WIDTH + j) * CHANNELS + k;
                        if (i < 0 || i >= HEIGHT) continue;
                        if (best < 0 || !(case_floats(c, x)[best] >= case_floats(c, x)[at])) best = at;
                    }
                expected[best] += case_floats(c, source)[(p * 3 + q) * CHANNELS + k];
            }
    for (int i = 0; i < HEIGHT * WIDTH * CHANNELS; i++) assert_true(case_floats(c, y)[i] == expected[i]);
    case_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reduce_any_dimensions),
        cmocka_unit_test(test_maximum_propagates_nan),
        cmocka_unit_test(test_reduce_of_pred_and_bf16),
        cmocka_unit_test(test_variadic_reduce_finds_the_largest),
        cmocka_unit_test(test_reduce_window),
        cmocka_unit_test(test_select_and_scatter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
