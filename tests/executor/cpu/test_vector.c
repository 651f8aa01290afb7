/* Vectorized loops: elementary functions against long double, special values,
 * folds against the plain definition, and every set of instructions that this
 * processor has against the first, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "executor/cpu/vector/vector.h"

enum { COUNT = 20000 };

static float in[COUNT], out[COUNT], other[COUNT];

static long double logistic(long double x) {
    return 1 / (1 + expl(-x));
}

static long double reciprocal_root(long double x) {
    return 1 / sqrtl(x);
}

static const struct {
    IrOpcode opcode;
    long double (*exact)(long double);
    float least, most;
    float ulps;
} functions[] = {
    {IR_EXPONENTIAL, expl, -103, 88.7f, 1.1f},
    {IR_EXPONENTIAL_MINUS_ONE, expm1l, -30, 88.7f, 2},
    {IR_EXPONENTIAL_MINUS_ONE, expm1l, -1, 1, 2},
    {IR_LOG, logl, 0, 4, 1.5f},
    {IR_LOG, logl, 0, 3e38f, 1},
    {IR_LOG_PLUS_ONE, log1pl, -0.999f, 4, 2},
    {IR_LOG_PLUS_ONE, log1pl, -1e-3f, 1e-3f, 1.5f},
    {IR_LOG_PLUS_ONE, log1pl, 0, 1e30f, 1.5f},
    {IR_TANH, tanhl, -12, 12, 2},
    {IR_TANH, tanhl, -1, 1, 2},
    {IR_ERF, erfl, -5, 5, 2.5f},
    {IR_ERF, erfl, -0.01f, 0.01f, 2.5f},
    {IR_LOGISTIC, logistic, -80, 80, 2.5f},
    {IR_RSQRT, reciprocal_root, 1e-3f, 1e6f, 1.5f},
};

/* The distance in units of the last place of the exact value. */
static double ulps_between(float value, long double exact) {
    int exponent;
    frexpl(exact, &exponent);
    if (exponent < -125) exponent = -125;
    return (double)(fabsl((long double)value - exact) / ldexpl(1, exponent - 24));
}

static void test_functions_are_accurate(void **state) {
    (void)state;
    Random random;
    random_seed(&random, 7);
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        ElementLoop *loop = vector_loops()->floating(functions[f].opcode, DTYPE_F32);
        float span = functions[f].most - functions[f].least;
        for (int i = 0; i < COUNT; i++) in[i] = functions[f].least + span * (float)random_uniform(&random);
        loop(out, in, NULL, NULL, COUNT, NULL, NULL);
        double worst = 0;
        for (int i = 0; i < COUNT; i++) {
            double ulps = ulps_between(out[i], functions[f].exact(in[i]));
            if (!(ulps <= worst)) worst = ulps;
        }
        if (!(worst <= functions[f].ulps))
            fail_msg("%s on [%g, %g] is off by %.2f ulp", ir_opcode_name(functions[f].opcode),
                     (double)functions[f].least, (double)functions[f].most, worst);
    }
}

static bool same(float a, float b) {
    return isnan(a) ? isnan(b) != 0 : a == b && signbit(a) == signbit(b);
}

