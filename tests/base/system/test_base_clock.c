/* Clocks move forward, and CPU time grows with work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/system/clock.h"

static void clocks_advance(void **state) {
    (void)state;
    double wall = clock_seconds(), cpu = clock_cpu_seconds();
    volatile double sum = 0;
    while (clock_cpu_seconds() - cpu < 0.01 && clock_seconds() - wall < 10) sum = sum + 1;
    assert_true(clock_cpu_seconds() - cpu >= 0.01);
    assert_true(clock_seconds() > wall && clock_seconds() - wall < 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(clocks_advance)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
