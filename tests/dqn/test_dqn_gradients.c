/* Gradients of every kind of network against central differences, in double
 * precision: the sources are compiled here once more with DQN_DOUBLE. The loss is a
 * fixed random linear function of all outputs, so every output matters; then the
 * losses that are learnt by, Huber's and the cross entropy of distributions. */
#define DQN_DOUBLE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "dqn/cpu/convolution_cpu.c"
#include "dqn/cpu/network_cpu.c"
#include "dqn/cpu/noise_cpu.c"
#include "dqn/cpu/product_cpu.c"
#include "dqn/distribution.c"
#include "dqn/loss.c"
#include "dqn/network.c"

enum { BATCH = 5, MOST_PARAMETERS = 4000, MOST_OBSERVATIONS = 32, MOST_OUTPUTS = 32 };

typedef enum LossKind { LINEAR, LEARNT } LossKind;

typedef struct Problem {
    Network network;
    NetworkPass pass;
    Noise noise;
    LossKind kind;
    double parameters[MOST_PARAMETERS], gradients[MOST_PARAMETERS];
    double observations[BATCH * MOST_OBSERVATIONS], coefficients[BATCH * MOST_OUTPUTS];
    double values[BATCH * MOST_OUTPUTS], value_gradients[BATCH * MOST_OUTPUTS];
    double targets[BATCH * MOST_OUTPUTS], weights[BATCH], errors[BATCH];
    int32_t actions[BATCH];
} Problem;

static const double *means_of(Problem *problem) {
    if (!problem->network.shape.noisy) return problem->parameters;
    noise_apply(&problem->noise, &problem->network, problem->parameters);
    return problem->noise.means;
}

/* The loss and, in value_gradients, its derivative by the outputs. */
static double loss(Problem *problem) {
    const NetworkShape *shape = &problem->network.shape;
    network_forward(&problem->network, means_of(problem), &problem->pass, problem->observations, BATCH,
                    problem->values);
    const LossActions batch = {.batch = BATCH,
                               .actions = shape->action_count,
                               .taken = problem->actions,
                               .targets = problem->targets,
                               .weights = problem->weights};
    if (problem->kind == LEARNT && shape->atoms > 0) {
        const Atoms atoms = {shape->atoms, -1, 1};
        return distribution_gradients(&atoms, problem->values, &batch, problem->errors,
                                      problem->value_gradients);
    }
    if (problem->kind == LEARNT)
        return loss_gradients(problem->values, &batch, 0.7, problem->errors, problem->value_gradients);
    double sum = 0;
    for (int32_t i = 0; i < BATCH * shape->action_count * problem->network.action_outputs; i++) {
        sum += problem->coefficients[i] * problem->values[i];
        problem->value_gradients[i] = problem->coefficients[i];
    }
    return sum;
}

/* Targets: distributions with atoms, else numbers, some beyond Huber's threshold. */
static void fill(Problem *problem, Random *random) {
    int32_t outputs = problem->network.action_outputs;
    for (int32_t i = 0; i < BATCH * MOST_OBSERVATIONS; i++) problem->observations[i] = random_normal(random);
    for (int32_t i = 0; i < BATCH * MOST_OUTPUTS; i++) problem->coefficients[i] = random_normal(random);
    for (int32_t row = 0; row < BATCH; row++) {
        double sum = 0, *target = problem->targets + row * outputs;
        for (int32_t i = 0; i < outputs; i++) sum += target[i] = random_uniform(random);
        for (int32_t i = 0; i < outputs && outputs > 1; i++) target[i] /= sum;
        if (outputs == 1) *target = 3 * random_normal(random);
        problem->weights[row] = 0.2 + random_uniform(random);
        problem->actions[row] = (int32_t)random_below(random, problem->network.shape.action_count);
    }
}

