/* Loops under a plan: scans over layers, over time and over micro-batches,
 * nested, with branches inside, split by data parallelism and by axis priorities drawn at
 * random. All numbers are whole and small, so every split equals one device bit
 * for bit, whatever the order of its sums. */
/* labels: threads */
/* cost: 14 seconds */
#include "tests/support/loop_case.h"
#include "tests/support/sample.h"

static void test_data_parallel(void **state) {
    (void)state;
    const Split splits[] = {
        {"data=2", choose_batch, 0}, {"data=4", choose_batch, 0}, {"data=3", choose_batch, 0}};
    for (int32_t m = 0; m < LOOP_MODULES; m++)
        loop_check(loop_modules[m], "cpu", NULL, splits, sample_of(3, 2));
}

static void test_any_split(void **state) {
    (void)state;
    static const char *const meshes[] = {"model=2", "model=3", "data=2,model=2", "model=4"};
    int32_t inside[LOOP_MODULES] = {0};
    for (uint64_t seed = 0; seed < (uint64_t)sample_of(8, 4); seed++) {
        const Split split = {meshes[seed % 4], choose_some, seed};
        for (int32_t m = 0; m < LOOP_MODULES; m++)
            inside[m] += loop_check(loop_modules[m], "cpu", NULL, &split, 1);
    }
    for (int32_t m = 0; m < LOOP_MODULES; m++) assert_true(inside[m] > 0);
}

/* Models that JAX has written as scans: over layers in bf16, over time, over micro-batches. */
static void test_scans_of_the_zoo(void **state) {
    (void)state;
    static const struct {
        const char *model;
        double loss, state;
    } rows[] = {{"accumulated_tiny", 2e-6, 1e-4}, {"lstm_tiny", 2e-6, 1e-4}, {"llama_tiny", 1e-2, 1e-1}};
    for (int32_t m = 0; m < sample_of(3, 1); m++) {
        check_split(rows[m].model, (Split){NULL, NULL, 0}, rows[m].loss, rows[m].state);
        check_split(rows[m].model, (Split){"data=2", choose_batch, 0}, rows[m].loss, rows[m].state);
        check_split(rows[m].model, (Split){"data=2,model=2", choose_some, 1}, rows[m].loss, rows[m].state);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_parallel),
        cmocka_unit_test(test_any_split),
        cmocka_unit_test(test_scans_of_the_zoo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
