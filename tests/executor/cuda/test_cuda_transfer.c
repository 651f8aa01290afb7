/* Transfers between two meshes on the memory of GPUs, and by NCCL: the cases of the
 * host's. Skipped (77) in a build without CUDA and on a machine without a GPU. */
#include "automap_features.h"
#include "tests/support/gpu_present.h"
#include "tests/support/transfer_case.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/cuda/driver.h"
#include "executor/cuda/cuda.h"

static int setup_local(void **state) {
    return setup_on(state, &kernels_cuda, &comm_local_cuda);
}

static void test_pairs(void **state) {
    check_pair(*state, "x=2", "x=3", 3);
    check_pair(*state, "x=2,y=2", "x=2", 17);
    check_pair(*state, "x=1", "x=2,y=2", 11);
}

#ifdef AUTOMAP_HAVE_NCCL
static int setup_nccl(void **state) {
    return setup_on(state, &kernels_cuda, &comm_nccl);
}

static void test_pairs_by_nccl(void **state) {
    if (cuda_device_count() < 6) skip();
    check_pair(*state, "x=2", "x=2", 7);
    check_pair(*state, "x=2,y=2", "x=2", 37);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_pairs, setup_local, teardown),
#ifdef AUTOMAP_HAVE_NCCL
        cmocka_unit_test_setup_teardown(test_pairs_by_nccl, setup_nccl, teardown),
#endif
    };
    setenv("STAND_IN_DEVICES", "6", 0);
    if (!gpu_is_present()) return SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    (void)check_pair, (void)setup_on, (void)teardown;
    puts("skipped: this build has no CUDA");
    return SKIPPED;
}
#endif
