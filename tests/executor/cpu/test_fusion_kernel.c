/* Fusions and single element-wise operators: strides, types, HLO's corner cases. */
#include <math.h>

#include "tests/support/kernel_case.h"

/* y = select(x > bias, x * scale, iota), over [300, 7], in place of x. */
static void test_chain_with_broadcasts_in_place(void **state) {
    (void)state;
    enum { ROWS = 300, WIDTH = 7 };
    KernelCase *c = case_new(IR_ADD);
    int32_t x = VALUE(c, DTYPE_F32, ROWS, WIDTH), bias = VALUE(c, DTYPE_F32, WIDTH);
    int32_t scale = case_value(c, DTYPE_F32, 0, NULL), y = VALUE(c, DTYPE_F32, ROWS, WIDTH);
    case_fill(c, x, 1);
    case_fill(c, bias, 2);
    case_floats(c, scale)[0] = 3;
    float seven = 7;
    IrLiteral literal = {.data = &seven, .bytes = 4};
    IrAttributes greater = {.comparison = "GT"}, rows = {.dimension_count = 1, .dimensions = LIST(c, 0)};
    ProgramFusionInput inputs[] = {{x, LIST(c, WIDTH, 1)}, {bias, LIST(c, 0, 1)}, {scale, LIST(c, 0, 0)}};
    ProgramFusionOp ops[] = {
        {.opcode = IR_COMPARE,
         .type = DTYPE_PRED,
         .operand_count = 2,
         .operands = {0, 1},
         .attributes = &greater},
        {.opcode = IR_MULTIPLY, .type = DTYPE_F32, .operand_count = 2, .operands = {0, 2}},
        {.opcode = IR_IOTA, .type = DTYPE_S32, .attributes = &rows, .iota_start = 10},
        {.opcode = IR_CONVERT, .type = DTYPE_F32, .operand_count = 1, .operands = {5}},
        {.opcode = IR_CONSTANT, .type = DTYPE_F32, .literal = &literal},
        {.opcode = IR_ADD, .type = DTYPE_F32, .operand_count = 2, .operands = {6, 7}},
        {.opcode = IR_SELECT, .type = DTYPE_F32, .operand_count = 3, .operands = {3, 4, 8}},
    };
    int32_t output_slot = 9, output_value = y;
    ProgramFusion fusion = {.rank = 2,
                            .dimensions = LIST(c, ROWS, WIDTH),
                            .elements = ROWS * WIDTH,
                            .input_count = 3,
                            .op_count = 7,
                            .output_count = 1,
                            .inputs = inputs,
                            .ops = ops,
                            .output_slots = &output_slot,
                            .output_values = &output_value};
    float expected[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++) {
        float value = case_floats(c, x)[i];
        expected[i] = value > case_floats(c, bias)[i % WIDTH] ? 3 * value : (float)(10 + i / WIDTH + 7);
    }
    free(c->memory[y]);
    c->memory[y] = c->memory[x];
    assert_int_equal(case_run(c, &fusion, 1), AM_OK);
    for (int i = 0; i < ROWS * WIDTH; i++) assert_true(case_floats(c, y)[i] == expected[i]);
    c->memory[y] = NULL;
    case_free(c);
}

/* x / 2^k, which is computed as a product, has the bits of the quotient. */
static void test_quotients_by_powers_of_two(void **state) {
    (void)state;
    enum { COUNT = 9, DIVISORS = 8 };
    static const float divisors[DIVISORS] = {8, -0.5f, 3, 0x1p126f, 0x1p-126f, 0x1p-127f, 0x1p127f, 1};
    static const float numbers[COUNT] = {0,      -0.0f,    1,    -3.3f, 0x1p-149f, 0x1.fffffep127f,
                                         1e-38f, INFINITY, 5e20f};
    for (int d = 0; d < DIVISORS; d++) {
        KernelCase *c = case_new(IR_ADD);
        int32_t x = VALUE(c, DTYPE_F32, COUNT), y = VALUE(c, DTYPE_F32, COUNT);
        IrLiteral literal = {.data = &divisors[d], .bytes = 4};
        ProgramFusionInput inputs[] = {{x, LIST(c, 1)}};
        ProgramFusionOp ops[] = {
            {.opcode = IR_CONSTANT, .type = DTYPE_F32, .literal = &literal},
            {.opcode = IR_DIVIDE, .type = DTYPE_F32, .operand_count = 2, .operands = {0, 1}},
            {.opcode = IR_ADD, .type = DTYPE_F32, .operand_count = 2, .operands = {2, 1}},
        };
        int32_t output_slot = d % 2 ? 3 : 2, output_value = y;
        ProgramFusion fusion = {.rank = 1,
                                .dimensions = LIST(c, COUNT),
                                .elements = COUNT,
                                .input_count = 1,
                                .op_count = d % 2 ? 3 : 2,
                                .output_count = 1,
                                .inputs = inputs,
                                .ops = ops,
                                .output_slots = &output_slot,
                                .output_values = &output_value};
        memcpy(c->memory[x], numbers, sizeof numbers);
        assert_int_equal(case_run(c, &fusion, 1), AM_OK);
        for (int i = 0; i < COUNT; i++) {
            float expected = numbers[i] / divisors[d] + (d % 2 ? divisors[d] : 0);
            if (d % 2 == 0) expected = numbers[i] / divisors[d];
            assert_memory_equal(&case_floats(c, y)[i], &expected, sizeof expected);
        }
        case_free(c);
    }
}

