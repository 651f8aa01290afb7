/* Gathered weights: kept from the forward to the backward pass where they fit, gathered again elsewhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/problem_case.h"

static PlanPrice price_of(ProblemCase *self, const AxisPlan *axis_plan) {
    AmError error = {0};
    PlanPrice price;
    assert_int_equal(problem_price(self->problem, axis_plan, &price, &error), AM_OK);
    return price;
}

static bool keeps(ProblemCase *self, const AxisPlan *axis_plan) {
    PlanStage stage;
    problem_stage(self->problem, axis_plan, &self->arena, &stage);
    assert_false(self->arena.failed);
    return stage.keeps_gathered_weights;
}

static void test_gathered_again_where_it_does_not_fit(void **state) {
    (void)state;
    const AxisPlan kept = {.storage = {AXIS_PLAN_STORAGE_KINDS}};
    AxisPlan again = kept;
    ProblemCase self;
    again.gathers_again = 1;
    problem_case_open(&self, "gpt2", "A", "data=8", 100);
    const PlanPrice with = price_of(&self, &kept), without = price_of(&self, &again);
    assert_true(keeps(&self, &kept) && !keeps(&self, &again));
    assert_true(with.communication_seconds < 0.9 * without.communication_seconds);
    assert_true(with.peak_bytes > without.peak_bytes);
    assert_false(with.gathers_again);
    problem_case_close(&self);

    problem_case_open(&self, "gpt2", "A", "data=8", 100);
    int64_t memory = cluster_least_memory(self.cluster, self.devices, 8);
    self.problem->constraints.memory_fraction =
        (double)(with.peak_bytes + without.peak_bytes) / 2 / (double)memory;
    const PlanPrice fitting = price_of(&self, &kept);
    assert_true(fitting.excess == 0 && fitting.gathers_again);
    assert_true(fitting.seconds == without.seconds);
    assert_int_equal(self.problem->budget.used, 2);
    assert_false(keeps(&self, &self.problem->best.axis_plan));
    problem_case_close(&self);
}

/* Weights that take much of the memory when gathered are not kept; plans without sharded weights
 * have no such choice. */
static void test_large_weights_are_not_kept(void **state) {
    (void)state;
    const AxisPlan weights = {.storage = {AXIS_PLAN_STORAGE_KINDS}}, gradients = {.storage = {2}};
    ProblemCase self;
    problem_case_open(&self, "t5_paper_24_11b", "C", "data=32", 1);
    assert_false(keeps(&self, &weights));
    problem_case_close(&self);
    problem_case_open(&self, "gpt2_tiny", "A", "data=8", 1);
    assert_true(keeps(&self, &weights));
    assert_false(keeps(&self, &gradients));
    problem_case_close(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gathered_again_where_it_does_not_fit),
        cmocka_unit_test(test_large_weights_are_not_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
