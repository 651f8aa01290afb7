/* The ten details of Rainbow that implementations get wrong, a test for each. "Fails with" names
 * the mistake; every test was seen to fail with it.
 *
 * Most examine one update of a network without hidden layers, with known values: its replay holds
 * one transition, alpha is 1 and the learning rate 0, so that the priority after an update is
 * |target - value| + epsilon. */
#include "dqn/loss.h"
#include "dqn/replay.h"
#include "tests/support/chain_case.h"

enum { ACTIONS = 3 };

static AgentSettings linear_settings(void) {
    AgentSettings settings = agent_default_settings();
    settings.gamma = 0.5;
    settings.learning_rate = 0;
    settings.batch = settings.replay_capacity = 1;
    settings.alpha = 1;
    settings.n_step = 1;
    settings.hidden_count = 0;
    settings.dueling = false;
    return settings;
}

/* Q(s, a) = weights[a] s with biases 0; with dueling weights[0] is the value's. */
static Agent *linear_agent(const AgentSettings *settings, const float *weights) {
    Agent *agent;
    AmError error = {0};
    float parameters[2 * (ACTIONS + 1)] = {0};
    assert_int_equal(agent_create(&agent, settings, 1, ACTIONS, &error), AM_OK);
    int64_t count = agent_parameter_count(agent);
    memcpy(parameters, weights, sizeof(float) * (size_t)(count / 2));
    assert_int_equal(agent_set_parameters(agent, parameters, count, "test", &error), AM_OK);
    return agent;
}

/* A step from state 1 by action 0 to state 2. */
static void observe_one(Agent *agent, double reward, const uint8_t *next_mask, bool terminal) {
    const float here = 1, there = 2;
    const AgentStep step = {.observation = &here,
                            .reward = reward,
                            .next_observation = &there,
                            .next_mask = next_mask,
                            .terminal = terminal};
    assert_int_equal(agent_observe(agent, &step, NULL), AM_OK);
}

/* |target - value| of transition `index`, after an update. */
static double error_of(Agent *agent, int32_t index) {
    Arena arena = {0};
    assert_true(agent_learn(agent, 1));
    double error = state_of(agent, &arena).masses[index] - agent_settings(agent)->priority_epsilon;
    arena_free(&arena);
    return error;
}

/* w = (N P)^-beta over the largest of the batch. Fails with: no division, or one by
 * the largest weight of the whole replay. */
static void pitfall_1_weights_are_over_the_largest_of_the_batch(void **state) {
    (void)state;
    enum { HELD = 40, BATCH = 4 };
    Arena arena = {0};
    Replay replay;
    const float here = 0;
    assert_int_equal(replay_create(&replay, &arena, 1, 1, 64, (ReplayPriorities){1, 0.5, 0.001}, NULL),
                     AM_OK);
    for (int32_t i = 0; i < HELD; i++) {
        const float error = i == 0 ? 0 : 1 + (float)i;
        replay_add(&replay, &(Transition){&here, &here, NULL, 0, 0, 1});
        replay_update(&replay, &i, &error, 1);
    }
    for (int64_t update = 0; update < 50; update++) {
        int32_t indices[BATCH];
        float weights[BATCH];
        replay_sample(&replay, 3, update, BATCH, indices, weights);
        double least = INFINITY;
        for (int32_t k = 0; k < BATCH; k++) least = fmin(least, sum_tree_get(&replay.tree, indices[k]));
        for (int32_t k = 0; k < BATCH; k++) {
            double mass = sum_tree_get(&replay.tree, indices[k]);
            assert_true(fabs((double)weights[k] - pow(mass / least, -0.5)) < 1e-6);
        }
    }
    arena_free(&arena);
}

/* Fails with: a descent to the right whenever position >= left, which rounding
 * leads to a leaf without mass or after the last one. */
static void pitfall_2_a_leaf_without_mass_is_not_reached_by_rounding(void **state) {
    (void)state;
    Arena arena = {0};
    SumTree tree;
    assert_int_equal(sum_tree_create(&tree, &arena, 5, NULL), AM_OK);
    for (int32_t i = 0; i < 5; i++) sum_tree_set(&tree, i, i == 1 || i == 2 ? 0.1 * i : 0);
    double total = sum_tree_total(&tree);
    const double positions[] = {0, 0.1, nextafter(total, 0), total, nextafter(total, 1), 2 * total};
    const int32_t expected[] = {1, 2, 2, 2, 2, 2};
    for (size_t i = 0; i < sizeof(positions) / sizeof(*positions); i++)
        assert_int_equal(sum_tree_find(&tree, positions[i]), expected[i]);
    arena_free(&arena);
}

/* Fails with: parents changed by += difference, or kept in single precision. A
 * transition that is twice in a batch takes its last priority, and counts once. */
