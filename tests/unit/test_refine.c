/* Exceptions that are added to a plan's lists: each makes the plan quicker by the real price, whatever the
 * number of threads, in no more evaluations than are allowed, and the plan that is written has them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "problem_case.h"

#include "cost/price.h"
#include "planners/expert.h"
#include "planners/refine.h"
#include "planners/searchers.h"
#include "planners/searching.h"

typedef struct Case {
    ProblemCase of;
    PlanStage stage;
    PlanPrice before, after;
} Case;

/* The Megatron-like recipe of a model, refined with so many evaluations. */
static void open_case(Case *self, const char *model, const char *cluster, const char *mesh,
                      int64_t evaluations) {
    AmError error = {0};
    Genome genome;
    const char *reason;
    problem_case_open(&self->of, model, cluster, mesh, 1000);
    Problem *problem = self->of.problem;
    assert_int_equal(expert_genome(problem, EXPERT_MEGATRON, &genome, &reason, &error), AM_OK);
    assert_null(reason);
    assert_int_equal(problem_price(problem, &genome, &self->before, &error), AM_OK);
    problem_stage(problem, &genome, &self->of.arena, &self->stage);
    self->after = self->before;
    problem->budget.limit = problem->budget.evaluations + evaluations;
    assert_int_equal(refine_stage(&self->stage, &self->after, &self->of.arena, problem, &error), AM_OK);
}

static double price_again(Case *self) {
    AmError error = {0};
    Completion *completion;
    Program *program;
    StepPrice price;
    assert_int_equal(plan_complete(&completion, &self->of.arena, self->of.context, &self->stage, &error),
                     AM_OK);
    assert_int_equal(plan_lower(&program, &self->of.arena, self->of.context, completion, 0, &error), AM_OK);
    assert_int_equal(price_program(&price, program, self->of.cluster, self->of.devices, &error), AM_OK);
    return price.step_seconds;
}

static void test_exceptions_make_plans_quicker(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2_tiny", "gpt2", "llama_tiny", "vgg19"};
    int32_t gained = 0;
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        Case self;
        open_case(&self, models[k], "C", "data=4,model=8", 24);
        assert_true(price_again(&self) == self.after.seconds);
        assert_true(self.after.seconds <= self.before.seconds);
        assert_true((self.stage.exception_count > 0) == (self.after.seconds < self.before.seconds));
        assert_true(self.of.problem->budget.evaluations <= self.of.problem->budget.limit);
        gained += self.after.seconds < 0.99 * self.before.seconds;
        problem_case_close(&self.of);
    }
    assert_true(gained >= 2);
}

static void test_threads_change_nothing(void **state) {
    (void)state;
    Case one, two;
    setenv("AUTOMAP_THREADS", "1", 1);
    open_case(&one, "llama_tiny", "C", "data=8,model=4", 25);
    setenv("AUTOMAP_THREADS", "2", 1);
    open_case(&two, "llama_tiny", "C", "data=8,model=4", 25);
    unsetenv("AUTOMAP_THREADS");
    assert_int_equal(one.stage.exception_count, two.stage.exception_count);
    assert_memory_equal(one.stage.exceptions, two.stage.exceptions,
                        sizeof *one.stage.exceptions * (size_t)one.stage.exception_count);
    assert_true(one.after.seconds == two.after.seconds);
    problem_case_close(&one.of);
    problem_case_close(&two.of);
}

static void test_no_evaluations_no_exceptions(void **state) {
    (void)state;
    Case self;
    open_case(&self, "llama_tiny", "C", "data=8,model=4", 0);
    assert_int_equal(self.stage.exception_count, 0);
    assert_true(self.after.seconds == self.before.seconds);
    problem_case_close(&self.of);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exceptions_make_plans_quicker),
        cmocka_unit_test(test_threads_change_nothing),
        cmocka_unit_test(test_no_evaluations_no_exceptions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
