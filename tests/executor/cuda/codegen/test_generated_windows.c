/* reduce-window and select-and-scatter in HLO text: the generated kernels,
 * compiled for the host, beside the CPU's. Skipped (77) in a build without
 * CUDA. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "tests/support/generated_module.h"

#define PAIR(name, type, opcode)                                                                            \
    name " { a = " type "[] parameter(0) b = " type "[] parameter(1) ROOT c = " type "[] " opcode "(a, b) " \
         "}\n"
#define WHICH(type, direction)                                      \
    "g { a = " type "[] parameter(0) b = " type "[] parameter(1)\n" \
    "  ROOT c = pred[] compare(a, b), direction=" direction " }\n"

static const char *const windows[] = {
    PAIR("f", "f32", "maximum") "ENTRY e { x = f32[2,7,6,5] parameter(0) v = f32[] parameter(1) ROOT r = "
                                "f32[2,4,3,5] reduce-window(x, v),\n"
                                "  window={size=1x3x2x1 stride=1x2x2x1 pad=0_0x1_1x0_0x0_0}, to_apply=f }\n",
    /* Not commutative and rounded: shows the order. */
    PAIR("f", "bf16", "subtract") "ENTRY e { x = bf16[4,40] parameter(0) v = bf16[] parameter(1) ROOT r = "
                                  "bf16[4,40] reduce-window(x, v),\n"
                                  "  window={size=1x40 pad=0_0x39_0}, to_apply=f }\n",
    PAIR("f", "s32", "subtract") "ENTRY e { x = s32[9,11] parameter(0) v = s32[] parameter(1) ROOT r = "
                                 "s32[17,5] reduce-window(x, v),\n"
                                 "  window={size=2x3 stride=1x2 pad=1_0x2_1 lhs_dilate=2x1 rhs_dilate=1x2}, "
                                 "to_apply=f }\n",
    WHICH("f32", "GE") PAIR(
        "f", "f32",
        "add") "ENTRY e { x = f32[2,7,6,5] parameter(0) s = f32[2,4,3,5] parameter(1) v = f32[] "
               "parameter(2)\n"
               "  ROOT r = f32[2,7,6,5] select-and-scatter(x, s, v), window={size=1x3x2x1 stride=1x2x2x1 "
               "pad=0_0x1_1x0_0x0_0}, select=g, scatter=f }\n",
    WHICH("s8", "LT")
        PAIR("f", "s8",
             "subtract") "ENTRY e { x = s8[30] parameter(0) s = s8[32] parameter(1) v = s8[] parameter(2)\n"
                         "  ROOT r = s8[30] select-and-scatter(x, s, v), window={size=5 pad=3_3}, select=g, "
                         "scatter=f }\n",
    /* Windows that touch nothing, and elements in no window. */
    WHICH("f16", "GT") PAIR(
        "f", "f16",
        "subtract") "ENTRY e { x = f16[20,3] parameter(0) s = f16[5,3] parameter(1) v = f16[] parameter(2)\n"
                    "  ROOT r = f16[20,3] select-and-scatter(x, s, v), window={size=2x1 stride=5x1 "
                    "pad=4_0x0_0}, select=g, "
                    "scatter=f }\n",
};

#define PREFIXES(type, operator, shape, window)                               \
    PAIR("f", type, operator)                                                 \
    "ENTRY e { x = " type shape " parameter(0) v = " type "[] parameter(1)\n" \
    "  ROOT r = " type shape " reduce-window(x, v), window={" window "}, to_apply=f }\n"

