/* Local collectives on the memory of GPUs, with all ranks on one card and on
 * several: the cases of the host's local collectives, which both equal exactly. A
 * card that cannot reach another is one clear line. Skipped (77) in a build
 * without CUDA and on a machine without a GPU. */
#include "automap_features.h"
#include "tests/support/comm_case.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/cuda/driver.h"
#include "executor/cuda/cuda.h"
#include "tests/cuda/stand_in/stand_in.h"
#include "tests/support/gpu_present.h"
#include "tests/support/region_case.h"

static bool supports(SbpReduction reduction, Dtype type) {
    (void)reduction;
    return scalar64_supports(type);
}

static void test_collectives(void **state) {
    (void)state;
    static const int32_t counts[] = {1, 2, 4, 8};
    for (int k = 0; k < 4; k++) case_check_all(&kernels_cuda, &comm_local_cuda, supports, counts[k]);
}

static void test_failure_releases_the_others(void **state) {
    (void)state;
    case_check_failure(&kernels_cuda, &comm_local_cuda);
}

/* In loops, branches and computations, which run between reads of the host. */
static void test_collectives_in_regions(void **state) {
    (void)state;
    for (int32_t ranks = 1; ranks <= REGION_MOST_RANKS; ranks++)
        region_check(&kernels_cuda, &comm_local_cuda, ranks);
}

static void test_failure_in_a_loop(void **state) {
    (void)state;
    region_check_failure(&kernels_cuda, &comm_local_cuda);
}

/* A step allocates nothing. */
static void test_no_allocation_after_the_start(void **state) {
    (void)state;
    const StandIn *stand = stand_in();
    static const CommCase one = {.kind = PROGRAM_ALL_REDUCE, .type = DTYPE_F32, .operand_count = 1};
    CaseRank all[CASE_MOST_RANKS];
    AmError error = {0};
    int64_t counts[2];
    if (!stand) skip();
    for (int k = 0; k < 2; k++) {
        stand->reset();
        assert_int_equal(
            case_run_ranks(&kernels_cuda, &comm_local_cuda, 2, &one, 1, 3 + 4 * k, -1, all, &error), AM_OK);
        counts[k] = stand->count("cuMemAlloc") + stand->count("cuEventCreate");
    }
    assert_int_equal(counts[0], counts[1]);
}

static void test_unreachable_card(void **state) {
    (void)state;
    static const CommCase one = {.kind = PROGRAM_ALL_REDUCE, .type = DTYPE_F32, .operand_count = 1};
    CaseRank all[CASE_MOST_RANKS];
    AmError error = {0};
    if (!stand_in() || cuda_device_count() < 2) skip();
    setenv("STAND_IN_PEERS", "0", 1);
    assert_int_equal(case_run_ranks(&kernels_cuda, &comm_local_cuda, 2, &one, 1, 3, -1, all, &error), AM_OK);
    unsetenv("STAND_IN_PEERS");
    assert_true(all[0].status == AM_ERROR_RUNTIME && all[1].status == AM_ERROR_RUNTIME);
    bool first = strstr(all[0].error.text, "GPU 0 cannot read the memory of GPU 1");
    bool second = strstr(all[1].error.text, "GPU 1 cannot read the memory of GPU 0");
    assert_true(first || second);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_collectives_in_regions),
        cmocka_unit_test(test_failure_in_a_loop),
        cmocka_unit_test(test_failure_releases_the_others),
        cmocka_unit_test(test_no_allocation_after_the_start),
        cmocka_unit_test(test_unreachable_card),
    };
    setenv("STAND_IN_DEVICES", "3", 0); /* so that some ranks share one and others do not */
    if (!gpu_is_present()) return SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    (void)case_check_all, (void)case_check_failure;
    puts("skipped: this build has no CUDA");
    return SKIPPED;
}
#endif
