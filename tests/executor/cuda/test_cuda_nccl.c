/* Collectives by NCCL: the cases of the local collectives, issued, recorded and
 * replayed; ranks that fail, never come, or share a card end every rank with one
 * line, in time. Skipped (77) without NCCL's header at build time, and on a
 * machine without a GPU or without the library; the real library needs a card for
 * each rank, or version 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1. */
#include "automap_features.h"
#include "tests/support/comm_case.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_NCCL
#include <sys/wait.h>
#include <unistd.h>

#include "base/cuda/driver.h"
#include "base/system/clock.h"
#include "executor/cuda/cuda.h"
#include "tests/cuda/stand_in/stand_in.h"
#include "tests/support/region_case.h"

/* The reductions of NCCL; on a pred every reduction is a maximum or a minimum. */
static bool supports(SbpReduction reduction, Dtype type) {
    if (type == DTYPE_S16 || type == DTYPE_U16) return false;
    return type == DTYPE_PRED || (reduction != SBP_AND && reduction != SBP_OR);
}

static const CommCase sum = {.kind = PROGRAM_ALL_REDUCE, .type = DTYPE_F32, .operand_count = 1};

static AmStatus open_ranks(int32_t first_card, int32_t second_card, AmError *error) {
    KernelDevice *devices[2] = {NULL};
    Comm comms[2];
    AmStatus status = kernels_cuda.open(&devices[0], &(KernelOptions){.index = first_card}, error);
    if (status == AM_OK)
        status = kernels_cuda.open(&devices[1], &(KernelOptions){.index = second_card}, error);
    if (status == AM_OK) status = comm_nccl.open(comms, 0, 2, 2, devices, NULL, error);
    if (status == AM_OK) comm_nccl.close(comms);
    for (int r = 0; r < 2; r++)
        if (devices[r]) kernels_cuda.close(devices[r]);
    return status;
}

static void test_collectives(void **state) {
    (void)state;
    static const int32_t counts[] = {2, 4, 8};
    bool share = open_ranks(0, 0, NULL) == AM_OK;
    if (!share && cuda_device_count() < counts[0]) skip();
    for (int k = 0; k < 3; k++)
        if (share || counts[k] <= cuda_device_count())
            case_check_all(&kernels_cuda, &comm_nccl, supports, counts[k]);
}

/* In loops, branches and computations: the host waits for values that it reads, as for the end of a step. */
static void test_collectives_in_regions(void **state) {
    (void)state;
    bool share = open_ranks(0, 0, NULL) == AM_OK;
    if (!share && cuda_device_count() < 2) skip();
    for (int32_t ranks = 2; ranks <= REGION_MOST_RANKS; ranks++)
        if (share || ranks <= cuda_device_count()) region_check(&kernels_cuda, &comm_nccl, ranks);
}

static void test_failure_in_a_loop(void **state) {
    (void)state;
    bool share = open_ranks(0, 0, NULL) == AM_OK;
    if (!share && cuda_device_count() < 3) skip();
    region_check_failure(&kernels_cuda, &comm_nccl);
}

/* A step is one launch of a graph, with nothing allocated on the way. */
static void test_steps_are_graphs(void **state) {
    (void)state;
    enum { REPEATS = 6 };
    const StandIn *stand = stand_in();
    CaseRank all[CASE_MOST_RANKS];
    AmError error = {0};
    if (!stand) skip();
    stand->reset();
    assert_int_equal(case_run_ranks(&kernels_cuda, &comm_nccl, 2, &sum, 1, REPEATS, -1, all, &error), AM_OK);
    assert_int_equal(stand->count("cuGraphLaunch"), 2 * (REPEATS - 1));
    assert_int_equal(stand->count("ncclAllReduce"), 2 * 2);
    assert_int_equal(stand->runs("nccl"), 2 * REPEATS);
}

static void test_failure_releases_the_others(void **state) {
    (void)state;
    if (cuda_device_count() < 3) skip();
    case_check_failure(&kernels_cuda, &comm_nccl);
}

/* Runs two ranks under failures that the stand-ins make; every rank is to end with
 * AM_ERROR_RUNTIME, within half a minute. False: no rank says `words`. */
static bool fails_with(CaseRank *all, const char *failures, const char *words) {
    const StandIn *stand = stand_in();
    AmError error = {0};
    bool said = false;
    double begun = clock_seconds();
    (stand->fail)(failures);
    AmStatus status = case_run_ranks(&kernels_cuda, &comm_nccl, 2, &sum, 1, 4, -1, all, &error);
    (stand->fail)("");
    assert_int_equal(status, AM_OK);
    assert_true(clock_seconds() - begun < 30);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(all[r].status, AM_ERROR_RUNTIME);
        said = said || strstr(all[r].error.text, words);
    }
    return said;
}

static void check_failure(const char *failures, const char *words) {
    CaseRank all[CASE_MOST_RANKS];
    if (!fails_with(all, failures, words))
        fail_msg("'%s' and '%s', not '%s'", all[0].error.text, all[1].error.text, words);
}

static void test_errors_of_the_library(void **state) {
    (void)state;
    if (!stand_in()) skip();
    check_failure("ncclCommInitRankConfig=2", "NCCL: connecting to the other ranks: system error");
    check_failure("ncclAllReduce=5", "NCCL: all_reduce: invalid usage");
    setenv("STAND_IN_NCCL_LOST", "3", 1);
    check_failure("", "NCCL: a step's collectives: remote process exited");
    unsetenv("STAND_IN_NCCL_LOST");
}

