/* Moves, pads, constants, dynamic slices and folds in HLO text: the generated
 * kernels, compiled for the host, beside the CPU's. Skipped (77) in a build
 * without CUDA. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "tests/support/generated_module.h"

static const char *const moves[] = {
    /* Negative, interior and high padding. */
    "ENTRY e { x = f32[5,7] parameter(0) v = f32[] parameter(1)\n"
    "  ROOT r = f32[14,8] pad(x, v), padding=-1_2_2x3_-2 }\n",
    "ENTRY e { x = f8e5m2[40] parameter(0) v = f8e5m2[] parameter(1)\n"
    "  ROOT r = f8e5m2[300] pad(x, v), padding=100_160 }\n",
    "ENTRY e { a = bf16[4,3,5] parameter(0) b = bf16[4,1,5] parameter(1) c = bf16[4,0,5] parameter(2)\n"
    "  d = bf16[4,6,5] parameter(3) ROOT r = bf16[4,10,5] concatenate(a, b, c, d), dimensions={1} }\n",
    /* Groups, words and runs of several elements. */
    "ENTRY e { x = bf16[5,3,16] parameter(0) v = bf16[] parameter(1)\n"
    "  ROOT r = bf16[9,3,28] pad(x, v), padding=1_-1_1x0_0x4_8 }\n",
    "ENTRY e { x = u8[6,24] parameter(0) v = u8[] parameter(1)\n"
    "  ROOT r = u8[6,12] pad(x, v), padding=0_0x-8_-4 }\n",
    "ENTRY e { x = f32[6,8] parameter(0) v = f32[] parameter(1)\n"
    "  ROOT r = f32[16,10] pad(x, v), padding=0_5_1x1_1 }\n",
    "ENTRY e { a = bf16[4,24] parameter(0) b = bf16[4,8] parameter(1) c = bf16[4,40] parameter(2)\n"
    "  ROOT r = bf16[4,72] concatenate(a, b, c), dimensions={1} }\n",
    "ENTRY e { a = u8[3,2,6] parameter(0) b = u8[3,5,6] parameter(1)\n"
    "  ROOT r = u8[3,7,6] concatenate(a, b), dimensions={1} }\n",
    "ENTRY e { x = bf16[7,40,24] parameter(0) ROOT r = bf16[5,20,16] slice(x),\n"
    "  slice={[1:6], [0:40:2], [8:24]} }\n",
    "ENTRY e { x = u8[3,160,200] parameter(0) ROOT r = u8[200,3,160] transpose(x), dimensions={2,0,1} }\n",
    "ENTRY e { x = bf16[130,3,70] parameter(0) ROOT r = bf16[70,3,130] transpose(x), dimensions={2,1,0} }\n",
    "ENTRY e { x = s16[9,8] parameter(0) ROOT r = s16[3,5] slice(x), slice={[1:9:3], [2:7]} }\n",
    "ENTRY e { x = u64[3,4,5,6] parameter(0) ROOT r = u64[5,3,6,4] transpose(x), dimensions={2,0,3,1} }\n",
    "ENTRY e { x = bf16[40,33] parameter(0) ROOT r = bf16[33,40] transpose(x), dimensions={1,0} }\n",
    "ENTRY e { x = u16[5,2,10,34] parameter(0) ROOT r = u16[34,5,10,2] transpose(x), dimensions={3,0,2,1} "
    "}\n",
    "ENTRY e { x = u16[5,10,34] parameter(0) ROOT r = u16[5,34,10] transpose(x), dimensions={0,2,1} }\n",
    "ENTRY e { x = f64[3,8,2,70] parameter(0) ROOT r = f64[2,70,3,8] transpose(x), dimensions={2,3,0,1} }\n",
    "ENTRY e { x = c64[9,3,64] parameter(0) ROOT r = c64[3,64,9] transpose(x), dimensions={1,2,0} }\n",
    "ENTRY e { x = c128[12,50] parameter(0) ROOT r = c128[50,12] transpose(x), dimensions={1,0} }\n",
    "ENTRY e { x = c128[3,50] parameter(0) ROOT r = c128[50,3] transpose(x), dimensions={1,0} }\n",
    "ENTRY e { x = f8e4m3fn[3,50] parameter(0) ROOT r = f8e4m3fn[3,50] reverse(x), dimensions={0,1} }\n",
    "ENTRY e { x = f16[3] parameter(0) ROOT r = f16[2,3,4] broadcast(x), dimensions={1} }\n",
};

/* Large enough for several elements per thread: rows, columns, steps and a permutation beside dense inputs;
 * sizes that no group divides. */
