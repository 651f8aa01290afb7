/* The PTX of generated kernels: the instructions that access memory and round, and their width.
 * Skipped (77) in a build without CUDA and without NVRTC. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "executor/cuda/codegen/move/pack.h"
#include "tests/support/generated_module.h"

/* An architecture that no card has: NVRTC compiles to PTX of its newest one. */
enum { NEWER_THAN_ALL = 9999 };

static const char *ptx_of(Generated *generated) {
    const char *unit;
    CudaImage image;
    AmError error = {0};
    assert_int_equal(cuda_source_unit(&unit, &generated->arena, generated->sources, generated->count, NULL),
                     AM_OK);
    if (cuda_compile(&image, &generated->arena, unit, NEWER_THAN_ALL, &error) != AM_OK)
        fail_msg("%s", error.text);
    return image.data;
}

static int32_t count_of(const char *text, const char *part) {
    int32_t count = 0;
    for (; (text = strstr(text, part)) != NULL; text++) count++;
    return count;
}

/* Returns the number of instructions that move 16 bytes. */
static int32_t count_wide(const char *ptx, const char *instruction) {
    static const char *const shapes[] = {"v2.u64", "v2.b64", "v4.u32", "v4.b32"};
    int32_t count = 0;
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        char name[64];
        snprintf(name, sizeof name, "%s.%s", instruction, shapes[k]);
        count += count_of(ptx, name);
    }
    return count;
}

#define ASSERT_PART_COUNT(text, part, expected)                                                          \
    do {                                                                                                 \
        if (count_of((text), (part)) != (expected))                                                      \
            fail_msg("%d times '%s', expected %d, in\n%s", count_of((text), (part)), (part), (expected), \
                     (text));                                                                            \
    } while (0)

/* Inputs that no result overlaps use the read-only path. The product overwrites the exponentials: one of its
 * two inputs does not use it. */
static void test_inputs_apart_are_read_only(void **state) {
    (void)state;
    GeneratedModules *modules = calloc(1, sizeof *modules);
    generated_add_text(
        modules, "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\n"
                 "ENTRY e { x = f32[9,100] parameter(0) v = f32[] parameter(1)\n"
                 "  n = f32[9,100] exponential(x) s = f32[9] reduce(n, v), dimensions={1}, to_apply=add\n"
                 "  b = f32[9,100] broadcast(s), dimensions={0}\n"
                 "  ROOT m = f32[9,100] multiply(n, b) }\n");
    Generated *generated = &modules->generated;
    assert_int_equal(generated->count, 3);
    const char *text = generated_text(generated, 2);
    ASSERT_PART_COUNT(text, "__restrict__", 1);
    const char *ptx = ptx_of(generated);
    assert_true(count_of(ptx, "ld.global.nc.f32") + count_of(ptx, "ld.global.nc.b32") > 0);
    const char *product = strstr(ptx, generated->sources[2].launches[0].name);
    assert_non_null(product);
    ASSERT_PART_COUNT(product, "ld.global.nc", 1);
    assert_int_equal(count_of(product, "ld.global."), 2);
    generated_free(generated);
    module_close(&modules->modules[0]);
    free(modules);
}

static const char *ptx_of_pack(const CudaPack *pack, Dtype type, Generated *generated) {
    generated->sources = ARENA_ARRAY(&generated->arena, CudaSource, 1);
    generated->count = 1;
    assert_int_equal(cuda_source_pack(generated->sources, &generated->arena, pack, type, NULL), AM_OK);
    return ptx_of(generated);
}

/* Checks that there is no division, nor one in 64 bits by a product. */
static void check_index_arithmetic(const char *ptx) {
    static const char *const slow[] = {"div.", "rem.", "mul.hi.u64", "mul.hi.s64"};
    for (size_t k = 0; k < sizeof slow / sizeof *slow; k++) ASSERT_PART_COUNT(ptx, slow[k], 0);
}

/* Heads and positions change places, the 64 elements of each stay contiguous: words of 16 bytes. */
static void test_packs_move_words(void **state) {
    (void)state;
    Generated generated = {0};
    CudaPack pack = {0};
    cuda_pack_add(&pack, 8, 1024 * 768);
    cuda_pack_add(&pack, 12, 64);
    cuda_pack_add(&pack, 1024, 768);
    cuda_pack_add(&pack, 64, 1);
    const char *ptx = ptx_of_pack(&pack, DTYPE_BF16, &generated);
    assert_int_equal(count_wide(ptx, "ld.global.nc"), 1);
    assert_int_equal(count_wide(ptx, "st.global"), 1);
    check_index_arithmetic(ptx);
    assert_int_equal(generated.sources[0].launches[0].blocks, 8 * 12 * 1024 * 8 / 256);
    generated_free(&generated);
}

