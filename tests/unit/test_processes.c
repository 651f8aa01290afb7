/* Several processes that train under one plan: the same losses and final state as
 * one, and how all end when one of them fails, dies, is interrupted or differs. */
#include "comm_world.h"
#include "process_case.h"
#include "runner_case.h"

/* What the processes of a test run; forked with it. */
static struct {
    const char *model, *mesh;
    Choose *choose;
    uint64_t seed;
    int64_t steps;
    bool without_back_end;
    double tolerance;
    char saved[64];
} job;

static volatile sig_atomic_t interrupted;

static AmStatus check_losses(const Losses *losses, AmError *error) {
    char path[512];
    double expected[STEPS];
    join(path, sizeof path, job.model, "losses.json");
    read_losses(expected, path);
    for (int64_t k = 0; k < job.steps; k++)
        if (!(fabs(losses->values[k] - expected[k]) <= job.tolerance * fabs(expected[k])))
            return am_fail(error, AM_ERROR_INTERNAL, "", "loss %d is %.9g, expected %.9g", (int)k,
                           losses->values[k], expected[k]);
    return AM_OK;
}

/* A plan that can be written, which is how processes compare theirs. */
static Plan *make_whole_plan(Arena *arena, const PlanContext *context) {
    Plan *plan = make_plan(arena, context, job.mesh, job.choose, job.seed);
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

static AmStatus train(World *world, AmError *error) {
    char path[512], state[512], data[512];
    PlanContext *context;
    Arena arena = {0};
    AmRunReport report;
    Losses losses = {0};
    const int32_t watch[] = {0};
    join(path, sizeof path, job.model, "model.hlo.pb");
    join(state, sizeof state, job.model, "state.npz");
    join(data, sizeof data, job.model, "data.npz");
    AmRunOptions options = {.steps = job.steps,
                            .world = world,
                            .collectives = job.without_back_end ? NULL : &comm_world,
                            .state_path = state,
                            .data_path = data,
                            .watch = watch,
                            .watch_count = 1,
                            .save_path = job.saved,
                            .interrupted = &interrupted,
                            .on_step = note_loss,
                            .user = &losses};
    TRY(plan_context_read(&context, path, NULL, error));
    Plan *plan = make_whole_plan(&arena, context);
    options.plan = plan;
    AmStatus status = am_run(context, &options, &arena, &report, error);
    if (status == AM_OK && world->process == 0) status = check_losses(&losses, error);
    if (status == AM_OK && world->process == 0 && report.peak_bytes[report.device_count - 1] <= 0)
        status = am_fail(error, AM_ERROR_INTERNAL, "", "nothing is known of the last device");
    if (status == AM_OK && world->process != 0 && losses.count != 0)
        status = am_fail(error, AM_ERROR_INTERNAL, "", "another process than 0 reports");
    json_decref(plan->cluster_description);
    arena_free(&arena);
    plan_context_free(context);
    return status;
}

static void prepare_job(const char *model, const char *mesh, Choose *choose, uint64_t seed) {
    memset(&job, 0, sizeof job);
    job.model = model;
    job.mesh = mesh;
    job.choose = choose;
    job.seed = seed;
    job.steps = STEPS;
    job.tolerance = 2e-6;
    snprintf(job.saved, sizeof job.saved, "test_processes_%d.safetensors", (int)getpid());
}

static void check_training(const char *model, const char *mesh, Choose *choose, uint64_t seed,
                           int processes) {
    Child children[MOST];
    char expected[512];
    prepare_job(model, mesh, choose, seed);
    make_children(children, processes, train);
    start(children, processes);
    finish(children, processes);
    for (int p = 0; p < processes; p++) expect(&children[p], AM_OK, "");
    join(expected, sizeof expected, model, "final_state.npz");
    compare_states(job.saved, expected, 1e-4);
    unlink(job.saved);
}

static void test_training(void **state) {
    (void)state;
    check_training("mlp_tiny", "data=4", choose_batch, 0, 2);
    check_training("mlp_tiny", "data=3", choose_batch, 0, 3);
    check_training("mlp_tiny", "data=2,model=2", choose_some, 2, 2);
    check_training("exact_linear", "model=3", choose_some, 1, 3);
    check_training("exact_gather", "data=2,model=4", choose_some, 3, 4);
}

static AmStatus die(CommWorld *world, AmError *error) {
    (void)error;
    if (world->processes->process == 1 && world->run_count == 10) raise(SIGKILL);
    return AM_OK;
}

static AmStatus fail_run(CommWorld *world, AmError *error) {
    if (world->processes->process != 1 || world->run_count < 10) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, "", "planted failure");
}

static AmStatus interrupt(CommWorld *world, AmError *error) {
    (void)error;
    if (world->processes->process == 1 && world->run_count == 10) interrupted = 1;
    return AM_OK;
}

static void run_job(Child *children, int processes) {
    make_children(children, processes, train);
    start(children, processes);
    finish(children, processes);
}

static void test_failures(void **state) {
    (void)state;
    Child children[MOST];
    prepare_job("mlp_tiny", "data=4", choose_batch, 0);
    comm_world_hook = die;
    run_job(children, 4);
    for (int p = 0; p < 4; p++) {
        assert_true(children[p].seconds < 5);
        expect(&children[p], p == 1 ? -1 : AM_ERROR_RUNTIME, "");
        if (p != 1) expect(&children[p], AM_ERROR_RUNTIME, "process 1");
        if (p != 1) expect(&children[p], AM_ERROR_RUNTIME, "ended unexpectedly");
    }
    comm_world_hook = fail_run;
    run_job(children, 2);
    expect(&children[0], AM_ERROR_RUNTIME, "process 1");
    expect(&children[0], AM_ERROR_RUNTIME, "failed: rank 2: planted failure");
    expect(&children[1], AM_ERROR_RUNTIME, "rank 2: planted failure");
    comm_world_hook = interrupt;
    run_job(children, 2);
    comm_world_hook = NULL;
    for (int p = 0; p < 2; p++) expect(&children[p], AM_INTERRUPTED, "interrupted after ");
    assert_string_equal(children[0].text, children[1].text);
    assert_int_equal(unlink(job.saved), 0);
}

/* Process 1 runs fewer steps. */
static AmStatus train_less(World *world, AmError *error) {
    job.steps -= world->process;
    return train(world, error);
}

static void test_refusals(void **state) {
    (void)state;
    Child children[MOST];
    prepare_job("mlp_tiny", "data=3", choose_batch, 0);
    run_job(children, 2);
    for (int p = 0; p < 2; p++)
        expect(&children[p], AM_ERROR_USAGE, "has 3 devices, which 2 processes cannot share");
    prepare_job("mlp_tiny", "data=2", choose_batch, 0);
    job.without_back_end = true;
    run_job(children, 2);
    for (int p = 0; p < 2; p++) expect(&children[p], AM_ERROR_USAGE, "2 processes need collectives 'nccl'");
    make_children(children, 2, train_less);
    start(children, 2);
    finish(children, 2);
    for (int p = 0; p < 2; p++)
        expect(&children[p], AM_ERROR_INPUT, "process 0 has the number of steps 20 and process 1 19");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
