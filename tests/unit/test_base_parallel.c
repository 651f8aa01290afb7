/* parallel_for: every task once, whatever the number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/parallel.h"

static void add_one(void *user, int32_t k) {
    ((int32_t *)user)[k]++;
}

static void test_every_task_runs_once(void **state) {
    (void)state;
    for (int32_t threads = 0; threads < 9; threads++) {
        int32_t done[100] = {0};
        parallel_for(100, threads, add_one, done);
        for (int32_t k = 0; k < 100; k++) assert_int_equal(done[k], 1);
        parallel_for(0, threads, add_one, NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_task_runs_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
