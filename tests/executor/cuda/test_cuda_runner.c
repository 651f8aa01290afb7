/* Training the zoo's small models on a CUDA device: losses and final state of JAX; the driver calls of a
 * step; refusals. With the stand-in libraries it needs no GPU. AUTOMAP_FULL: all small models. Skipped (77)
 * in a build without CUDA and where there is neither a GPU nor a stand-in. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/cuda/driver.h"
#include "tests/cuda/stand_in/stand_in.h"
#include "tests/support/gpu_present.h"
#include "tests/support/runner_case.h"

static void test_models(void **state) {
    (void)state;
    static const struct {
        const char *model;
        double loss_tolerance, state_tolerance;
        bool full;
    } rows[] = {
        {"mlp_tiny", 1e-5, 1e-4, false}, {"gpt2_tiny", 1e-5, 1e-4, false},    {"exact_gather", 0, 0, false},
        {"exact_linear", 0, 0, false},   {"vgg_tiny", 1e-5, 1e-4, false},     {"bert_tiny", 1e-5, 1e-4, true},
        {"t5_tiny", 1e-5, 1e-4, true},   {"gpt2_bf16_tiny", 1e-2, 0.3, true},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (!rows[k].full || getenv("AUTOMAP_FULL"))
            check_split_on("cuda", rows[k].model, (Split){0}, rows[k].loss_tolerance,
                           rows[k].state_tolerance);
}

/* Calls of the driver up to the end of a step. */
typedef struct Calls {
    int64_t allocations, loads, launches, graphs, synchronizations, copies;
} Calls;

typedef struct Recorded {
    Calls steps[STEPS];
    int32_t count;
} Recorded;

static void record(void *user, const RunStep *step) {
    Recorded *self = user;
    const StandIn *stand = stand_in();
    self->steps[self->count++] = (Calls){.allocations = stand->count("cuMemAlloc"),
                                         .loads = stand->count("cuModuleLoadDataEx"),
                                         .launches = stand->count("cuLaunchKernel"),
                                         .graphs = stand->count("cuGraphLaunch"),
                                         .synchronizations = stand->count("cuStreamSynchronize"),
                                         .copies = stand->count("cuMemcpyHtoDAsync")};
    assert_true(step->step + 1 == self->count);
}

static void run(const char *path, const char *model, int64_t steps, Recorded *calls) {
    char state[512] = "random", data[512];
    PlanContext *context;
    Arena arena = {0};
    RunReport report;
    AmError error = {0};
    if (model) join(state, sizeof state, model, "state.npz");
    if (model) join(data, sizeof data, model, "data.npz");
    RunOptions options = {.steps = steps,
                          .device = "cuda",
                          .state_path = state,
                          .data_path = model ? data : NULL,
                          .on_step = record,
                          .user = calls};
    stand_in()->reset();
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    if (run_module(context, &options, &arena, &report, &error) != AM_OK) fail_msg("%s", error.text);
    arena_free(&arena);
    plan_context_free(context);
}

/* From the third step on nothing is allocated, compiled or launched one by one: a step is its
 * batch, one graph, one wait and the loss. */
static void test_a_step_is_a_graph(void **state) {
    (void)state;
    enum { COUNT = 6 };
    char path[512];
    Recorded calls = {0};
    if (!stand_in()) skip();
    join(path, sizeof path, "exact_gather", "model.hlo.pb");
    run(path, "exact_gather", COUNT, &calls);
    for (int k = 0; k < COUNT; k++) {
        const Calls *now = &calls.steps[k], *before = &calls.steps[k > 0 ? k - 1 : 0];
        assert_true(now->allocations <= 2); /* the rank's, and one for constants */
        assert_int_equal(now->loads, calls.steps[0].loads);
        assert_int_equal(now->graphs, k);
        if (k < 2) continue;
        int64_t fed = now->copies - before->copies;
        assert_int_equal(now->launches, before->launches);
        assert_true(now->synchronizations - before->synchronizations <= fed + 2);
    }
}

