/* Many environments and two threads: choices in a batch equal single ones, to the last bit; steps
 * of several environments do not mix; a learner on a thread of its own makes the requested updates. */
#include <math.h>

#include "tests/support/chain_case.h"

enum { SIZE = 7, ACTIONS = 5, ROWS = 75 };

/* Sanitizers come between a product and its sum, so that some rows fuse them and others do not. */
#if defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#endif
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define IS_SANITIZED 1
#endif
#ifndef IS_SANITIZED
#define IS_SANITIZED 0
#endif

static void assert_same_values(const float *a, const float *b, int32_t count) {
    for (int32_t k = 0; k < count; k++)
        if (fabsf(a[k] - b[k]) > (IS_SANITIZED ? 1e-5f * fabsf(b[k]) + 1e-6f : 0))
            fail_msg("value %d: %.9g is not %.9g", k, (double)a[k], (double)b[k]);
}

/* Every switch, convolutions and none; 75 rows are more than a batch. */
static Agent *wide_agent(int32_t variant) {
    AgentSettings settings = agent_default_settings();
    settings.hidden[1] = 33;
    settings.batch = 16;
    settings.noisy = variant & 1;
    settings.atoms = variant & 2 ? 11 : 0;
    settings.dueling = variant & 4;
    settings.epsilon_start = settings.epsilon_end = 0.4;
    if (variant == 7) {
        settings.convolution_count = 1;
        settings.channels = 1;
        settings.length = 5;
        settings.convolutions[0] = (NetworkConvolution){3, 2, 1};
    }
    Agent *agent;
    AmError error = {0};
    assert_int_equal(agent_create(&agent, &settings, SIZE, ACTIONS, &error), AM_OK);
    return agent;
}

static void fill(float *observations, uint8_t *masks) {
    Random random;
    random_seed(&random, 3);
    for (int32_t i = 0; i < ROWS * SIZE; i++) observations[i] = (float)random_normal(&random);
    for (int32_t i = 0; i < ROWS * ACTIONS; i++) masks[i] = random_below(&random, 3) > 0;
    memset(masks, 0, ACTIONS); /* nothing is legal in the first row */
}

static void greedy_choices_in_a_batch_are_those_one_by_one(void **state) {
    (void)state;
    static float observations[ROWS * SIZE], values[ROWS * ACTIONS], alone[ACTIONS];
    static uint8_t masks[ROWS * ACTIONS];
    fill(observations, masks);
    for (int32_t variant = 0; variant < 8; variant++) {
        Agent *agent = wide_agent(variant);
        int32_t actions[ROWS], unmasked[ROWS];
        assert_int_equal(agent_values(agent, observations, ROWS, values, NULL), AM_OK);
        assert_int_equal(agent_act_many(agent, observations, masks, ROWS, true, actions, NULL), AM_OK);
        assert_int_equal(agent_act_many(agent, observations, NULL, ROWS, true, unmasked, NULL), AM_OK);
        assert_int_equal(actions[0], -1);
        for (int32_t i = 0; i < ROWS; i++) {
            const float *observation = observations + i * SIZE;
            assert_int_equal(agent_act(agent, observation, masks + i * ACTIONS, true), actions[i]);
            assert_int_equal(agent_act(agent, observation, NULL, true), unmasked[i]);
            assert_int_equal(agent_values(agent, observation, 1, alone, NULL), AM_OK);
            assert_same_values(alone, values + i * ACTIONS, ACTIONS);
        }
        agent_free(agent);
    }
}

/* Two equal agents, without noise: the same random numbers in the same order. */
static void exploring_choices_in_a_batch_are_those_one_by_one(void **state) {
    (void)state;
    static float observations[ROWS * SIZE];
    static uint8_t masks[ROWS * ACTIONS];
    fill(observations, masks);
    Agent *agents[2] = {wide_agent(4), wide_agent(4)};
    int32_t actions[ROWS], greedy[ROWS], random = 0;
    assert_int_equal(agent_act_many(agents[0], observations, masks, ROWS, true, greedy, NULL), AM_OK);
    assert_int_equal(agent_act_many(agents[0], observations, masks, ROWS, false, actions, NULL), AM_OK);
    for (int32_t i = 0; i < ROWS; i++) {
        int32_t action = agent_act(agents[1], observations + i * SIZE, masks + i * ACTIONS, false);
        assert_int_equal(action, actions[i]);
        assert_true(action < 0 ? i == 0 : masks[i * ACTIONS + action] == 1);
        random += action != greedy[i];
    }
    assert_true(random > 5);
    assert_true(agent_epsilon(agents[0]) == agent_epsilon(agents[1]));
    for (int32_t i = 0; i < 2; i++) agent_free(agents[i]);
}

