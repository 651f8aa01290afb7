/* Red zones around values on the CPU: planted accesses are found, and small models train with
 * the losses and states that JAX computed. AUTOMAP_FULL: more models. */
#include "red_zone_case.h"

static void test_planted_accesses(void **state) {
    (void)state;
    red_zone_check_device("cpu");
}

static void test_models(void **state) {
    (void)state;
    red_zone_check_models("cpu");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_planted_accesses),
                                       cmocka_unit_test(test_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