/* The outputs of the last of three steps from a drawn state. */
static void run_text(const char *name, const char *device, const char *outputs) {
    char path[512];
    PlanContext *context;
    Arena arena = {0};
    RunReport report;
    AmError error = {0};
    RunOptions options = {
        .steps = 3, .device = device, .state_path = "random", .seed = 5, .outputs_path = outputs};
    snprintf(path, sizeof path, SOURCE_DIR "/tests/data/text/%s.hlo.txt", name);
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    if (run_module(context, &options, &arena, &report, &error) != AM_OK) fail_msg("%s: %s", name, error.text);
    arena_free(&arena);
    plan_context_free(context);
}

/* Loops, whose conditions the host reads, between capture regions that are graphs. */
static void test_loops(void **state) {
    (void)state;
    /* Layers amplify rounding: products that err by a unit in the last place move scan_layers by 5e-4. */
    static const struct {
        const char *name;
        double tolerance;
    } rows[] = {{"while_carried", 0}, {"fori_nested", 1e-5}, {"fori_traced", 1e-5}, {"scan_layers", 4e-3}};
    char outputs[64], expected[64];
    snprintf(outputs, sizeof outputs, "test_cuda_runner_%d.npz", (int)getpid());
    snprintf(expected, sizeof expected, "test_cuda_runner_%d_cpu.npz", (int)getpid());
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        int64_t graphs = stand_in() ? stand_in()->count("cuGraphLaunch") : 0;
        run_text(rows[k].name, "cpu", expected);
        run_text(rows[k].name, "cuda", outputs);
        compare_states(outputs, expected, rows[k].tolerance);
        if (stand_in()) assert_true(stand_in()->count("cuGraphLaunch") > graphs);
    }
    unlink(outputs);
    unlink(expected);
}

/* All memory, modules, graphs, streams and events come back. */
static void test_everything_is_released(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"cuMemAlloc", "cuMemFree"},
        {"cuModuleLoadDataEx", "cuModuleUnload"},
        {"cuStreamCreate", "cuStreamDestroy"},
        {"cuEventCreate", "cuEventDestroy"},
        {"cuGraphInstantiate", "cuGraphExecDestroy"},
        {"cuStreamEndCapture", "cuGraphDestroy"},
        {"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease"},
    };
    char path[512];
    Recorded calls = {0};
    const StandIn *stand = stand_in();
    if (!stand) skip();
    join(path, sizeof path, "exact_gather", "model.hlo.pb");
    run(path, "exact_gather", 3, &calls);
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
        assert_true(stand->count(pairs[k][0]) > 0);
        assert_int_equal(stand->count(pairs[k][0]), stand->count(pairs[k][1]));
    }
}

/* Out of memory: one line with the requested and the free amount. */
static void test_a_model_that_does_not_fit(void **state) {
    (void)state;
    static const char module[] = "HloModule m\n\nENTRY main {\n"
                                 "  p = f32[524288,262144]{1,0} parameter(0)\n"
                                 "  ROOT n = f32[524288,262144]{1,0} negate(p)\n}\n";
    char path[64];
    PlanContext *context;
    Arena arena = {0};
    RunReport report;
    AmError error = {0};
    RunOptions options = {.steps = 1, .device = "cuda", .state_path = "random"};
    snprintf(path, sizeof path, "test_cuda_runner_%d.hlo.txt", (int)getpid());
    assert_int_equal(file_write(path, module, sizeof module - 1, NULL), AM_OK);
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    unlink(path);
    assert_int_equal(run_module(context, &options, &arena, &report, &error), AM_ERROR_RUNTIME);
    assert_non_null(strstr(error.text, "out of memory on GPU 0"));
    assert_non_null(strstr(error.text, "; 550 GB of values, 0 B of scratch memory"));
    assert_null(strchr(error.text, '\n'));
    arena_free(&arena);
    plan_context_free(context);
}

int main(void) {
    if (!gpu_is_present()) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_a_step_is_a_graph),
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_everything_is_released),
        cmocka_unit_test(test_a_model_that_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
