/* The learner on a device against its twin on the CPU: losses, parameters and
 * priorities after updates from the same state, what 1,000 updates have learned,
 * values, states that move from one to the other; and that an update is one graph,
 * from which nothing is read back. On the stand-in libraries, their record of calls is examined, too. */
#include <stdio.h>

#include "automap_features.h"

#ifdef AUTOMAP_HAVE_CUDA
#include "tests/cuda/stand_in/stand_in.h"
#include "tests/support/twin_case.h"

/* From states along 1,000 updates. */
static void updates_are_those_of_the_cpu(void **state) {
    (void)state;
    LearnerSettings settings = small_settings();
    check_twins(DQN_CUDA, &settings, 1000, 20);
}

static void as_much_is_learned_in_1000_updates(void **state) {
    (void)state;
    LearnerSettings settings = small_settings();
    Twins twins = {.devices = {DQN_CPU, DQN_CUDA}};
    TwinResult results[2];
    twins_learn_alone(&twins, &settings, 1000, results);
    if (!twin_has_learned(results))
        fail_msg("loss %.3g and regret %.3g, on the CPU %.3g and %.3g", results[1].loss, results[1].regret,
                 results[0].loss, results[0].regret);
}

/* Without dueling, double Q and Huber; four layers; none but the head. */
static void other_shapes_learn_the_same(void **state) {
    (void)state;
    LearnerSettings settings = small_settings();
    settings.shape.dueling = settings.double_q = false;
    settings.huber = 0;
    settings.shape.hidden_count = 3;
    settings.shape.hidden[0] = 7;
    settings.shape.hidden[1] = 130;
    settings.shape.hidden[2] = 5;
    check_twins(DQN_CUDA, &settings, 60, 6);
    settings = small_settings();
    settings.shape.hidden_count = 0;
    settings.batch = 5;
    settings.shape.observation_size = 3;
    settings.replay_capacity = 64;
    check_twins(DQN_CUDA, &settings, 60, 6);
}

static void convolutions_learn_the_same(void **state) {
    (void)state;
    LearnerSettings settings = small_settings();
    settings.shape.observation_size = 24;
    settings.shape.channels = 2;
    settings.shape.length = 10;
    settings.shape.convolution_count = 2;
    settings.shape.convolutions[0] = (NetworkConvolution){4, 3, 1};
    settings.shape.convolutions[1] = (NetworkConvolution){3, 2, 2};
    check_twins(DQN_CUDA, &settings, 60, 6);
    settings.shape.convolution_count = 1;
    settings.shape.hidden_count = 0;
    check_twins(DQN_CUDA, &settings, 30, 3);
}

/* Several times what both halves of the staging area hold, without a wait by the
 * caller, and more than the replay does: what each half held last but one is
 * still there to be looked at. */
static void many_transitions_at_once_are_stored(void **state) {
    (void)state;
    LearnerSettings settings = small_settings();
    settings.replay_capacity = 250;
    Arena arena = {0};
    LearnerState states[2];
    for (int32_t d = 0; d < 2; d++) {
        Learner *learner = make_learner(d == 0 ? DQN_CPU : DQN_CUDA, &settings);
        for (int32_t i = 0; i < 333; i++) add_transition(learner, i);
        states[d] = state_of(learner, &arena);
        learner_free(learner);
    }
    check_replay(&states[1], &states[0], &settings.shape);
    for (int32_t i = 0; i < states[0].count; i++) assert_true(states[1].masses[i] == states[0].masses[i]);
    arena_free(&arena);
}

static void own_products_learn_the_same(void **state) {
    (void)state;
    LearnerSettings settings = small_settings();
    settings.update = DQN_UPDATE_OWN_GRAPH;
    settings.shape.hidden_count = 2;
    settings.shape.hidden[1] = 11;
    check_twins(DQN_CUDA, &settings, 60, 6);
}

/* If cuBLASLt has no product (15: CUBLAS_STATUS_NOT_SUPPORTED), our own kernels take its place, after
 * convolutions too. */
