/* Every switch of the agent alone and all of them together: the agent learns the value-iteration
 * result of the chain of five states, and a saved agent continues to the last bit. Noise is the
 * same for equal numbers and absent in greedy choices, and a device without a switch reports it. */
#include "dqn/noise.h"
#include "tests/support/chain_case.h"
#include "tests/support/sample.h"

enum { DOUBLE_Q = 1, DUELING = 2, NOISY = 4, ATOMS = 8, ALL_SWITCHES = 16 };

static AgentSettings switched_settings(int32_t switches) {
    AgentSettings settings = chain_settings();
    settings.double_q = switches & DOUBLE_Q;
    settings.dueling = switches & DUELING;
    settings.noisy = switches & NOISY;
    if (switches & ATOMS) {
        settings.atoms = 31;
        settings.v_min = -1;
        settings.v_max = 1.5;
    }
    return settings;
}

/* Noise keeps the values a little off, so that is given more room. */
static void the_chain_is_learnt_with_every_switch(void **state) {
    (void)state;
    for (int32_t switches = 0; switches < ALL_SWITCHES; switches += sample_of(1, 5)) {
        AgentSettings settings = switched_settings(switches);
        settings.batch = 16;
        Agent *agent = make_agent(&settings);
        Random random;
        random_seed(&random, 21);
        walk(agent, &random, 2000);
        assert_true(chain_error(agent, settings.gamma) < (switches & NOISY ? 0.08 : 0.02));
        agent_free(agent);
    }
}

/* Left leads to a better state than right does, but is forbidden there: with every switch, the
 * value of a forbidden action is not used in learning. */
static void masks_of_next_states_bind_with_every_switch(void **state) {
    (void)state;
    const float here[STATES] = {1}, there[STATES] = {0, 1};
    const uint8_t mask[2] = {0, 1};
    const AgentStep steps[] = {
        {.observation = here, .action = 0, .reward = 0.1, .next_observation = there, .next_mask = mask},
        {.observation = there, .action = 0, .reward = 1, .terminal = true},
        {.observation = there, .action = 1, .reward = 0.2, .terminal = true},
    };
    for (int32_t switches = 0; switches < ALL_SWITCHES; switches += sample_of(1, 5)) {
        AgentSettings settings = switched_settings(switches);
        settings.batch = 16;
        settings.target_update = 20;
        Agent *agent = make_agent(&settings);
        for (int32_t i = 0; i < 600; i++) {
            assert_int_equal(agent_observe(agent, &steps[i % 3], NULL), AM_OK);
            agent_end_episode(agent);
            agent_learn(agent, 2);
        }
        float values[2];
        assert_int_equal(agent_values(agent, here, 1, values, NULL), AM_OK);
        assert_true(fabs(values[0] - (0.1 + 0.9 * 0.2)) < (switches & NOISY ? 0.1 : 0.03));
        agent_free(agent);
    }
}

/* Saved in the middle of an episode of two environments, with three-step returns. */
static void a_loaded_agent_continues_with_every_switch(void **state) {
    (void)state;
    const float here[STATES] = {0, 1}, there[STATES] = {0, 0, 1};
    for (int32_t switches = 0; switches < ALL_SWITCHES; switches += sample_of(1, 5)) {
        AgentSettings settings = switched_settings(switches);
        settings.batch = 8;
        settings.n_step = 3;
        settings.replay_capacity = 100;
        settings.environments = 2;
        settings.epsilon_start = settings.epsilon_end = 0.1;
        Agent *agent = make_agent(&settings), *loaded;
        Random random;
        random_seed(&random, 4);
        walk(agent, &random, 150);
        for (int32_t i = 0; i < 2; i++) {
            const AgentStep step = {
                .observation = here, .action = i, .reward = 2, .next_observation = there, .environment = i};
            assert_int_equal(agent_observe(agent, &step, NULL), AM_OK);
        }
        Text saved = {0}, first = {0}, second = {0};
        AmError error = {0};
        assert_int_equal(agent_save(agent, &saved, &error), AM_OK);
        assert_int_equal(agent_load(&loaded, DQN_CPU, saved.data, saved.length, "state", &error), AM_OK);
        assert_int_equal(loaded->waiting[1].count, 1);
        Random copy = random;
        double losses = walk(agent, &random, 100);
        assert_true(walk(loaded, &copy, 100) == losses);
        assert_int_equal(agent_save(agent, &first, &error), AM_OK);
        assert_int_equal(agent_save(loaded, &second, &error), AM_OK);
        assert_int_equal(first.length, second.length);
        assert_memory_equal(first.data, second.data, first.length);
        text_free(&saved);
        text_free(&first);
        text_free(&second);
        agent_free(agent);
        agent_free(loaded);
    }
}

