/* sort, topk and rng-bit-generator in HLO text: the generated kernels, compiled
 * for the host, beside the CPU's. Skipped (77) in a build without CUDA. Needs no
 * GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "tests/support/generated_module.h"

#define ORDER(type, direction)                                      \
    "f { a = " type "[] parameter(0) b = " type "[] parameter(1)\n" \
    "  ROOT c = pred[] compare(a, b), direction=" direction " }\n"

static const char *const sorts[] = {
    ORDER("s8", "LT") "ENTRY e { x = s8[3000] parameter(0)\n"
                      "  ROOT r = s8[3000] sort(x), dimensions={0}, to_apply=f }\n",
    ORDER("f32", "GT, type=TOTALORDER") "ENTRY e { x = f32[3,17,5] parameter(0)\n"
                                        "  ROOT r = f32[3,17,5] sort(x), dimensions={1}, to_apply=f }\n",
    ORDER("bf16", "LT, type=TOTALORDER") "ENTRY e { x = bf16[100,8] parameter(0)\n"
                                         "  ROOT r = bf16[100,8] sort(x), dimensions={1}, to_apply=f }\n",
    ORDER("u64", "LT") "ENTRY e { x = u64[1] parameter(0)\n"
                       "  ROOT r = u64[1] sort(x), dimensions={0}, to_apply=f }\n",
    /* Equal keys keep the order of their values. */
    "f { a = pred[] parameter(0) b = pred[] parameter(1) c = f64[] parameter(2) d = f64[] parameter(3)\n"
    "  ROOT r = pred[] compare(a, b), direction=LT }\n"
    "ENTRY e { k = pred[700,2] parameter(0) v = f64[700,2] parameter(1)\n"
    "  ROOT r = (pred[700,2], f64[700,2]) sort(k, v), dimensions={0}, is_stable=true, to_apply=f }\n",
    /* The second operand decides between equal first ones. */
    "f { a = s8[] parameter(0) b = s8[] parameter(1) c = u16[] parameter(2) d = u16[] parameter(3)\n"
    "  e = pred[] compare(a, b), direction=EQ l = pred[] compare(a, b), direction=LT\n"
    "  m = pred[] compare(c, d), direction=GT ROOT r = pred[] select(e, m, l) }\n"
    "ENTRY e { k = s8[2,333] parameter(0) v = u16[2,333] parameter(1)\n"
    "  ROOT r = (s8[2,333], u16[2,333]) sort(k, v), dimensions={1}, to_apply=f }\n",
};

static const char *const topks[] = {
    "ENTRY e { x = f32[4,300] parameter(0) ROOT t = (f32[4,20], s32[4,20]) topk(x), k=20, largest=true }\n",
    "ENTRY e { x = f16[300] parameter(0) ROOT t = (f16[300], s64[300]) topk(x), k=300, largest=false }\n",
    "ENTRY e { x = s16[2,3,40] parameter(0) ROOT t = (s16[2,3,1], u8[2,3,1]) topk(x), k=1, largest=true }\n",
    "ENTRY e { x = u64[500] parameter(0) ROOT t = (u64[9], s32[9]) topk(x), k=9, largest=true }\n",
};

/* Whole blocks and parts of blocks, odd and even dimensions. */
static void add_random_bits(GeneratedModules *self) {
    static const struct {
        const char *algorithm;
        int32_t words;
        const char *bits;
    } rows[] = {
        {"rng_three_fry", 2, "u32[5,7]"}, {"rng_three_fry", 2, "u32[5,6,3]"}, {"rng_three_fry", 2, "u8[]"},
        {"rng_three_fry", 2, "u64[300]"}, {"rng_three_fry", 2, "s16[3,0]"},   {"rng_philox", 3, "u32[301]"},
        {"rng_philox", 3, "u64[7,3]"},    {"rng_philox", 2, "u16[9]"},        {"rng_default", 2, "u32[64]"},
    };
    char text[512];
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        snprintf(text, sizeof text,
                 "ENTRY e { s = u64[%d] parameter(0)\n"
                 "  ROOT r = (u64[%d], %s) rng-bit-generator(s), algorithm=%s }\n",
                 rows[k].words, rows[k].words, rows[k].bits, rows[k].algorithm);
        generated_add_text(self, text);
    }
}

static void test_sorts_and_bits(void **state) {
    (void)state;
    GeneratedModules *modules = calloc(1, sizeof *modules);
    for (size_t k = 0; k < sizeof sorts / sizeof *sorts; k++) generated_add_text(modules, sorts[k]);
    for (size_t k = 0; k < sizeof topks / sizeof *topks; k++) generated_add_text(modules, topks[k]);
    add_random_bits(modules);
    generated_finish(modules, true, 0);
}

int main(void) {
    if (system("c++ --version >/dev/null 2>&1") != 0) {
        puts("skipped: no C++ compiler");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sorts_and_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
