/* The PTX of generated kernels: which instructions read memory, and how wide.
 * Skipped (77) in a build without CUDA and where there is no NVRTC. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "generated_module.h"

/* No card has this architecture, so NVRTC gives PTX for the newest that it knows. */
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

#define ASSERT_PART_COUNT(text, part, expected)                                                          \
    do {                                                                                                 \
        if (count_of((text), (part)) != (expected))                                                      \
            fail_msg("%d times '%s', expected %d, in\n%s", count_of((text), (part)), (part), (expected), \
                     (text));                                                                            \
    } while (0)

/* Inputs that no result overlaps are read through the read-only path. The product is written over the
 * exponentials, which die there: that one input is not. */
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

int main(void) {
    AmError error = {0};
    if (cuda_compiler_present(&error) != AM_OK) {
        printf("skipped: %s\n", error.text);
        return SKIPPED;
    }
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_inputs_apart_are_read_only)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    puts("skipped: built without CUDA");
    return SKIPPED;
}
#endif
