/* LAPACK custom calls: by their reconstructions, and what does not fit is refused. */
#include <complex.h>
#include <math.h>

#include "tests/support/module_case.h"

/* Opens the module, copies its parameters in and runs it. */
static void run(ModuleCase *self, const char *text, const void *const *parameters) {
    if (module_open(self, text) != AM_OK) fail_msg("%s", self->error.text);
    module_run(self, parameters);
}

static const double matrices[2][6] = {{1, 2, 3, 4, 5, 7}, {2, -1, 0, 3, 1, 1}}; /* 3 x 2 */

/* Two matrices [3, 2] = Q R: Q from geqrf and orgqr, R what geqrf leaves above the diagonal. */
static void test_qr(void **state) {
    (void)state;
    ModuleCase c;
    run(&c,
        "HloModule m\nENTRY e { a = f64[2,3,2] parameter(0)\n"
        "  f = (f64[2,3,2], f64[2,2]) custom-call(a), custom_call_target=\"lapack_dgeqrf_ffi\", "
        "backend_config={}\n"
        "  r = f64[2,3,2] get-tuple-element(f), index=0 t = f64[2,2] get-tuple-element(f), index=1\n"
        "  q = f64[2,3,2] custom-call(r, t), custom_call_target=\"lapack_dorgqr_ffi\", backend_config={}\n"
        "  ROOT o = (f64[2,3,2], f64[2,3,2]) tuple(q, r) }\n",
        (const void *[]){matrices});
    const double *q = executable_output(c.entry, 0), *r = executable_output(c.entry, 1);
    for (int b = 0; b < 2; b++, q += 6, r += 6)
        for (int i = 0; i < 3; i++) {
            assert_true(fabs(q[2 * i] * r[0] - matrices[b][2 * i]) < 1e-12);
            assert_true(fabs(q[2 * i] * r[1] + q[2 * i + 1] * r[3] - matrices[b][2 * i + 1]) < 1e-12);
        }
    module_close(&c);
}

/* A = U S V^T, and status 0. */
static void test_singular_values(void **state) {
    (void)state;
    ModuleCase c;
    run(&c,
        "HloModule m\nENTRY e { a = f64[2,3,2] parameter(0)\n"
        "  ROOT f = (f64[2,3,2], f64[2,2], f64[2,3,2], f64[2,2,2], s32[2]) custom-call(a), "
        "custom_call_target=\"lapack_dgesdd_ffi\", backend_config={mode = 83 : ui8} }\n",
        (const void *[]){matrices});
    const double *s = executable_output(c.entry, 1), *u = executable_output(c.entry, 2),
                 *v = executable_output(c.entry, 3);
    const int32_t *status = executable_output(c.entry, 4);
    for (int b = 0; b < 2; b++, s += 2, u += 6, v += 4) {
        assert_int_equal(status[b], 0);
        assert_true(s[0] >= s[1] && s[1] > 0);
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 2; j++) {
                double sum = u[2 * i] * s[0] * v[j] + u[2 * i + 1] * s[1] * v[2 + j];
                assert_true(fabs(sum - matrices[b][2 * i + j]) < 1e-12);
            }
    }
    module_close(&c);
}

/* A v = w v for a rotation, whose eigenvalues are i and -i: packed pairs become complex vectors. */
static void test_eigenvectors_of_a_rotation(void **state) {
    (void)state;
    ModuleCase c;
    const float a[] = {0, -1, 1, 0};
    run(&c,
        "HloModule m\nENTRY e { a = f32[2,2] parameter(0)\n"
        "  ROOT f = (f32[2], f32[2], c64[2,2], c64[2,2], s32[]) custom-call(a), "
        "custom_call_target=\"lapack_sgeev_ffi\", "
        "backend_config={compute_left = 78 : ui8, compute_right = 86 : ui8} }\n",
        (const void *[]){a});
    const float *real = executable_output(c.entry, 0), *imaginary = executable_output(c.entry, 1);
    const float complex *v = executable_output(c.entry, 3);
    assert_int_equal(*(const int32_t *)executable_output(c.entry, 4), 0);
    for (int j = 0; j < 2; j++) {
        float complex value = real[j] + I * imaginary[j];
        assert_true(fabsf(real[j]) < 1e-6f && fabsf(fabsf(imaginary[j]) - 1) < 1e-6f);
        assert_true(cabsf(-v[2 + j] - value * v[j]) < 1e-6f);
        assert_true(cabsf(v[j] - value * v[2 + j]) < 1e-6f);
    }
    module_close(&c);
}