static const char *const large[] = {
    "ENTRY e { x = bf16[512,516] parameter(0) y = f32[512,516] parameter(1) r = f32[516] parameter(2)\n"
    "  c = s8[512] parameter(3) xf = f32[512,516] convert(x) rb = f32[512,516] broadcast(r), dimensions={1}\n"
    "  cf = f32[512] convert(c) cb = f32[512,516] broadcast(cf), dimensions={0}\n"
    "  n = f32[512,516] iota(), iota_dimension=1 m = f32[512,516] multiply(xf, rb)\n"
    "  a = f32[512,516] add(m, cb) s = f32[512,516] subtract(a, n) q = f32[512,516] multiply(s, y)\n"
    "  h = bf16[512,516] convert(q) ROOT t = (bf16[512,516], f32[512,516]) tuple(h, s) }\n",
    "ENTRY e { x = f64[262146] parameter(0) ROOT r = f64[262146] negate(x) }\n",
    "ENTRY e { x = f32[262147] parameter(0) ROOT r = f32[262147] negate(x) }\n",
    "ENTRY e { x = u8[300,2000] parameter(0) ROOT r = u8[300,1000] slice(x), slice={[0:300], [0:2000:2]} }\n",
    "ENTRY e { x = s16[512,516] parameter(0) ROOT r = s16[512,516] reverse(x), dimensions={1} }\n",
    "ENTRY e { x = c64[512,516] parameter(0) y = c64[516] parameter(1)\n"
    "  b = c64[512,516] broadcast(y), dimensions={1} ROOT r = c64[512,516] multiply(x, b) }\n",
};

static const char *const constants[] = {
    "ENTRY e { ROOT r = f32[2,3] constant({{1,2,3},{4,5,nan}}) }\n",
    "ENTRY e { ROOT r = s8[5] constant({1,-2,3,-4,5}) }\n",
    "ENTRY e { ROOT r = bf16[3] constant({0.5,2,-inf}) }\n",
};

static const char *const dynamic[] = {
    "ENTRY e { x = f32[20,9,4] parameter(0) i = s32[] parameter(1) j = u8[] parameter(2) k = s64[] "
    "parameter(3)\n"
    "  ROOT r = f32[3,9,2] dynamic-slice(x, i, j, k), dynamic_slice_sizes={3,9,2} }\n",
    "ENTRY e { x = f16[700] parameter(0) i = u64[] parameter(1)\n"
    "  ROOT r = f16[300] dynamic-slice(x, i), dynamic_slice_sizes={300} }\n",
    "ENTRY e { x = s32[20,30] parameter(0) u = s32[5,30] parameter(1) i = s32[] parameter(2) j = u64[] "
    "parameter(3)\n  ROOT r = s32[20,30] dynamic-update-slice(x, u, i, j) }\n",
    "ENTRY e { x = pred[600] parameter(0) u = pred[1] parameter(1) i = s16[] parameter(2)\n"
    "  ROOT r = pred[600] dynamic-update-slice(x, u, i) }\n",
};

/* The boxes span the last dimension. */
static const char *const dynamic_words[] = {
    "ENTRY e { x = bf16[20,9,24] parameter(0) i = s32[] parameter(1) j = u8[] parameter(2) k = s64[] "
    "parameter(3)\n"
    "  ROOT r = bf16[3,9,24] dynamic-slice(x, i, j, k), dynamic_slice_sizes={3,9,24} }\n",
    "ENTRY e { x = u8[20,4,12] parameter(0) u = u8[5,2,12] parameter(1) i = s32[] parameter(2) j = u64[] "
    "parameter(3)\n  k = s8[] parameter(4) ROOT r = u8[20,4,12] dynamic-update-slice(x, u, i, j, k) }\n",
};

static const char *const bits[] = {
    "ENTRY e { x = f64[50] parameter(0) ROOT r = s16[50,4] bitcast-convert(x) }\n",
    "ENTRY e { x = u8[70,4] parameter(0) ROOT r = f32[70] bitcast-convert(x) }\n",
    "ENTRY e { x = c128[3] parameter(0) ROOT r = u32[3,4] bitcast-convert(x) }\n",
};

/* Every operator that is folded in lanes, by columns and by rows, and folds of nothing. */
static const char *const operators[] = {"add", "multiply", "maximum", "minimum", "and", "or"};

/* Few lanes and many, few columns and many, in parts (by rows, by columns, of one result) and not. */
#define FOLD(operator, type, from, to, dimensions)                                     \
    "f { a = " type "[] parameter(0) b = " type "[] parameter(1) ROOT c = " type "[] " \
    operator"(a, b) }\n"                                                               \
            "ENTRY e { x = " type from " parameter(0) v = " type "[] parameter(1)\n"   \
            "  ROOT r = " type to " reduce(x, v), dimensions=" dimensions ", to_apply=f }\n"
static const char *const folds[] = {
    FOLD("maximum", "f32", "[1000,3]", "[1000]", "{1}"),
    FOLD("minimum", "bf16", "[7,100,5]", "[100]", "{0,2}"),
    FOLD("add", "s64", "[40000]", "[]", "{0}"),
    FOLD("maximum", "f16", "[9000,3]", "[3]", "{0}"),
    FOLD("multiply", "u32", "[5,3001,40]", "[5,40]", "{1}"),
    FOLD("minimum", "s32", "[2,3,5000]", "[2,3]", "{2}"),
    FOLD("or", "pred", "[2,9000]", "[2]", "{1}"),
    FOLD("add", "f64", "[1,4,1]", "[4]", "{0,2}"),
};

