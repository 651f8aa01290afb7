/* The agent as a whole: masks in acting, the epsilon schedule, target copies, equal seeds, saving and
 * loading. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "automap_features.h"
#include "tests/support/chain_case.h"

/* Gives the learner another mass for transition `index`. */
static void set_mass(Agent *agent, int32_t index, double mass) {
    Arena arena = {0};
    LearnerState changed = state_of(agent, &arena);
    changed.masses[index] = mass;
    assert_int_equal(learner_set_state(agent->learner, &changed, NULL), AM_OK);
    arena_free(&arena);
}

static void masks_bind_greedy_and_random_choices(void **state) {
    (void)state;
    AgentSettings settings = agent_default_settings();
    settings.epsilon_decay = 100;
    Agent *agent;
    assert_int_equal(agent_create(&agent, &settings, 2, 6, NULL), AM_OK);
    const uint8_t mask[6] = {0, 1, 0, 0, 1, 1}, none[6] = {0};
    const float observation[2] = {0.3f, -0.7f};
    int32_t counts[6] = {0};
    for (int32_t i = 0; i < 3000; i++) {
        int32_t action = agent_act(agent, observation, mask, false);
        assert_in_range(action, 0, 5);
        counts[action]++;
    }
    assert_int_equal(counts[0] + counts[2] + counts[3], 0);
    assert_true(counts[1] > 50 && counts[4] > 50 && counts[5] > 50);
    float values[6];
    agent_values(agent, observation, 1, values, NULL);
    int32_t greedy = agent_act(agent, observation, mask, true);
    assert_true(mask[greedy] == 1);
    for (int32_t a = 0; a < 6; a++) assert_true(!mask[a] || values[a] <= values[greedy]);
    assert_int_equal(agent_act(agent, observation, none, true), -1);
    assert_int_equal(agent_act(agent, observation, none, false), -1);
    agent_free(agent);
}

static void epsilon_falls_linearly_and_restarts(void **state) {
    (void)state;
    AgentSettings settings = chain_settings();
    settings.epsilon_start = 1;
    settings.epsilon_end = 0.2;
    settings.epsilon_decay = 8;
    Agent *agent = make_agent(&settings);
    const float observation[STATES] = {1};
    for (int32_t i = 0; i < 12; i++) {
        double expected = i < 8 ? 1 - 0.1 * i : 0.2;
        assert_true(fabs(agent_epsilon(agent) - expected) < 1e-12);
        agent_act(agent, observation, NULL, true); /* does not count */
        agent_act(agent, observation, NULL, false);
    }
    agent_free(agent);
}

/* The target network changes at every target_update-th update and only there. */
static void the_target_is_copied_by_count_of_updates(void **state) {
    (void)state;
    AgentSettings settings = chain_settings();
    settings.target_update = 5;
    Agent *agent = make_agent(&settings);
    const float here[STATES] = {1};
    const AgentStep step = {.observation = here, .reward = 1, .terminal = true};
    size_t bytes = sizeof(float) * (size_t)agent_parameter_count(agent);
    Arena arena = {0};
    for (int32_t i = 0; i < settings.batch - 1; i++) agent_observe(agent, &step, NULL);
    assert_false(agent_learn(agent, 1));
    assert_int_equal(agent->learner->updates, 0);
    agent_observe(agent, &step, NULL);
    for (int32_t i = 1; i <= 12; i++) {
        LearnerState before = state_of(agent, &arena);
        assert_true(agent_learn(agent, 1));
        assert_int_equal(agent->learner->updates, i);
        LearnerState after = state_of(agent, &arena);
        bool copied = memcmp(before.target, after.target, bytes) != 0;
        assert_int_equal(copied, i % 5 == 0);
        if (copied) assert_memory_equal(after.target, after.online, bytes);
    }
    arena_free(&arena);
    agent_free(agent);
}

/* New priorities are |delta| + epsilon without the importance weight: half of the transitions have
 * six times the mass of the others, so that weights differ. The drawn transitions are known: the
 * strata's uniforms depend on seed, update and row. */
