/* cholesky, triangular-solve and the batch normalizations on values made by hand. */
#include <math.h>

#include "tests/support/module_case.h"

/* Checks output 0 of a module within 1e-6 of the expectation. */
static void check_near(const char *text, const void *const *parameters, const float *expected, int count) {
    ModuleCase c;
    if (module_open(&c, text) != AM_OK) fail_msg("%s", c.error.text);
    module_run(&c, parameters);
    const float *got = executable_output(c.entry, 0);
    for (int k = 0; k < count; k++)
        if (!(fabsf(got[k] - expected[k]) <= 1e-6f))
            fail_msg("[%d] is %g, expected %g", k, got[k], expected[k]);
    module_close(&c);
}

/* Only one triangle is read, and the other one of the result is 0. */
static void test_cholesky(void **state) {
    (void)state;
    const float lower[] = {4, 99, 99, 2, 5, 99, -2, 3, 11}, upper[] = {4, 2, -2, 99, 5, 3, 99, 99, 11};
    const float expected_lower[] = {2, 0, 0, 1, 2, 0, -1, 2, 2.44948974f};
    const float expected_upper[] = {2, 1, -1, 0, 2, 2, 0, 0, 2.44948974f};
    check_near("HloModule m\nENTRY e { a = f32[3,3] parameter(0)\n"
               "  ROOT r = f32[3,3] cholesky(a), lower=true }\n",
               (const void *[]){lower}, expected_lower, 9);
    check_near("HloModule m\nENTRY e { a = f32[3,3] parameter(0)\n"
               "  ROOT r = f32[3,3] cholesky(a), lower=false }\n",
               (const void *[]){upper}, expected_upper, 9);
}

/* [2 i; -i 2] = L L^H = U^H U, and a system with the conjugate of a triangle. */
static void test_complex_matrices(void **state) {
    (void)state;
    const float a[] = {4, 0, 0, 2, 0, -2, 5, 0}, lower[] = {2, 0, 0, 0, 0, -1, 2, 0};
    const float upper[] = {2, 0, 0, 1, 0, 0, 2, 0}, x[] = {1, 0, 0, 1};
    check_near("HloModule m\nENTRY e { a = c64[2,2] parameter(0)\n"
               "  ROOT r = c64[2,2] cholesky(a), lower=true }\n",
               (const void *[]){a}, lower, 8);
    check_near("HloModule m\nENTRY e { a = c64[2,2] parameter(0)\n"
               "  ROOT r = c64[2,2] cholesky(a), lower=false }\n",
               (const void *[]){a}, upper, 8);
    /* U^H = [2 0; -i 2] takes [1; i] to [2; i]. */
    check_near("HloModule m\nENTRY e { a = c64[2,2] parameter(0) b = c64[2,1] parameter(1)\n"
               "  ROOT r = c64[2,1] triangular-solve(a, b), left_side=true, transpose_a=ADJOINT }\n",
               (const void *[]){upper, (const float[]){2, 0, 0, 1}}, x, 4);
}

static void test_cholesky_of_no_positive_matrix(void **state) {
    (void)state;
    ModuleCase c;
    const float a[] = {1, 2, 2, 1};
    if (module_open(&c, "HloModule m\nENTRY e { a = f32[2,2] parameter(0)\n"
                        "  ROOT r = f32[2,2] cholesky(a), lower=true }\n") != AM_OK)
        fail_msg("%s", c.error.text);
    module_run(&c, (const void *[]){a});
    for (int k = 0; k < 4; k++) assert_true(isnan(((const float *)executable_output(c.entry, 0))[k]));
    module_close(&c);
}

