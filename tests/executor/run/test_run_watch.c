/* Watching a run from inside the library: a loss that is not finite ends it or is
 * counted, on every rank alike; examples and tokens of a step; timelines as traces. */
/* labels: threads */
#include "executor/program/timeline.h"
#include "executor/run/throughput.h"
#include "lowering/spmd/lower.h"
#include "tests/support/runner_case.h"

static const char module_path[] = MODELS "mlp_tiny/model.hlo.pb";
static const char state_file[] = MODELS "mlp_tiny/state.npz";
static const char data_file[] = MODELS "mlp_tiny/data.npz";

typedef struct Fixture {
    PlanContext *context;
    Arena arena;
    AmWarnings warnings;
    RunReport report;
    AmError error;
    Losses losses;
    char data_path[64], save_path[64], trace_path[64];
} Fixture;

static int setup(void **state) {
    Fixture *self = calloc(1, sizeof *self);
    assert_int_equal(plan_context_read(&self->context, module_path, NULL, &self->error), AM_OK);
    self->warnings.arena = &self->arena;
    snprintf(self->data_path, sizeof self->data_path, "test_run_watch_%d.npz", (int)getpid());
    snprintf(self->save_path, sizeof self->save_path, "test_run_watch_%d.safetensors", (int)getpid());
    snprintf(self->trace_path, sizeof self->trace_path, "test_run_watch_%d.json", (int)getpid());
    *state = self;
    return 0;
}

static int teardown(void **state) {
    Fixture *self = *state;
    unlink(self->data_path);
    unlink(self->save_path);
    unlink(self->trace_path);
    plan_context_free(self->context);
    arena_free(&self->arena);
    free(self);
    return 0;
}

/* The model's data, with one number of batch `batch` replaced. */
static void write_data(Fixture *self, int64_t batch, float number) {
    ArrayFile file;
    ArrayToWrite arrays[2];
    void *data[2];
    assert_int_equal(array_file_open(&file, data_file, &self->error), AM_OK);
    assert_int_equal(file.count, 2);
    for (int32_t k = 0; k < 2; k++) {
        const ArrayEntry *entry = &file.entries[k];
        data[k] = malloc((size_t)entry->bytes);
        assert_int_equal(array_file_read(&file, entry, data[k], &self->error), AM_OK);
        arrays[k] = (ArrayToWrite){.name = entry->name,
                                   .type = entry->type,
                                   .rank = entry->rank,
                                   .dimensions = entry->dimensions,
                                   .data = data[k]};
        if (strcmp(entry->name, "x") == 0) ((float *)data[k])[batch * 16 * 64 + 70] = number;
    }
    assert_int_equal(array_file_write(self->data_path, arrays, 2, NULL, &self->error), AM_OK);
    array_file_close(&file);
    for (int32_t k = 0; k < 2; k++) free(data[k]);
}

static AmStatus run(Fixture *self, const char *mesh, RunOnNan on_nan, int64_t steps) {
    RunOptions options = {.steps = steps,
                          .state_path = state_file,
                          .data_path = self->data_path,
                          .save_path = self->save_path,
                          .on_nan = on_nan,
                          .warnings = &self->warnings,
                          .on_step = note_loss,
                          .user = &self->losses};
    if (mesh) options.plan = make_plan(&self->arena, self->context, mesh, choose_batch, 0);
    memset(&self->losses, 0, sizeof self->losses);
    self->error = (AmError){0};
    return run_module(self->context, &options, &self->arena, &self->report, &self->error);
}

static const char *const meshes[] = {NULL, "data=2", "data=4"};

/* The step and the loss are named, the steps before and this one were reported, and nothing is saved; also
 * where it is the last step of all. */
static void test_stops_and_saves_nothing(void **state) {
    Fixture *self = *state;
    write_data(self, 2, NAN);
    for (int m = 0; m < 3; m++) {
        for (int64_t steps = 3; steps <= 4; steps++) {
            assert_int_equal(run(self, meshes[m], RUN_STOP_ON_NAN, steps), AM_ERROR_RUNTIME);
            assert_non_null(strstr(self->error.text, "the loss of step 2 is not a number"));
            assert_int_equal(self->losses.count, 3);
            assert_true(isfinite(self->losses.values[1]) && isnan(self->losses.values[2]));
            assert_int_not_equal(access(self->save_path, F_OK), 0);
        }
        assert_int_equal(run(self, meshes[m], RUN_STOP_ON_NAN, 2), AM_OK);
        assert_int_equal(access(self->save_path, F_OK), 0);
        unlink(self->save_path);
    }
}

static void test_infinite_is_not_finite(void **state) {
    Fixture *self = *state;
    write_data(self, 1, INFINITY);
    assert_int_equal(run(self, "data=2", RUN_STOP_ON_NAN, 5), AM_ERROR_RUNTIME);
    assert_non_null(strstr(self->error.text, "the loss of step 1 is "));
}

static void test_goes_on_and_counts(void **state) {
    Fixture *self = *state;
    write_data(self, 2, NAN);
    for (int m = 0; m < 3; m++) {
        assert_int_equal(run(self, meshes[m], RUN_GO_ON_AFTER_NAN, 6), AM_OK);
        assert_int_equal(self->report.steps, 6);
        assert_int_equal(self->report.not_finite_steps, 4);
        assert_int_equal(self->report.first_not_finite, 2);
        assert_int_equal(access(self->save_path, F_OK), 0);
        unlink(self->save_path);
    }
}

