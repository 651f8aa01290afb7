/* The same models split over several ranks, by data parallelism and by axis priorities
 * drawn at random on one and two axes, also unevenly: the same losses, and the
 * whole-number models bit for bit. */
/* labels: threads */
#include "tests/support/runner_case.h"
#include "tests/support/sample.h"

static void test_data_parallel(void **state) {
    (void)state;
    check_split("mlp_tiny", (Split){"data=4", choose_batch, 0}, 2e-6, 1e-4);
    check_split("mlp_tiny", (Split){"data=3", choose_batch, 0}, 2e-6, 1e-4);
    check_split("t5_tiny", (Split){"data=2", choose_batch, 0}, 5e-6, 1e-4);
    check_split("gpt2_tiny", (Split){"data=2", choose_batch, 0}, 5e-6, 1e-4);
}

static void test_any_split(void **state) {
    (void)state;
    static const char *const meshes[] = {"model=2", "model=3", "data=2,model=2", "data=2,model=4"};
    for (uint64_t seed = 0; seed < (uint64_t)sample_of(4, 2); seed++) {
        check_split("mlp_tiny", (Split){meshes[seed], choose_some, seed}, 2e-6, 1e-4);
        check_split("exact_linear", (Split){meshes[seed], choose_some, seed}, 0, 0);
        check_split("exact_gather", (Split){meshes[seed], choose_some, seed}, 0, 0);
    }
    check_split("t5_tiny", (Split){"model=2", choose_some, 5}, 5e-6, 1e-4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_parallel),
        cmocka_unit_test(test_any_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
