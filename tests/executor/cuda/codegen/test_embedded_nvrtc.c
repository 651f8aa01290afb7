/* NVRTC compiles every .cu file that the build embeds for sm_100, or sm_90 where it
 * does not know that (AUTOMAP_FULL: for sm_80, sm_90 and sm_100), without a message,
 * and no kernel has local memory (cubin_case.h). The build gives these files to nvcc
 * for sm_80 and sm_90, but nvcc has more built in. Skipped (77) in a build without
 * CUDA and where there is no NVRTC. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "tests/cuda/cuda_texts.h"
#include "tests/support/cubin_case.h"

static void test_texts_compile(void **state) {
    (void)state;
    Arena arena = {0};
    for (size_t k = 0; k < sizeof cuda_texts / sizeof *cuda_texts; k++) {
        bool is_enough = false;
        for (int32_t a = CUBIN_ARCHITECTURES - 1; a >= 0 && !is_enough; a--) {
            CudaImage image;
            if (cubin_check(&image, &arena, cuda_texts[k].path, cuda_texts[k].text, cubin_architectures[a]))
                is_enough = !getenv("AUTOMAP_FULL");
            else print_message("skipped: NVRTC does not know sm_%d\n", cubin_architectures[a]);
            assert_false(image.cached);
        }
    }
    arena_free(&arena);
}

/* A register spill, an array whose index is unknown at compile time, a changed copy of a parameter. */
static void test_local_memory_is_found(void **state) {
    (void)state;
    static const char *const texts[] = {
        "extern \"C\" __global__ void __launch_bounds__(1024) spills(double *x) {\n"
        "    double v[64];\n"
        "    for (int k = 0; k < 64; k++) v[k] = x[k * 1024 + threadIdx.x];\n"
        "    __syncthreads();\n"
        "    for (int k = 0; k < 64; k++) x[(63 - k) * 1024 + threadIdx.x] = v[k] * v[63 - k];\n"
        "}\n",
        "extern \"C\" __global__ void array(const int *at, float *x) {\n"
        "    float v[16];\n"
        "    for (int k = 0; k < 16; k++) v[at[k]] = x[k];\n"
        "    x[threadIdx.x] = v[at[threadIdx.x]];\n"
        "}\n",
        "struct All { float *at[8]; };\n"
        "extern \"C\" __global__ void parameter(All all, int k, float *x) {\n"
        "    all.at[k] = x;\n"
        "    all.at[threadIdx.x][0] = 1;\n"
        "}\n"};
    static const char *const names[] = {"spills", "array", "parameter"};
    Arena arena = {0};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        AmError error = {0};
        CudaImage image;
        CubinFrame frame;
        if (cuda_compile(&image, &arena, texts[k], 80, &error) != AM_OK) fail_msg("%s", error.text);
        assert_int_equal(cubin_frames(&frame, 1, &image), 1);
        assert_string_equal(frame.name, names[k]);
        assert_true(frame.bytes >= 8);
    }
    arena_free(&arena);
}

int main(void) {
    AmError error = {0};
    if (cuda_compiler_present(&error) != AM_OK) {
        printf("skipped: %s\n", error.text);
        return SKIPPED;
    }
    setenv("XDG_CACHE_HOME", "/dev/null", 1); /* no cache: each is compiled now */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts_compile),
                                       cmocka_unit_test(test_local_memory_is_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