static void shapes_without_a_product_learn_the_same(void **state) {
    const StandIn *stand = *state;
    if (!stand) skip();
    LearnerSettings settings = small_settings();
    (stand->fail)("cublasLtMatmulAlgoGetHeuristic=15");
    settings.shape.hidden_count = 2;
    settings.shape.hidden[1] = 11;
    stand->reset();
    check_twins(DQN_CUDA, &settings, 60, 6);
    assert_int_equal(stand->count("cublasLtMatmul"), 0);
    settings.shape.observation_size = 24;
    settings.shape.channels = 2;
    settings.shape.length = 10;
    settings.shape.convolution_count = 1;
    settings.shape.convolutions[0] = (NetworkConvolution){4, 3, 2};
    check_twins(DQN_CUDA, &settings, 30, 3);
    (stand->fail)("");
}

/* Each convolution that cuDNN lacks, refuses to run or has no memory to try is one of our own kernels;
 * without cuDNN all are. */
static void convolutions_are_missing(void **state) {
    const StandIn *stand = *state;
    static const struct {
        const char *failures, *refusals, *words;
    } rows[] = {
        {"", "0:100:cudnnConvolutionForward", ", 4 of 7 convolutions own: no convolution by cuDNN"},
        {"", "0:100:cudnnConvolutionBackwardData", ", 1 of 7 convolutions own: no convolution by cuDNN"},
        {"", "0:100:cudnnConvolutionBackwardFilter", ", 2 of 7 convolutions own: no convolution by cuDNN"},
        {"cudnnCreate=1", "", ", 7 of 7 convolutions own: cuDNN"},
        {"cuMemAlloc=2#2", "", ", 1 of 7 convolutions own: no memory to try"},
    };
    if (!stand) skip();
    LearnerSettings settings = small_settings();
    settings.shape.observation_size = 24;
    settings.shape.channels = 2;
    settings.shape.length = 10;
    settings.shape.convolution_count = 2;
    settings.shape.convolutions[0] = (NetworkConvolution){4, 3, 2}; /* the last number is in no window */
    settings.shape.convolutions[1] = (NetworkConvolution){3, 2, 2};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        stand->reset();
        (stand->fail)(rows[k].failures);
        (stand->refuse)(rows[k].refusals);
        Learner *learner = make_learner(DQN_CUDA, &settings);
        if (!strstr(learner->description, rows[k].words)) fail_msg("%s", learner->description);
        learner_free(learner);
        check_twins(DQN_CUDA, &settings, 30, 3);
    }
    (stand->refuse)("");
    (stand->fail)("");
}

/* Each product that cuBLASLt lacks or refuses to run is one of our own kernels, the others stay. */
static void some_products_are_missing(void **state) {
    const StandIn *stand = *state;
    static const char *const refusals[] = {"1:40:cublasLtMatmulAlgoGetHeuristic",
                                           "2:40:cublasLtMatmulAlgoCheck",
                                           "3:40:cublasLtMatmul",
                                           "4:30",
                                           "5:30",
                                           "6:20"};
    if (!stand) skip();
    LearnerSettings settings = small_settings();
    settings.shape.hidden_count = 3;
    settings.shape.hidden[1] = 11;
    settings.shape.hidden[2] = 6;
    for (size_t k = 0; k < sizeof refusals / sizeof *refusals; k++) {
        (stand->refuse)(refusals[k]);
        Learner *learner = make_learner(DQN_CUDA, &settings);
        if (!strstr(learner->description, "graph, cuBLASLt, ") ||
            !strstr(learner->description, " of 15 products own"))
            fail_msg("%s: %s", refusals[k], learner->description);
        learner_free(learner);
        check_twins(DQN_CUDA, &settings, 30, 3);
    }
    (stand->refuse)("");
}

/* Whole updates in one block, many in a launch. */
static void updates_in_one_block_learn_the_same(void **state) {
    (void)state;
    LearnerSettings settings = small_settings();
    settings.update = DQN_UPDATE_BLOCK;
    check_twins(DQN_CUDA, &settings, 100, 6);
    settings.shape.dueling = settings.double_q = false;
    settings.shape.hidden_count = 2;
    settings.shape.hidden[1] = 9;
    check_twins(DQN_CUDA, &settings, 40, 3);
}

