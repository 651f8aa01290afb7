/* Collectives between threads on 1 to 8 ranks, in groups, with uneven parts, of
 * every type, against the whole arrays; a rank that fails releases the others. */
/* labels: threads */
#include "tests/support/comm_case.h"

static bool supports(SbpReduction reduction, Dtype type) {
    (void)reduction;
    return scalar64_supports(type);
}

static void test_collectives(void **state) {
    (void)state;
    static const int32_t counts[] = {1, 2, 3, 4, 8};
    for (int k = 0; k < 5; k++) case_check_all(&kernels_cpu, &comm_local, supports, counts[k]);
}

static void test_failure_releases_the_others(void **state) {
    (void)state;
    case_check_failure(&kernels_cpu, &comm_local);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_failure_releases_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
