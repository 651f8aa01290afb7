/* cholesky, triangular-solve, batch normalizations and complex numbers: the
 * generated kernels, compiled for the host, beside the CPU's. Skipped (77) in a
 * build without CUDA. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "tests/support/generated_module.h"

static void add_solves(GeneratedModules *self) {
    char text[512];
    for (int k = 0; k < 16; k++) {
        bool left = k & 1;
        const char *type = k % 3 == 0 ? "f64" : k % 3 == 1 ? "f32" : "bf16", *b = left ? "2,5,3" : "2,3,5";
        snprintf(text, sizeof text,
                 "ENTRY e { a = %s[2,5,5] parameter(0) b = %s[%s] parameter(1)\n"
                 "  ROOT r = %s[%s] triangular-solve(a, b), left_side=%s, lower=%s, unit_diagonal=%s, "
                 "transpose_a=%s }\n",
                 type, type, b, type, b, left ? "true" : "false", k & 2 ? "true" : "false",
                 k & 4 ? "true" : "false", k & 8 ? "TRANSPOSE" : "NO_TRANSPOSE");
        generated_add_text(self, text);
    }
}

static const char *const norms[] = {
    "ENTRY e { x = f32[6,3,2,7] parameter(0) s = f32[7] parameter(1) o = f32[7] parameter(2)\n"
    "  ROOT r = (f32[6,3,2,7], f32[7], f32[7]) batch-norm-training(x, s, o), epsilon=0.001, feature_index=3 "
    "}\n",
    "ENTRY e { x = bf16[40,3,60] parameter(0) s = bf16[3] parameter(1) o = bf16[3] parameter(2)\n"
    "  ROOT r = (bf16[40,3,60], bf16[3], bf16[3]) batch-norm-training(x, s, o), epsilon=0.5, "
    "feature_index=1 }\n",
    "ENTRY e { x = f64[9000,2] parameter(0) s = f64[2] parameter(1) o = f64[2] parameter(2)\n"
    "  ROOT r = (f64[9000,2], f64[2], f64[2]) batch-norm-training(x, s, o), epsilon=0.01, feature_index=1 "
    "}\n",
    "ENTRY e { x = f32[4,30,5] parameter(0) s = f32[30] parameter(1) o = f32[30] parameter(2)\n"
    "  m = f32[30] parameter(3) v = f32[30] parameter(4)\n"
    "  ROOT r = f32[4,30,5] batch-norm-inference(x, s, o, m, v), epsilon=3, feature_index=1 }\n",
    "ENTRY e { x = f32[30,40,5] parameter(0) s = f32[5] parameter(1) m = f32[5] parameter(2)\n"
    "  v = f32[5] parameter(3) g = f32[30,40,5] parameter(4)\n"
    "  ROOT r = (f32[30,40,5], f32[5], f32[5]) batch-norm-grad(x, s, m, v, g), epsilon=5, feature_index=2 "
    "}\n",
    "ENTRY e { x = f32[2,1,5000] parameter(0) s = f32[1] parameter(1) m = f32[1] parameter(2)\n"
    "  v = f32[1] parameter(3) g = f32[2,1,5000] parameter(4)\n"
    "  ROOT r = (f32[2,1,5000], f32[1], f32[1]) batch-norm-grad(x, s, m, v, g), epsilon=5, feature_index=1 "
    "}\n",
};

static void test_solves(void **state) {
    (void)state;
    GeneratedModules *modules = calloc(1, sizeof *modules);
    add_solves(modules);
    generated_finish(modules, true, 0);
}

static void test_norms(void **state) {
    (void)state;
    GeneratedModules *modules = calloc(1, sizeof *modules);
    for (size_t k = 0; k < sizeof norms / sizeof *norms; k++) generated_add_text(modules, norms[k]);
    generated_finish(modules, false, 16);
}

/* One fusion of all that there is for complex numbers, a scatter and a fold of them. */
static const char *const complex_numbers[] = {
    "ENTRY e { x = c64[70] parameter(0) y = c64[70] parameter(1) k = c64[] constant((0.5, -2))\n"
    "  kk = c64[70] broadcast(k), dimensions={} a = c64[70] add(x, kk) s = c64[70] sine(a) c = c64[70] "
    "cosine(a)\n"
    "  t = c64[70] tanh(s) l = c64[70] log(c) q = c64[70] sqrt(t) r = c64[70] rsqrt(y) e = c64[70] "
    "exponential(x)\n"
    "  m = c64[70] multiply(q, r) n = c64[70] negate(l) d = c64[70] divide(m, e) w = c64[70] power(x, y)\n"
    "  u = c64[70] subtract(d, n) p = pred[70] compare(u, w), direction=NE v = c64[70] select(p, u, w)\n"
    "  re = f32[70] real(v) im = f32[70] imag(v) ab = f32[70] abs(w) z = c64[70] complex(re, im)\n"
    "  f = c64[70] convert(ab) ROOT o = c64[70] add(z, f) }\n",
    "f { a = c64[] parameter(0) b = c64[] parameter(1) ROOT c = c64[] multiply(a, b) }\n"
    "ENTRY e { x = c64[9] parameter(0) i = s32[30] parameter(1) u = c64[30] parameter(2)\n"
    "  ROOT r = c64[9] scatter(x, i, u), update_window_dims={}, inserted_window_dims={0}, "
    "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=f }\n",
    "f { a = c64[] parameter(0) b = c64[] parameter(1) ROOT c = c64[] add(a, b) }\n"
    "ENTRY e { x = c64[9,5] parameter(0) v = c64[] parameter(1)\n"
    "  ROOT r = c64[9] reduce(x, v), dimensions={1}, to_apply=f }\n",
};

