/* Runs of the zoo's small models compared with what JAX computed: shared by the runner's tests. */
#ifndef TESTS_SUPPORT_RUNNER_CASE_H
#define TESTS_SUPPORT_RUNNER_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files/array_file.h"
#include "base/files/file.h"
#include "base/files/json.h"
#include "base/random.h"
#include "executor/run/run.h"

#define MODELS SOURCE_DIR "/datasets/models/"
#define STEPS  20

typedef struct Losses {
    double values[STEPS];
    int64_t count;
} Losses;

static inline void note_loss(void *user, const RunStep *step) {
    Losses *losses = user;
    assert_int_equal(step->step, losses->count);
    if (losses->count < STEPS) losses->values[losses->count] = step->loss;
    losses->count++;
}

static inline void join(char *out, size_t size, const char *model, const char *file) {
    snprintf(out, size, MODELS "%s/%s", model, file);
}

static inline void read_losses(double *losses, const char *path) {
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

static inline double as_double(const void *data, Dtype type, int64_t at) {
    if (type == DTYPE_F32) return ((const float *)data)[at];
    if (type == DTYPE_S32) return ((const int32_t *)data)[at];
    assert_int_equal(type, DTYPE_U32);
    return ((const uint32_t *)data)[at];
}

/* Every array of the reference within `tolerance` relative norm of the one saved. */
static inline void compare_states(const char *saved_path, const char *expected_path, double tolerance) {
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

/* Chooses splits of a one-stage plan on `mesh` ("data=2,model=2"): axis k splits the classes for
 * which choose() returns true.
 */
typedef bool Choose(const Classes *classes, int32_t class_index, int32_t axis, uint64_t seed);

static inline Plan *make_plan(Arena *arena, const PlanContext *context, const char *mesh, Choose *choose,
                              uint64_t seed) {
    Plan *plan = ARENA_ARRAY(arena, Plan, 1);
    PlanStage *stage = ARENA_ARRAY(arena, PlanStage, 1);
    *plan = (Plan){.micro_batches = 1, .schedule = "none", .stages = stage, .stage_count = 1};
    stage->range_count = 1;
    stage->ranges = arena_alloc(arena, sizeof *stage->ranges);
    stage->ranges[0][1] = context->canonical->computations[0].count;
    assert_int_equal(mesh_parse(&stage->mesh, arena, mesh, NULL), AM_OK);
    for (int32_t a = 0; a < stage->mesh.axis_count; a++) {
        PlanAxisPriority *priority = &stage->axis_priorities[a];
        priority->entries = ARENA_ARRAY(arena, PlanEntry, context->classes->count + 1);
        for (int32_t c = 0; c < context->classes->count; c++)
            if (choose(context->classes, c, a, seed)) priority->entries[priority->count++].class_index = c;
    }
    return plan;
}

/* Data parallelism: the first class that data has, on the first axis. */
static inline bool choose_batch(const Classes *classes, int32_t c, int32_t axis, uint64_t seed) {
    (void)seed;
    int32_t first = 0;
    while (first < classes->count && classes->classes[first].data_count == 0) first++;
    for (int32_t k = first + 1; k < classes->count; k++)
        if (classes->classes[k].data_count > classes->classes[first].data_count) first = k;
    return axis == 0 && c == first;
}

/* Random classes. */
static inline bool choose_some(const Classes *classes, int32_t c, int32_t axis, uint64_t seed) {
    (void)classes;
    return random_at(seed, (uint64_t)axis, (uint64_t)c) % 4 == 0;
}

/* The classes of positions, those with an odd number on the second axis. */
static inline bool choose_positions(const Classes *classes, int32_t c, int32_t axis, uint64_t seed) {
    (void)seed;
    int32_t place = 0;
    for (int32_t k = 0; k < c; k++) place += classes->classes[k].is_spatial;
    return classes->classes[c].is_spatial && place % 2 == axis;
}

typedef struct Split {
    const char *mesh; /* NULL: one device, without a plan */
    Choose *choose;
    uint64_t seed;
} Split;

static inline Plan *plan_of_split(Arena *arena, const PlanContext *context, const Split *split) {
    return make_plan(arena, context, split->mesh, split->choose, split->seed);
}

/* Runs a model on `device`, with collectives `comm` (NULL: local), and compares with
 * its losses.json and final_state.npz. */
static inline void check_plan_by(const char *device, const char *comm, const char *model, Split split,
                                 Plan *plan_of(Arena *arena, const PlanContext *context, const Split *split),
                                 double loss_tolerance, double state_tolerance) {
    char path[512], state[512], data[512], losses_path[512], final_state[512];
    join(path, sizeof path, model, "model.hlo.pb");
    join(state, sizeof state, model, "state.npz");
    join(data, sizeof data, model, "data.npz");
    join(losses_path, sizeof losses_path, model, "losses.json");
    join(final_state, sizeof final_state, model, "final_state.npz");
    AmError error = {0};
    PlanContext *context;
    Arena arena = {0};
    RunReport report;
    Losses losses = {0};
    double expected[STEPS];
    char final_path[64];
    snprintf(final_path, sizeof final_path, "test_runner_%d.safetensors", (int)getpid());
    RunOptions options = {.steps = STEPS,
                          .device = device,
                          .comm = comm,
                          .state_path = state,
                          .data_path = data,
                          .save_path = final_path,
                          .on_step = note_loss,
                          .user = &losses};
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    if (split.mesh) options.plan = plan_of(&arena, context, &split);
    const char *mesh = split.mesh ? split.mesh : "one device";
    if (run_module(context, &options, &arena, &report, &error) != AM_OK) fail_msg("%s: %s", mesh, error.text);
    read_losses(expected, losses_path);
    assert_int_equal(losses.count, STEPS);
    assert_int_equal(report.steps, STEPS);
    for (int k = 0; k < STEPS; k++)
        if (!(fabs(losses.values[k] - expected[k]) <= loss_tolerance * fabs(expected[k])))
            fail_msg("%s on %s (seed %d, %s): loss of step %d is %.9g, expected %.9g", model, mesh,
                     (int)split.seed, comm ? comm : "local", k, losses.values[k], expected[k]);
    int32_t devices = options.plan ? 0 : 1;
    for (int32_t stage = 0; options.plan && stage < options.plan->stage_count; stage++)
        devices += options.plan->stages[stage].mesh.device_count;
    assert_int_equal(report.device_count, devices);
    for (int32_t d = 0; d < devices; d++)
        assert_true(report.peak_bytes[d] > 0 || (options.plan && options.plan->stage_count > 1));
    compare_states(final_path, final_state, state_tolerance);
    unlink(final_path);
    arena_free(&arena);
    plan_context_free(context);
}

static inline void check_split_by(const char *device, const char *comm, const char *model, Split split,
                                  double loss_tolerance, double state_tolerance) {
    check_plan_by(device, comm, model, split, plan_of_split, loss_tolerance, state_tolerance);
}

static inline void check_split_on(const char *device, const char *model, Split split, double loss_tolerance,
                                  double state_tolerance) {
    check_split_by(device, NULL, model, split, loss_tolerance, state_tolerance);
}

static inline void check_split(const char *model, Split split, double loss_tolerance,
                               double state_tolerance) {
    check_split_on("cpu", model, split, loss_tolerance, state_tolerance);
}

#endif