static void values_are_those_of_the_cpu(void **state) {
    (void)state;
    enum { ROWS = 37 };
    LearnerSettings settings = small_settings();
    float observations[ROWS][6], values[2][ROWS][3];
    for (uint64_t i = 0; i < ROWS * 6; i++) observations[i / 6][i % 6] = (float)random_normal_at(7, 0, i);
    for (int32_t d = 0; d < 2; d++) {
        Learner *learner = make_learner(d == 0 ? DQN_CPU : DQN_CUDA, &settings);
        assert_int_equal(learner_values(learner, observations[0], ROWS, LEARNER_NO_NOISE, values[d][0], NULL),
                         AM_OK);
        learner_free(learner);
    }
    assert_true(distance(values[1][0], values[0][0], ROWS * 3) < 1e-5);
}

/* A state written on one device goes on on the other as if nothing had happened,
 * and on its own device to the last bit. */
static void agents_move_between_devices(void **state) {
    (void)state;
    AgentSettings settings = agent_default_settings();
    settings.device = DQN_CUDA;
    settings.batch = 8;
    settings.replay_capacity = 50;
    settings.hidden_count = 1;
    settings.hidden[0] = 8;
    AmError error = {0};
    Agent *agents[3];
    Text saved = {0};
    float parameters[3][200];
    double losses[3];
    if (agent_create(&agents[0], &settings, 4, 2, &error) != AM_OK) fail_msg("%s", error.text);
    for (int32_t round = 0; round < 2; round++) {
        for (int32_t d = 0; d < (round == 0 ? 1 : 3); d++) {
            for (uint64_t i = 0; i < 70; i++) {
                float here[4], there[4];
                for (uint64_t k = 0; k < 4; k++) {
                    here[k] = (float)random_normal_at(8, i, k);
                    there[k] = (float)random_normal_at(8, i + 1, k);
                }
                const AgentStep step = {.observation = here,
                                        .action = (int32_t)(i % 2),
                                        .reward = here[i % 4],
                                        .next_observation = there,
                                        .terminal = i % 9 == 8};
                assert_int_equal(agent_observe(agents[d], &step, &error), AM_OK);
                agent_learn(agents[d], 1);
            }
            losses[d] = agent_loss(agents[d]);
            assert_true(agent_parameter_count(agents[d]) <= 200);
            assert_int_equal(agent_parameters(agents[d], parameters[d], &error), AM_OK);
        }
        if (round > 0) break;
        assert_int_equal(agent_save(agents[0], &saved, &error), AM_OK);
        for (int32_t d = 1; d < 3; d++)
            assert_int_equal(agent_load(&agents[d], d == 1 ? DQN_CUDA : DQN_CPU, saved.data, saved.length,
                                        "state", &error),
                             AM_OK);
    }
    int64_t count = agent_parameter_count(agents[0]);
    assert_memory_equal(parameters[1], parameters[0], sizeof(float) * (size_t)count);
    assert_true(losses[1] == losses[0]);
    assert_true(distance(parameters[2], parameters[0], count) < 1e-3);
    assert_true(fabs(losses[2] - losses[0]) < 1e-3 * losses[0]);
    for (int32_t d = 0; d < 3; d++) agent_free(agents[d]);
    text_free(&saved);
}

static int64_t count_of(const StandIn *stand, const char *const *calls, size_t count) {
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++) sum += stand->count(calls[i]);
    return sum;
}

/* 50 updates in one call: 50 launches of one graph and nothing else, neither a
 * copy nor a wait; transitions reach the device in few copies. */