/* Every truncation is refused; every damaged byte is refused or gives an agent
 * that works. */
static void damaged_states_with_all_switches_are_refused(void **state) {
    (void)state;
    AgentSettings settings = switched_settings(ALL_SWITCHES - 1);
    settings.batch = 2;
    settings.atoms = 3;
    settings.hidden[0] = 2;
    settings.replay_capacity = 4;
    settings.environments = 3;
    Agent *agent = make_agent(&settings), *loaded;
    Random random;
    random_seed(&random, 4);
    walk(agent, &random, 20);
    Text saved = {0};
    assert_int_equal(agent_save(agent, &saved, NULL), AM_OK);
    for (size_t length = 0; length < saved.length; length++)
        assert_int_equal(agent_load(&loaded, DQN_CPU, saved.data, length, "state", NULL), AM_ERROR_INPUT);
    assert_damage_is_survived(&saved, &random);
    text_free(&saved);
    agent_free(agent);
}

/* W = mean + deviation f(e) f(e'), b = mean + deviation f(e'): with deviations 1
 * and means 10, and the mean square of f over many draws, E|e| = sqrt(2 / pi). */
static void noise_is_factorised(void **state) {
    (void)state;
    enum { INPUTS = 4, OUTPUTS = 3, DRAWS = 20000 };
    const NetworkShape shape = {.observation_size = INPUTS, .action_count = OUTPUTS, .noisy = true};
    Network network;
    Noise noise, again;
    Arena arena = {0};
    float parameters[2 * (INPUTS + 1) * OUTPUTS], gradients[2 * (INPUTS + 1) * OUTPUTS];
    assert_int_equal(network_create(&network, &shape, NULL), AM_OK);
    assert_int_equal(network.mean_count, (INPUTS + 1) * OUTPUTS);
    assert_int_equal(network.parameter_count, 2 * network.mean_count);
    assert_int_equal(noise_create(&noise, &arena, &network, NULL), AM_OK);
    assert_int_equal(noise_create(&again, &arena, &network, NULL), AM_OK);
    for (int64_t k = 0; k < network.mean_count; k++) {
        parameters[k] = 10;
        parameters[network.mean_count + k] = 1;
        gradients[k] = 2;
    }
    double squares = 0, sum = 0;
    for (int64_t draw = 0; draw < DRAWS; draw++) {
        noise_draw(&noise, &network, 5, NOISE_ONLINE, draw);
        for (int32_t j = 0; j < OUTPUTS; j++) {
            sum += (double)noise.outputs[0][j] / (DRAWS * OUTPUTS);
            squares += (double)noise.outputs[0][j] * (double)noise.outputs[0][j] / (DRAWS * OUTPUTS);
        }
    }
    assert_true(fabs(sum) < 0.02);
    assert_true(fabs(squares - sqrt(2 / acos(-1))) < 0.02);
    noise_apply(&noise, &network, parameters);
    noise_gradients(&noise, &network, gradients);
    for (int32_t i = 0; i <= INPUTS; i++)
        for (int32_t j = 0; j < OUTPUTS; j++) {
            double factor = (i < INPUTS ? noise.inputs[0][i] : 1) * (double)noise.outputs[0][j];
            assert_true(fabs(noise.means[i * OUTPUTS + j] - (10 + factor)) < 1e-5);
            assert_true(fabs(gradients[network.mean_count + i * OUTPUTS + j] - 2 * factor) < 1e-5);
        }
    noise_draw(&again, &network, 5, NOISE_ONLINE, DRAWS - 1);
    assert_memory_equal(again.inputs[0], noise.inputs[0], sizeof(float) * INPUTS);
    noise_draw(&again, &network, 5, NOISE_TARGET, DRAWS - 1);
    assert_memory_not_equal(again.inputs[0], noise.inputs[0], sizeof(float) * INPUTS);
    noise_draw(&again, &network, 6, NOISE_ONLINE, DRAWS - 1);
    assert_memory_not_equal(again.inputs[0], noise.inputs[0], sizeof(float) * INPUTS);
    arena_free(&arena);
}