static void check_shape(const NetworkShape *shape, LossKind kind) {
    static Problem problem;
    Arena arena = {0};
    AmError error = {0};
    Random random;
    random_seed(&random, 11);
    assert_int_equal(network_create(&problem.network, shape, &error), AM_OK);
    assert_true(problem.network.parameter_count <= MOST_PARAMETERS);
    assert_int_equal(network_pass_create(&problem.pass, &arena, &problem.network, BATCH, &error), AM_OK);
    network_initialize(&problem.network, problem.parameters, &random);
    for (int64_t i = 0; i < problem.network.parameter_count; i++)
        problem.parameters[i] += 0.1 * random_normal(&random);
    assert_int_equal(noise_create(&problem.noise, &arena, &problem.network, &error), AM_OK);
    noise_draw(&problem.noise, &problem.network, 3, NOISE_ONLINE, 17);
    problem.kind = kind;
    fill(&problem, &random);

    loss(&problem);
    network_backward(&problem.network, means_of(&problem), &problem.pass, problem.observations, BATCH,
                     problem.value_gradients, problem.gradients);
    if (shape->noisy) noise_gradients(&problem.noise, &problem.network, problem.gradients);
    double norm = 0, difference = 0, step = 1e-6;
    for (int64_t i = 0; i < problem.network.parameter_count; i++) {
        double saved = problem.parameters[i];
        problem.parameters[i] = saved + step;
        double above = loss(&problem);
        problem.parameters[i] = saved - step;
        double below = loss(&problem);
        problem.parameters[i] = saved;
        double numeric = (above - below) / (2 * step);
        norm += numeric * numeric;
        difference += (numeric - problem.gradients[i]) * (numeric - problem.gradients[i]);
    }
    assert_true(norm > (kind == LINEAR ? 1 : 1e-4));
    assert_true(sqrt(difference / norm) < 1e-7);
    arena_free(&arena);
}

static void gradients_equal_central_differences(void **state) {
    (void)state;
    const NetworkShape shapes[] = {
        {.observation_size = 7, .action_count = 6, .hidden_count = 2, .hidden = {9, 8}, .dueling = true},
        {.observation_size = 7, .action_count = 6, .hidden_count = 2, .hidden = {9, 8}, .dueling = false},
        {.observation_size = 3, .action_count = 1, .hidden_count = 1, .hidden = {4}, .dueling = true},
        {.observation_size = 7, .action_count = 2, .hidden_count = 0, .dueling = true},
        {.observation_size = 2,
         .action_count = 5,
         .hidden_count = 4,
         .hidden = {5, 1, 12, 3},
         .dueling = true},
        /* 2 arrays of 11 and 4 more numbers; 6 of the last 3 inputs overlap. */
        {.observation_size = 26,
         .action_count = 3,
         .convolution_count = 2,
         .channels = 2,
         .length = 11,
         .convolutions = {{4, 3, 2}, {5, 2, 1}},
         .hidden_count = 1,
         .hidden = {6},
         .dueling = true},
        /* A width that leaves the last number out, a stride beyond the width, no hidden layer. */
        {.observation_size = 30,
         .action_count = 2,
         .convolution_count = 3,
         .channels = 3,
         .length = 10,
         .convolutions = {{3, 1, 1}, {2, 3, 4}, {4, 2, 3}}},
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int32_t kind = 0; kind < 8; kind++) {
            NetworkShape shape = shapes[i];
            shape.noisy = kind & 1;
            shape.atoms = kind & 2 ? 5 : 0;
            check_shape(&shape, kind & 4 ? LEARNT : LINEAR);
        }
}

/* The mean of the values over ALL actions is the head's v, whatever the
 * advantages are: h = 2, v = 3 h + 1, a = (h, -h, 6 h). */
