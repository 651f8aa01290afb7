/* Training the small models of the zoo on one device and split over several:
 * losses and final state as JAX computed them on the same state and data, over
 * 20 steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array_file.h"
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "executor/run.h"

#define MODELS SOURCE_DIR "/datasets/models/"
#define STEPS  20
#define FINAL  "test_runner_state.safetensors"

typedef struct Losses {
    double values[STEPS];
    int64_t count;
} Losses;

static void note_loss(void *user, const AmRunStep *step) {
    Losses *losses = user;
    assert_int_equal(step->step, losses->count);
    if (losses->count < STEPS) losses->values[losses->count] = step->loss;
    losses->count++;
}

static void join(char *out, size_t size, const char *model, const char *file) {
    snprintf(out, size, MODELS "%s/%s", model, file);
}

static void read_losses(double *losses, const char *path) {
    FileBytes bytes;
    json_t *root = NULL;
    assert_int_equal(file_read(&bytes, path, NULL), AM_OK);
    assert_int_equal(json_parse(&root, path, bytes.data, (size_t)bytes.length, NULL), AM_OK);
    json_t *list = json_object_get(root, "losses");
    assert_int_equal(json_array_size(list), STEPS);
    for (size_t k = 0; k < STEPS; k++) losses[k] = json_number_value(json_array_get(list, k));
    json_decref(root);
    file_release(&bytes);
}

static double as_double(const void *data, Dtype type, int64_t at) {
    if (type == DTYPE_F32) return ((const float *)data)[at];
    if (type == DTYPE_S32) return ((const int32_t *)data)[at];
    assert_int_equal(type, DTYPE_U32);
    return ((const uint32_t *)data)[at];
}

/* Every array of the reference within `tolerance` relative norm of the one saved. */
static void compare_states(const char *saved_path, const char *expected_path, double tolerance) {
    ArrayFile saved, expected;
    assert_int_equal(array_file_open(&saved, saved_path, NULL), AM_OK);
    assert_int_equal(array_file_open(&expected, expected_path, NULL), AM_OK);
    for (int32_t k = 0; k < expected.count; k++) {
        const ArrayEntry *b = &expected.entries[k], *a = array_file_find(&saved, b->name);
        if (!a) fail_msg("'%s' was not saved", b->name);
        assert_int_equal(a->type, b->type);
        assert_int_equal(a->bytes, b->bytes);
        void *x = malloc((size_t)a->bytes + 1), *y = malloc((size_t)b->bytes + 1);
        assert_int_equal(array_file_read(&saved, a, x, NULL), AM_OK);
        assert_int_equal(array_file_read(&expected, b, y, NULL), AM_OK);
        double difference = 0, norm = 0;
        for (int64_t i = 0; i < b->bytes / dtype_bytes(b->type); i++) {
            double p = as_double(x, b->type, i), q = as_double(y, b->type, i);
            difference += (p - q) * (p - q);
            norm += q * q;
        }
        if (sqrt(difference) > tolerance * sqrt(norm))
            fail_msg("'%s' differs by %g of its norm", b->name, sqrt(difference / norm));
        free(x);
        free(y);
    }
    array_file_close(&saved);
    array_file_close(&expected);
}

/* A plan of one stage on `mesh` ("data=2,model=2"): axis k splits the classes that bit k of choose() names.
 */
typedef bool Choose(const Classes *classes, int32_t class_index, int32_t axis, uint64_t seed);

static Plan *make_plan(Arena *arena, const PlanContext *context, const char *mesh, Choose *choose,
                       uint64_t seed) {
    Plan *plan = ARENA_ARRAY(arena, Plan, 1);
    PlanStage *stage = ARENA_ARRAY(arena, PlanStage, 1);
    *plan = (Plan){.micro_batches = 1, .schedule = "none", .stages = stage, .stage_count = 1};
    stage->range_count = 1;
    stage->ranges = arena_alloc(arena, sizeof *stage->ranges);
    stage->ranges[0][1] = context->canonical->computations[0].count;
    assert_int_equal(mesh_parse(&stage->mesh, arena, mesh, NULL), AM_OK);
    for (int32_t a = 0; a < stage->mesh.axis_count; a++) {
        PlanList *list = &stage->lists[a];
        list->entries = ARENA_ARRAY(arena, PlanEntry, context->classes->count + 1);
        for (int32_t c = 0; c < context->classes->count; c++)
            if (choose(context->classes, c, a, seed)) list->entries[list->count++].class_index = c;
    }
    return plan;
}

/* Data parallelism: the first class that data has, on the first axis. */
static bool choose_batch(const Classes *classes, int32_t c, int32_t axis, uint64_t seed) {
    (void)seed;
    int32_t first = 0;
    while (first < classes->count && classes->classes[first].data_count == 0) first++;
    for (int32_t k = first + 1; k < classes->count; k++)
        if (classes->classes[k].data_count > classes->classes[first].data_count) first = k;
    return axis == 0 && c == first;
}