/* With epsilon 0 noise alone explores; greedy choices are always the same. */
static void noise_explores_and_greedy_choices_have_none(void **state) {
    (void)state;
    AgentSettings settings = switched_settings(NOISY | DUELING);
    settings.epsilon_start = settings.epsilon_end = 0;
    Agent *agents[2] = {make_agent(&settings), make_agent(&settings)};
    const float here[STATES] = {0, 0, 1};
    float values[2], again[2];
    int32_t counts[2] = {0}, greedy = agent_act(agents[0], here, NULL, true);
    assert_int_equal(agent_values(agents[0], here, 1, values, NULL), AM_OK);
    for (int32_t i = 0; i < 200; i++) {
        int32_t action = agent_act(agents[0], here, NULL, false);
        counts[action]++;
        assert_int_equal(agent_act(agents[1], here, NULL, false), action);
        assert_int_equal(agent_act(agents[0], here, NULL, true), greedy);
    }
    assert_true(counts[0] > 10 && counts[1] > 10);
    assert_int_equal(agents[0]->noise_draws, 200);
    assert_int_equal(agent_values(agents[0], here, 1, again, NULL), AM_OK);
    assert_memory_equal(values, again, sizeof(values));
    for (int32_t i = 0; i < 2; i++) agent_free(agents[i]);
}

/* Before anything of the device is touched, so in every build. */
static void a_device_without_a_switch_names_it(void **state) {
    (void)state;
    const char *const names[] = {"noisy", "atoms"};
    for (int32_t i = 0; i < 2; i++) {
        AgentSettings settings = switched_settings(i == 0 ? NOISY : ATOMS);
        settings.device = DQN_CUDA;
        Agent *agent = NULL;
        AmError error = {0};
        assert_int_equal(agent_create(&agent, &settings, STATES, 2, &error), AM_ERROR_USAGE);
        assert_null(agent);
        assert_non_null(strstr(error.text, names[i]));
        assert_null(strchr(error.text, '\n'));
    }
}

static void senseless_switches_are_refused(void **state) {
    (void)state;
    const struct {
        int32_t atoms, environments;
        double v_min, v_max;
        const char *name;
    } cases[] = {
        {1, 1, -1, 1, "atoms"},           {NETWORK_MAX_ATOMS + 1, 1, -1, 1, "atoms"},
        {-3, 1, -1, 1, "atoms"},          {51, 1, 1, 1, "v_min"},
        {51, 1, 2, -2, "v_min"},          {51, 1, NAN, 1, "v_min"},
        {51, 1, -1, 1e38, "v_max"},       {0, 0, -1, 1, "environments"},
        {0, 5000, -1, 1, "environments"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        AgentSettings settings = chain_settings();
        settings.atoms = cases[i].atoms;
        settings.environments = cases[i].environments;
        settings.v_min = cases[i].v_min;
        settings.v_max = cases[i].v_max;
        Agent *agent = NULL;
        AmError error = {0};
        assert_int_equal(agent_create(&agent, &settings, STATES, 2, &error), AM_ERROR_USAGE);
        assert_non_null(strstr(error.text, cases[i].name));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_chain_is_learnt_with_every_switch),
        cmocka_unit_test(masks_of_next_states_bind_with_every_switch),
        cmocka_unit_test(a_loaded_agent_continues_with_every_switch),
        cmocka_unit_test(damaged_states_with_all_switches_are_refused),
        cmocka_unit_test(noise_is_factorised),
        cmocka_unit_test(noise_explores_and_greedy_choices_have_none),
        cmocka_unit_test(a_device_without_a_switch_names_it),
        cmocka_unit_test(senseless_switches_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