static void test_triangular_solve(void **state) {
    (void)state;
    const float a[] = {2, 99, 3, 4}, b[] = {4, 22};
    /* [2 0; 3 4] x = [4; 22]; then x [2 0; 3 4] = [4 22]; then the transposed, with ones on the diagonal. */
    check_near("HloModule m\nENTRY e { a = f32[2,2] parameter(0) b = f32[2,1] parameter(1)\n"
               "  ROOT r = f32[2,1] triangular-solve(a, b), left_side=true, lower=true, "
               "transpose_a=NO_TRANSPOSE }\n",
               (const void *[]){a, b}, (const float[]){2, 4}, 2);
    check_near("HloModule m\nENTRY e { a = f32[2,2] parameter(0) b = f32[1,2] parameter(1)\n"
               "  ROOT r = f32[1,2] triangular-solve(a, b), lower=true, transpose_a=NO_TRANSPOSE }\n",
               (const void *[]){a, b}, (const float[]){-6.25f, 5.5f}, 2);
    check_near("HloModule m\nENTRY e { a = f32[2,2] parameter(0) b = f32[2,1] parameter(1)\n"
               "  ROOT r = f32[2,1] triangular-solve(a, b), left_side=true, lower=true, unit_diagonal=true, "
               "transpose_a=TRANSPOSE }\n",
               (const void *[]){a, b}, (const float[]){-62, 22}, 2);
}

/* Two features over four elements: (1, 3, 5, 7) and (2, 2, 2, 10). */
static const float images[] = {1, 3, 2, 2, 5, 7, 2, 10};

static void test_batch_norm_training(void **state) {
    (void)state;
    const float scale[] = {2, 1}, offset[] = {1, -1};
    const char *text = "HloModule m\nENTRY e { x = f32[2,2,2] parameter(0)\n"
                       "  s = f32[2] parameter(1) o = f32[2] parameter(2)\n"
                       "  t = (f32[2,2,2], f32[2], f32[2]) batch-norm-training(x, s, o), epsilon=4, "
                       "feature_index=1\n"
                       "  m = f32[2] get-tuple-element(t), index=1 v = f32[2] get-tuple-element(t), index=2\n"
                       "  y = f32[2,2,2] get-tuple-element(t), index=0 f = f32[8] reshape(y)\n"
                       "  ROOT r = f32[12] concatenate(m, v, f), dimensions={0} }\n";
    const float expected[] = {4,     4,     5,        12, 1 - 2, 1 - 2 / 3.0f, -1 - 0.5f, -1.5f, 1 + 2 / 3.0f,
                              1 + 2, -1.5f, -1 + 1.5f};
    check_near(text, (const void *[]){images, scale, offset}, expected, 12);
}

static void test_batch_norm_inference(void **state) {
    (void)state;
    const float scale[] = {2, 1}, offset[] = {1, -1}, mean[] = {1, 2}, variance[] = {3, 0};
    const char *text = "HloModule m\nENTRY e { x = f32[2,2,2] parameter(0)\n"
                       "  s = f32[2] parameter(1) o = f32[2] parameter(2)\n"
                       "  m = f32[2] parameter(3) v = f32[2] parameter(4)\n"
                       "  ROOT y = f32[2,2,2] batch-norm-inference(x, s, o, m, v), epsilon=1, "
                       "feature_index=1 }\n";
    const float expected[] = {1, 3, -1, -1, 5, 7, -1, 7};
    check_near(text, (const void *[]){images, scale, offset, mean, variance}, expected, 8);
}

/* d offset = sum g, d scale = sum g x', and a gradient that neither sees cancels in d x. */
static void test_batch_norm_gradient(void **state) {
    (void)state;
    const float scale[] = {2, 1}, mean[] = {4, 4}, variance[] = {5, 12};
    const float g[] = {1, 1, 0, 0, 1, 1, 0, 4};
    const char *text = "HloModule m\nENTRY e { x = f32[2,2,2] parameter(0) s = f32[2] parameter(1)\n"
                       "  m = f32[2] parameter(2) v = f32[2] parameter(3) g = f32[2,2,2] parameter(4)\n"
                       "  t = (f32[2,2,2], f32[2], f32[2]) batch-norm-grad(x, s, m, v, g), epsilon=4, "
                       "feature_index=1\n"
                       "  c = f32[2] get-tuple-element(t), index=1 o = f32[2] get-tuple-element(t), index=2\n"
                       "  y = f32[2,2,2] get-tuple-element(t), index=0 f = f32[8] reshape(y)\n"
                       "  ROOT r = f32[12] concatenate(c, o, f), dimensions={0} }\n";
    /* Feature 1: r = 1/4, x' = (-.5, -.5, -.5, 1.5), sum g x' = 6, so d x = (g - 1 - 1.5 x') / 4. */
    const float expected[] = {0, 6, 4, 4, 0, 0, -0.0625f, -0.0625f, 0, 0, -0.0625f, 0.1875f};
    check_near(text, (const void *[]){images, scale, mean, variance, g}, expected, 12);
}

