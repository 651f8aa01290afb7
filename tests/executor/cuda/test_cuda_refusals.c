/* Training on stand-ins whose libraries refuse problems, or whose calls fail, as a
 * seed decides: it ends with the losses of the reference, or with one line and the
 * code of a run-time failure. It never hangs, crashes or gives another loss. Each
 * case is a process. Skipped (77) in a build without CUDA and without the
 * stand-ins. AUTOMAP_FULL: more seeds. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/cuda/driver.h"
#include "base/random.h"
#include "tests/cuda/stand_in/stand_in.h"
#include "tests/support/training_case.h"

#define MOST_SECONDS 60

/* Calls that a case lets fail, with the library's code. */
static const char *const library_calls[] = {
    "cublasLtCreate=1",
    "cublasLtMatmulDescCreate=3",
    "cublasLtMatrixLayoutCreate=3",
    "cublasLtMatmulPreferenceSetAttribute=7",
    "cublasLtMatmulAlgoGetHeuristic=14",
    "cublasLtMatmul=13",
    "cublasLtMatmul=7",
    "nvrtcCreateProgram=1",
    "nvrtcCompileProgram=1",
};
static const char *const driver_calls[] = {
    "cuMemAlloc=2",           "cuMemAlloc=2",
    "cuMemAlloc=2",           "cuModuleLoadDataEx=200",
    "cuModuleLoadDataEx=2",   "cuStreamCreate=2",
    "cuEventCreate=2",        "cuStreamBeginCapture=900",
    "cuStreamEndCapture=901", "cuGraphInstantiate=2",
    "cuGraphLaunch=700",      "cuLaunchKernel=700",
    "cuLaunchKernel=701",     "cuEventRecord=400",
    "cuStreamWaitEvent=400",  "cuMemcpyHtoDAsync=700",
    "cuMemcpyDtoHAsync=700",  "cuStreamSynchronize=719",
    "cuCtxSetCurrent=201",    "cuDevicePrimaryCtxRetain=2",
};
static const char *const nccl_calls[] = {
    "ncclGetUniqueId=2", "ncclCommInitRankConfig=1", "ncclCommGetAsyncError=1", "ncclCommGetAsyncError=6",
    "ncclGroupStart=3",  "ncclGroupEnd=5",           "ncclAllReduce=5",         "ncclAllReduce=1",
};

/* The environment of the next case. */
static void set(const char *variable, const char *value) {
    if (value) setenv(variable, value, 1);
    else unsetenv(variable);
}

/* Runs the prepared training in a process. `must_succeed`: a failure of it fails the test. */
static void check_case(const char *refusals, const char *failures, bool must_succeed) {
    Child child;
    char words[TEXT];
    set("STAND_IN_REFUSE", refusals);
    set("STAND_IN_FAIL", failures);
    make_children(&child, 1, training_run);
    start(&child, 1);
    finish(&child, 1);
    unlink(training.saved);
    snprintf(words, sizeof words, "%s on %s, refusing %s, failing %s: status %d after %.1f s: %.300s",
             training.model, training.comm ? training.comm : "one device", refusals ? refusals : "nothing",
             failures ? failures : "nowhere", child.status, child.seconds, child.text);
    bool is_clean = child.status == AM_ERROR_RUNTIME && child.text[0] && !strchr(child.text, '\n');
    if (child.seconds > MOST_SECONDS || (child.status != AM_OK && (must_succeed || !is_clean)))
        fail_msg("%s", words);
    if (getenv("AUTOMAP_FULL")) printf("%s\n", words);
}

static void prepare(const char *model, const char *mesh, const char *comm) {
    training_prepare(model, mesh, choose_batch, 0);
    training.device = "cuda";
    training.comm = comm;
    training.tolerance = 1e-5;
    training.steps = 6; /* the graphs are there from the third on */
}

/* Training gives the reference's losses if libraries refuse problems. */
static void test_refusals(void **state) {
    (void)state;
    int seeds = getenv("AUTOMAP_FULL") ? 20 : 4;
    for (int seed = 0; seed < seeds; seed++) {
        char refusals[64];
        snprintf(refusals, sizeof refusals, "%d:%d", seed, 15 + 10 * (seed % 4));
        prepare(seed % 4 == 3 ? "vgg_tiny" : "mlp_tiny", "data=2", "local");
        check_case(refusals, NULL, true);
    }
}

/* The same if there is no memory to try a product before the first step. */
static void test_refusals_in_the_first_step(void **state) {
    (void)state;
    prepare("mlp_tiny", "data=2", "local");
    check_case("0:100:cublasLtMatmul", "cuMemAlloc=2#1", true);
}

#ifdef AUTOMAP_HAVE_NCCL
#define SECOND_COMM "nccl"
#else
#define SECOND_COMM "local"
#endif

/* A call of the driver or a library fails once, or from then on. `comm` NULL: both alternate. */
static void check_failures(const char *const *calls, int count, int seeds, const char *comm) {
    Random random;
    random_seed(&random, 11);
    for (int seed = 0; seed < seeds; seed++) {
        char failures[96];
        bool once = random_below(&random, 2) == 0;
        int call = seed < count ? seed : (int)random_below(&random, (uint64_t)count);
        snprintf(failures, sizeof failures, "%s%c%d", calls[call], once ? '#' : '@',
                 1 + (int)random_below(&random, 6));
        prepare("mlp_tiny", "data=2", comm ? comm : seed % 2 == 0 ? "local" : SECOND_COMM);
        check_case(NULL, failures, false);
    }
}

static void test_failures_of_libraries(void **state) {
    (void)state;
    int count = sizeof library_calls / sizeof *library_calls;
    check_failures(library_calls, count, getenv("AUTOMAP_FULL") ? 4 * count : count, "local");
}

static void test_failures_of_the_driver(void **state) {
    (void)state;
    int count = sizeof driver_calls / sizeof *driver_calls;
    check_failures(driver_calls, count, getenv("AUTOMAP_FULL") ? 6 * count : count, NULL);
}

static void test_failures_of_nccl(void **state) {
    (void)state;
#ifdef AUTOMAP_HAVE_NCCL
    int count = sizeof nccl_calls / sizeof *nccl_calls;
    check_failures(nccl_calls, count, getenv("AUTOMAP_FULL") ? 4 * count : count, "nccl");
#else
    (void)nccl_calls;
    skip();
#endif
}

/* A kernel that was kept on disk and that the driver does not load is compiled anew. */
static void test_kept_kernels(void **state) {
    (void)state;
    prepare("mlp_tiny", "data=2", "local");
    check_case(NULL, NULL, true);
    check_case(NULL, "cuModuleLoadDataEx=200#1", true);
    check_case(NULL, "cuModuleLoadDataEx=218#1", true);
}

/* The driver must not be open in a process that forks. */
static bool has_stand_in(void) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(cuda_device_count() > 0 && stand_in());
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_refusals_in_the_first_step),
        cmocka_unit_test(test_failures_of_libraries),
        cmocka_unit_test(test_failures_of_the_driver),
        cmocka_unit_test(test_failures_of_nccl),
        cmocka_unit_test(test_kept_kernels),
    };
    setenv("STAND_IN_DEVICES", "2", 0);
    setenv("AUTOMAP_NCCL_TIMEOUT", "1", 0);
    if (!has_stand_in()) {
        puts("skipped: there is no stand-in driver");
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
