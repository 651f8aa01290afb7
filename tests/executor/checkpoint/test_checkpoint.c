/* Runs that save and resume: the same plan, other plans, interrupts, refusals. */
/* labels: threads */
#include "tests/support/checkpoint_case.h"

static int setup(void **state) {
    CheckpointCase *self = calloc(1, sizeof *self);
    checkpoint_case_open(self, "exact_linear");
    *state = self;
    return 0;
}

static int teardown(void **state) {
    checkpoint_case_close(*state);
    free(*state);
    return 0;
}

static void save(CheckpointCase *self, const Plan *plan, int64_t steps) {
    RunOptions options = {.plan = plan, .checkpoints.path = self->folder, .checkpoints.every = 2};
    if (checkpoint_case_run(self, options, steps) != AM_OK) fail_msg("%s", self->error.text);
}

static AmStatus resume(CheckpointCase *self, const Plan *plan) {
    RunOptions options = {
        .plan = plan, .checkpoints.path = self->folder, .checkpoints.every = 2, .checkpoints.resumes = true};
    return checkpoint_case_run(self, options, CHECKPOINT_STEPS);
}

static void test_resumed_losses_are_the_uninterrupted_ones(void **state) {
    CheckpointCase *self = *state;
    const Plan *plan = checkpoint_case_plan(self, "x=2,y=2", 0);
    checkpoint_case_expect(self, plan);
    save(self, plan, 5);
    assert_true(holds(self, "step-00000004") && holds(self, "step-00000005"));
    assert_false(holds(self, "step-00000002"));
    assert_int_equal(resume(self, plan), AM_OK);
    check_losses(self, 5, "resumed");
    assert_string_equal(self->notes, "resumed after step 5\n");
    assert_true(holds(self, "step-00000006") && holds(self, "step-00000008"));
}

/* The model computes in integers: every plan has the same losses. */
static void test_any_plan_resumes_any_other(void **state) {
    static const char *const meshes[] = {NULL, "x=2", "x=3", "x=2,y=2"};
    CheckpointCase *self = *state;
    checkpoint_case_expect(self, NULL);
    for (int from = 0; from < 4; from++) {
        for (int to = 0; to < 4; to++) {
            char what[64];
            snprintf(what, sizeof what, "%s to %s", meshes[from] ? meshes[from] : "one device",
                     meshes[to] ? meshes[to] : "one device");
            remove_folder(self->folder);
            save(self, meshes[from] ? checkpoint_case_plan(self, meshes[from], 0) : NULL, 3);
            if (resume(self, meshes[to] ? checkpoint_case_plan(self, meshes[to], 1) : NULL) != AM_OK)
                fail_msg("%s: %s", what, self->error.text);
            check_losses(self, 3, what);
        }
    }
}

static void test_resumed_state_counts_before_any_other(void **state) {
    CheckpointCase *self = *state;
    checkpoint_case_expect(self, NULL);
    save(self, NULL, 3);
    RunOptions options = {
        .state_path = "random", .checkpoints.path = self->folder, .checkpoints.resumes = true};
    assert_int_equal(checkpoint_case_run(self, options, CHECKPOINT_STEPS), AM_OK);
    check_losses(self, 3, "without the state file");
}

static void test_nothing_to_resume(void **state) {
    CheckpointCase *self = *state;
    checkpoint_case_expect(self, NULL);
    assert_int_equal(resume(self, NULL), AM_OK);
    check_losses(self, 0, "anew");
    assert_non_null(strstr(self->notes, "no checkpoint to resume from"));
}

static void test_checkpoints_are_not_mixed(void **state) {
    CheckpointCase *self = *state;
    save(self, NULL, 3);
    RunOptions options = {.checkpoints.path = self->folder};
    assert_int_equal(checkpoint_case_run(self, options, 4), AM_ERROR_USAGE);
    assert_non_null(strstr(self->error.text, "step 3"));
    assert_true(isnan(self->losses[0]));
}

static void test_all_steps_done_already(void **state) {
    CheckpointCase *self = *state;
    save(self, NULL, CHECKPOINT_STEPS);
    assert_int_equal(resume(self, NULL), AM_OK);
    assert_int_equal(self->report.steps, 0);
    RunOptions options = {.checkpoints.path = self->folder, .checkpoints.resumes = true};
    assert_int_equal(checkpoint_case_run(self, options, 3), AM_OK);
    assert_int_equal(self->report.steps, 0);
    assert_non_null(strstr(self->notes, "all steps are done already"));
}

static void test_options_need_a_folder(void **state) {
    CheckpointCase *self = *state;
    RunOptions options = {.checkpoints.resumes = true};
    assert_int_equal(checkpoint_case_run(self, options, 2), AM_ERROR_USAGE);
    assert_non_null(strstr(self->error.text, "--checkpoint"));
}