static void an_update_sets_unweighted_priorities(void **state) {
    (void)state;
    AgentSettings settings = chain_settings();
    settings.alpha = 1;
    settings.replay_capacity = settings.batch;
    Agent *agent = make_agent(&settings);
    Arena arena = {0};
    double expected[64];
    for (int32_t i = 0; i < settings.batch; i++) {
        float here[STATES], values[2];
        observe_state(i % STATES, here);
        agent_values(agent, here, 1, values, NULL);
        const AgentStep step = {.observation = here, .action = i % 2, .reward = i % 3, .terminal = true};
        assert_int_equal(agent_observe(agent, &step, NULL), AM_OK);
        set_mass(agent, i, i % 2 ? 3 : 0.5);
        expected[i] = fabs(i % 3 - (double)values[i % 2]) + settings.priority_epsilon;
    }
    bool drawn[64] = {false};
    double total = 0;
    for (int32_t i = 0; i < settings.batch; i++) total += i % 2 ? 3 : 0.5;
    for (int32_t k = 0; k < settings.batch; k++) {
        double position = total * (k + random_uniform_at(settings.seed, 0, (uint64_t)k)) / settings.batch;
        int32_t at = 0;
        for (; position >= (at % 2 ? 3 : 0.5); at++) position -= at % 2 ? 3 : 0.5;
        drawn[at] = true;
    }
    assert_true(agent_learn(agent, 1));
    LearnerState after = state_of(agent, &arena);
    for (int32_t i = 0; i < settings.batch; i++) {
        double mass = drawn[i] ? expected[i] : i % 2 ? 3 : 0.5;
        assert_true(fabs(after.masses[i] - mass) < 1e-5);
    }
    arena_free(&arena);
    agent_free(agent);
}

/* Truncation through the agent: the last state counts, with its own mask. */
static void an_episode_cut_short_bootstraps(void **state) {
    (void)state;
    AgentSettings settings = chain_settings();
    settings.n_step = 3;
    Agent *agent = make_agent(&settings);
    const float here[STATES] = {1}, there[STATES] = {0, 1};
    const uint8_t mask[2] = {0, 1};
    const AgentStep step = {.observation = here, .reward = 1, .next_observation = there, .next_mask = mask};
    assert_int_equal(agent_observe(agent, &step, NULL), AM_OK);
    assert_int_equal(agent->learner->count, 0);
    agent_end_episode(agent);
    assert_int_equal(agent->learner->count, 1);
    Arena arena = {0};
    LearnerState stored = state_of(agent, &arena);
    assert_true(fabs(stored.discounts[0] - 0.9) < 1e-6);
    assert_memory_equal(stored.next_masks, mask, 2);
    assert_memory_equal(stored.next_observations, there, sizeof(there));
    arena_free(&arena);
    agent_free(agent);
}

static void equal_seeds_give_equal_agents(void **state) {
    (void)state;
    AgentSettings settings = chain_settings();
    double losses[3];
    for (int32_t i = 0; i < 3; i++) {
        settings.seed = i == 2 ? 8 : 7;
        Agent *agent = make_agent(&settings);
        Random random;
        random_seed(&random, 2);
        losses[i] = walk(agent, &random, 400);
        agent_free(agent);
    }
    assert_true(losses[0] == losses[1]);
    assert_true(losses[0] != losses[2]);
}

/* Saves in the middle of an episode with waiting steps, before and after the
 * replay is full; both agents then do the same, to the last bit. */
static void a_loaded_agent_continues_bit_for_bit(void **state) {
    (void)state;
    const int32_t steps[] = {100, 700};
    for (int32_t n_step = 0; n_step < 4; n_step += 3)
        for (size_t i = 0; i < 2; i++) {
            AgentSettings settings = chain_settings();
            settings.n_step = n_step;
            settings.replay_capacity = 300;
            Agent *agent = make_agent(&settings), *loaded;
            Random random;
            random_seed(&random, 4);
            walk(agent, &random, steps[i]);
            const float here[STATES] = {0, 1}, there[STATES] = {0, 0, 1};
            const AgentStep step = {.observation = here, .action = 1, .reward = 2, .next_observation = there};
            assert_int_equal(agent_observe(agent, &step, NULL), AM_OK);
            Text saved = {0}, first = {0}, second = {0};
            AmError error = {0};
            assert_int_equal(agent_save(agent, &saved, &error), AM_OK);
            assert_int_equal(agent_load(&loaded, DQN_CPU, saved.data, saved.length, "state", &error), AM_OK);
            assert_int_equal(loaded->waiting[0].count, 1);
            Random copy = random;
            double losses = walk(agent, &random, 300);
            assert_true(walk(loaded, &copy, 300) == losses);
            assert_int_equal(agent_save(agent, &first, &error), AM_OK);
            assert_int_equal(agent_save(loaded, &second, &error), AM_OK);
            assert_int_equal(first.length, second.length);
            assert_memory_equal(first.data, second.data, first.length);
            assert_int_equal(loaded->learner->adam_steps, agent->learner->updates);
            text_free(&saved);
            text_free(&first);
            text_free(&second);
            agent_free(agent);
            agent_free(loaded);
        }
}

/* An observation of one array and one more number: taking pays the array's rises
 * less twice the number. Convolutions learn it, and are saved and loaded. */
