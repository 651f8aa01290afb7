/* Measured steps of a plan in a process of their own: their number, the end of a run that takes too long, an
 * interrupt, and a run that fails. */
#define _DEFAULT_SOURCE
#include <pthread.h>

#include "base/system/clock.h"
#include "executor/run/separate_run.h"
#include "tests/support/runner_case.h"

typedef struct Fixture {
    Arena arena;
    PlanContext *context;
    Plan *plan;
} Fixture;

static Fixture open_fixture(const char *model, const char *mesh) {
    Fixture self = {0};
    char path[512];
    AmError error = {0};
    join(path, sizeof path, model, "model.hlo.pb");
    if (plan_context_read(&self.context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    self.plan = make_plan(&self.arena, self.context, mesh, choose_batch, 0);
    return self;
}

static void close_fixture(Fixture *self) {
    arena_free(&self->arena);
    plan_context_free(self->context);
}

enum { MOST = 1 << 16 };
static double seconds[MOST];

static void test_steps(void **state) {
    (void)state;
    Fixture self = open_fixture("mlp_tiny", "data=2");
    AmError error = {0};
    int32_t count;
    SeparateRun settings = {.least_steps = 2, .most_steps = 7, .enough_seconds = 100, .patience_seconds = 60};
    if (separate_run(seconds, &count, &settings, self.context, self.plan, &error) != AM_OK)
        fail_msg("%s", error.text);
    assert_int_equal(count, 7);
    for (int32_t k = 0; k < count; k++) assert_true(seconds[k] > 0 && seconds[k] < 60);
    settings.enough_seconds = 0;
    assert_int_equal(separate_run(seconds, &count, &settings, self.context, self.plan, NULL), AM_OK);
    assert_int_equal(count, 2);
    close_fixture(&self);
}

/* The steps until then count. */
static void test_patience(void **state) {
    (void)state;
    Fixture self = open_fixture("gpt2_tiny", "data=2");
    int32_t count;
    const SeparateRun settings = {
        .least_steps = MOST, .most_steps = MOST, .enough_seconds = 100, .patience_seconds = 1};
    double start = clock_seconds();
    AmStatus status = separate_run(seconds, &count, &settings, self.context, self.plan, NULL);
    assert_true(clock_seconds() - start < 10);
    assert_true(count < MOST);
    assert_int_equal(status, count > 0 ? AM_OK : AM_ERROR_RUNTIME);
    close_fixture(&self);
}

static volatile sig_atomic_t flag;

static void *set_flag(void *unused) {
    usleep(100000);
    __atomic_store_n(&flag, 1, __ATOMIC_RELAXED);
    return unused;
}

static void test_interrupt(void **state) {
    (void)state;
    Fixture self = open_fixture("gpt2_tiny", "data=2");
    AmError error = {0};
    int32_t count;
    pthread_t thread;
    const SeparateRun settings = {.least_steps = MOST,
                                  .most_steps = MOST,
                                  .enough_seconds = 100,
                                  .patience_seconds = 100,
                                  .interrupted = &flag};
    double start = clock_seconds();
    assert_int_equal(pthread_create(&thread, NULL, set_flag, NULL), 0);
    AmStatus status = separate_run(seconds, &count, &settings, self.context, self.plan, &error);
    pthread_join(thread, NULL);
    assert_int_equal(status, AM_INTERRUPTED);
    assert_true(clock_seconds() - start < 20);
    close_fixture(&self);
}

/* The child fails, and the caller gets its reason. */
static void test_failure(void **state) {
    (void)state;
    Fixture self = open_fixture("mlp_tiny", "data=2048");
    AmError error = {0};
    int32_t count;
    const SeparateRun settings = {.least_steps = 2, .most_steps = 7, .patience_seconds = 60};
    AmStatus status = separate_run(seconds, &count, &settings, self.context, self.plan, &error);
    assert_int_equal(status, AM_ERROR_RUNTIME);
    assert_int_equal(count, 0);
    assert_non_null(strstr(error.text, "2048 devices"));
    close_fixture(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps), cmocka_unit_test(test_patience),
                                       cmocka_unit_test(test_interrupt), cmocka_unit_test(test_failure)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
