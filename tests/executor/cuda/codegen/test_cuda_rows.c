/* Row groups as one generated kernel: the bits of step by step on CUDA, also where a value inside is longer
 * than shared memory or rows are few. Skipped (77) in a build without CUDA and where there is neither a GPU
 * nor a stand-in. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/cuda/driver.h"
#include "tests/cuda/stand_in/stand_in.h"
#include "tests/support/gpu_present.h"
#include "tests/support/row_group_case.h"

static int open_device(void **state) {
    AmError error = {0};
    row_group_check(kernels_cuda.open((KernelDevice **)state, &(KernelOptions){.index = 0}, &error), &error);
    return 0;
}

static int close_device(void **state) {
    kernels_cuda.close(*state);
    return 0;
}

static int64_t count_launches(void) {
    const StandIn *stand = stand_in();
    return stand ? stand->count("cuLaunchKernel") : 0;
}

/* `steps` of the only group are one launch; `internal` values are inside. */
static void check(KernelDevice *device, const char *text, int32_t steps, int32_t internal,
                  bool needs_scratch) {
    RowGroupCase alone, joined;
    int64_t before = count_launches();
    row_group_open(&alone, text, false, device);
    int64_t between = count_launches();
    row_group_open(&joined, text, true, device);
    if (stand_in()) assert_int_equal(between - before - (count_launches() - between), steps - 1);
    assert_int_equal(joined.program->execution.row_group_count, 1);
    assert_int_equal(joined.program->execution.row_groups[0].count, steps);
    assert_int_equal(row_group_internal(joined.program), internal);
    int32_t last = joined.program->execution.row_groups[0].first + steps - 1;
    assert_int_equal(joined.entry->steps[last].kernel->scratch_bytes > 0, needs_scratch);
    row_group_compare(&alone, &joined);
    row_group_close(&joined);
    row_group_close(&alone);
}

static void test_norms(void **state) {
    check(*state, NORM("f32", "3", "37", "96"), 5, 3, false);
    check(*state, NORM("bf16", "1", "600", "13"), 5, 3, false);
}

static void test_softmax(void **state) {
    check(*state, SOFTMAX("9", "8", "1029"), 5, 3, false);
    check(*state, row_group_shared_vector, 4, 2, false);
}

/* Rows longer than shared memory, more of them than blocks that have scratch memory. Instrumented kernels
 * take long. */
static void test_long_rows(void **state) {
    if (getenv("AUTOMAP_HOST_KERNELS") && !getenv("AUTOMAP_FULL")) skip();
    check(*state, NORM("f64", "1", "266", "5700"), 5, 3, true);
}

int main(void) {
    if (!gpu_is_present()) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_long_rows),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
#else
#include "tests/support/without_cuda.h"
#endif
