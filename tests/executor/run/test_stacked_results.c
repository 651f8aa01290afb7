/* Micro-batches whose backward pass has iterations of its own get each result of a forward operator of
 * several results: losses of integers equal those of the whole batch bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "executor/run/run.h"
#include "lowering/micro_batch/micro_batches.h"
#include "tests/support/micro_batch_case.h"

static PlanContext *read_module(const char *text) {
    char path[] = "/tmp/automap_stack_XXXXXX";
    AmError error = {0};
    PlanContext *context;
    int file = mkstemp(path);
    assert_int_equal(write(file, text, strlen(text)), (ssize_t)strlen(text));
    close(file);
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    unlink(path);
    return context;
}

/* Returns the loss of the third step, which depends on the gradients of the first two. */
static double last_loss(const PlanContext *context) {
    AmError error = {0};
    Arena arena = {0};
    RunReport report;
    const RunOptions options = {.steps = 3, .device = "cpu", .state_path = "random", .seed = 5};
    if (run_module(context, &options, &arena, &report, &error) != AM_OK) fail_msg("%s", error.text);
    double loss = report.last_loss;
    arena_free(&arena);
    return loss;
}

static void test_results_of_a_sort(void **state) {
    (void)state;
    PlanContext *primary = read_module(batch_balanced);
    double expected = last_loss(primary);
    for (int32_t count = 2; count <= 8; count *= 2) {
        const MicroBatchSettings apart = {.micro_batches = count, .separate_backward = true};
        const MicroBatchSettings joint = {.micro_batches = count};
        const PlanContext *split;
        AmError error = {0};
        if (plan_context_for(&split, primary, &apart, &error) != AM_OK) fail_msg("%s", error.text);
        assert_true(last_loss(split) == expected);
        assert_int_equal(plan_context_for(&split, primary, &joint, NULL), AM_ERROR_INFEASIBLE);
    }
    plan_context_free(primary);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_results_of_a_sort)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