static void test_special_values(void **state) {
    (void)state;
    static const struct {
        IrOpcode opcode;
        float in, out;
    } cases[] = {
        {IR_EXPONENTIAL, -INFINITY, 0},
        {IR_EXPONENTIAL, INFINITY, INFINITY},
        {IR_EXPONENTIAL, 89, INFINITY},
        {IR_EXPONENTIAL, -1e30f, 0},
        {IR_EXPONENTIAL, 0, 1},
        {IR_EXPONENTIAL, NAN, NAN},
        {IR_EXPONENTIAL_MINUS_ONE, -INFINITY, -1},
        {IR_EXPONENTIAL_MINUS_ONE, INFINITY, INFINITY},
        {IR_EXPONENTIAL_MINUS_ONE, -0.0f, -0.0f},
        {IR_EXPONENTIAL_MINUS_ONE, 1e-40f, 1e-40f},
        {IR_EXPONENTIAL_MINUS_ONE, NAN, NAN},
        {IR_LOG, 0, -INFINITY},
        {IR_LOG, -0.0f, -INFINITY},
        {IR_LOG, -1, NAN},
        {IR_LOG, -INFINITY, NAN},
        {IR_LOG, INFINITY, INFINITY},
        {IR_LOG, 1, 0},
        {IR_LOG, NAN, NAN},
        {IR_LOG, 0x1p-149f, -103.278929903431851103f},
        {IR_LOG_PLUS_ONE, -1, -INFINITY},
        {IR_LOG_PLUS_ONE, -2, NAN},
        {IR_LOG_PLUS_ONE, INFINITY, INFINITY},
        {IR_LOG_PLUS_ONE, -0.0f, -0.0f},
        {IR_LOG_PLUS_ONE, 1e-40f, 1e-40f},
        {IR_TANH, INFINITY, 1},
        {IR_TANH, -INFINITY, -1},
        {IR_TANH, -0.0f, -0.0f},
        {IR_TANH, NAN, NAN},
        {IR_ERF, INFINITY, 1},
        {IR_ERF, -INFINITY, -1},
        {IR_ERF, -0.0f, -0.0f},
        {IR_ERF, NAN, NAN},
        {IR_LOGISTIC, -INFINITY, 0},
        {IR_LOGISTIC, INFINITY, 1},
        {IR_RSQRT, 0, INFINITY},
        {IR_RSQRT, -1, NAN},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        float result[20], argument[20]; /* in vectors and in the rest */
        for (int i = 0; i < 20; i++) argument[i] = cases[k].in;
        vector_loops()->floating(cases[k].opcode, DTYPE_F32)(result, argument, NULL, NULL, 20, NULL, NULL);
        for (int i = 0; i < 20; i++)
            if (!same(result[i], cases[k].out))
                fail_msg("%s(%g) is %g", ir_opcode_name(cases[k].opcode), (double)cases[k].in,
                         (double)result[i]);
    }
}

static void fill(Random *random, float scale) {
    for (int i = 0; i < COUNT; i++) in[i] = scale * (float)(2 * random_uniform(random) - 1);
}

static void test_sets_agree(void **state) {
    (void)state;
    Random random;
    random_seed(&random, 3);
    for (int32_t k = 1; k < VECTOR_SETS && vector_loops_at(k); k++) {
        for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
            fill(&random, 90);
            vector_loops_at(0)->floating(functions[f].opcode, DTYPE_F32)(out, in, NULL, NULL, COUNT, NULL,
                                                                         NULL);
            vector_loops_at(k)->floating(functions[f].opcode, DTYPE_F32)(other, in, NULL, NULL, COUNT, NULL,
                                                                         NULL);
            for (int i = 0; i < COUNT; i++) assert_true(same(out[i], other[i]));
        }
        static const SbpReduction reductions[] = {SBP_ADD, SBP_MULTIPLY, SBP_MAX, SBP_MIN};
        fill(&random, 1.5f);
        for (size_t r = 0; r < 4; r++) {
            double a[64], b[64];
            Scalar64 first[64], second[64], one = {.floating = 1};
            const VectorFold *x = vector_loops_at(0)->fold(reductions[r], DTYPE_F32);
            const VectorFold *y = vector_loops_at(k)->fold(reductions[r], DTYPE_F32);
            x->begin(a, &one, 64), y->begin(b, &one, 64);
            x->rows(a, in, 131, 64, 119), y->rows(b, in, 131, 64, 119);
            x->columns(a, in, 80, 23, 64), y->columns(b, in, 80, 23, 64);
            x->finish(first, a, 64), y->finish(second, b, 64);
            assert_memory_equal(first, second, sizeof first);
        }
    }
}

static double fold_plainly(SbpReduction reduction, double a, double b) {
    switch (reduction) {
    case SBP_ADD: return a + b;
    case SBP_MULTIPLY: return a * b;
    case SBP_MAX: return a > b ? a : b;
    default: return a < b ? a : b;
    }
}