static void arrays_are_learnt_through_convolutions(void **state) {
    (void)state;
    enum { POINTS = 6, SIZE = POINTS + 1, CASES = 50 };
    AgentSettings settings = agent_default_settings();
    settings.n_step = 1;
    settings.learning_rate = 0.005;
    settings.batch = 16;
    settings.convolution_count = 1;
    settings.channels = 1;
    settings.length = POINTS;
    settings.convolutions[0] = (NetworkConvolution){4, 2, 1};
    settings.hidden_count = 1;
    settings.hidden[0] = 16;
    Agent *agent, *loaded;
    Random random;
    Text saved = {0};
    AmError error = {0};
    random_seed(&random, 12);
    assert_int_equal(agent_create(&agent, &settings, SIZE, 2, &error), AM_OK);
    double squares = 0;
    for (int32_t i = 0; i < 2500 + CASES; i++) {
        float here[SIZE], values[2], same[2];
        double worth = 0;
        for (int32_t k = 0; k < SIZE; k++) here[k] = (float)random_uniform(&random);
        for (int32_t k = 1; k < POINTS; k++) worth += fmax(0, (double)here[k] - here[k - 1]);
        worth -= 2 * (double)here[POINTS];
        const AgentStep step = {
            .observation = here, .action = i % 2, .reward = i % 2 ? worth : 0, .terminal = true};
        assert_int_equal(agent_observe(agent, &step, &error), AM_OK);
        agent_learn(agent, 2);
        if (i == 2499) {
            assert_int_equal(agent_save(agent, &saved, &error), AM_OK);
            assert_int_equal(agent_load(&loaded, DQN_CPU, saved.data, saved.length, "state", &error), AM_OK);
        }
        if (i < 2500) continue;
        assert_int_equal(agent_observe(loaded, &step, &error), AM_OK);
        agent_learn(loaded, 2);
        assert_int_equal(agent_values(agent, here, 1, values, &error), AM_OK);
        assert_int_equal(agent_values(loaded, here, 1, same, &error), AM_OK);
        assert_memory_equal(values, same, sizeof(values));
        squares += (values[1] - worth) * (values[1] - worth) / CASES;
    }
    assert_true(sqrt(squares) < 0.15); /* the worth's deviation is 0.65 */
    text_free(&saved);
    agent_free(agent);
    agent_free(loaded);
}

/* Every truncation is refused; every damaged byte is refused or gives an agent
 * that works. */
static void damaged_states_are_refused(void **state) {
    (void)state;
    AgentSettings settings = chain_settings();
    settings.batch = 4;
    settings.hidden[0] = 3;
    settings.replay_capacity = 8;
    Agent *agent = make_agent(&settings), *loaded;
    Random random;
    random_seed(&random, 4);
    walk(agent, &random, 20);
    Text saved = {0};
    AmError error = {0};
    assert_int_equal(agent_save(agent, &saved, &error), AM_OK);
    for (size_t length = 0; length < saved.length; length++) {
        AmError reason = {0};
        assert_int_equal(agent_load(&loaded, DQN_CPU, saved.data, length, "state", &reason), AM_ERROR_INPUT);
        assert_null(loaded);
        assert_string_equal(reason.source, "state");
    }
    assert_damage_is_survived(&saved, &random);
    text_free(&saved);
    agent_free(agent);
}

static void parameters_move_between_agents(void **state) {
    (void)state;
    AgentSettings settings = chain_settings();
    Agent *teacher = make_agent(&settings);
    settings.seed = 99;
    Agent *student = make_agent(&settings);
    Random random;
    random_seed(&random, 6);
    walk(teacher, &random, 100);
    walk(student, &random, 100);
    int64_t count = agent_parameter_count(teacher);
    Arena arena = {0};
    float *parameters = ARENA_ARRAY(&arena, float, count);
    assert_int_equal(agent_parameters(teacher, parameters, NULL), AM_OK);
    assert_int_equal(agent_set_parameters(student, parameters, count, "file", NULL), AM_OK);
    const float observations[2 * STATES] = {0, 1, 0, 0, 0, 0, 0, 0, 1, 0};
    float expected[4], values[4];
    agent_values(teacher, observations, 2, expected, NULL);
    agent_values(student, observations, 2, values, NULL);
    assert_memory_equal(values, expected, sizeof(values));
    LearnerState learnt = state_of(student, &arena);
    assert_int_equal(learnt.adam_steps, 0);
    assert_memory_equal(learnt.target, parameters, sizeof(float) * (size_t)count);
    assert_memory_equal(learnt.online, parameters, sizeof(float) * (size_t)count);
    for (int64_t i = 0; i < count; i++) assert_true(learnt.first[i] == 0 && learnt.second[i] == 0);
    AmError error = {0};
    assert_int_equal(agent_set_parameters(student, parameters, count - 1, "file", &error), AM_ERROR_INPUT);
    parameters[count / 2] = NAN;
    assert_int_equal(agent_set_parameters(student, parameters, count, "file", NULL), AM_ERROR_INPUT);
    arena_free(&arena);
    agent_free(teacher);
    agent_free(student);
}