static void add_reductions(GeneratedModules *self) {
    char text[512];
    for (size_t k = 0; k < sizeof operators / sizeof *operators; k++) {
        const char *name = operators[k];
        snprintf(text, sizeof text,
                 "f { a = s8[] parameter(0) b = s8[] parameter(1) ROOT c = s8[] %s(a, b) }\n"
                 "ENTRY e { x = s8[45,70] parameter(0) v = s8[] parameter(1)\n"
                 "  ROOT r = s8[%d] reduce(x, v), dimensions={%d}, to_apply=f }\n",
                 name, k % 2 == 0 ? 70 : 45, k % 2 == 0 ? 0 : 1);
        generated_add_text(self, text);
    }
    for (size_t k = 0; k < sizeof folds / sizeof *folds; k++) generated_add_text(self, folds[k]);
    generated_add_text(self, "f { a = f64[] parameter(0) b = f64[] parameter(1) ROOT c = f64[] add(a, b) }\n"
                             "ENTRY e { x = f64[5,0] parameter(0) v = f64[] parameter(1)\n"
                             "  ROOT r = f64[5] reduce(x, v), dimensions={1}, to_apply=f }\n");
}

static void add_all(GeneratedModules *self, const char *const *texts, size_t count) {
    for (size_t k = 0; k < count; k++) generated_add_text(self, texts[k]);
}

static void test_moves_and_folds(void **state) {
    (void)state;
    GeneratedModules *modules = calloc(1, sizeof *modules);
    add_all(modules, moves, sizeof moves / sizeof *moves);
    add_all(modules, large, sizeof large / sizeof *large);
    add_all(modules, constants, sizeof constants / sizeof *constants);
    add_all(modules, dynamic, sizeof dynamic / sizeof *dynamic);
    add_all(modules, dynamic_words, sizeof dynamic_words / sizeof *dynamic_words);
    add_all(modules, bits, sizeof bits / sizeof *bits);
    add_reductions(modules);
    generated_finish(modules, true, 0);
}

/* A result may have the memory of the operand that it changes in part. */
static void test_update_in_place(void **state) {
    (void)state;
    enum { COUNT = 600, CHANGED = 7 };
    GeneratedModules *modules = calloc(1, sizeof *modules);
    int32_t values[COUNT], update[CHANGED], at = 1000;
    generated_add_text(modules,
                       "ENTRY e { x = s32[600] parameter(0) u = s32[7] parameter(1) i = s32[] parameter(2)\n"
                       "  ROOT r = s32[600] dynamic-update-slice(x, u, i) }\n");
    generated_compile(&modules->generated);
    for (int32_t i = 0; i < COUNT; i++) values[i] = i;
    for (int32_t i = 0; i < CHANGED; i++) update[i] = -1 - i;
    generated_run(&modules->generated, 0, (void *[]){values, update, &at, values});
    for (int32_t i = 0; i < COUNT; i++)
        assert_int_equal(values[i], i < COUNT - CHANGED ? i : -1 - (i - (COUNT - CHANGED)));
    generated_free(&modules->generated);
    module_close(&modules->modules[0]);
    free(modules);
}

/* Types that have no arithmetic on the GPU are moved, and else refused by name. */
static void test_narrow_types_are_refused(void **state) {
    (void)state;
    static const char *const texts[] = {
        "f { a = f8e5m2[] parameter(0) b = f8e5m2[] parameter(1) ROOT c = f8e5m2[] add(a, b) }\n"
        "ENTRY e { x = f8e5m2[40] parameter(0) v = f8e5m2[] parameter(1)\n"
        "  ROOT r = f8e5m2[] reduce(x, v), dimensions={0}, to_apply=f }\n",
        "ENTRY e { x = s4[9] parameter(0) ROOT t = (s4[2], s32[2]) topk(x), k=2, largest=true }\n",
        "ENTRY e { x = f8e4m3fn[9] parameter(0) ROOT r = f8e4m3fn[9] exponential(x) }\n",
    };
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        ModuleCase module;
        CudaSource source;
        char whole[512];
        snprintf(whole, sizeof whole, "HloModule m\n%s", texts[k]);
        if (module_open(&module, whole) != AM_OK) fail_msg("%s", module.error.text);
        AmError error = {0};
        assert_int_equal(cuda_source_make(&source, &module.arena, module.entry->steps[0].kernel, &error),
                         AM_ERROR_INPUT);
        assert_non_null(strstr(error.text, "no kernel for"));
        module_close(&module);
    }
}

int main(void) {
    if (system("c++ --version >/dev/null 2>&1") != 0) {
        puts("skipped: no C++ compiler");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_moves_and_folds),
                                       cmocka_unit_test(test_update_in_place),
                                       cmocka_unit_test(test_narrow_types_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