/* bf16 is rounded after every operator: (256 + 1) - 256 is 0, not 1. */
static void test_half_precision_rounds_every_operator(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_ADD);
    int32_t x = VALUE(c, DTYPE_BF16, 2), z = VALUE(c, DTYPE_BF16, 2), y = VALUE(c, DTYPE_BF16, 2);
    uint16_t *in = c->memory[x], *one = c->memory[z];
    in[0] = dtype_float_to_bf16(256), in[1] = dtype_float_to_bf16(4);
    one[0] = one[1] = dtype_float_to_bf16(1);
    ProgramFusionInput inputs[] = {{x, LIST(c, 1)}, {z, LIST(c, 1)}};
    ProgramFusionOp ops[] = {
        {.opcode = IR_ADD, .type = DTYPE_BF16, .operand_count = 2, .operands = {0, 1}},
        {.opcode = IR_SUBTRACT, .type = DTYPE_BF16, .operand_count = 2, .operands = {2, 0}},
    };
    int32_t output_slot = 3;
    ProgramFusion fusion = {.rank = 1,
                            .dimensions = LIST(c, 2),
                            .elements = 2,
                            .input_count = 2,
                            .op_count = 2,
                            .output_count = 1,
                            .inputs = inputs,
                            .ops = ops,
                            .output_slots = &output_slot,
                            .output_values = &y};
    assert_int_equal(case_run(c, &fusion, 1), AM_OK);
    assert_true(dtype_bf16_to_float(((uint16_t *)c->memory[y])[0]) == 0);
    assert_true(dtype_bf16_to_float(((uint16_t *)c->memory[y])[1]) == 1);
    case_free(c);
}

/* One operator on `count` elements of each operand; returns the result's memory in *out. */
static KernelCase *run_single(IrOpcode opcode, const IrAttributes *attributes, Dtype type, Dtype result,
                              int64_t count, const void *a, const void *b, const void **out) {
    KernelCase *c = case_new(opcode);
    int32_t x = VALUE(c, type, count), y = b ? VALUE(c, type, count) : -1, z = VALUE(c, result, count);
    memcpy(c->memory[x], a, (size_t)(count * dtype_bytes(type)));
    if (b) memcpy(c->memory[y], b, (size_t)(count * dtype_bytes(type)));
    if (attributes) c->attributes = *attributes;
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    *out = c->memory[z];
    return c;
}

