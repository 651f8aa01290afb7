/* The zoo's small models on 2 and 4 ranks with GPUs: split as data and at random, by
 * local collectives (all ranks on one card, or two) and by NCCL, the losses and
 * the final state are JAX's, of the whole-number models bit for bit, as on the
 * CPU; and loops with collectives inside. AUTOMAP_FULL: more models. Skipped (77) in a build without CUDA and
 * where there is neither a GPU nor a stand-in. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/cuda/driver.h"
#include "tests/cuda/stand_in/stand_in.h"
#include "tests/support/gpu_present.h"
#include "tests/support/loop_case.h"

static void check_models(const char *comm) {
    static const Split loops[] = {{"data=2", choose_batch, 0}, {"data=2,model=2", choose_some, 2}};
    check_split_by("cuda", comm, "mlp_tiny", (Split){"data=2", choose_batch, 0}, 1e-5, 1e-4);
    check_split_by("cuda", comm, "mlp_tiny", (Split){"data=2,model=2", choose_some, 2}, 1e-5, 1e-4);
    check_split_by("cuda", comm, "exact_linear", (Split){"model=2", choose_some, 0}, 0, 0);
    check_split_by("cuda", comm, "exact_linear", (Split){"data=2,model=2", choose_some, 2}, 0, 0);
    check_split_by("cuda", comm, "exact_gather", (Split){"model=3", choose_some, 1}, 0, 0);
    check_split_by("cuda", comm, "exact_gather", (Split){"data=2,model=2", choose_some, 2}, 0, 0);
    for (int32_t m = 0; m < LOOP_MODULES; m++)
        loop_check(loop_modules[m], "cuda", comm, loops, sizeof loops / sizeof *loops);
    if (!getenv("AUTOMAP_FULL")) return;
    check_split_by("cuda", comm, "lstm_tiny", (Split){"data=2", choose_batch, 0}, 1e-5, 1e-4);
    check_split_by("cuda", comm, "accumulated_tiny", (Split){"data=2", choose_batch, 0}, 1e-5, 1e-4);
    check_split_by("cuda", comm, "gpt2_tiny", (Split){"data=2", choose_batch, 0}, 1e-5, 1e-4);
    check_split_by("cuda", comm, "gpt2_tiny", (Split){"data=2,model=2", choose_some, 1}, 1e-5, 1e-4);
    check_split_by("cuda", comm, "t5_tiny", (Split){"model=2", choose_some, 5}, 1e-5, 1e-4);
    check_split_by("cuda", comm, "bert_tiny", (Split){"data=4", choose_batch, 0}, 1e-5, 1e-4);
    check_split_by("cuda", comm, "vgg_tiny", (Split){"data=2", choose_batch, 0}, 1e-5, 1e-4);
    check_split_by("cuda", comm, "vgg_tiny", (Split){"height=2,width=2", choose_positions, 0}, 1e-5, 1e-3);
    check_split_by("cuda", comm, "gpt2_bf16_tiny", (Split){"data=2", choose_batch, 0}, 1e-2, 0.3);
}

static void test_local(void **state) {
    (void)state;
    check_models("local");
}

#ifdef AUTOMAP_HAVE_NCCL
static void test_nccl(void **state) {
    (void)state;
    if (cuda_device_count() < 4) skip();
    check_models("nccl");
}

/* A step of a rank that communicates by NCCL is one graph: its launches do not grow with its collectives. */
static void test_whole_steps_are_graphs(void **state) {
    (void)state;
    const StandIn *stand = stand_in();
    if (!stand || cuda_device_count() < 2) skip();
    stand->reset();
    check_split_by("cuda", "nccl", "exact_linear", (Split){"data=2", choose_batch, 0}, 0, 0);
    assert_true(stand->count("ncclGroupEnd") > 0);
    assert_int_equal(stand->count("cuGraphLaunch"), 2 * (STEPS - 1));
}

/* An error of NCCL in the middle of the training is one line that names a rank. */
static void test_a_lost_rank(void **state) {
    (void)state;
    char path[512], data[512], weights[512];
    PlanContext *context;
    Arena arena = {0};
    RunReport report;
    AmError error = {0};
    if (!stand_in() || cuda_device_count() < 2) skip();
    join(path, sizeof path, "exact_linear", "model.hlo.pb");
    join(weights, sizeof weights, "exact_linear", "state.npz");
    join(data, sizeof data, "exact_linear", "data.npz");
    RunOptions options = {
        .steps = STEPS, .device = "cuda", .comm = "nccl", .state_path = weights, .data_path = data};
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    options.plan = make_plan(&arena, context, "data=2", choose_batch, 0);
    setenv("STAND_IN_NCCL_LOST", "6", 1);
    AmStatus status = run_module(context, &options, &arena, &report, &error);
    unsetenv("STAND_IN_NCCL_LOST");
    assert_int_equal(status, AM_ERROR_RUNTIME);
    const char *words = strstr(error.text, "NCCL: a step's collectives: remote process exited");
    if (!words || strncmp(error.text, "rank ", 5) != 0 || strchr(error.text, '\n'))
        fail_msg("%s", error.text);
    arena_free(&arena);
    plan_context_free(context);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local),
#ifdef AUTOMAP_HAVE_NCCL
        cmocka_unit_test(test_nccl),
        cmocka_unit_test(test_whole_steps_are_graphs),
        cmocka_unit_test(test_a_lost_rank),
#endif
    };
    setenv("STAND_IN_DEVICES", "4", 0);
    if (!gpu_is_present()) return SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
