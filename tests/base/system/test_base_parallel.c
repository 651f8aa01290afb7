/* Every task runs once, whatever the number of threads; what AUTOMAP_THREADS may be. */
/* labels: threads */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "base/system/parallel.h"

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

/* A task and what it saw. */
typedef struct Beside {
    ParallelTask task;
    pthread_t thread;
    int32_t runs;
} Beside;

static void note_thread(void *user) {
    Beside *self = user;
    self->thread = pthread_self();
    self->runs++;
}

static void test_a_task_runs_beside_its_caller(void **state) {
    (void)state;
    for (int32_t threads = 1; threads <= 2; threads++) {
        Beside beside = {0};
        setenv("AUTOMAP_THREADS", threads == 1 ? "1" : "2", 1);
        parallel_begin(&beside.task, note_thread, &beside);
        parallel_end(&beside.task);
        assert_int_equal(beside.runs, 1);
        bool is_own = pthread_equal(beside.thread, pthread_self());
        assert_int_equal(is_own, threads == 1);
    }
    unsetenv("AUTOMAP_THREADS");
}

static void test_the_environment_is_checked(void **state) {
    (void)state;
    static const char *const wrong[] = {"0", "-1", "x", "2x", " "};
    unsetenv("AUTOMAP_THREADS");
    int32_t usual = parallel_threads();
    assert_true(parallel_threads_are_valid());
    for (size_t k = 0; k < sizeof(wrong) / sizeof(*wrong); k++) {
        setenv("AUTOMAP_THREADS", wrong[k], 1);
        assert_false(parallel_threads_are_valid());
        assert_int_equal(parallel_threads(), usual);
    }
    setenv("AUTOMAP_THREADS", "3", 1);
    assert_true(parallel_threads_are_valid());
    assert_int_equal(parallel_threads(), 3);
    unsetenv("AUTOMAP_THREADS");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_task_runs_once),
                                       cmocka_unit_test(test_a_task_runs_beside_its_caller),
                                       cmocka_unit_test(test_the_environment_is_checked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