static void test_eigenvalues_of_no_finite_matrix(void **state) {
    (void)state;
    ModuleCase c;
    const float a[] = {0, NAN, 1, 0};
    run(&c,
        "HloModule m\nENTRY e { a = c64[1,1] parameter(0)\n"
        "  ROOT f = (c64[1], c64[1,1], c64[1,1], s32[]) custom-call(a), "
        "custom_call_target=\"lapack_cgeev_ffi\", backend_config={} }\n",
        (const void *[]){a});
    assert_int_equal(*(const int32_t *)executable_output(c.entry, 3), -4);
    module_close(&c);
}

/* A Hermitian matrix [[2, i], [-i, 2]] has the eigenvalues 1 and 3. */
static void test_hermitian(void **state) {
    (void)state;
    ModuleCase c;
    const double a[] = {2, 0, 0, 1, 0, -1, 2, 0};
    run(&c,
        "HloModule m\nENTRY e { a = c128[2,2] parameter(0)\n"
        "  ROOT f = (c128[2,2], f64[2], s32[]) custom-call(a), "
        "custom_call_target=\"lapack_zheevd_ffi\", backend_config={mode = 86 : ui8, uplo = 76 : ui8} }\n",
        (const void *[]){a});
    const double *values = executable_output(c.entry, 1);
    assert_true(fabs(values[0] - 1) < 1e-12 && fabs(values[1] - 3) < 1e-12);
    module_close(&c);
}

/* The upper triangle, transposed: U^T x = b with U = [2 3; 0 4]. */
static void test_triangular_solve(void **state) {
    (void)state;
    const float a[] = {2, 3, 99, 4}, b[] = {4, 22}, expected[] = {2, 4};
    check_module("HloModule m\nENTRY e { a = f32[2,2] parameter(0) b = f32[2,1] parameter(1)\n"
                 "  ROOT x = f32[2,1] custom-call(a, b), custom_call_target=\"lapack_strsm_ffi\", "
                 "backend_config={diag = 78 : ui8, side = 76 : ui8, trans_x = 84 : ui8, uplo = 85 : ui8} }\n",
                 (const void *[]){a, b}, expected, sizeof expected);
}

static void test_empty_batch(void **state) {
    (void)state;
    ModuleCase c;
    run(&c,
        "HloModule m\nENTRY e { a = f32[0,3,3] parameter(0)\n"
        "  ROOT f = (f32[0,3,3], s32[0,3], s32[0]) custom-call(a), "
        "custom_call_target=\"lapack_sgetrf_ffi\", backend_config={} }\n",
        (const void *[]){""});
    module_close(&c);
}

static void test_what_does_not_fit_is_refused(void **state) {
    (void)state;
    check_refused("HloModule m\nENTRY e { a = f32[2,3] parameter(0)\n"
                  "  ROOT f = (f32[2,3], s32[]) custom-call(a), custom_call_target=\"lapack_spotrf_ffi\" }\n",
                  "do not fit together");
    check_refused("HloModule m\nENTRY e { a = f32[2,2] parameter(0)\n"
                  "  ROOT f = (f64[2,2], s32[]) custom-call(a), custom_call_target=\"lapack_spotrf_ffi\" }\n",
                  "do not fit together");
    check_refused("HloModule m\nENTRY e { a = f32[2,2] parameter(0)\n"
                  "  ROOT f = (f32[2,2], f32[2], f32[2,2], f32[2,1], s32[]) custom-call(a), "
                  "custom_call_target=\"lapack_sgesdd_ffi\", backend_config={mode = 65 : ui8} }\n",
                  "do not fit together");
    check_refused("HloModule m\nENTRY e { a = f32[2,2] parameter(0)\n"
                  "  ROOT f = f32[2,2] custom-call(a), custom_call_target=\"lapack_sgolden_ffi\" }\n",
                  "not known");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qr),
        cmocka_unit_test(test_singular_values),
        cmocka_unit_test(test_eigenvectors_of_a_rotation),
        cmocka_unit_test(test_eigenvalues_of_no_finite_matrix),
        cmocka_unit_test(test_hermitian),
        cmocka_unit_test(test_triangular_solve),
        cmocka_unit_test(test_empty_batch),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
