/* reduce-window and select-and-scatter in HLO text: the generated kernels,
 * compiled for the host, beside the CPU's. Skipped (77) in a build without
 * CUDA. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "generated_module.h"

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

static void test_windows(void **state) {
    (void)state;
    GeneratedModules *modules = calloc(1, sizeof *modules);
    for (size_t k = 0; k < sizeof windows / sizeof *windows; k++) generated_add_text(modules, windows[k]);
    generated_finish(modules, true, 0);
}

int main(void) {
    if (system("c++ --version >/dev/null 2>&1") != 0) {
        puts("skipped: no C++ compiler");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_windows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    puts("skipped: built without CUDA");
    return SKIPPED;
}
#endif