static void dueling_subtracts_the_mean_over_all_actions(void **state) {
    (void)state;
    const NetworkShape shape = {.observation_size = 1, .action_count = 3, .dueling = true};
    Network network;
    NetworkPass pass;
    Arena arena = {0};
    assert_int_equal(network_create(&network, &shape, NULL), AM_OK);
    assert_int_equal(network.parameter_count, 8);
    assert_int_equal(network_pass_create(&pass, &arena, &network, 1, NULL), AM_OK);
    const double parameters[8] = {3, 1, -1, 6, 1, 0, 0, 0}, observation = 2;
    double values[3];
    network_forward(&network, parameters, &pass, &observation, 1, values);
    assert_true(fabs(values[0] - (7 + 2 - 4)) < 1e-12);
    assert_true(fabs(values[1] - (7 - 2 - 4)) < 1e-12);
    assert_true(fabs(values[2] - (7 + 12 - 4)) < 1e-12);
    arena_free(&arena);
}

/* One filter (1, 10) over one array, stride 2; its outputs and the rest of the
 * observation go to one action with weights 1, 1000, 100000. */
static void a_convolution_by_hand(void **state) {
    (void)state;
    const NetworkShape shape = {.observation_size = 6,
                                .action_count = 1,
                                .convolution_count = 1,
                                .channels = 1,
                                .length = 5,
                                .convolutions = {{1, 2, 2}}};
    Network network;
    NetworkPass pass;
    Arena arena = {0};
    assert_int_equal(network_create(&network, &shape, NULL), AM_OK);
    assert_int_equal(network.parameter_count, 2 + 1 + 3 + 1);
    assert_int_equal(network_pass_create(&pass, &arena, &network, 2, NULL), AM_OK);
    const double parameters[7] = {1, 10, 0.5, 1, 1000, 100000, 0.25};
    const double observations[12] = {1, 2, 3, 4, 9, 7, -5, 0, 2, 1, 9, -1};
    double values[2];
    network_forward(&network, parameters, &pass, observations, 2, values);
    assert_true(fabs(values[0] - (21.5 + 1000 * 43.5 + 100000 * 7 + 0.25)) < 1e-9);
    assert_true(fabs(values[1] - (0 + 1000 * 12.5 - 100000 + 0.25)) < 1e-9);
    arena_free(&arena);
}

static void shapes_out_of_range_are_refused(void **state) {
    (void)state;
    const NetworkShape shapes[] = {
        {.observation_size = 0, .action_count = 3},
        {.observation_size = 3, .action_count = -1},
        {.observation_size = 3, .action_count = 3, .hidden_count = NETWORK_MAX_HIDDEN + 1},
        {.observation_size = 3, .action_count = 3, .hidden_count = 1, .hidden = {0}},
        {.observation_size = 1 << 20, .action_count = 3, .hidden_count = 1, .hidden = {1 << 20}},
        {.observation_size = 9, .action_count = 3, .convolution_count = 5, .channels = 1, .length = 9},
        {.observation_size = 9,
         .action_count = 3,
         .convolution_count = 1,
         .channels = 2,
         .length = 5,
         .convolutions = {{1, 1, 1}}},
        {.observation_size = 9,
         .action_count = 3,
         .convolution_count = 1,
         .channels = 2,
         .length = 4,
         .convolutions = {{1, 5, 1}}},
        {.observation_size = 9,
         .action_count = 3,
         .convolution_count = 1,
         .channels = 2,
         .length = 4,
         .convolutions = {{1, 2, 0}}},
        {.observation_size = 1 << 20,
         .action_count = 3,
         .convolution_count = 1,
         .channels = 1,
         .length = 1 << 20,
         .convolutions = {{2, 1, 1}}},
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        Network network;
        AmError error = {0};
        assert_int_equal(network_create(&network, &shapes[i], &error), AM_ERROR_USAGE);
        assert_true(error.text[0] != 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_central_differences),
        cmocka_unit_test(dueling_subtracts_the_mean_over_all_actions),
        cmocka_unit_test(a_convolution_by_hand),
        cmocka_unit_test(shapes_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
