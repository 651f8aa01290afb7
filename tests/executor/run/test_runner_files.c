/* Files of a run: missing and ill-fitting arrays, batches, random state, watched and saved outputs,
 * interruption. */
/* labels: threads */
#include "lowering/spmd/lower.h"
#include "tests/support/runner_case.h"

static const char path_in_models[] = MODELS "mlp_tiny/model.hlo.pb";
static const char state_file[] = MODELS "mlp_tiny/state.npz";
static const char data_file[] = MODELS "mlp_tiny/data.npz";

typedef struct Fixture {
    PlanContext *context;
    Arena arena;
    AmWarnings warnings;
    RunReport report;
    AmError error;
    Losses losses;
    char path[64];
} Fixture;

static int setup(void **state) {
    Fixture *self = calloc(1, sizeof *self);
    assert_int_equal(plan_context_read(&self->context, path_in_models, NULL, &self->error), AM_OK);
    self->warnings.arena = &self->arena;
    snprintf(self->path, sizeof self->path, "test_runner_files_%d.npz", (int)getpid());
    *state = self;
    return 0;
}

static int teardown(void **state) {
    Fixture *self = *state;
    unlink(self->path);
    plan_context_free(self->context);
    arena_free(&self->arena);
    free(self);
    return 0;
}

static AmStatus run(Fixture *self, RunOptions options) {
    options.warnings = &self->warnings;
    if (!options.on_step) {
        options.on_step = note_loss;
        options.user = &self->losses;
    }
    return run_module(self->context, &options, &self->arena, &self->report, &self->error);
}

static void test_missing_parameter_is_named(void **state) {
    Fixture *self = *state;
    RunOptions options = {.steps = 1, .state_path = state_file};
    assert_int_equal(run(self, options), AM_ERROR_INPUT);
    assert_non_null(strstr(self->error.text, "no array named \"x\""));
}

static void write_x(Fixture *self, Dtype type, int32_t rank, const int64_t *x_dimensions, int64_t y_batches) {
    static int32_t zeros[64 * 64 * 64];
    int64_t y_dimensions[2] = {y_batches, 16};
    ArrayToWrite arrays[2] = {
        {.name = "x", .type = type, .rank = rank, .dimensions = x_dimensions, .data = zeros},
        {.name = "y", .type = DTYPE_S32, .rank = 2, .dimensions = y_dimensions, .data = zeros}};
    assert_int_equal(array_file_write(self->path, arrays, 2, NULL, &self->error), AM_OK);
}

static void test_shape_mismatch_names_both(void **state) {
    Fixture *self = *state;
    write_x(self, DTYPE_F32, 3, (int64_t[]){4, 16, 63}, 4);
    RunOptions options = {.steps = 1, .state_path = state_file, .data_path = self->path};
    assert_int_equal(run(self, options), AM_ERROR_INPUT);
    assert_non_null(strstr(self->error.text, "f32[4,16,63]"));
    assert_non_null(strstr(self->error.text, "f32[16,64]"));
}

static void test_type_mismatch(void **state) {
    Fixture *self = *state;
    write_x(self, DTYPE_S32, 2, (int64_t[]){16, 64}, 1);
    RunOptions options = {.steps = 1, .state_path = state_file, .data_path = self->path};
    assert_int_equal(run(self, options), AM_ERROR_INPUT);
    assert_non_null(strstr(self->error.text, "s32[16,64]"));
}

/* 40 examples are 2 batches of 16 and a remainder. */
static void test_first_dimension_is_cut(void **state) {
    Fixture *self = *state;
    write_x(self, DTYPE_F32, 2, (int64_t[]){40, 64}, 2);
    RunOptions options = {.steps = 3, .state_path = state_file, .data_path = self->path};
    assert_int_equal(run(self, options), AM_OK);
    assert_int_equal(self->warnings.count, 1);
    assert_non_null(strstr(self->warnings.texts[0], "last 8 examples of 'x'"));
}

static void test_numbers_of_batches_must_agree(void **state) {
    Fixture *self = *state;
    write_x(self, DTYPE_F32, 3, (int64_t[]){2, 16, 64}, 7);
    RunOptions options = {.steps = 1, .state_path = state_file, .data_path = self->path};
    assert_int_equal(run(self, options), AM_ERROR_INPUT);
    assert_non_null(strstr(self->error.text, "2 batches"));
    assert_non_null(strstr(self->error.text, "7"));
}

/* The same values whatever the split; labels stay below the number of classes. */
static void test_drawn_state_does_not_depend_on_the_split(void **state) {
    Fixture *self = *state;
    RunOptions options = {.steps = 3, .state_path = "random", .seed = 7};
    assert_int_equal(run(self, options), AM_OK);
    Losses alone = self->losses;
    memset(&self->losses, 0, sizeof self->losses);
    options.plan = make_plan(&self->arena, self->context, "data=2,model=2", choose_some, 3);
    assert_int_equal(run(self, options), AM_OK);
    for (int k = 0; k < 3; k++) {
        assert_true(alone.values[k] > 0.5 && alone.values[k] < 20);
        assert_true(fabs(alone.values[k] - self->losses.values[k]) <= 2e-6 * alone.values[k]);
    }
}

