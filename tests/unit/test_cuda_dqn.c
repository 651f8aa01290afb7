/* The learner on a device against its twin on the CPU: losses over 1,000 updates
 * from the same seed, parameters and priorities, values, states that move from
 * one to the other; and that an update is one graph, from which nothing is read
 * back. Where the stand-in libraries take the place of a card, their record of
 * calls is looked at, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "automap_features.h"
#include "dqn/agent_state.h"

#ifdef AUTOMAP_HAVE_CUDA
#include "tests/cuda/stand_in/stand_in.h"

enum { MOST_OBSERVATION = 24, MOST_ACTIONS = 6 };

static LearnerSettings small_settings(void) {
    return (LearnerSettings){.shape = {.observation_size = 6,
                                       .action_count = 3,
                                       .hidden_count = 1,
                                       .hidden = {16},
                                       .dueling = true},
                             .learning_rate = 0.003,
                             .alpha = 0.5,
                             .beta = 0.6,
                             .priority_epsilon = 1e-6,
                             .huber = 1,
                             .batch = 8,
                             .target_update = 25,
                             .replay_capacity = 75,
                             .double_q = true,
                             .seed = 9};
}

/* Transition `number` of a stream that depends on nothing else: the reward is a
 * smooth function of the observation and the action. */
static void add_transition(Learner *learner, int64_t number) {
    const NetworkShape *shape = &learner->settings.shape;
    float here[MOST_OBSERVATION], there[MOST_OBSERVATION];
    uint8_t mask[MOST_ACTIONS];
    uint64_t stream = (uint64_t)number;
    double sum = 0;
    for (int32_t k = 0; k < shape->observation_size; k++) {
        here[k] = (float)random_normal_at(1, stream, (uint64_t)k);
        there[k] = (float)random_normal_at(2, stream, (uint64_t)k);
        sum += here[k];
    }
    for (int32_t a = 0; a < shape->action_count; a++) mask[a] = random_at(3, stream, (uint64_t)a) % 4 != 0;
    int32_t action = (int32_t)(random_at(4, stream, 0) % (uint64_t)shape->action_count);
    const Transition transition = {.observation = here,
                                   .next_observation = there,
                                   .next_mask = number % 3 ? mask : NULL,
                                   .action = action,
                                   .reward = sin(sum + action),
                                   .discount = number % 5 ? 0.9 : 0};
    assert_int_equal(learner_add(learner, &transition, 1, NULL), AM_OK);
}

static Learner *make_learner(DqnDevice device, const LearnerSettings *settings) {
    Learner *learner;
    AmError error = {0};
    float parameters[4000];
    Random random;
    if (learner_create(&learner, device, settings, INT64_MAX, &error) != AM_OK) fail_msg("%s", error.text);
    assert_true(learner->network.parameter_count <= 4000);
    random_seed(&random, 5);
    network_initialize(&learner->network, parameters, &random);
    assert_int_equal(learner_set_parameters(learner, parameters, &error), AM_OK);
    return learner;
}

static LearnerState state_of(Learner *learner, Arena *arena) {
    LearnerState result;
    AmError error = {0};
    assert_int_equal(learner_state_create(&result, arena, learner, learner->count, &error), AM_OK);
    if (learner_get_state(learner, &result, &error) != AM_OK) fail_msg("%s", error.text);
    return result;
}

/* |a - b| over all, relative to the norm of b. */
static double distance(const float *a, const float *b, int64_t count) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(difference / (norm + 1e-30));
}

/* What was stored is the same to the last bit. */
static void check_replay(const LearnerState *device, const LearnerState *cpu, const NetworkShape *shape) {
    size_t rows = (size_t)cpu->count, row_bytes = rows * sizeof(float) * (size_t)shape->observation_size;
    assert_int_equal(device->count, cpu->count);
    assert_int_equal(device->next, cpu->next);
    assert_memory_equal(device->observations, cpu->observations, row_bytes);
    assert_memory_equal(device->next_observations, cpu->next_observations, row_bytes);
    assert_memory_equal(device->next_masks, cpu->next_masks, rows * (size_t)shape->action_count);
    assert_memory_equal(device->actions, cpu->actions, rows * sizeof(int32_t));
    assert_memory_equal(device->rewards, cpu->rewards, rows * sizeof(float));
    assert_memory_equal(device->discounts, cpu->discounts, rows * sizeof(float));
}

/* Both learners make `updates` updates, ten at a time with some transitions in
 * between; mean losses agree all the way, and all of the state at the end. */