/* Several updates in one call are those of several calls, and the loss that is
 * then asked for is their mean; asked for again it stays. */
static void updates_in_one_call_are_those_of_several(void **state) {
    (void)state;
    AgentSettings settings = chain_settings();
    Agent *agents[2];
    double losses[2] = {0};
    Arena arena = {0};
    LearnerState states[2];
    for (int32_t i = 0; i < 2; i++) {
        agents[i] = make_agent(&settings);
        Random random;
        random_seed(&random, 3);
        walk(agents[i], &random, 60);
        for (int32_t k = 0; k < (i == 0 ? 8 : 1); k++) {
            assert_true(agent_learn(agents[i], i == 0 ? 1 : 8));
            losses[i] += agent_loss(agents[i]) / (i == 0 ? 8 : 1);
        }
        states[i] = state_of(agents[i], &arena);
    }
    assert_true(fabs(losses[0] - losses[1]) < 1e-12);
    assert_true(agent_loss(agents[1]) == losses[1]);
    size_t bytes = sizeof(float) * (size_t)states[0].parameter_count;
    assert_memory_equal(states[0].online, states[1].online, bytes);
    assert_memory_equal(states[0].masses, states[1].masses, sizeof(double) * (size_t)states[0].count);
    for (int32_t i = 0; i < 2; i++) agent_free(agents[i]);
    arena_free(&arena);
}

#ifndef AUTOMAP_HAVE_CUDA
static void a_device_that_is_not_there_is_named(void **state) {
    (void)state;
    AgentSettings settings = chain_settings();
    settings.device = DQN_CUDA;
    Agent *agent = NULL;
    AmError error = {0};
    assert_int_equal(agent_create(&agent, &settings, STATES, 2, &error), AM_ERROR_USAGE);
    assert_null(agent);
    assert_non_null(strstr(error.text, "CUDA"));
}
#endif

static void senseless_arguments_are_refused(void **state) {
    (void)state;
    AgentSettings settings = chain_settings();
    Agent *agent = NULL;
    AmError error = {0};
    settings.gamma = 1.5;
    assert_int_equal(agent_create(&agent, &settings, STATES, 2, &error), AM_ERROR_USAGE);
    assert_non_null(strstr(error.text, "gamma"));
    settings = chain_settings();
    settings.replay_capacity = settings.batch - 1;
    assert_int_equal(agent_create(&agent, &settings, STATES, 2, NULL), AM_ERROR_USAGE);
    settings.replay_capacity = 1 << 26;
    assert_int_equal(agent_create(&agent, &settings, 1 << 20, 2, NULL), AM_ERROR_USAGE);
    settings = chain_settings();
    agent = make_agent(&settings);
    const float here[STATES] = {1}, bad[STATES] = {NAN};
    const AgentStep steps[] = {
        {.observation = here, .action = 2, .terminal = true},
        {.observation = here, .action = -1, .terminal = true},
        {.observation = here, .reward = INFINITY, .terminal = true},
        {.observation = bad, .terminal = true},
        {.observation = here, .next_observation = bad},
    };
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++)
        assert_int_equal(agent_observe(agent, &steps[i], NULL), AM_ERROR_USAGE);
    assert_int_equal(agent->learner->count, 0);
    agent_free(agent);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_bind_greedy_and_random_choices),
        cmocka_unit_test(epsilon_falls_linearly_and_restarts),
        cmocka_unit_test(the_target_is_copied_by_count_of_updates),
        cmocka_unit_test(an_update_sets_unweighted_priorities),
        cmocka_unit_test(an_episode_cut_short_bootstraps),
        cmocka_unit_test(equal_seeds_give_equal_agents),
        cmocka_unit_test(a_loaded_agent_continues_bit_for_bit),
        cmocka_unit_test(arrays_are_learnt_through_convolutions),
        cmocka_unit_test(damaged_states_are_refused),
        cmocka_unit_test(parameters_move_between_agents),
        cmocka_unit_test(updates_in_one_call_are_those_of_several),
#ifndef AUTOMAP_HAVE_CUDA
        cmocka_unit_test(a_device_that_is_not_there_is_named),
#endif
        cmocka_unit_test(senseless_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
