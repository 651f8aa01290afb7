/* Distributions of the return (C51): the projection by hand values, and means,
 * targets, loss and priorities. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "dqn/distribution.h"

enum { COUNT = 5 };

static const Atoms ATOMS = {COUNT, -2, 2}; /* -2, -1, 0, 1, 2 */

static void check(const float *numbers, const double *expected, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (!(fabs((double)numbers[i] - expected[i]) < 1e-6))
            fail_msg("number %d is %g; expected %g", i, (double)numbers[i], expected[i]);
}

/* 0.5 z + 0.25 of atoms -2, .., 2: -0.75, -0.25, 0.25, 0.75, 1.25. */
static void mass_goes_to_both_neighbours_by_nearness(void **state) {
    (void)state;
    const float probabilities[COUNT] = {0.1f, 0.2f, 0.3f, 0.25f, 0.15f};
    const double expected[COUNT] = {0, 0.1 * 0.75 + 0.2 * 0.25,
                                    0.1 * 0.25 + 0.2 * 0.75 + 0.3 * 0.75 + 0.25 * 0.25,
                                    0.3 * 0.25 + 0.25 * 0.75 + 0.15 * 0.75, 0.15 * 0.25};
    float target[COUNT];
    distribution_project(&ATOMS, probabilities, 0.25, 0.5, target);
    check(target, expected, COUNT);
}

/* Fails where both neighbours are the same atom and their shares are 0 each. */
static void mass_exactly_on_an_atom_stays_whole(void **state) {
    (void)state;
    const float probabilities[COUNT] = {0.1f, 0.2f, 0.4f, 0.2f, 0.1f};
    const double same[COUNT] = {0.1, 0.2, 0.4, 0.2, 0.1}, shifted[COUNT] = {0, 0.1, 0.2, 0.4, 0.3};
    float target[COUNT];
    distribution_project(&ATOMS, probabilities, 0, 1, target);
    check(target, same, COUNT);
    distribution_project(&ATOMS, probabilities, 1, 1, target);
    check(target, shifted, COUNT);
}

static void mass_beyond_an_end_stays_at_the_end(void **state) {
    (void)state;
    const float probabilities[COUNT] = {0.1f, 0.2f, 0.3f, 0.25f, 0.15f};
    const double high[COUNT] = {0, 0, 0, 0, 1}, low[COUNT] = {1, 0, 0, 0, 0};
    const double partly[COUNT] = {0.1 + 0.2 + 0.3 * 0.5, 0.3 * 0.5 + 0.25 * 0.5, 0.25 * 0.5 + 0.15 * 0.5,
                                  0.15 * 0.5, 0};
    float target[COUNT];
    distribution_project(&ATOMS, probabilities, 100, 1, target);
    check(target, high, COUNT);
    distribution_project(&ATOMS, probabilities, -100, 1, target);
    check(target, low, COUNT);
    distribution_project(&ATOMS, probabilities, -1.5, 1, target);
    check(target, partly, COUNT);
}

/* A termination has the reward alone; what would follow is not read. */
static void a_termination_is_the_reward_alone(void **state) {
    (void)state;
    const float nothing[COUNT] = {NAN, NAN, NAN, NAN, NAN};
    const double between[COUNT] = {0, 0, 0.25, 0.75, 0}, on[COUNT] = {0, 1, 0, 0, 0};
    float target[COUNT];
    distribution_project(&ATOMS, nothing, 0.75, 0, target);
    check(target, between, COUNT);
    distribution_project(&ATOMS, nothing, -1, 0, target);
    check(target, on, COUNT);
}

/* The mean and all mass are kept where nothing is clipped, with atoms whose step
 * is no binary fraction. */
static void a_projection_keeps_mass_and_mean(void **state) {
    (void)state;
    const Atoms atoms = {51, -10, 10};
    float probabilities[51], target[51];
    double sum = 0;
    for (int32_t i = 0; i < 51; i++) sum += 1 + i % 7;
    for (int32_t i = 0; i < 51; i++) probabilities[i] = (float)((1 + i % 7) / sum);
    for (int32_t k = 0; k < 40; k++) {
        double reward = -5 + 0.25 * k, discount = k % 2 ? 0.5 : 0.4, mass = 0, mean = 0, expected = 0;
        distribution_project(&atoms, probabilities, reward, discount, target);
        for (int32_t i = 0; i < 51; i++) {
            double z = -10 + 0.4 * i;
            assert_true(target[i] >= 0);
            mass += (double)target[i];
            mean += z * (double)target[i];
            expected += (reward + discount * z) * (double)probabilities[i];
        }
        assert_true(fabs(mass - 1) < 1e-5);
        assert_true(fabs(mean - expected) < 1e-4);
    }
}