static void run_twins(const LearnerSettings *settings, int32_t updates, double tolerance) {
    Learner *learners[2];
    Arena arena = {0};
    AmError error = {0};
    int64_t number = 0;
    for (int32_t d = 0; d < 2; d++) learners[d] = make_learner(d == 0 ? DQN_CPU : DQN_CUDA, settings);
    for (int32_t done = 0; done < updates; done += 10) {
        double losses[2];
        int32_t fresh = done == 0 ? settings->batch : 3;
        for (int32_t d = 0; d < 2; d++) {
            for (int32_t i = 0; i < fresh; i++) add_transition(learners[d], number + i);
            assert_int_equal(learner_learn(learners[d], 10, &error), AM_OK);
            if (learner_take_loss(learners[d], &losses[d], &error) != AM_OK) fail_msg("%s", error.text);
        }
        number += fresh;
        if (!(fabs(losses[1] - losses[0]) <= tolerance * (losses[0] + 1e-3)))
            fail_msg("update %d: loss %.9g, on the CPU %.9g", done, losses[1], losses[0]);
    }
    LearnerState cpu = state_of(learners[0], &arena), device = state_of(learners[1], &arena);
    assert_true(distance(device.online, cpu.online, cpu.parameter_count) < tolerance);
    assert_true(distance(device.target, cpu.target, cpu.parameter_count) < tolerance);
    assert_true(distance(device.first, cpu.first, cpu.parameter_count) < 20 * tolerance);
    assert_true(distance(device.second, cpu.second, cpu.parameter_count) < 20 * tolerance);
    assert_true(fabs(device.max_priority - cpu.max_priority) < tolerance * cpu.max_priority);
    check_replay(&device, &cpu, &settings->shape);
    for (int32_t i = 0; i < cpu.count; i++)
        assert_true(fabs(device.masses[i] - cpu.masses[i]) < 20 * tolerance * (cpu.masses[i] + 0.01));
    for (int32_t d = 0; d < 2; d++) learner_free(learners[d]);
    arena_free(&arena);
}

static void losses_over_1000_updates_are_those_of_the_cpu(void **state) {
    (void)state;
    LearnerSettings settings = small_settings();
    run_twins(&settings, 1000, 1e-3);
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
    run_twins(&settings, 60, 1e-3);
    settings = small_settings();
    settings.shape.hidden_count = 0;
    settings.batch = 5;
    settings.shape.observation_size = 3;
    settings.replay_capacity = 64;
    run_twins(&settings, 60, 1e-3);
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
    run_twins(&settings, 60, 1e-3);
    settings.shape.convolution_count = 1;
    settings.shape.hidden_count = 0;
    run_twins(&settings, 30, 1e-3);
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
    run_twins(&settings, 60, 1e-3);
}

/* Where cuBLASLt has no product (15: CUBLAS_STATUS_NOT_SUPPORTED), our own
 * kernels take its place, behind convolutions too. */
static void shapes_without_a_product_learn_the_same(void **state) {
    const StandIn *stand = *state;
    if (!stand) skip();
    LearnerSettings settings = small_settings();
    (stand->fail)("cublasLtMatmulAlgoGetHeuristic=15");
    settings.shape.hidden_count = 2;
    settings.shape.hidden[1] = 11;
    stand->reset();
    run_twins(&settings, 60, 1e-3);
    assert_int_equal(stand->count("cublasLtMatmul"), 0);
    settings.shape.observation_size = 24;
    settings.shape.channels = 2;
    settings.shape.length = 10;
    settings.shape.convolution_count = 1;
    settings.shape.convolutions[0] = (NetworkConvolution){4, 3, 2};
    run_twins(&settings, 30, 1e-3);
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
        run_twins(&settings, 30, 1e-3);
    }
    (stand->refuse)("");
}

/* Whole updates in one block, many in a launch. */
static void updates_in_one_block_learn_the_same(void **state) {
    (void)state;
    LearnerSettings settings = small_settings();
    settings.update = DQN_UPDATE_BLOCK;
    run_twins(&settings, 100, 1e-3);
    settings.shape.dueling = settings.double_q = false;
    settings.shape.hidden_count = 2;
    settings.shape.hidden[1] = 9;
    run_twins(&settings, 40, 1e-3);
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
        cmocka_unit_test(losses_over_1000_updates_are_those_of_the_cpu),
        cmocka_unit_test(other_shapes_learn_the_same),
        cmocka_unit_test(convolutions_learn_the_same),
        cmocka_unit_test(many_transitions_at_once_are_stored),
        cmocka_unit_test(own_products_learn_the_same),
        cmocka_unit_test_prestate(shapes_without_a_product_learn_the_same, stand),
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
int main(void) {
    printf("skipped: a build without CUDA\n");
    return 77;
}
#endif