/* Cumulative operators from either end; the corner cases begin with 0, so that padding changes nothing. */
static const char *const scans[] = {
    PREFIXES("f32", "add", "[3,300,5]", "size=1x300x1 pad=0_0x299_0x0_0"),
    PREFIXES("bf16", "add", "[4,100]", "size=1x100 pad=0_0x99_0"),
    PREFIXES("f64", "multiply", "[70,3]", "size=70x1 pad=69_0x0_0"),
    PREFIXES("f16", "maximum", "[33]", "size=33 pad=32_0"),
    PREFIXES("s8", "subtract", "[40,2]", "size=40x1 pad=39_0x0_0"),
    PREFIXES("s32", "add", "[2,90,3]", "size=1x90x1 pad=0_0x0_89x0_0"),
    PREFIXES("u8", "maximum", "[64]", "size=64 pad=0_63"),
    PREFIXES("f32", "add", "[50]", "size=50 pad=0_49"),
    PREFIXES("s32", "subtract", "[50]", "size=50 pad=0_49"),
};

static uint64_t steps_of_prefixes(int32_t length) {
    GeneratedModules *modules = calloc(1, sizeof *modules);
    char text[512];
    snprintf(text, sizeof text,
             PAIR("f", "s32", "add") "ENTRY e { x = s32[%d,2] parameter(0) v = s32[] parameter(1)\n"
                                     "  ROOT r = s32[%d,2] reduce-window(x, v),\n"
                                     "  window={size=%dx1 pad=%d_0x0_0}, to_apply=f }\n",
             length, length, length, length - 1);
    modules->generated.counts = true;
    generated_add_text(modules, text);
    generated_compile(&modules->generated);
    int32_t *elements = calloc((size_t)length * 2, sizeof *elements), zero = 0;
    int32_t *sums = calloc((size_t)length * 2, sizeof *sums);
    for (int32_t k = 0; k < 2 * length; k++) elements[k] = 1;
    generated_run(&modules->generated, 0, (void *[]){elements, &zero, sums});
    for (int32_t k = 0; k < length; k++) assert_int_equal(sums[2 * k], k + 1);
    uint64_t steps = generated_steps(&modules->generated);
    free(elements);
    free(sums);
    module_close(&modules->modules[0]);
    generated_free(&modules->generated);
    free(modules);
    return steps;
}

/* Suffixes of floats are added from their first element, as on the CPU: rounding depends on it. */
static void test_suffixes_keep_their_order(void **state) {
    (void)state;
    enum { LENGTH = 64 };
    GeneratedModules *modules = calloc(1, sizeof *modules);
    float elements[LENGTH], sums[LENGTH], zero = 0;
    Random random;
    random_seed(&random, 3);
    generated_add_text(modules, PREFIXES("f32", "add", "[64]", "size=64 pad=0_63"));
    generated_compile(&modules->generated);
    for (int32_t k = 0; k < LENGTH; k++) elements[k] = (float)random_normal(&random);
    generated_run(&modules->generated, 0, (void *[]){elements, &zero, sums});
    for (int32_t first = 0; first < LENGTH; first++) {
        float sum = 0;
        for (int32_t k = first; k < LENGTH; k++) sum += elements[k];
        assert_memory_equal(&sums[first], &sum, sizeof sum);
    }
    module_close(&modules->modules[0]);
    generated_free(&modules->generated);
    free(modules);
}

/* Lines of eight times the length cost at most ten times the work. */
static void test_prefixes_grow_with_their_number(void **state) {
    (void)state;
    uint64_t few = steps_of_prefixes(512), many = steps_of_prefixes(4096);
    if (many > 10 * few)
        fail_msg("512 elements take %llu steps, 4,096 take %llu", (unsigned long long)few,
                 (unsigned long long)many);
}

static void test_windows(void **state) {
    (void)state;
    GeneratedModules *modules = calloc(1, sizeof *modules);
    for (size_t k = 0; k < sizeof windows / sizeof *windows; k++) generated_add_text(modules, windows[k]);
    for (size_t k = 0; k < sizeof scans / sizeof *scans; k++) generated_add_text(modules, scans[k]);
    generated_finish(modules, true, 0);
}

int main(void) {
    if (system("c++ --version >/dev/null 2>&1") != 0) {
        puts("skipped: no C++ compiler");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_windows),
                                       cmocka_unit_test(test_suffixes_keep_their_order),
                                       cmocka_unit_test(test_prefixes_grow_with_their_number)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
