/* Training a model of the zoo in several processes: their function, and their expected end. */
#ifndef TESTS_SUPPORT_TRAINING_CASE_H
#define TESTS_SUPPORT_TRAINING_CASE_H

#include "process_case.h"
#include "runner_case.h"

/* The function of a test's processes; forked with it. */
static struct {
    const char *model, *mesh;
    Choose *choose;
    uint64_t seed;
    int64_t steps;
    const char *device, *comm;
    const CommBackEnd *collectives; /* in place of `comm`; or NULL */
    double tolerance;
    char saved[64];
} training;

static volatile sig_atomic_t training_interrupted;

static inline AmStatus training_check_losses(const Losses *losses, AmError *error) {
    char path[512];
    double expected[STEPS];
    join(path, sizeof path, training.model, "losses.json");
    read_losses(expected, path);
    for (int64_t k = 0; k < training.steps; k++)
        if (!(fabs(losses->values[k] - expected[k]) <= training.tolerance * fabs(expected[k])))
            return am_fail(error, AM_ERROR_INTERNAL, "", "loss %d is %.9g, expected %.9g", (int)k,
                           losses->values[k], expected[k]);
    return AM_OK;
}

/* A plan that can be written, which is how processes compare theirs. */
static inline Plan *training_plan(Arena *arena, const PlanContext *context) {
    Plan *plan = make_plan(arena, context, training.mesh, training.choose, training.seed);
    PlanStage *stage = &plan->stages[0];
    plan->module_name = plan->module_sha256 = plan->cluster_name = plan->cluster_sha256 = "";
    plan->searcher = plan->space = "";
    plan->bound_seconds = NAN;
    plan->cluster_description = json_object();
    plan->device_count = stage->mesh.device_count;
    plan->predicted = ARENA_ARRAY(arena, PlanDevicePrediction, plan->device_count);
    stage->devices = ARENA_ARRAY(arena, int32_t, plan->device_count);
    for (int32_t d = 0; d < plan->device_count; d++) stage->devices[d] = d;
    return plan;
}

static inline AmStatus training_run(ProcessGroup *processes, AmError *error) {
    char path[512], state[512], data[512];
    PlanContext *context;
    Arena arena = {0};
    RunReport report;
    Losses losses = {0};
    const int32_t watch[] = {0};
    join(path, sizeof path, training.model, "model.hlo.pb");
    join(state, sizeof state, training.model, "state.npz");
    join(data, sizeof data, training.model, "data.npz");
    RunOptions options = {.steps = training.steps,
                          .processes = processes,
                          .device = training.device,
                          .comm = training.comm,
                          .collectives = training.collectives,
                          .state_path = state,
                          .data_path = data,
                          .watch = watch,
                          .watch_count = 1,
                          .save_path = training.saved,
                          .interrupted = &training_interrupted,
                          .on_step = note_loss,
                          .user = &losses};
    TRY(plan_context_read(&context, path, NULL, error));
    Plan *plan = training_plan(&arena, context);
    options.plan = plan;
    AmStatus status = run_module(context, &options, &arena, &report, error);
    if (status == AM_OK && processes->process == 0) status = training_check_losses(&losses, error);
    if (status == AM_OK && processes->process == 0 && report.peak_bytes[report.device_count - 1] <= 0)
        status = am_fail(error, AM_ERROR_INTERNAL, "", "nothing is known of the last device");
    if (status == AM_OK && processes->process != 0 && losses.count != 0)
        status = am_fail(error, AM_ERROR_INTERNAL, "", "another process than 0 reports");
    json_decref(plan->cluster_description);
    arena_free(&arena);
    plan_context_free(context);
    return status;
}

static inline void training_prepare(const char *model, const char *mesh, Choose *choose, uint64_t seed) {
    memset(&training, 0, sizeof training);
    training.model = model;
    training.mesh = mesh;
    training.choose = choose;
    training.seed = seed;
    training.steps = STEPS;
    training.tolerance = 2e-6;
    snprintf(training.saved, sizeof training.saved, "test_processes_%d.safetensors", (int)getpid());
}

/* Runs the prepared function in that many processes: all succeed, and the final state is the
 * reference's. */
static inline void training_check(int processes) {
    Child children[MOST];
    char expected[512];
    make_children(children, processes, training_run);
    start(children, processes);
    finish(children, processes);
    for (int p = 0; p < processes; p++) expect(&children[p], AM_OK, "");
    join(expected, sizeof expected, training.model, "final_state.npz");
    compare_states(training.saved, expected, 1e-4);
    unlink(training.saved);
}

#endif
