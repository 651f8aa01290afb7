/* Random numbers: fixed values, ranges, moments, and order-free counters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "base/random.h"

static void known_first_values(void **state) {
    (void)state;
    Random random;
    random_seed(&random, 0);
    /* splitmix64 from 0 starts with e220a8397b1dcdaf, 6e789e6aa1b965f4, ... */
    assert_true(random.state[0] == 0xE220A8397B1DCDAFu);
    assert_true(random.state[1] == 0x6E789E6AA1B965F4u);
    random = (Random){{1, 2, 3, 4}}; /* xoshiro256++ from its authors' reference */
    assert_true(random_bits(&random) == 41943041u);
    assert_true(random_bits(&random) == 58720359u);
}

static void normal_has_the_right_moments_and_tails(void **state) {
    (void)state;
    enum { COUNT = 400000 };
    Random random;
    random_seed(&random, 3);
    double sum[5] = {0};
    int beyond_two = 0, below_first_quartile = 0;
    for (int i = 0; i < COUNT; i++) {
        double value = random_normal(&random), power = 1;
        assert_true(fabs(value) < 9);
        for (int k = 0; k < 5; k++, power *= value) sum[k] += power;
        beyond_two += fabs(value) > 2;
        below_first_quartile += value < -0.67448975019608174;
    }
    assert_true(fabs(sum[1] / COUNT) < 0.01);
    assert_true(fabs(sum[2] / COUNT - 1) < 0.01);
    assert_true(fabs(sum[3] / COUNT) < 0.03);
    assert_true(fabs(sum[4] / COUNT - 3) < 0.06);
    assert_true(fabs(beyond_two / (double)COUNT - 0.04550026) < 0.001);
    assert_true(fabs(below_first_quartile / (double)COUNT - 0.25) < 0.003);
}

/* The distribution function of a normal value is the uniform value it came from. */
static void normal_inverts_the_distribution_function(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        double uniform = random_uniform_at(5, 6, i), normal = random_normal_at(5, 6, i);
        assert_true(fabs(0.5 * erfc(-normal / sqrt(2)) - uniform) < 4e-16 + 1e-15 * uniform);
    }
}

static void below_is_uniform_and_bounded(void **state) {
    (void)state;
    Random random;
    random_seed(&random, 9);
    int counts[7] = {0};
    for (int i = 0; i < 70000; i++) {
        int64_t value = random_below(&random, 7);
        assert_true(value >= 0 && value < 7);
        counts[value]++;
    }
    for (int i = 0; i < 7; i++) assert_true(counts[i] > 9600 && counts[i] < 10400);
    assert_int_equal(random_below(&random, 1), 0);
    for (int i = 0; i < 1000; i++) assert_true(random_below(&random, INT64_MAX) >= 0);
}

static void counters_do_not_depend_on_order(void **state) {
    (void)state;
    double forward[100];
    for (uint64_t i = 0; i < 100; i++) forward[i] = random_uniform_at(1, 2, i);
    for (uint64_t i = 100; i-- > 0;) assert_true(forward[i] == random_uniform_at(1, 2, i));
    assert_true(random_at(1, 2, 3) != random_at(1, 3, 2));
    assert_true(random_at(1, 2, 3) != random_at(2, 1, 3));
    double sum = 0;
    for (uint64_t i = 0; i < 100000; i++) sum += random_uniform_at(1, 2, i);
    assert_true(fabs(sum / 100000 - 0.5) < 0.005);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_first_values),
        cmocka_unit_test(normal_has_the_right_moments_and_tails),
        cmocka_unit_test(normal_inverts_the_distribution_function),
        cmocka_unit_test(below_is_uniform_and_bounded),
        cmocka_unit_test(counters_do_not_depend_on_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