/* Alternating steps of two environments give the returns of each alone. */
static void steps_of_environments_do_not_mix(void **state) {
    (void)state;
    AgentSettings settings = chain_settings();
    settings.n_step = 2;
    settings.gamma = 0.5;
    settings.environments = 2;
    Agent *agent = make_agent(&settings);
    Arena arena = {0};
    for (int32_t t = 0; t < 3; t++)
        for (int32_t e = 0; e < 2; e++) {
            float here[STATES], there[STATES];
            observe_state(t, here);
            observe_state(t + 1, there);
            const AgentStep step = {.observation = here,
                                    .action = e,
                                    .reward = (e ? 100 : 1) * (t + 1),
                                    .next_observation = there,
                                    .terminal = e == 1 && t == 2,
                                    .environment = e};
            assert_int_equal(agent_observe(agent, &step, NULL), AM_OK);
        }
    agent_end_episode_of(agent, 7); /* is none */
    agent_end_episode_of(agent, 0);
    /* Stored when known: after the second step of each, and so on; the termination of environment 1
     * stores the newest first. */
    const double rewards[6] = {1 + 1, 100 + 100, 2 + 1.5, 300, 200 + 150, 3};
    const double discounts[6] = {0.25, 0.25, 0.25, 0, 0, 0.5};
    LearnerState stored = state_of(agent, &arena);
    assert_int_equal(stored.count, 6);
    for (int32_t i = 0; i < 6; i++) {
        assert_true(stored.rewards[i] == (float)rewards[i]);
        assert_true(stored.discounts[i] == (float)discounts[i]);
        assert_int_equal(stored.actions[i], rewards[i] >= 100);
    }
    const AgentStep stray = {.observation = stored.observations, .terminal = true, .environment = 2};
    assert_int_equal(agent_observe(agent, &stray, NULL), AM_ERROR_USAGE);
    arena_free(&arena);
    agent_free(agent);
}

/* If the owner does not act while updates wait, a thread gives the results of no thread. More
 * transitions than its banks hold, more updates than may wait. */
static void a_thread_makes_the_same_updates(void **state) {
    (void)state;
    for (int32_t noisy = 0; noisy < 2; noisy++) {
        Agent *agents[2];
        Text saved[2] = {0};
        for (int32_t i = 0; i < 2; i++) {
            AgentSettings settings = chain_settings();
            settings.threaded = i == 1;
            settings.noisy = noisy;
            agents[i] = make_agent(&settings);
            for (int32_t k = 0; k < 1500; k++) {
                float here[STATES], there[STATES];
                observe_state(k % STATES, here);
                observe_state((k + 1) % STATES, there);
                const AgentStep step = {.observation = here,
                                        .action = k % 2,
                                        .reward = k % 3,
                                        .next_observation = there,
                                        .terminal = k % 7 == 6};
                assert_int_equal(agent_observe(agents[i], &step, NULL), AM_OK);
            }
            for (int32_t k = 0; k < 30; k++) assert_true(agent_learn(agents[i], 10));
        }
        assert_true(agent_loss(agents[0]) == agent_loss(agents[1]));
        for (int32_t i = 0; i < 2; i++) {
            assert_int_equal(agent_save(agents[i], &saved[i], NULL), AM_OK);
            agent_free(agents[i]);
        }
        assert_int_equal(saved[0].length, saved[1].length);
        assert_memory_equal(saved[0].data, saved[1].data, saved[0].length);
        for (int32_t i = 0; i < 2; i++) text_free(&saved[i]);
    }
}

/* Acting during learning, which is not reproducible, still learns the chain; a saved agent
 * continues without a thread. */
static void the_chain_is_learnt_beside_acting(void **state) {
    (void)state;
    AgentSettings settings = chain_settings();
    settings.threaded = true;
    Agent *agent = make_agent(&settings), *loaded;
    Random random;
    random_seed(&random, 21);
    int32_t at = 2;
    for (int32_t i = 0; i < 4000; i++) {
        float here[STATES], there[STATES];
        bool terminal;
        observe_state(at, here);
        AgentStep step = {.observation = here, .action = agent_act(agent, here, NULL, false)};
        step.reward = chain_step(&at, step.action, &terminal);
        observe_state(at, there);
        step.next_observation = there;
        step.terminal = terminal;
        assert_int_equal(agent_observe(agent, &step, NULL), AM_OK);
        agent_learn(agent, 1);
        if (terminal) at = (int32_t)random_below(&random, STATES);
    }
    Text saved = {0};
    assert_int_equal(agent_save(agent, &saved, NULL), AM_OK);
    assert_true(chain_error(agent, settings.gamma) < 0.05);
    assert_int_equal(agent_load(&loaded, DQN_CPU, saved.data, saved.length, "state", NULL), AM_OK);
    assert_int_equal(loaded->learner->updates, agent->learner->updates);
    assert_true(chain_error(loaded, settings.gamma) < 0.05);
    text_free(&saved);
    agent_free(agent);
    agent_free(loaded);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_choices_in_a_batch_are_those_one_by_one),
        cmocka_unit_test(exploring_choices_in_a_batch_are_those_one_by_one),
        cmocka_unit_test(steps_of_environments_do_not_mix),
        cmocka_unit_test(a_thread_makes_the_same_updates),
        cmocka_unit_test(the_chain_is_learnt_beside_acting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