static void pitfall_3_parents_are_recomputed_in_double(void **state) {
    (void)state;
    Arena arena = {0};
    Replay replay;
    const float here = 0, errors[4] = {1e12f, 3, 0.7f, 2}, small = 0.3f;
    const int32_t indices[4] = {1, 2, 3, 2}, one = 1;
    assert_int_equal(replay_create(&replay, &arena, 1, 1, 4, (ReplayPriorities){1, 0.5, 0.1}, NULL), AM_OK);
    for (int32_t i = 0; i < 4; i++) replay_add(&replay, &(Transition){&here, &here, NULL, 0, 0, 1});
    replay_update(&replay, indices, errors, 4);
    replay_update(&replay, &one, &small, 1);
    const double masses[4] = {1, (double)small + 0.1, 2.1, (double)errors[2] + 0.1};
    for (int32_t i = 0; i < 4; i++) assert_true(sum_tree_get(&replay.tree, i) == masses[i]);
    assert_true(sum_tree_total(&replay.tree) == (masses[0] + masses[1]) + (masses[2] + masses[3]));
    arena_free(&arena);
}

/* Fails with: the maximum kept as p^alpha, which every insert raises once more. */
static void pitfall_4_the_largest_priority_is_kept_raw(void **state) {
    (void)state;
    Arena arena = {0};
    Replay replay;
    const float here = 0, error = 80.5f;
    const int32_t first = 0;
    assert_int_equal(replay_create(&replay, &arena, 1, 1, 8, (ReplayPriorities){0.5, 0.5, 0.5}, NULL), AM_OK);
    replay_add(&replay, &(Transition){&here, &here, NULL, 0, 0, 1});
    replay_update(&replay, &first, &error, 1);
    for (int32_t i = 1; i < 6; i++) {
        replay_add(&replay, &(Transition){&here, &here, NULL, 0, 0, 1});
        assert_true(sum_tree_get(&replay.tree, i) == 9);
    }
    arena_free(&arena);
}

/* Fails with: only full returns stored, or gamma^n where fewer than n steps are left. */
static void pitfall_5_the_end_of_an_episode_stores_every_suffix(void **state) {
    (void)state;
    AgentSettings settings = linear_settings();
    settings.n_step = 3;
    settings.replay_capacity = 8;
    const float weights[ACTIONS] = {0};
    for (int32_t terminal = 0; terminal < 2; terminal++) {
        Agent *agent = linear_agent(&settings, weights);
        Arena arena = {0};
        observe_one(agent, 1, NULL, false);
        observe_one(agent, 10, NULL, terminal == 1);
        agent_end_episode(agent);
        LearnerState stored = state_of(agent, &arena);
        assert_int_equal(stored.count, 2); /* newest first */
        assert_true(stored.rewards[0] == 10 && stored.rewards[1] == 6);
        assert_true(stored.discounts[0] == (terminal ? 0 : 0.5f));
        assert_true(stored.discounts[1] == (terminal ? 0 : 0.25f));
        arena_free(&arena);
        agent_free(agent);
    }
}

/* Values 1, 7, 3 times the state, action 1 forbidden. Fails with: a mask left out
 * of the online choice (target 1 + 7), of acting, or of random choice. */
static void pitfall_6_masks_bind_next_states_and_acting(void **state) {
    (void)state;
    const float weights[ACTIONS] = {1, 7, 3}, here = 1;
    const uint8_t mask[ACTIONS] = {1, 0, 1};
    AgentSettings settings = linear_settings();
    for (int32_t double_q = 0; double_q < 2; double_q++) {
        settings.double_q = double_q;
        Agent *agent = linear_agent(&settings, weights);
        observe_one(agent, 1, mask, false);
        assert_true(fabs(error_of(agent, 0) - (1 + 0.5 * 6 - 1)) < 1e-5);
        Arena arena = {0};
        assert_memory_equal(state_of(agent, &arena).next_masks, mask, ACTIONS);
        arena_free(&arena);
        assert_int_equal(agent_act(agent, &here, mask, true), 2);
        assert_int_equal(agent_act(agent, &here, NULL, true), 1);
        for (int32_t i = 0; i < 200; i++) assert_int_not_equal(agent_act(agent, &here, mask, false), 1);
        agent_free(agent);
    }
}

/* v = 10 s and advantages 1, 7, 4: mean 4 whatever is legal. Fails with: the
 * maximum or the mean over legal actions subtracted, in acting or in an update. */
static void pitfall_7_the_dueling_mean_is_over_all_actions_everywhere(void **state) {
    (void)state;
    const float weights[ACTIONS + 1] = {10, 1, 7, 4}, here = 1;
    const uint8_t mask[ACTIONS] = {1, 0, 1};
    AgentSettings settings = linear_settings();
    settings.dueling = true;
    float values[ACTIONS];
    Agent *agent = linear_agent(&settings, weights);
    assert_int_equal(agent_values(agent, &here, 1, values, NULL), AM_OK);
    assert_true(values[0] == 7 && values[1] == 13 && values[2] == 10);
    observe_one(agent, 1, mask, false);
    assert_true(fabs(error_of(agent, 0) - (1 + 0.5 * 2 * 10 - 7)) < 1e-5);
    agent_free(agent);
}