static void test_integer_corner_cases(void **state) {
    (void)state;
    const int32_t x[5] = {7, INT32_MIN, -7, 9, INT32_MIN}, y[5] = {0, -1, 2, 40, 31};
    static const struct {
        IrOpcode opcode;
        int32_t expected[5];
    } cases[] = {
        {IR_DIVIDE, {-1, INT32_MIN, -3, 0, -69273666}},
        {IR_REMAINDER, {7, 0, -1, 9, -2}},
        {IR_SHIFT_LEFT, {7, 0, -28, 0, 0}},
        {IR_SHIFT_RIGHT_ARITHMETIC, {7, -1, -2, 0, -1}},
        {IR_SHIFT_RIGHT_LOGICAL, {7, 0, 1073741822, 0, 1}},
        {IR_ADD, {7, INT32_MAX, -5, 49, INT32_MIN + 31}},
        {IR_MULTIPLY, {0, INT32_MIN, -14, 360, INT32_MIN}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const void *out;
        KernelCase *c = run_single(cases[k].opcode, NULL, DTYPE_S32, DTYPE_S32, 5, x, y, &out);
        for (int i = 0; i < 5; i++) assert_int_equal(((const int32_t *)out)[i], cases[k].expected[i]);
        case_free(c);
    }
    const uint8_t u[3] = {200, 5, 255}, v[3] = {0, 3, 255};
    const void *out;
    KernelCase *c = run_single(IR_DIVIDE, NULL, DTYPE_U8, DTYPE_U8, 3, u, v, &out);
    assert_memory_equal(out, ((uint8_t[]){255, 1, 1}), 3);
    case_free(c);
    c = run_single(IR_ADD, NULL, DTYPE_U8, DTYPE_U8, 3, u, v, &out);
    assert_memory_equal(out, ((uint8_t[]){200, 8, 254}), 3);
    case_free(c);
    c = run_single(IR_COUNT_LEADING_ZEROS, NULL, DTYPE_S32, DTYPE_S32, 5, x, NULL, &out);
    assert_memory_equal(out, ((int32_t[]){29, 0, 0, 28, 0}), 20);
    case_free(c);
}

static void test_floating_corner_cases(void **state) {
    (void)state;
    const float x[4] = {NAN, 1, -0.0f, 3}, y[4] = {1, NAN, 0.0f, 2};
    const void *out;
    KernelCase *c = run_single(IR_MAXIMUM, NULL, DTYPE_F32, DTYPE_F32, 4, x, y, &out);
    assert_true(isnan(((const float *)out)[0]) && isnan(((const float *)out)[1]));
    assert_true(((const float *)out)[3] == 3);
    case_free(c);
    static const struct {
        const char *direction, *type;
        uint8_t expected[4];
    } compares[] = {
        {"EQ", NULL, {0, 0, 1, 0}},         {"NE", "FLOAT", {1, 1, 0, 1}},
        {"LT", NULL, {0, 0, 0, 0}},         {"GE", NULL, {0, 0, 1, 1}},
        {"GT", "TOTALORDER", {1, 0, 0, 1}}, {"LT", "TOTALORDER", {0, 1, 1, 0}},
        {"EQ", "TOTALORDER", {0, 0, 0, 0}},
    };
    for (size_t k = 0; k < sizeof compares / sizeof *compares; k++) {
        IrAttributes attributes = {.comparison = compares[k].direction, .comparison_type = compares[k].type};
        c = run_single(IR_COMPARE, &attributes, DTYPE_F32, DTYPE_PRED, 4, x, y, &out);
        assert_memory_equal(out, compares[k].expected, 4);
        case_free(c);
    }
    c = run_single(IR_SIGN, NULL, DTYPE_F32, DTYPE_F32, 4, x, NULL, &out);
    assert_true(isnan(((const float *)out)[0]) && signbit(((const float *)out)[2]));
    case_free(c);
    c = run_single(IR_IS_FINITE, NULL, DTYPE_F32, DTYPE_PRED, 4, x, NULL, &out);
    assert_memory_equal(out, ((uint8_t[]){0, 1, 1, 1}), 4);
    case_free(c);
}

static void test_convert_saturates(void **state) {
    (void)state;
    const float x[6] = {NAN, 1e20f, -1e20f, -2.9f, 300, 0.5f};
    const void *out;
    KernelCase *c = run_single(IR_CONVERT, NULL, DTYPE_F32, DTYPE_S32, 6, x, NULL, &out);
    assert_memory_equal(out, ((int32_t[]){0, INT32_MAX, INT32_MIN, -2, 300, 0}), 24);
    case_free(c);
    c = run_single(IR_CONVERT, NULL, DTYPE_F32, DTYPE_U8, 6, x, NULL, &out);
    assert_memory_equal(out, ((uint8_t[]){0, 255, 0, 0, 255, 0}), 6);
    case_free(c);
    c = run_single(IR_CONVERT, NULL, DTYPE_F32, DTYPE_PRED, 6, x, NULL, &out);
    assert_memory_equal(out, ((uint8_t[]){1, 1, 1, 1, 1, 1}), 6);
    case_free(c);
    const int32_t n[2] = {300, -1};
    c = run_single(IR_CONVERT, NULL, DTYPE_S32, DTYPE_U8, 2, n, NULL, &out);
    assert_memory_equal(out, ((uint8_t[]){44, 255}), 2);
    case_free(c);
    c = run_single(IR_CONVERT, NULL, DTYPE_F32, DTYPE_BF16, 6, x, NULL, &out);
    assert_true(dtype_bf16_to_float(((const uint16_t *)out)[4]) == 300);
    case_free(c);
}

/* The functions that floating.c computes itself; other formulas are in float_formulas.def. */
#define FORMULAS(X)                    \
    X(ERF, erf(x))                     \
    X(EXPONENTIAL, exp(x))             \
    X(EXPONENTIAL_MINUS_ONE, expm1(x)) \
    X(LOG, log(x))                     \
    X(LOG_PLUS_ONE, log1p(x))          \
    X(LOGISTIC, 1 / (1 + exp(-x)))     \
    X(TANH, tanh(x))

static double unary(IrOpcode opcode, double x) {
    switch (opcode) {
#define FORMULA(NAME, EXPRESSION) \
    case IR_##NAME:               \
        return EXPRESSION;
#define UNARY_FORMULA FORMULA
#define BINARY_FORMULA(NAME, EXPRESSION)
        FORMULAS(FORMULA)
#include "executor/float_formulas.def"
#undef UNARY_FORMULA
    default: return NAN;
    }
}

/* Beside the formulas of the kernels themselves. Errors are relative to the value, or to 0.05 where a value
 * is smaller by cancellation. */
static void test_functions(void **state) {
    (void)state;
    static const IrOpcode opcodes[] = {
#define ELEMENT(NAME, EXPRESSION) IR_##NAME,
#define UNARY_FORMULA             ELEMENT
        FORMULAS(ELEMENT)
#include "executor/float_formulas.def"
    };
    enum { N = 40 };
    float single[N];
    double twice[N];
    for (int i = 0; i < N; i++) single[i] = (float)(0.0625 + 0.25 * i), twice[i] = single[i];
    for (size_t k = 0; k < sizeof opcodes / sizeof *opcodes; k++) {
        const void *a, *b;
        KernelCase *c = run_single(opcodes[k], NULL, DTYPE_F32, DTYPE_F32, N, single, NULL, &a);
        KernelCase *d = run_single(opcodes[k], NULL, DTYPE_F64, DTYPE_F64, N, twice, NULL, &b);
        for (int i = 0; i < N; i++) {
            double expected = unary(opcodes[k], twice[i]), size = fmax(fabs(expected), 0.05);
            float one = ((const float *)a)[i];
            double two = ((const double *)b)[i];
            bool is_outside = isnan(expected) && isnan(one) && isnan(two); /* such as acos(2) */
            bool is_near = fabs(one - expected) <= 4e-7 * size && fabs(two - expected) <= 1e-15 * size;
            if (!is_outside && !is_near)
                fail_msg("%s(%g) is %g and %g", ir_opcode_name(opcodes[k]), twice[i], (double)one, two);
        }
        case_free(c);
        case_free(d);
    }
}

/* Values that do not come from the formulas: of opcodes that jaxlib lacks, no other test has values. */
static void test_values(void **state) {
    (void)state;
    static const struct {
        IrOpcode opcode;
        double operand, expected;
    } values[] = {
        {IR_ATAN, 1, 0.78539816339744831},
        {IR_ATAN, -0.57735026918962576, -0.52359877559829887},
        {IR_CBRT, -27, -3},
    };
    for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
        const void *result;
        KernelCase *c =
            run_single(values[k].opcode, NULL, DTYPE_F64, DTYPE_F64, 1, &values[k].operand, NULL, &result);
        assert_true(fabs(*(const double *)result - values[k].expected) <= 1e-15 * fabs(values[k].expected));
        case_free(c);
    }
}

static void test_refusal_of_a_type(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_TANH);
    VALUE(c, DTYPE_S32, 4);
    VALUE(c, DTYPE_S32, 4);
    assert_int_equal(case_run(c, NULL, 1), AM_ERROR_INPUT);
    assert_non_null(strstr(c->error.text, "'tanh'"));
    case_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain_with_broadcasts_in_place),
        cmocka_unit_test(test_quotients_by_powers_of_two),
        cmocka_unit_test(test_half_precision_rounds_every_operator),
        cmocka_unit_test(test_integer_corner_cases),
        cmocka_unit_test(test_floating_corner_cases),
        cmocka_unit_test(test_convert_saturates),
        cmocka_unit_test(test_functions),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refusal_of_a_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