typedef struct Seen {
    double loss, watched;
    volatile sig_atomic_t stop;
    int32_t steps;
} Seen;

static void note_watched(void *user, const RunStep *step) {
    Seen *seen = user;
    assert_int_equal(step->watched_count, 1);
    assert_int_equal(step->watched[0].count, 32);
    seen->watched = step->watched[0].values[5];
    seen->loss = step->loss;
    if (++seen->steps == 2) seen->stop = 1;
}

/* output[0] is the new bias; watched values are those that --outputs writes. */
static void test_watched_and_saved_outputs(void **state) {
    Fixture *self = *state;
    Seen seen = {0};
    int32_t watch = 0;
    RunOptions options = {.steps = 1,
                          .state_path = state_file,
                          .data_path = data_file,
                          .watch = &watch,
                          .watch_count = 1,
                          .outputs_path = self->path,
                          .on_step = note_watched,
                          .user = &seen};
    options.plan = make_plan(&self->arena, self->context, "data=2", choose_batch, 0);
    assert_int_equal(run(self, options), AM_OK);
    ArrayFile file;
    float bias[32], loss;
    assert_int_equal(array_file_open(&file, self->path, &self->error), AM_OK);
    assert_int_equal(file.count, self->context->roles->output_count);
    assert_int_equal(array_file_read(&file, array_file_find(&file, "output[0]"), bias, NULL), AM_OK);
    assert_int_equal(array_file_read(&file, array_file_find(&file, "output[6]"), &loss, NULL), AM_OK);
    assert_true(bias[5] == seen.watched && loss == seen.loss && seen.watched != 0);
    array_file_close(&file);
}

/* The measured peak is the program's allocation; scratch memory of kernels is reported separately. */
static void test_scratch_memory_is_told_apart(void **state) {
    Fixture *self = *state;
    Program *program;
    RunOptions options = {.steps = 1, .state_path = state_file, .data_path = data_file};
    assert_int_equal(run(self, options), AM_OK);
    assert_int_equal(plan_lower_one_device(&program, &self->arena, self->context, &self->error), AM_OK);
    for (int32_t k = 0; k < program->execution.update_count; k++)
        assert_true(program->execution.updates[k].in_place);
    assert_true(self->report.scratch_bytes[0] > 0); /* products pack their operands */
    assert_true(self->report.peak_bytes[0] >= program->allocation.bytes);
    assert_true(self->report.peak_bytes[0] < program->allocation.bytes + 64);
}

static void test_unknown_output(void **state) {
    Fixture *self = *state;
    int32_t watch = 7;
    RunOptions options = {
        .steps = 1, .state_path = state_file, .data_path = data_file, .watch = &watch, .watch_count = 1};
    assert_int_equal(run(self, options), AM_ERROR_USAGE);
    assert_non_null(strstr(self->error.text, "output[7]"));
}

static void test_interruption(void **state) {
    Fixture *self = *state;
    Seen seen = {0};
    int32_t watch = 0;
    RunOptions options = {.steps = 100,
                          .state_path = state_file,
                          .data_path = data_file,
                          .watch = &watch,
                          .watch_count = 1,
                          .interrupted = &seen.stop,
                          .on_step = note_watched,
                          .user = &seen};
    options.plan = make_plan(&self->arena, self->context, "data=2", choose_batch, 0);
    assert_int_equal(run(self, options), AM_INTERRUPTED);
    assert_int_equal(seen.steps, 2);
    assert_int_equal(self->report.steps, 2);
}

/* Refused before the first step, by opcode, instruction and source line. */
static void test_operator_without_kernel(void **state) {
    Fixture *self = *state;
    static const char module[] = "HloModule m\n\nENTRY main {\n"
                                 "  p = f32[4,8]{1,0} parameter(0)\n"
                                 "  c = f32[4,5]{1,0} custom-call(p), custom_call_target=\"mystery\", "
                                 "metadata={op_name=\"f/mystery\" source_file=\"model.py\" source_line=12}\n"
                                 "  ROOT r = f32[4,5]{1,0} negate(c)\n}\n";
    PlanContext *context;
    assert_int_equal(file_write(self->path, module, sizeof module - 1, &self->error), AM_OK);
    assert_int_equal(plan_context_read(&context, self->path, NULL, &self->error), AM_OK);
    RunOptions options = {.steps = 1, .state_path = "random"};
    assert_int_equal(run_module(context, &options, &self->arena, &self->report, &self->error),
                     AM_ERROR_INPUT);
    assert_non_null(strstr(self->error.text, "'custom-call' (instruction c at model.py:12)"));
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_missing_parameter_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(test_shape_mismatch_names_both, setup, teardown),
        cmocka_unit_test_setup_teardown(test_type_mismatch, setup, teardown),
        cmocka_unit_test_setup_teardown(test_first_dimension_is_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(test_numbers_of_batches_must_agree, setup, teardown),
        cmocka_unit_test_setup_teardown(test_drawn_state_does_not_depend_on_the_split, setup, teardown),
        cmocka_unit_test_setup_teardown(test_watched_and_saved_outputs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_scratch_memory_is_told_apart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unknown_output, setup, teardown),
        cmocka_unit_test_setup_teardown(test_operator_without_kernel, setup, teardown),
        cmocka_unit_test_setup_teardown(test_interruption, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