/* Masses 2, 2, 2 and 10: a batch of four has the last one twice or more, and one
 * of the others, so that its weight is not 1.
 * Fails with: priorities of weighted errors, or weights left out of the gradient. */
static void pitfall_8_priorities_are_of_unweighted_errors(void **state) {
    (void)state;
    const float weights[ACTIONS] = {0}, values[2] = {0, 0}, targets[2] = {0.5f, 0.25f},
                importance[2] = {1, 0.5f};
    const int32_t actions[2] = {0, 0};
    AgentSettings settings = linear_settings();
    settings.batch = settings.replay_capacity = 4;
    Agent *agent = linear_agent(&settings, weights);
    Arena arena = {0};
    for (int32_t i = 0; i < 4; i++) observe_one(agent, i < 3 ? 4 : 2, NULL, true);
    LearnerState changed = state_of(agent, &arena);
    for (int32_t i = 0; i < 4; i++) changed.masses[i] = i < 3 ? 2 : 10;
    assert_int_equal(learner_set_state(agent->learner, &changed, NULL), AM_OK);
    assert_true(fabs(error_of(agent, 3) - 2) < 1e-5);
    arena_free(&arena);
    agent_free(agent);
    float errors[2], gradients[2];
    const LossActions batch = {
        .batch = 2, .actions = 1, .taken = actions, .targets = targets, .weights = importance};
    loss_gradients(values, &batch, 1, errors, gradients);
    assert_true(errors[0] == 0.5f && errors[1] == 0.25f);
    assert_true(gradients[0] == -0.25f && gradients[1] == -0.0625f);
}

/* An episode that was cut off bootstraps (1 + 0.5 * 3 * 2), a finished one does
 * not. Fails with: one treated as the other. */
static void pitfall_9_truncation_bootstraps_and_termination_does_not(void **state) {
    (void)state;
    const float weights[ACTIONS] = {1, 2, 3};
    AgentSettings settings = linear_settings();
    settings.n_step = 0; /* everything waits for the end */
    for (int32_t terminal = 0; terminal < 2; terminal++) {
        Agent *agent = linear_agent(&settings, weights);
        observe_one(agent, 1, NULL, terminal == 1);
        agent_end_episode(agent);
        assert_true(fabs(error_of(agent, 0) - (terminal ? 0 : 3)) < 1e-5);
        agent_free(agent);
    }
}

/* Fails with: the target copied by steps of the environment, or Adam's bias
 * correction started anew by loading. */
static void pitfall_10_updates_are_counted_and_survive_a_checkpoint(void **state) {
    (void)state;
    const float weights[ACTIONS] = {1, 2, 3};
    AgentSettings settings = linear_settings();
    settings.learning_rate = 0.01;
    settings.target_update = 4;
    Agent *agent = linear_agent(&settings, weights), *loaded;
    Arena arena = {0};
    for (int32_t update = 1; update <= 9; update++) {
        for (int32_t step = 0; step < 3; step++) observe_one(agent, update, NULL, true);
        float before = state_of(agent, &arena).target[0];
        assert_true(agent_learn(agent, 1));
        LearnerState after = state_of(agent, &arena);
        assert_int_equal(after.target[0] != before, update % 4 == 0);
    }
    Text saved = {0};
    assert_int_equal(agent_save(agent, &saved, NULL), AM_OK);
    assert_int_equal(agent_load(&loaded, DQN_CPU, saved.data, saved.length, "state", NULL), AM_OK);
    assert_int_equal(loaded->learner->adam_steps, 9);
    assert_true(agent_learn(agent, 1) && agent_learn(loaded, 1));
    LearnerState one = state_of(agent, &arena), other = state_of(loaded, &arena);
    assert_memory_equal(one.online, other.online, sizeof(float) * (size_t)one.parameter_count);
    text_free(&saved);
    arena_free(&arena);
    agent_free(agent);
    agent_free(loaded);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pitfall_1_weights_are_over_the_largest_of_the_batch),
        cmocka_unit_test(pitfall_2_a_leaf_without_mass_is_not_reached_by_rounding),
        cmocka_unit_test(pitfall_3_parents_are_recomputed_in_double),
        cmocka_unit_test(pitfall_4_the_largest_priority_is_kept_raw),
        cmocka_unit_test(pitfall_5_the_end_of_an_episode_stores_every_suffix),
        cmocka_unit_test(pitfall_6_masks_bind_next_states_and_acting),
        cmocka_unit_test(pitfall_7_the_dueling_mean_is_over_all_actions_everywhere),
        cmocka_unit_test(pitfall_8_priorities_are_of_unweighted_errors),
        cmocka_unit_test(pitfall_9_truncation_bootstraps_and_termination_does_not),
        cmocka_unit_test(pitfall_10_updates_are_counted_and_survive_a_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
