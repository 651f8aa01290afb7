/* Adam, double-DQN targets, the loss and n-step returns by hand values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "dqn/loss.h"
#include "dqn/n_step.h"
#include "dqn/network.h"
#include "dqn/replay.h"

static bool near(double a, double b, double tolerance) {
    return fabs(a - b) <= tolerance * (1 + fabs(b));
}

/* Three steps with gradients (1, -2), (0.5, 0), (-1, 4) against algorithm 1 of
 * the paper, written out with both corrected moments. */
static void adam_follows_its_algorithm(void **state) {
    (void)state;
    Arena arena = {0};
    Adam adam;
    assert_int_equal(adam_create(&adam, &arena, 2, 0.1, NULL), AM_OK);
    float parameters[2] = {1, 2};
    const float gradients[3][2] = {{1, -2}, {0.5f, 0}, {-1, 4}};
    double expected[2] = {1, 2}, first[2] = {0}, second[2] = {0};
    for (int32_t t = 0; t < 3; t++) {
        adam_update(&adam, parameters, gradients[t]);
        for (int32_t i = 0; i < 2; i++) {
            double g = gradients[t][i];
            first[i] = 0.9 * first[i] + 0.1 * g;
            second[i] = 0.999 * second[i] + 0.001 * g * g;
            double corrected = first[i] / (1 - pow(0.9, t + 1));
            double spread = second[i] / (1 - pow(0.999, t + 1));
            expected[i] -= 0.1 * corrected / (sqrt(spread) + 1e-8);
            assert_true(near(parameters[i], expected[i], 1e-5));
        }
        /* The first step is the learning rate against the sign. */
        if (t == 0) assert_true(near(parameters[0], 0.9, 1e-6) && near(parameters[1], 2.1, 1e-6));
    }
    assert_int_equal(adam.step, 3);
    arena_free(&arena);
}

static void adam_moments_do_not_become_subnormal(void **state) {
    (void)state;
    Arena arena = {0};
    Adam adam;
    assert_int_equal(adam_create(&adam, &arena, 1, 0.1, NULL), AM_OK);
    float parameter = 0;
    const float one = 1, zero = 0;
    adam_update(&adam, &parameter, &one);
    for (int32_t i = 0; i < 2000; i++) adam_update(&adam, &parameter, &zero);
    assert_true(adam.first[0] == 0);
    assert_true(isfinite(parameter));
    arena_free(&arena);
}

/* Two next states, two actions. Online prefers action 1 in state A and 0 in
 * state B; the target network values those choices at 10 and 20, its own
 * preferences at 50 and 60. */
static void double_q_chooses_online_and_values_by_target(void **state) {
    (void)state;
    const float online[4] = {1, 2, 4, 3}, target[4] = {50, 10, 20, 60};
    const uint8_t masks[4] = {1, 1, 1, 1};
    const float rewards[2] = {1, -1}, discounts[2] = {0.5f, 0.25f};
    float targets[2];
    const LossRewards next = {
        .batch = 2, .actions = 2, .rewards = rewards, .discounts = discounts, .next_masks = masks};
    loss_targets(online, target, &next, targets);
    assert_true(targets[0] == 1 + 0.5f * 10 && targets[1] == -1 + 0.25f * 20);
    loss_targets(target, target, &next, targets);
    assert_true(targets[0] == 1 + 0.5f * 50 && targets[1] == -1 + 0.25f * 60);
}

static void the_next_mask_limits_the_online_choice(void **state) {
    (void)state;
    const float online[6] = {1, 9, 5, 1, 9, 5}, target[6] = {7, 8, 100, 7, 8, 100};
    const uint8_t masks[6] = {1, 0, 0, 0, 0, 0};
    const float rewards[2] = {1, 2}, discounts[2] = {1, 1};
    float targets[2];
    const LossRewards next = {
        .batch = 2, .actions = 3, .rewards = rewards, .discounts = discounts, .next_masks = masks};
    loss_targets(online, target, &next, targets);
    assert_true(targets[0] == 8); /* only action 0 is legal */
    assert_true(targets[1] == 2); /* nothing is legal: nothing follows */
    const uint8_t last_two[3] = {0, 1, 1};
    assert_int_equal(loss_best_action(online, last_two, 3), 1);
    const float equal[3] = {2, 2, 2};
    assert_int_equal(loss_best_action(equal, last_two, 3), 1);
}

static void a_termination_takes_the_reward_alone(void **state) {
    (void)state;
    const float values[2] = {NAN, INFINITY};
    const uint8_t masks[2] = {1, 1};
    const float reward = 3, discount = 0;
    float target;
    const LossRewards next = {
        .batch = 1, .actions = 2, .rewards = &reward, .discounts = &discount, .next_masks = masks};
    loss_targets(values, values, &next, &target);
    assert_true(target == 3);
}