/* Whole numbers, so that every order gives the same; all lengths up to several vectors. */
static void test_folds(void **state) {
    (void)state;
    static const SbpReduction reductions[] = {SBP_ADD, SBP_MULTIPLY, SBP_MAX, SBP_MIN};
    Random random;
    random_seed(&random, 5);
    for (size_t r = 0; r < 4; r++) {
        const VectorFold *fold = vector_loops()->fold(reductions[r], DTYPE_F32);
        for (int64_t length = 0; length < 140; length++) {
            for (int i = 0; i < COUNT; i++)
                in[i] = reductions[r] == SBP_MULTIPLY ? (random_below(&random, 9) ? 1.0f : -2.0f)
                                                      : (float)random_below(&random, 1000) - 500;
            double totals[140], expected[140];
            Scalar64 results[140], start = {.floating = 3};
            fold->begin(totals, &start, 5);
            fold->rows(totals, in, 150, 5, length);
            fold->finish(results, totals, 5);
            for (int64_t row = 0; row < 5; row++) {
                expected[row] = 3;
                for (int64_t i = 0; i < length; i++)
                    expected[row] = fold_plainly(reductions[r], expected[row], in[row * 150 + i]);
                assert_true(results[row].floating == expected[row]);
            }
            int64_t rows = length % 11;
            fold->begin(totals, &start, length);
            fold->columns(totals, in, 145, rows, length);
            fold->finish(results, totals, length);
            for (int64_t j = 0; j < length; j++) {
                expected[j] = 3;
                for (int64_t row = 0; row < rows; row++)
                    expected[j] = fold_plainly(reductions[r], expected[j], in[row * 145 + j]);
                assert_true(results[j].floating == expected[j]);
            }
        }
    }
}

static void test_maxima_propagate_nan(void **state) {
    (void)state;
    const VectorFold *fold = vector_loops()->fold(SBP_MAX, DTYPE_F32);
    for (int at = 0; at < 70; at++) {
        for (int i = 0; i < 70; i++) in[i] = (float)i;
        in[at] = NAN;
        double total;
        Scalar64 result, start = {.floating = -INFINITY};
        fold->begin(&total, &start, 1);
        fold->rows(&total, in, 70, 1, 70);
        fold->finish(&result, &total, 1);
        assert_true(isnan(result.floating));
    }
}

static void test_conversions_saturate(void **state) {
    (void)state;
    const float values[] = {1.9f, -1.9f, 3e9f, -3e9f, NAN, 2147483520.0f, INFINITY, -INFINITY};
    const int32_t expected[] = {1, -1, INT32_MAX, INT32_MIN, 0, 2147483520, INT32_MAX, INT32_MIN};
    int32_t result[8];
    vector_loops()->convert(DTYPE_F32, DTYPE_S32)(result, values, NULL, NULL, 8, NULL, NULL);
    assert_memory_equal(result, expected, sizeof expected);
    uint16_t halves[3];
    const float wide[] = {NAN, 1.00390625f, 3.4e38f};
    vector_loops()->convert(DTYPE_F32, DTYPE_BF16)(halves, wide, NULL, NULL, 3, NULL, NULL);
    for (int i = 0; i < 3; i++) assert_int_equal(halves[i], dtype_float_to_bf16(wide[i]));
}

static void test_spread_rows(void **state) {
    (void)state;
    const float values[] = {1, 9, 2, 9, 3};
    for (int64_t length = 1; length < 40; length++) {
        assert_true(vector_loops()->spread_rows(out, values, sizeof *out, 2, 3, length));
        for (int64_t i = 0; i < 3 * length; i++) assert_true(out[i] == (float)(i / length + 1));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions_are_accurate),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_sets_agree),
        cmocka_unit_test(test_folds),
        cmocka_unit_test(test_maxima_propagate_nan),
        cmocka_unit_test(test_conversions_saturate),
        cmocka_unit_test(test_spread_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