static void an_update_is_one_graph(void **state) {
    const StandIn *stand = *state;
    static const char *const others[] = {"cuLaunchKernel",   "cuMemcpyDtoH",         "cuMemcpyDtoHAsync",
                                         "cuMemcpyHtoD",     "cuMemcpyHtoDAsync",    "cuStreamSynchronize",
                                         "cuCtxSynchronize", "cuEventSynchronize",   "cuMemAlloc",
                                         "cuMemAllocHost",   "cuStreamBeginCapture", "cublasLtMatmul"};
    if (!stand) skip();
    LearnerSettings settings = small_settings();
    Learner *learner = make_learner(DQN_CUDA, &settings);
    for (int32_t i = 0; i < 70; i++) add_transition(learner, i);
    assert_int_equal(learner_learn(learner, 1, NULL), AM_OK);
    stand->reset();
    assert_int_equal(learner_learn(learner, 50, NULL), AM_OK);
    assert_int_equal(stand->count("cuGraphLaunch"), 50);
    assert_int_equal(count_of(stand, others, sizeof(others) / sizeof(*others)), 0);
    stand->reset();
    for (int32_t i = 0; i < 30; i++) add_transition(learner, 70 + i);
    assert_int_equal(learner_learn(learner, 1, NULL), AM_OK);
    assert_true(stand->count("cuMemcpyHtoDAsync") <= 2);
    assert_int_equal(stand->count("cuStreamSynchronize"), 0);
    double loss;
    assert_int_equal(learner_take_loss(learner, &loss, NULL), AM_OK);
    assert_true(loss > 0);
    learner_free(learner);
}

/* Whatever call fails, on the way up or later, comes back as one line with the
 * code of a run-time failure, and nothing stays allocated. */
static void failures_stay_and_leave_nothing_behind(void **state) {
    const StandIn *stand = *state;
    static const char *const calls[] = {
        "cuMemAlloc=2",          "cuMemAllocHost=2",       "cuStreamCreate=2",     "cuEventCreate=2",
        "cuModuleLoadDataEx=2",  "cuLaunchKernel=700",     "cuGraphInstantiate=2", "cuGraphLaunch=700",
        "cuMemcpyHtoDAsync=700", "cuStreamSynchronize=700"};
    if (!stand) skip();
    AgentSettings settings = agent_default_settings();
    settings.device = DQN_CUDA;
    settings.batch = 4;
    settings.hidden_count = 0;
    const float here[2] = {1, 2};
    const AgentStep step = {.observation = here, .reward = 1, .terminal = true};
    for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        StandInMemory memory;
        AmError error = {0}, later = {0};
        Agent *agent = NULL;
        (stand->fail)(calls[i]);
        AmStatus status = agent_create(&agent, &settings, 2, 2, &error);
        if (status == AM_OK) {
            for (int32_t k = 0; k < 4 && status == AM_OK; k++) status = agent_observe(agent, &step, &error);
            assert_false(agent_learn(agent, 3));
            status = agent_check(agent, &error);
            assert_int_equal(agent_observe(agent, &step, &later), status);
            assert_int_equal(agent_act(agent, here, NULL, true), -1);
            assert_string_equal(later.text, error.text);
        }
        (stand->fail)("");
        if (status != AM_ERROR_RUNTIME) fail_msg("%s: status %d, %s", calls[i], status, error.text);
        assert_null(strchr(error.text, '\n'));
        agent_free(agent);
        stand->memory(&memory);
        if (memory.allocations > 0)
            fail_msg("%s: %d allocations are left", calls[i], (int)memory.allocations);
    }
}

int main(void) {
    AmError error = {0};
    if (dqn_device_check(DQN_CUDA, &error) != AM_OK) {
        printf("skipped: %s\n", error.text);
        return 77;
    }
    void *stand = (void *)(uintptr_t)stand_in();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_are_those_of_the_cpu),
        cmocka_unit_test(as_much_is_learned_in_1000_updates),
        cmocka_unit_test(other_shapes_learn_the_same),
        cmocka_unit_test(convolutions_learn_the_same),
        cmocka_unit_test(many_transitions_at_once_are_stored),
        cmocka_unit_test(own_products_learn_the_same),
        cmocka_unit_test_prestate(shapes_without_a_product_learn_the_same, stand),
        cmocka_unit_test_prestate(convolutions_are_missing, stand),
        cmocka_unit_test_prestate(some_products_are_missing, stand),
        cmocka_unit_test(updates_in_one_block_learn_the_same),
        cmocka_unit_test(values_are_those_of_the_cpu),
        cmocka_unit_test(agents_move_between_devices),
        cmocka_unit_test_prestate(an_update_is_one_graph, stand),
        cmocka_unit_test_prestate(failures_stay_and_leave_nothing_behind, stand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