/* Errors are unweighted; weights multiply the gradient and the loss. */
static void the_loss_by_hand(void **state) {
    (void)state;
    const float values[6] = {1, 2, 3, 4, 5, 6}, targets[3] = {1.5f, 10, 5}, weights[3] = {1, 0.5f, 0.25f};
    const int32_t actions[3] = {0, 1, 1};
    float errors[3], gradients[6];
    const LossActions batch = {
        .batch = 3, .actions = 2, .taken = actions, .targets = targets, .weights = weights};
    double loss = loss_gradients(values, &batch, 1, errors, gradients);
    const float expected_errors[3] = {0.5f, 6, -1};
    const double expected_gradients[6] = {-0.5 / 3, 0, 0, -0.5 / 3, 0, 0.25 / 3};
    for (int32_t i = 0; i < 3; i++) assert_true(errors[i] == expected_errors[i]);
    for (int32_t i = 0; i < 6; i++) assert_true(near(gradients[i], expected_gradients[i], 1e-7));
    assert_true(near(loss, (0.125 + 0.5 * 5.5 + 0.25 * 0.5) / 3, 1e-7));
    loss = loss_gradients(values, &batch, 0, errors, gradients);
    assert_true(near(gradients[3], -0.5 * 6 / 3, 1e-7));
    assert_true(near(loss, (0.125 + 0.5 * 18 + 0.25 * 0.5) / 3, 1e-7));
}

static AmStatus store(void *user, const Transition *transition, AmError *error) {
    (void)error;
    replay_add(user, transition);
    return AM_OK;
}

/* Runs rewards 1, 10, 100, .. through n-step returns with gamma 0.5. State t is
 * the number t; the action is t % 2. */
static void run_episode(Replay *replay, Arena *arena, int32_t n, int32_t steps, bool terminal) {
    static NStep queue;
    const NStepSink sink = {store, replay};
    assert_int_equal(replay_create(replay, arena, 1, 2, 100, (ReplayPriorities){1, 0.6, 1e-6}, NULL), AM_OK);
    assert_int_equal(n_step_create(&queue, arena, n, 0.5, 1, 2, NULL), AM_OK);
    double reward = 1;
    for (int32_t t = 0; t < steps; t++, reward *= 10) {
        const float here = (float)t, there = (float)(t + 1);
        const uint8_t mask[2] = {1, (uint8_t)(t % 2)};
        const ObservedStep step = {&here, t % 2, reward, &there, mask, terminal && t == steps - 1};
        assert_int_equal(n_step_observe(&queue, arena, &sink, &step, NULL), AM_OK);
    }
    assert_int_equal(n_step_truncate(&queue, &sink, NULL), AM_OK);
    assert_int_equal(queue.count, 0);
    assert_int_equal(n_step_truncate(&queue, &sink, NULL), AM_OK);
}

/* The row that starts in state `start`; fails the test unless there is one. */
static int32_t row_of(const Replay *replay, int32_t start) {
    int32_t found = -1;
    for (int32_t i = 0; i < replay->count; i++)
        if (replay->observations[i] == (float)start) {
            assert_int_equal(found, -1);
            found = i;
        }
    assert_true(found >= 0);
    return found;
}

static void check_row(const Replay *replay, int32_t start, double reward, double discount, int32_t next) {
    int32_t row = row_of(replay, start);
    assert_true(near(replay->rewards[row], reward, 1e-6));
    assert_true(near(replay->discounts[row], discount, 1e-6));
    assert_int_equal(replay->actions[row], start % 2);
    if (discount == 0) return;
    assert_true(replay->next_observations[row] == (float)next);
    assert_int_equal(replay->next_masks[2 * row + 1], (next - 1) % 2);
}

static void a_termination_flushes_every_suffix(void **state) {
    (void)state;
    Arena arena = {0};
    Replay replay;
    run_episode(&replay, &arena, 3, 5, true);
    assert_int_equal(replay.count, 5);
    check_row(&replay, 0, 1 + 5 + 25, 0.125, 3);
    check_row(&replay, 1, 10 + 50 + 250, 0.125, 4);
    check_row(&replay, 2, 100 + 500 + 2500, 0, 0);
    check_row(&replay, 3, 1000 + 5000, 0, 0);
    check_row(&replay, 4, 10000, 0, 0);
    arena_free(&arena);
}

static void a_truncation_bootstraps_with_the_steps_taken(void **state) {
    (void)state;
    Arena arena = {0};
    Replay replay;
    run_episode(&replay, &arena, 3, 4, false);
    assert_int_equal(replay.count, 4);
    check_row(&replay, 0, 1 + 5 + 25, 0.125, 3);
    check_row(&replay, 1, 10 + 50 + 250, 0.125, 4);
    check_row(&replay, 2, 100 + 500, 0.25, 4);
    check_row(&replay, 3, 1000, 0.5, 4);
    arena_free(&arena);
}

static void single_steps_and_whole_episodes(void **state) {
    (void)state;
    Arena arena = {0};
    Replay replay;
    run_episode(&replay, &arena, 1, 3, true);
    check_row(&replay, 0, 1, 0.5, 1);
    check_row(&replay, 1, 10, 0.5, 2);
    check_row(&replay, 2, 100, 0, 0);
    run_episode(&replay, &arena, 0, 20, true);
    assert_int_equal(replay.count, 20);
    double reward = 0;
    for (int32_t t = 19; t >= 0; t--) {
        reward = pow(10, t) + 0.5 * reward;
        check_row(&replay, t, reward, 0, 0);
    }
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adam_follows_its_algorithm),
        cmocka_unit_test(adam_moments_do_not_become_subnormal),
        cmocka_unit_test(double_q_chooses_online_and_values_by_target),
        cmocka_unit_test(the_next_mask_limits_the_online_choice),
        cmocka_unit_test(a_termination_takes_the_reward_alone),
        cmocka_unit_test(the_loss_by_hand),
        cmocka_unit_test(a_termination_flushes_every_suffix),
        cmocka_unit_test(a_truncation_bootstraps_with_the_steps_taken),
        cmocka_unit_test(single_steps_and_whole_episodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