/* Matrices of bf16 are transposed in tiles, 4 bytes for each access. */
static void test_packs_transpose_tiles(void **state) {
    (void)state;
    Generated generated = {0};
    CudaPack pack = {0};
    cuda_pack_add(&pack, 8, 1024 * 768);
    cuda_pack_add(&pack, 768, 1);
    cuda_pack_add(&pack, 1024, 768);
    const char *ptx = ptx_of_pack(&pack, DTYPE_BF16, &generated);
    assert_true(count_of(ptx, "ld.global.nc.v2.u16") + count_of(ptx, "ld.global.nc.v2.b16") +
                    count_of(ptx, "ld.global.nc.b32") + count_of(ptx, "ld.global.nc.u32") >
                0);
    assert_true(count_of(ptx, "st.global.v2.u16") + count_of(ptx, "st.global.v2.b16") +
                    count_of(ptx, "st.global.b32") + count_of(ptx, "st.global.u32") >
                0);
    assert_int_equal(count_of(ptx, "ld.global.nc.u16") + count_of(ptx, "ld.global.nc.b16"), 0);
    check_index_arithmetic(ptx);
    assert_int_equal(generated.sources[0].launches[0].blocks, 8 * (768 / 64) * (1024 / 64));
    generated_free(&generated);
}

/* Operators on rows of bf16 read and write words of 16 bytes. */
static void test_moves_of_rows_are_wide(void **state) {
    (void)state;
    static const char *const texts[] = {
        "ENTRY e { x = bf16[999,64] parameter(0) i = s32[512] parameter(1) ROOT r = bf16[512,64] gather(x, "
        "i),\n"
        "  offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        "slice_sizes={1,64} }\n",
        "ENTRY e { x = bf16[64,64] parameter(0) v = bf16[] parameter(1)\n"
        "  ROOT r = bf16[64,192] pad(x, v), padding=0_0x64_64 }\n",
        "ENTRY e { a = bf16[64,64] parameter(0) b = bf16[64,64] parameter(1)\n"
        "  ROOT r = bf16[64,128] concatenate(a, b), dimensions={1} }\n",
        "ENTRY e { x = bf16[64,192] parameter(0) ROOT r = bf16[64,64] slice(x), slice={[0:64], [64:128]} }\n",
        "ENTRY e { x = bf16[24,64,64] parameter(0) i = s32[] parameter(1) z = s32[] constant(0)\n"
        "  ROOT r = bf16[1,64,64] dynamic-slice(x, i, z, z), dynamic_slice_sizes={1,64,64} }\n",
        "ENTRY e { x = bf16[24,64,64] parameter(0) u = bf16[1,64,64] parameter(1) i = s32[] parameter(2)\n"
        "  z = s32[] constant(0) ROOT r = bf16[24,64,64] dynamic-update-slice(x, u, i, z, z) }\n",
    };
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        GeneratedModules *modules = calloc(1, sizeof *modules);
        Generated *generated = &modules->generated;
        generated_add_text(modules, texts[k]);
        const char *ptx = ptx_of(generated);
        bool updates = strstr(texts[k], "dynamic-update-slice") != NULL;
        int32_t wide = count_wide(ptx, "st.global");
        if (wide < (updates ? 2 : 1)) fail_msg("%d wide stores in\n%s", wide, ptx);
        assert_int_equal(count_of(ptx, "st.global.u16") + count_of(ptx, "st.global.b16"), 0);
        module_close(&modules->modules[0]);
        generated_free(generated);
        free(modules);
    }
}

/* One instruction rounds to bf16 after each of three operators, without a test of NaN. Negation and maximum
 * are exact, and the stored value is rounded before. */
static void test_bfloat16_is_rounded_by_the_card(void **state) {
    (void)state;
    GeneratedModules *modules = calloc(1, sizeof *modules);
    generated_add_text(modules, "ENTRY e { x = bf16[600] parameter(0) y = bf16[600] parameter(1)\n"
                                "  a = bf16[600] add(x, y) b = bf16[600] multiply(a, x)\n"
                                "  n = bf16[600] negate(b) m = bf16[600] maximum(n, x)\n"
                                "  ROOT r = bf16[600] subtract(m, y) }\n");
    const char *ptx = ptx_of(&modules->generated);
    ASSERT_PART_COUNT(ptx, "cvt.rn.bf16.f32", 3);
    ASSERT_PART_COUNT(ptx, "setp.nan", 1); /* of the maximum */
    ASSERT_PART_COUNT(ptx, "32767", 0);
    module_close(&modules->modules[0]);
    generated_free(&modules->generated);
    free(modules);
}

int main(void) {
    AmError error = {0};
    if (cuda_compiler_present(&error) != AM_OK) {
        printf("skipped: %s\n", error.text);
        return SKIPPED;
    }
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inputs_apart_are_read_only), cmocka_unit_test(test_packs_move_words),
        cmocka_unit_test(test_packs_transpose_tiles), cmocka_unit_test(test_moves_of_rows_are_wide),
        cmocka_unit_test(test_bfloat16_is_rounded_by_the_card)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