static void means_of_logits_by_hand(void **state) {
    (void)state;
    /* Equal logits, however large; ln 1, ln 2, ln 3, ln 4, ln 5; all at one atom. */
    const float logits[3 * COUNT] = {1000, 1000,        1000,        1000,        1000,
                                     0,    0.69314718f, 1.09861229f, 1.38629436f, 1.60943791f,
                                     0,    0,           0,           -500,        800};
    const double expected[3] = {0, (-2 - 2 + 0 + 4 + 10) / 15.0, 2};
    float values[3];
    distribution_means(&ATOMS, logits, 3, values);
    check(values, expected, 3);
}

/* Three actions: the online network likes 2 best, which may not be taken, then 1;
 * the target network's distribution of 1 is taken although it values 0 more. */
static void targets_choose_online_and_are_the_target_networks(void **state) {
    (void)state;
    const float choosing[3] = {1, 2, 3};
    float logits[3][COUNT] = {{0, 0, 0, 0, 50}, {0, 50, 0, 0, 0}, {0, 0, 0, 50, 0}}, target[COUNT];
    const uint8_t mask[3] = {1, 1, 0}, none[3] = {0};
    const float reward = 0.5f, discount = 0.5f;
    const double expected[COUNT] = {0, 0, 1, 0, 0}, alone[COUNT] = {0, 0, 0.5, 0.5, 0};
    LossRewards next = {
        .batch = 1, .actions = 3, .rewards = &reward, .discounts = &discount, .next_masks = mask};
    distribution_targets(&ATOMS, choosing, logits[0], &next, target);
    check(target, expected, COUNT);
    next.next_masks = none;
    distribution_targets(&ATOMS, choosing, logits[0], &next, target);
    check(target, alone, COUNT);
}

/* Two rows, two actions, probabilities 1/15 .. 5/15 of the action taken. Errors
 * are KL(m || p) without the weight; the gradient is weight (p - m) / batch. */
static void the_loss_by_hand(void **state) {
    (void)state;
    enum { BATCH = 2, ACTIONS = 2 };
    const float logs[COUNT] = {0, 0.69314718f, 1.09861229f, 1.38629436f, 1.60943791f};
    const float targets[BATCH * COUNT] = {0,         0.5f,      0.5f,      0,         0,
                                          1 / 15.0f, 2 / 15.0f, 3 / 15.0f, 4 / 15.0f, 5 / 15.0f};
    const float weights[BATCH] = {1, 0.5f};
    const int32_t actions[BATCH] = {1, 0};
    float logits[BATCH * ACTIONS * COUNT] = {0}, errors[BATCH], gradients[BATCH * ACTIONS * COUNT];
    memcpy(logits + COUNT, logs, sizeof(logs));
    memcpy(logits + 2 * COUNT, logs, sizeof(logs));
    const LossActions batch = {
        .batch = BATCH, .actions = ACTIONS, .taken = actions, .targets = targets, .weights = weights};
    double loss = distribution_gradients(&ATOMS, logits, &batch, errors, gradients);
    double cross = -0.5 * log(2 / 15.0) - 0.5 * log(3 / 15.0), entropy = 0;
    for (int32_t i = 1; i <= COUNT; i++) entropy -= i / 15.0 * log(i / 15.0);
    assert_true(fabs(loss - (cross + 0.5 * entropy) / 2) < 1e-6);
    assert_true(fabs((double)errors[0] - (cross - log(2))) < 1e-6);
    assert_true(errors[1] >= 0 && (double)errors[1] < 1e-6);
    const double expected[BATCH * ACTIONS * COUNT] = {
        [5] = 1 / 30.0, (2 / 15.0 - 0.5) / 2, (3 / 15.0 - 0.5) / 2, 4 / 30.0, 5 / 30.0};
    check(gradients, expected, BATCH * ACTIONS * COUNT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mass_goes_to_both_neighbours_by_nearness),
        cmocka_unit_test(mass_exactly_on_an_atom_stays_whole),
        cmocka_unit_test(mass_beyond_an_end_stays_at_the_end),
        cmocka_unit_test(a_termination_is_the_reward_alone),
        cmocka_unit_test(a_projection_keeps_mass_and_mean),
        cmocka_unit_test(means_of_logits_by_hand),
        cmocka_unit_test(targets_choose_online_and_are_the_target_networks),
        cmocka_unit_test(the_loss_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
