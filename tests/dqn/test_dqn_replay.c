/* Prioritized replay and its sum tree: frequencies by chi-squared, importance
 * weights and priorities by hand, rounding at the ends of the mass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "base/random.h"
#include "dqn/replay.h"

static void inner_nodes_are_sums_of_their_children(void **state) {
    (void)state;
    Arena arena = {0};
    SumTree tree, fresh;
    assert_int_equal(sum_tree_create(&tree, &arena, 11, NULL), AM_OK);
    assert_int_equal(sum_tree_create(&fresh, &arena, 11, NULL), AM_OK);
    Random random;
    random_seed(&random, 1);
    for (int32_t i = 0; i < 20000; i++)
        sum_tree_set(&tree, (int32_t)random_below(&random, 11), exp(20 * random_normal(&random)));
    for (int32_t i = 0; i < 11; i++) sum_tree_set(&tree, i, 0.1 * (i + 1));
    for (int32_t i = 10; i >= 0; i--) sum_tree_set(&fresh, i, 0.1 * (i + 1));
    for (int32_t node = 1; node < tree.width; node++) {
        assert_true(tree.nodes[node] == tree.nodes[2 * node] + tree.nodes[2 * node + 1]);
        assert_true(tree.nodes[node] == fresh.nodes[node]);
    }
    assert_true(fabs(sum_tree_total(&tree) - 6.6) < 1e-12);
    arena_free(&arena);
}

static void a_leaf_without_mass_is_never_found(void **state) {
    (void)state;
    Arena arena = {0};
    SumTree tree;
    assert_int_equal(sum_tree_create(&tree, &arena, 6, NULL), AM_OK);
    assert_int_equal(sum_tree_find(&tree, 0), -1);
    sum_tree_set(&tree, 1, 0.3);
    sum_tree_set(&tree, 2, 0.7);
    const double positions[] = {-1e-9, 0, 0.29, 0.31, 0.999, 1, 1.0000001, 5, INFINITY};
    const int32_t expected[] = {1, 1, 1, 2, 2, 2, 2, 2, 2};
    for (size_t i = 0; i < sizeof(positions) / sizeof(*positions); i++)
        assert_int_equal(sum_tree_find(&tree, positions[i]), expected[i]);
    arena_free(&arena);
}

static void sizes_out_of_range_are_refused(void **state) {
    (void)state;
    Arena arena = {0};
    SumTree tree;
    AmError error = {0};
    assert_int_equal(sum_tree_create(&tree, &arena, 0, &error), AM_ERROR_USAGE);
    arena_free(&arena);
}

/* A replay of `count` transitions numbered by their observation and reward. */
static void make_replay(Replay *replay, Arena *arena, int32_t capacity, int32_t count, double alpha,
                        double beta) {
    assert_int_equal(replay_create(replay, arena, 1, 3, capacity, (ReplayPriorities){alpha, beta, 0.5}, NULL),
                     AM_OK);
    for (int32_t i = 0; i < count; i++) {
        const float here = (float)i, there = here + 0.5f;
        const uint8_t mask[3] = {1, (uint8_t)(i % 2), 0};
        replay_add(replay, &(Transition){&here, &there, mask, i % 3, i, 0.9});
    }
}

/* Ten priorities 1 .. 10, alpha 0.7: counts against N p^alpha / sum. Chi-squared
 * with 9 degrees of freedom is above 27.9 once in 1000 seeds; stratified draws
 * lie below the multinomial's spread. */
static void draws_follow_the_priorities(void **state) {
    (void)state;
    enum { ENTRIES = 10, BATCH = 7, ROUNDS = 10000 };
    Arena arena = {0};
    Replay replay;
    make_replay(&replay, &arena, 13, ENTRIES, 0.7, 0.6);
    double mass[ENTRIES], total = 0;
    for (int32_t i = 0; i < ENTRIES; i++) {
        const float priority = (float)(i + 1) - 0.5f;
        replay_update(&replay, &i, &priority, 1);
        mass[i] = pow(i + 1, 0.7);
        total += mass[i];
    }
    int64_t counts[ENTRIES] = {0};
    for (int32_t round = 0; round < ROUNDS; round++) {
        int32_t indices[BATCH];
        float weights[BATCH];
        replay_sample(&replay, 3, round, BATCH, indices, weights);
        for (int32_t k = 0; k < BATCH; k++) {
            assert_in_range(indices[k], 0, ENTRIES - 1);
            counts[indices[k]]++;
        }
    }
    double chi_squared = 0;
    for (int32_t i = 0; i < ENTRIES; i++) {
        double expected = (double)BATCH * ROUNDS * mass[i] / total;
        chi_squared += (double)(counts[i] - expected) * (counts[i] - expected) / expected;
    }
    assert_true(chi_squared < 27.9);
    arena_free(&arena);
}

/* N = 3 in a capacity of 5; leaves 1, 2, 5 of 8 with alpha 1; beta 0.5:
 * (N P)^-beta over the largest drawn. */
