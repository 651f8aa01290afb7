/* Red zones around values on the CPU: planted accesses are found, and small models train with
 * the losses and states that JAX computed. AUTOMAP_FULL: more models. */
#include "tests/support/red_zone_case.h"
#include "tests/support/sample.h"

static void test_planted_accesses(void **state) {
    (void)state;
    red_zone_check_device("cpu");
}

static void test_models(void **state) {
    (void)state;
    if (sample_of(0, 1)) skip(); /* the address sanitizer guards every value already */
    red_zone_check_models("cpu");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_planted_accesses),
                                       cmocka_unit_test(test_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