enum { EXAMPLES = 300, FEATURES = 70 };

/* Features last or first: the same sums in the same order. */
static void test_batch_norm_layouts(void **state) {
    (void)state;
    static float last[EXAMPLES][FEATURES], first[FEATURES][EXAMPLES], scale[FEATURES], offset[FEATURES];
    static const char *const texts[2] = {
        "HloModule m\nENTRY e { x = f32[300,70] parameter(0) s = f32[70] parameter(1) o = f32[70] "
        "parameter(2)\n"
        "  t = (f32[300,70], f32[70], f32[70]) batch-norm-training(x, s, o), epsilon=1, feature_index=1\n"
        "  m = f32[70] get-tuple-element(t), index=1 v = f32[70] get-tuple-element(t), index=2\n"
        "  y = f32[300,70] get-tuple-element(t), index=0\n"
        "  g = (f32[300,70], f32[70], f32[70]) batch-norm-grad(x, s, m, v, y), epsilon=1, feature_index=1\n"
        "  d = f32[300,70] get-tuple-element(g), index=0 p = f32[70] get-tuple-element(g), index=1\n"
        "  ROOT r = (f32[300,70], f32[300,70], f32[70], f32[70], f32[70]) tuple(y, d, m, v, p) }\n",
        "HloModule m\nENTRY e { x = f32[70,300] parameter(0) s = f32[70] parameter(1) o = f32[70] "
        "parameter(2)\n"
        "  t = (f32[70,300], f32[70], f32[70]) batch-norm-training(x, s, o), epsilon=1, feature_index=0\n"
        "  m = f32[70] get-tuple-element(t), index=1 v = f32[70] get-tuple-element(t), index=2\n"
        "  y = f32[70,300] get-tuple-element(t), index=0\n"
        "  g = (f32[70,300], f32[70], f32[70]) batch-norm-grad(x, s, m, v, y), epsilon=1, feature_index=0\n"
        "  d = f32[70,300] get-tuple-element(g), index=0 p = f32[70] get-tuple-element(g), index=1\n"
        "  ROOT r = (f32[70,300], f32[70,300], f32[70], f32[70], f32[70]) tuple(y, d, m, v, p) }\n"};
    for (int i = 0; i < EXAMPLES * FEATURES; i++)
        last[i / FEATURES][i % FEATURES] = first[i % FEATURES][i / FEATURES] = (float)(i * 7919 % 1009) / 64;
    for (int f = 0; f < FEATURES; f++) scale[f] = 1 + (float)f / 8, offset[f] = (float)(f % 5);
    ModuleCase cases[2];
    for (int k = 0; k < 2; k++) {
        if (module_open(&cases[k], texts[k]) != AM_OK) fail_msg("%s", cases[k].error.text);
        module_run(&cases[k], (const void *[]){k == 0 ? &last[0][0] : &first[0][0], scale, offset});
    }
    for (int output = 0; output < 2; output++) {
        const float *a = executable_output(cases[0].entry, output),
                    *b = executable_output(cases[1].entry, output);
        for (int n = 0; n < EXAMPLES; n++)
            for (int f = 0; f < FEATURES; f++) assert_true(a[n * FEATURES + f] == b[f * EXAMPLES + n]);
    }
    for (int output = 2; output < 5; output++)
        assert_memory_equal(executable_output(cases[0].entry, output),
                            executable_output(cases[1].entry, output), sizeof scale);
    module_close(&cases[0]);
    module_close(&cases[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cholesky),
        cmocka_unit_test(test_complex_matrices),
        cmocka_unit_test(test_cholesky_of_no_positive_matrix),
        cmocka_unit_test(test_triangular_solve),
        cmocka_unit_test(test_batch_norm_training),
        cmocka_unit_test(test_batch_norm_inference),
        cmocka_unit_test(test_batch_norm_gradient),
        cmocka_unit_test(test_batch_norm_layouts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