/* Any class, by chance. */
static bool choose_some(const Classes *classes, int32_t c, int32_t axis, uint64_t seed) {
    (void)classes;
    return random_at(seed, (uint64_t)axis, (uint64_t)c) % 4 == 0;
}

typedef struct Split {
    const char *mesh; /* NULL: one device, without a plan */
    Choose *choose;
    uint64_t seed;
} Split;

/* Runs a model and compares with its losses.json and final_state.npz. */
static void check_split(const char *model, Split split, double loss_tolerance, double state_tolerance) {
    char path[512], state[512], data[512], losses_path[512], final_state[512];
    join(path, sizeof path, model, "model.hlo.pb");
    join(state, sizeof state, model, "state.npz");
    join(data, sizeof data, model, "data.npz");
    join(losses_path, sizeof losses_path, model, "losses.json");
    join(final_state, sizeof final_state, model, "final_state.npz");
    AmError error = {0};
    PlanContext *context;
    Arena arena = {0};
    AmRunReport report;
    Losses losses = {0};
    double expected[STEPS];
    AmRunOptions options = {.steps = STEPS,
                            .state_path = state,
                            .data_path = data,
                            .save_path = FINAL,
                            .on_step = note_loss,
                            .user = &losses};
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    if (split.mesh) options.plan = make_plan(&arena, context, split.mesh, split.choose, split.seed);
    const char *mesh = split.mesh ? split.mesh : "one device";
    if (am_run(context, &options, &arena, &report, &error) != AM_OK) fail_msg("%s: %s", mesh, error.text);
    read_losses(expected, losses_path);
    assert_int_equal(losses.count, STEPS);
    assert_int_equal(report.steps, STEPS);
    for (int k = 0; k < STEPS; k++)
        if (!(fabs(losses.values[k] - expected[k]) <= loss_tolerance * fabs(expected[k])))
            fail_msg("%s on %s (seed %d): loss of step %d is %.9g, expected %.9g", model, mesh,
                     (int)split.seed, k, losses.values[k], expected[k]);
    int32_t devices = options.plan ? options.plan->stages[0].mesh.device_count : 1;
    assert_int_equal(report.device_count, devices);
    for (int32_t d = 0; d < devices; d++) assert_true(report.peak_bytes[d] > 0);
    compare_states(FINAL, final_state, state_tolerance);
    unlink(FINAL);
    arena_free(&arena);
    plan_context_free(context);
}

static void check_model(const char *model, double loss_tolerance, double state_tolerance) {
    check_split(model, (Split){0}, loss_tolerance, state_tolerance);
}

static void test_mlp(void **state) {
    (void)state;
    check_model("mlp_tiny", 2e-6, 1e-4);
}

static void test_vgg(void **state) {
    (void)state;
    check_model("vgg_tiny", 2e-6, 1e-4);
}

static void test_gpt2(void **state) {
    (void)state;
    check_model("gpt2_tiny", 5e-6, 1e-4);
}

static void test_t5(void **state) {
    (void)state;
    check_model("t5_tiny", 5e-6, 1e-4);
}

static void test_bert(void **state) {
    (void)state;
    check_model("bert_tiny", 5e-6, 1e-4);
}

/* Whole numbers below 2^24: bit for bit. */
static void test_exact(void **state) {
    (void)state;
    check_model("exact_linear", 0, 0);
    check_model("exact_gather", 0, 0);
}

static void test_data_parallel(void **state) {
    (void)state;
    check_split("mlp_tiny", (Split){"data=4", choose_batch, 0}, 2e-6, 1e-4);
    check_split("mlp_tiny", (Split){"data=3", choose_batch, 0}, 2e-6, 1e-4);
    check_split("t5_tiny", (Split){"data=2", choose_batch, 0}, 5e-6, 1e-4);
    check_split("gpt2_tiny", (Split){"data=2", choose_batch, 0}, 5e-6, 1e-4);
}

static void test_any_split(void **state) {
    (void)state;
    static const char *const meshes[] = {"model=2", "model=3", "data=2,model=2", "data=2,model=4"};
    for (uint64_t seed = 0; seed < 4; seed++) {
        check_split("mlp_tiny", (Split){meshes[seed], choose_some, seed}, 2e-6, 1e-4);
        check_split("exact_linear", (Split){meshes[seed], choose_some, seed}, 0, 0);
        check_split("exact_gather", (Split){meshes[seed], choose_some, seed}, 0, 0);
    }
    check_split("t5_tiny", (Split){"model=2", choose_some, 5}, 5e-6, 1e-4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlp),           cmocka_unit_test(test_vgg),
        cmocka_unit_test(test_gpt2),          cmocka_unit_test(test_t5),
        cmocka_unit_test(test_bert),          cmocka_unit_test(test_exact),
        cmocka_unit_test(test_data_parallel), cmocka_unit_test(test_any_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