/* The second rank's connection is never made: the first one waits, but not for ever. */
static void test_a_rank_that_does_not_come(void **state) {
    (void)state;
    CaseRank all[CASE_MOST_RANKS];
    if (!stand_in()) skip();
    setenv("AUTOMAP_NCCL_TIMEOUT", "0.2", 1);
    setenv("STAND_IN_NCCL_ABSENT", "1", 1);
    check_failure("", "connecting to the other ranks has not ended after 0.2 seconds (a group of 2 ranks)");
    unsetenv("STAND_IN_NCCL_ABSENT");
    setenv("STAND_IN_NCCL_SILENT", "1", 1);
    setenv("AUTOMAP_NCCL_TIMEOUT", "0.4", 1);
    if (!fails_with(all, "", "NCCL: the collectives of a step have not ended after 4 seconds")) {
        setenv("AUTOMAP_NCCL_TIMEOUT", "2", 1); /* a busy machine takes more than 0.4 seconds to connect */
        check_failure("", "NCCL: the collectives of a step have not ended after 20 seconds");
    }
    unsetenv("STAND_IN_NCCL_SILENT");
    unsetenv("AUTOMAP_NCCL_TIMEOUT");
}

static void test_ranks_on_one_card(void **state) {
    (void)state;
    AmError error = {0};
    if (!stand_in() || cuda_device_count() < 2) skip();
    setenv("STAND_IN_NCCL_VERSION", "22809", 1);
    assert_int_equal(open_ranks(0, 1, &error), AM_OK);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    assert_int_equal(open_ranks(1, 1, &error), AM_ERROR_RUNTIME);
    assert_non_null(strstr(error.text, "ranks 0 and 1 are both on GPU 1, which NCCL 2.28.9 does not allow"));
    error = (AmError){0};
    setenv("STAND_IN_NCCL_VERSION", "23200", 1);
    if (strcmp(stand_in()->loading(), "EAGER") == 0) {
        assert_int_equal(open_ranks(1, 1, &error), AM_OK);
    } else {
        assert_int_equal(open_ranks(1, 1, &error), AM_ERROR_RUNTIME);
        assert_non_null(
            strstr(error.text, "ranks 0 and 1 are both on GPU 1, where kernels that are loaded late"));
    }
    error = (AmError){0};
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    assert_int_equal(open_ranks(1, 1, &error), AM_ERROR_RUNTIME);
    unsetenv("STAND_IN_NCCL_VERSION");
}

/* A reduction that NCCL lacks is refused by name before the run. */
static void test_refusals(void **state) {
    (void)state;
    static const CommCase refused[] = {
        {.kind = PROGRAM_ALL_REDUCE, .type = DTYPE_S16, .operand_count = 1},
        {.kind = PROGRAM_REDUCE_SCATTER, .reduction = SBP_AND, .type = DTYPE_S32, .operand_count = 1}};
    static const char *const words[] = {"NCCL has no reduction 'add' of s16 (all_reduce)",
                                        "NCCL has no reduction 'and' of s32 (reduce_scatter)"};
    CaseRank all[CASE_MOST_RANKS];
    AmError error = {0};
    if (cuda_device_count() < 2) skip();
    for (int k = 0; k < 2; k++) {
        assert_int_equal(case_run_ranks(&kernels_cuda, &comm_nccl, 2, &refused[k], 1, 1, -1, all, &error),
                         AM_OK);
        assert_int_equal(all[0].status, AM_ERROR_INPUT);
        assert_non_null(strstr(all[0].error.text, words[k]));
    }
}

static void test_limit_that_is_none(void **state) {
    (void)state;
    AmError error = {0};
    setenv("AUTOMAP_NCCL_TIMEOUT", "soon", 1);
    assert_int_equal(open_ranks(0, 0, &error), AM_ERROR_USAGE);
    unsetenv("AUTOMAP_NCCL_TIMEOUT");
}

/* Returns whether the library can be used here; if not, why. */
static bool is_present(void) {
    AmError error = {0};
    KernelDevice *device = NULL;
    Comm comm;
    if (kernels_cuda.open(&device, &(KernelOptions){0}, &error) == AM_OK &&
        comm_nccl.open(&comm, 0, 1, 1, &device, NULL, &error) == AM_OK)
        comm_nccl.close(&comm);
    if (device) kernels_cuda.close(device);
    if (error.text[0]) printf("skipped: %s\n", error.text);
    return !error.text[0];
}

/* In a child: this process is to choose its environment before the driver starts. */
static int count_devices(void) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(cuda_device_count());
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

/* On one card, which ranks share, the driver was started with what that needs. */
static void test_loading(void **state) {
    (void)state;
    const char *shared = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (!stand_in()) skip();
    assert_string_equal(stand_in()->loading(), shared ? "EAGER" : "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loading),
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_collectives_in_regions),
        cmocka_unit_test(test_failure_in_a_loop),
        cmocka_unit_test(test_steps_are_graphs),
        cmocka_unit_test(test_failure_releases_the_others),
        cmocka_unit_test(test_errors_of_the_library),
        cmocka_unit_test(test_a_rank_that_does_not_come),
        cmocka_unit_test(test_ranks_on_one_card),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_limit_that_is_none),
    };
    setenv("STAND_IN_DEVICES", "8", 0);
    if (count_devices() < 2) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    if (!is_present()) return SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    (void)case_check_all, (void)case_check_failure;
    puts("skipped: this build has no NCCL");
    return SKIPPED;
}
#endif