static void importance_weights_by_hand(void **state) {
    (void)state;
    enum { BATCH = 8 };
    Arena arena = {0};
    Replay replay;
    make_replay(&replay, &arena, 5, 3, 1, 0.5);
    const int32_t all[3] = {0, 1, 2};
    const float errors[3] = {0.5f, -1.5f, 4.5f};
    replay_update(&replay, all, errors, 3);
    int32_t indices[BATCH];
    float weights[BATCH];
    replay_sample(&replay, 5, 0, BATCH, indices, weights);
    /* Each eighth of the mass belongs to one leaf. */
    const int32_t expected[BATCH] = {0, 1, 1, 2, 2, 2, 2, 2};
    const double by_leaf[3] = {pow(3 * 1 / 8.0, -0.5), pow(3 * 2 / 8.0, -0.5), pow(3 * 5 / 8.0, -0.5)};
    for (int32_t k = 0; k < BATCH; k++) {
        assert_int_equal(indices[k], expected[k]);
        assert_true(fabs(weights[k] - by_leaf[expected[k]] / by_leaf[0]) < 1e-6);
    }
    /* A batch of one is its own maximum. */
    replay_sample(&replay, 5, 1, 1, indices, weights);
    assert_true(weights[0] == 1);
    arena_free(&arena);
}

/* A batch depends on the seed, the number of the update and the masses alone. */
static void draws_are_counted_and_not_generated(void **state) {
    (void)state;
    enum { BATCH = 32 };
    Arena arena = {0};
    Replay replay;
    make_replay(&replay, &arena, 500, 500, 0.7, 0.6);
    int32_t first[BATCH], again[BATCH], later[BATCH], other[BATCH];
    float weights[BATCH];
    replay_sample(&replay, 5, 10, BATCH, first, weights);
    replay_sample(&replay, 5, 11, BATCH, later, weights);
    replay_sample(&replay, 6, 10, BATCH, other, weights);
    replay_sample(&replay, 5, 10, BATCH, again, weights);
    assert_memory_equal(first, again, sizeof(first));
    assert_memory_not_equal(first, later, sizeof(first));
    assert_memory_not_equal(first, other, sizeof(first));
    arena_free(&arena);
}

/* The largest priority stays raw: raised to alpha once, not once per insert. */
static void inserts_take_the_raw_maximum_raised_once(void **state) {
    (void)state;
    Arena arena = {0};
    Replay replay;
    make_replay(&replay, &arena, 8, 1, 0.5, 0.6);
    assert_true(sum_tree_get(&replay.tree, 0) == 1);
    const int32_t zero = 0;
    const float error = -15.5f, small = 0.5f;
    replay_update(&replay, &zero, &error, 1);
    assert_true(replay.max_priority == 16);
    assert_true(sum_tree_get(&replay.tree, 0) == 4);
    replay_update(&replay, &zero, &small, 1);
    assert_true(sum_tree_get(&replay.tree, 0) == 1);
    for (int32_t i = 1; i < 4; i++) {
        const float here = 0;
        replay_add(&replay, &(Transition){&here, &here, NULL, 0, 0, 1});
        assert_true(sum_tree_get(&replay.tree, i) == 4);
    }
    arena_free(&arena);
}

static void duplicates_and_bad_errors_keep_the_tree_sound(void **state) {
    (void)state;
    Arena arena = {0};
    Replay replay;
    make_replay(&replay, &arena, 4, 4, 1, 0.6);
    const int32_t indices[4] = {2, 2, 1, 2};
    const float errors[4] = {7.5f, 1.5f, NAN, 3.5f};
    replay_update(&replay, indices, errors, 4);
    assert_true(sum_tree_get(&replay.tree, 2) == 4);
    assert_true(sum_tree_get(&replay.tree, 1) == 8);
    assert_true(sum_tree_total(&replay.tree) == 1 + 8 + 4 + 1);
    arena_free(&arena);
}

static void the_oldest_is_overwritten(void **state) {
    (void)state;
    Arena arena = {0};
    Replay replay;
    make_replay(&replay, &arena, 3, 5, 1, 0.6);
    assert_int_equal(replay.count, 3);
    assert_int_equal(replay.next, 2);
    const float rewards[3] = {3, 4, 2};
    for (int32_t i = 0; i < 3; i++) {
        assert_true(replay.rewards[i] == rewards[i]);
        assert_true(replay.observations[i] == rewards[i]);
        assert_true(replay.next_observations[i] == rewards[i] + 0.5f);
        assert_int_equal(replay.actions[i], (int32_t)rewards[i] % 3);
        assert_int_equal(replay.next_masks[3 * i + 1], (int32_t)rewards[i] % 2);
        assert_int_equal(replay.next_masks[3 * i + 2], 0);
    }
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inner_nodes_are_sums_of_their_children),
        cmocka_unit_test(a_leaf_without_mass_is_never_found),
        cmocka_unit_test(sizes_out_of_range_are_refused),
        cmocka_unit_test(draws_follow_the_priorities),
        cmocka_unit_test(importance_weights_by_hand),
        cmocka_unit_test(draws_are_counted_and_not_generated),
        cmocka_unit_test(inserts_take_the_raw_maximum_raised_once),
        cmocka_unit_test(duplicates_and_bad_errors_keep_the_tree_sound),
        cmocka_unit_test(the_oldest_is_overwritten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