static void check_throughput(const char *model, int64_t examples, int64_t tokens) {
    char path[512];
    PlanContext *context;
    int64_t found_examples, found_tokens;
    join(path, sizeof path, model, "model.hlo.pb");
    assert_int_equal(plan_context_read(&context, path, NULL, NULL), AM_OK);
    throughput_of_batch(context, &found_examples, &found_tokens);
    assert_int_equal(found_examples, examples);
    assert_int_equal(found_tokens, tokens);
    plan_context_free(context);
}

static void test_examples_and_tokens(void **state) {
    (void)state;
    check_throughput("mlp_tiny", 16, 0);
    check_throughput("gpt2_tiny", 16, 16 * 16);
    check_throughput("t5_tiny", 16, 16 * 16); /* the decoder has half as many positions */
    check_throughput("vgg_tiny", 16, 0);
    check_throughput("lstm_tiny", 16, 16 * 12);
}

/* The oldest records make room, and their numbers go on. */
static void test_the_ring_keeps_the_last(void **state) {
    Fixture *self = *state;
    Timeline *timeline;
    Program *program;
    Arena arena = {0};
    assert_int_equal(plan_lower_one_device(&program, &arena, self->context, &self->error), AM_OK);
    assert_int_equal(timeline_open(&timeline, program, 3, &self->error), AM_OK);
    assert_true(timeline->capacity >= 3 * program->execution.step_count);
    int64_t many = timeline->capacity * 2 + 5;
    for (int64_t k = 0; k < many; k++) timeline_mark(timeline, TIMELINE_STEP, k, timeline_start(timeline));
    assert_int_equal(timeline->count, many);
    for (int64_t k = many - timeline->capacity; k < many; k++)
        assert_int_equal(timeline->records[k % timeline->capacity].number, k);
    timeline_mark(NULL, TIMELINE_STEP, 0, timeline_start(NULL));
    timeline_close(timeline);
    assert_int_equal(timeline_open(&timeline, program, INT64_MAX, &self->error), AM_OK);
    assert_int_equal(timeline->capacity, TIMELINE_MOST_RECORDS);
    timeline_close(timeline);
    arena_free(&arena);
}

static json_t *run_traced(Fixture *self, const char *mesh, int64_t steps, int64_t shown) {
    FileBytes bytes;
    json_t *root;
    RunOptions options = {.steps = steps,
                          .state_path = state_file,
                          .data_path = data_file,
                          .trace.path = self->trace_path,
                          .trace.steps = shown,
                          .warnings = &self->warnings};
    if (mesh) options.plan = make_plan(&self->arena, self->context, mesh, choose_batch, 0);
    if (run_module(self->context, &options, &self->arena, &self->report, &self->error) != AM_OK)
        fail_msg("%s", self->error.text);
    assert_int_equal(file_read(&bytes, self->trace_path, &self->error), AM_OK);
    assert_int_equal(json_parse(&root, "", bytes.data, (size_t)bytes.length, &self->error), AM_OK);
    file_release(&bytes);
    return root;
}

/* Slices of a device whose name begins so. */
static int32_t count_slices(json_t *root, int device, const char *name) {
    json_t *event;
    size_t k;
    int32_t count = 0;
    json_array_foreach(json_object_get(root, "traceEvents"), k, event) {
        bool is_slice = strcmp(json_string_value(json_object_get(event, "ph")), "X") == 0;
        bool is_here = json_integer_value(json_object_get(event, "pid")) == device;
        const char *found = json_string_value(json_object_get(event, "name"));
        count += is_slice && is_here && strncmp(found, name, strlen(name)) == 0;
    }
    return count;
}

/* Every operator of the last steps on every rank, and no others. */
static void test_trace_of_the_last_steps(void **state) {
    Fixture *self = *state;
    for (int64_t shown = 1; shown <= 3; shown++) {
        json_t *root = run_traced(self, "data=2", 8, shown);
        for (int device = 0; device < 2; device++) {
            assert_int_equal(count_slices(root, device, "step "), shown);
            assert_int_equal(count_slices(root, device, "step 7"), 1);
            assert_int_equal(count_slices(root, device, "step 4"), 0);
            assert_int_equal(count_slices(root, device, "feed "), shown);
            assert_int_equal(count_slices(root, device, "dot"), 8 * shown);
            assert_true(count_slices(root, device, "all_reduce") >= shown);
        }
        assert_int_equal(count_slices(root, 2, ""), 0);
        json_decref(root);
    }
    json_t *root = run_traced(self, NULL, 2, 50);
    assert_int_equal(count_slices(root, 0, "step "), 2);
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stops_and_saves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_infinite_is_not_finite, setup, teardown),
        cmocka_unit_test_setup_teardown(test_goes_on_and_counts, setup, teardown),
        cmocka_unit_test(test_examples_and_tokens),
        cmocka_unit_test_setup_teardown(test_the_ring_keeps_the_last, setup, teardown),
        cmocka_unit_test_setup_teardown(test_trace_of_the_last_steps, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