static void test_folder_that_cannot_be(void **state) {
    CheckpointCase *self = *state;
    RunOptions options = {.checkpoints.path = "/proc/no/checkpoints"};
    assert_int_equal(checkpoint_case_run(self, options, 2), AM_ERROR_USAGE);
    assert_string_equal(self->error.source, "/proc/no/checkpoints");
}

static void test_interrupt_saves_the_last_step(void **state) {
    CheckpointCase *self = *state;
    const Plan *plan = checkpoint_case_plan(self, "x=2", 0);
    checkpoint_case_expect(self, plan);
    self->interrupt_after = 2;
    RunOptions options = {.plan = plan, .checkpoints.path = self->folder};
    assert_int_equal(checkpoint_case_run(self, options, CHECKPOINT_STEPS), AM_INTERRUPTED);
    assert_true(holds(self, "step-00000003"));
    self->interrupt_after = -1;
    assert_int_equal(resume(self, plan), AM_OK);
    check_losses(self, 3, "after an interrupt");
}

static void test_other_module_is_refused(void **state) {
    CheckpointCase *self = *state;
    CheckpointCase other;
    checkpoint_case_open(&other, "mlp_tiny"); /* in the same folder */
    save(self, NULL, 3);
    char own[16], others[16]; /* the first digits of each digest */
    snprintf(own, sizeof own, "%.12s", self->context->sha256);
    snprintf(others, sizeof others, "%.12s", other.context->sha256);
    assert_int_equal(resume(&other, NULL), AM_ERROR_INPUT);
    assert_non_null(strstr(other.error.text, own));
    assert_non_null(strstr(other.error.text, others));
    checkpoint_case_close(&other);
}

static void test_number_that_is_kept(void **state) {
    CheckpointCase *self = *state;
    RunOptions options = {.checkpoints.path = self->folder, .checkpoints.every = 1, .checkpoints.keep = 3};
    assert_int_equal(checkpoint_case_run(self, options, CHECKPOINT_STEPS), AM_OK);
    int64_t *steps;
    int32_t count;
    assert_int_equal(checkpoint_list(self->folder, &steps, &count, NULL), AM_OK);
    assert_int_equal(count, 3);
    for (int32_t k = 0; k < 3; k++) assert_int_equal(steps[k], CHECKPOINT_STEPS - k);
    free(steps);
}

/* Left by a run that was killed while it saved or removed. */
static void test_unfinished_ones_are_ignored_and_removed(void **state) {
    CheckpointCase *self = *state;
    char path[512];
    checkpoint_case_expect(self, NULL);
    save(self, NULL, 3);
    for (int k = 0; k < 2; k++) {
        snprintf(path, sizeof path, "%s/step-0000000%d%s", self->folder, 6 + k, k ? ".old" : ".part");
        assert_int_equal(mkdir(path, 0777), 0);
    }
    assert_int_equal(resume(self, NULL), AM_OK);
    check_losses(self, 3, "beside unfinished ones");
    assert_false(holds(self, "step-00000006.part"));
    assert_false(holds(self, "step-00000007.old"));
}

/* The export is what --save writes. */
static void test_export_is_the_saved_state(void **state) {
    CheckpointCase *self = *state;
    char saved[160], exported[160];
    FileBytes a, b;
    const Plan *plan = checkpoint_case_plan(self, "x=2,y=2", 0);
    snprintf(saved, sizeof saved, "%s.saved.safetensors", self->folder);
    snprintf(exported, sizeof exported, "%s.exported.safetensors", self->folder);
    RunOptions options = {.plan = plan, .checkpoints.path = self->folder, .save_path = saved};
    assert_int_equal(checkpoint_case_run(self, options, 4), AM_OK);
    assert_int_equal(checkpoint_export(self->folder, exported, &self->warnings, &self->error), AM_OK);
    assert_int_equal(file_read(&a, saved, NULL), AM_OK);
    assert_int_equal(file_read(&b, exported, NULL), AM_OK);
    assert_int_equal(a.length, b.length);
    assert_memory_equal(a.data, b.data, a.length);
    file_release(&a);
    file_release(&b);
    unlink(saved);
    unlink(exported);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_resumed_losses_are_the_uninterrupted_ones, setup, teardown),
        cmocka_unit_test_setup_teardown(test_any_plan_resumes_any_other, setup, teardown),
        cmocka_unit_test_setup_teardown(test_resumed_state_counts_before_any_other, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_to_resume, setup, teardown),
        cmocka_unit_test_setup_teardown(test_checkpoints_are_not_mixed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_all_steps_done_already, setup, teardown),
        cmocka_unit_test_setup_teardown(test_options_need_a_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder_that_cannot_be, setup, teardown),
        cmocka_unit_test_setup_teardown(test_interrupt_saves_the_last_step, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_module_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_number_that_is_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unfinished_ones_are_ignored_and_removed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_export_is_the_saved_state, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