static void test_complex_numbers(void **state) {
    (void)state;
    GeneratedModules *modules = calloc(1, sizeof *modules);
    for (size_t k = 0; k < sizeof complex_numbers / sizeof *complex_numbers; k++)
        generated_add_text(modules, complex_numbers[k]);
    generated_finish(modules, false, 64);
}

/* Positive definite matrices in a batch with one that is not. */
static void test_cholesky(void **state) {
    (void)state;
    enum { SIZE = 24 };
    for (int lower = 0; lower < 2; lower++) {
        Generated generated = {0};
        Random random;
        ModuleCase module;
        char text[256];
        random_seed(&random, 9);
        snprintf(text, sizeof text,
                 "HloModule m\nENTRY e { a = f32[2,%d,%d] parameter(0)\n"
                 "  ROOT r = f32[2,%d,%d] cholesky(a), lower=%s }\n",
                 SIZE, SIZE, SIZE, SIZE, lower ? "true" : "false");
        assert_int_equal(module_open(&module, text), AM_OK);
        float *a = executable_parameter(module.entry, 0), *out = malloc(2 * SIZE * SIZE * sizeof *out);
        for (int64_t i = 0; i < (int64_t)2 * SIZE * SIZE; i++)
            a[i] = (float)random_normal(&random) + (i % (SIZE * SIZE) % (SIZE + 1) == 0 ? 4 * SIZE : 0);
        a[(int64_t)SIZE * SIZE + 7 * SIZE + 7] = -1;
        generated_add_program(&generated, module.program);
        assert_int_equal(generated.count, 1);
        generated_compile(&generated);
        generated_check_devices(&generated, "linear algebra", getenv("AUTOMAP_FULL"));
        assert_int_equal(executable_run(module.entry, &module.error), AM_OK);
        generated_run(&generated, 0, (void *[]){a, out});
        int64_t at =
            generated_difference(out, executable_output(module.entry, 0), DTYPE_F32, 2 * SIZE * SIZE, 0, 0);
        if (at >= 0) fail_msg("element %lld differs, of\n%s", (long long)at, generated_text(&generated, 0));
        assert_true(isfinite(out[0]));
        assert_true(isnan(out[SIZE * SIZE]));
        free(out);
        generated_free(&generated);
        module_close(&module);
    }
}

int main(void) {
    if (system("c++ --version >/dev/null 2>&1") != 0) {
        puts("skipped: no C++ compiler");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_solves),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_complex_numbers),
        cmocka_unit_test(test_cholesky),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
