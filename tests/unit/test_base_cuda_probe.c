/* The CUDA probe against the same arithmetic on the CPU. Skipped (77) in a
 * build without CUDA and on a machine without a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/cuda/probe.h"

static void kernel_equals_cpu(void **state) {
    (void)state;
    enum { COUNT = 1000003 };
    static float values[COUNT];
    for (int i = 0; i < COUNT; i++) values[i] = (float)i - 5e5f;
    AmError error = {0};
    assert_int_equal(cuda_probe_scale(values, COUNT, 1.5f, &error), AM_OK);
    for (int i = 0; i < COUNT; i++) assert_true(values[i] == ((float)i - 5e5f) * 1.5f);
}

int main(void) {
    if (cuda_probe_device_count() == 0) {
        puts("skipped: no usable GPU");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(kernel_equals_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    puts("skipped: built without CUDA");
    return SKIPPED;
}
#endif
