/* NVRTC takes every .cu file that the build embeds, for sm_80 and sm_90,
 * without a word: nvcc, which checks them too, has more built in. Skipped
 * (77) in a build without CUDA and where there is no NVRTC. Needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/cuda/nvrtc.h"
#include "tests/cuda/cuda_texts.h"

static void test_texts_compile(void **state) {
    (void)state;
    static const int32_t architectures[] = {80, 90};
    Arena arena = {0};
    for (size_t k = 0; k < sizeof cuda_texts / sizeof *cuda_texts; k++)
        for (size_t a = 0; a < sizeof architectures / sizeof *architectures; a++) {
            AmError error = {0};
            CudaImage image;
            if (cuda_compile(&image, &arena, cuda_texts[k].text, architectures[a], &error) != AM_OK)
                fail_msg("%s: %s", cuda_texts[k].path, error.text);
            if (image.log[0]) fail_msg("%s: %s", cuda_texts[k].path, image.log);
            assert_false(image.cached);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts_compile)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    puts("skipped: built without CUDA");
    return SKIPPED;
}
#endif
