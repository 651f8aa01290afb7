/* The digits: trained on two ranks from drawn weights on the training file cut
 * into batches, saved, read back by another module and graded on the held-out
 * digits: at least 96 % right. */
/* labels: threads */
#include "tests/support/runner_case.h"

#define DIGITS SOURCE_DIR "/datasets/digits/"

typedef struct Grade {
    double right;
} Grade;

static void add_right(void *user, const RunStep *step) {
    ((Grade *)user)->right += step->watched[0].values[0];
}

static void test_digits(void **state) {
    (void)state;
    AmError error = {0};
    Arena arena = {0};
    RunReport report;
    PlanContext *train, *evaluate;
    char weights[64];
    snprintf(weights, sizeof weights, "test_runner_digits_%d.safetensors", (int)getpid());
    if (plan_context_read(&train, MODELS "mlp/model.hlo.pb", NULL, &error) != AM_OK)
        fail_msg("%s", error.text);
    RunOptions options = {.steps = 22 * 20,
                          .state_path = MODELS "mlp/state.npz",
                          .data_path = DIGITS "train.npz",
                          .save_path = weights};
    options.plan = make_plan(&arena, train, "data=2", choose_batch, 0);
    if (run_module(train, &options, &arena, &report, &error) != AM_OK) fail_msg("%s", error.text);
    assert_true(report.last_loss < 0.2 * report.first_loss);

    Grade grade = {0};
    int32_t watch = 0;
    if (plan_context_read(&evaluate, MODELS "mlp_evaluate/model.hlo.pb", NULL, &error) != AM_OK)
        fail_msg("%s", error.text);
    const IrParameter *x = &evaluate->roles->parameters[6];
    int64_t batch = evaluate->canonical->instructions[x->instruction].shape.dimensions[0];
    options = (RunOptions){.steps = 384 / batch,
                           .state_path = weights,
                           .data_path = DIGITS "test.npz",
                           .watch = &watch,
                           .watch_count = 1,
                           .on_step = add_right,
                           .user = &grade};
    if (run_module(evaluate, &options, &arena, &report, &error) != AM_OK) fail_msg("%s", error.text);
    assert_true(grade.right >= 0.96 * 384 && grade.right <= 384);
    unlink(weights);
    plan_context_free(train);
    plan_context_free(evaluate);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_digits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
