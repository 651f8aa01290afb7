/* Computed permutations: every place once, all orders alike often, another one for every seed and epoch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/permutation.h"

static void every_place_once(void **state) {
    (void)state;
    static char seen[1000];
    for (int64_t count = 1; count <= 1000; count++) {
        Permutation permutation;
        permutation_begin(&permutation, count, (uint64_t)count * 7, 3);
        memset(seen, 0, sizeof seen);
        for (int64_t k = 0; k < count; k++) {
            int64_t place = permutation_at(&permutation, k);
            assert_true(place >= 0 && place < count);
            assert_false(seen[place]);
            seen[place] = 1;
        }
    }
}

static void the_same_key_gives_the_same_order(void **state) {
    (void)state;
    Permutation first, again, other_seed, other_epoch;
    permutation_begin(&first, 1000, 5, 2);
    permutation_begin(&again, 1000, 5, 2);
    permutation_begin(&other_seed, 1000, 6, 2);
    permutation_begin(&other_epoch, 1000, 5, 3);
    int32_t by_seed = 0, by_epoch = 0;
    for (int64_t k = 0; k < 1000; k++) {
        int64_t place = permutation_at(&first, k);
        assert_true(place == permutation_at(&again, k));
        by_seed += place == permutation_at(&other_seed, k);
        by_epoch += place == permutation_at(&other_epoch, k);
    }
    assert_true(by_seed < 10 && by_epoch < 10); /* one is expected at random */
}

/* The number of an order among all of them (Lehmer's code). */
static int32_t order_number(const Permutation *permutation) {
    int32_t number = 0;
    for (int64_t k = 0; k < permutation->count; k++) {
        int32_t smaller = 0;
        for (int64_t j = k + 1; j < permutation->count; j++)
            smaller += permutation_at(permutation, j) < permutation_at(permutation, k);
        number = number * (int32_t)(permutation->count - k) + smaller;
    }
    return number;
}

/* Chi-squared of how often each of the count! orders comes: its mean is the degrees of freedom d, its
 * deviation sqrt(2 d); five deviations are beyond chance, and the seeds are fixed. */
static void all_orders_come_alike_often(void **state) {
    (void)state;
    static const int32_t factorial[] = {1, 1, 2, 6, 24, 120};
    for (int64_t count = 2; count <= 5; count++) {
        int32_t orders = factorial[count], seen[120] = {0}, trials = 60 * orders;
        for (int32_t epoch = 0; epoch < trials; epoch++) {
            Permutation permutation;
            permutation_begin(&permutation, count, 11, (uint64_t)epoch);
            seen[order_number(&permutation)]++;
        }
        double chi_squared = 0, freedom = orders - 1;
        for (int32_t k = 0; k < orders; k++) chi_squared += (seen[k] - 60.0) * (seen[k] - 60.0) / 60.0;
        if (chi_squared > freedom + 5 * sqrt(2 * freedom))
            fail_msg("%d places: chi-squared %g of %g", (int)count, chi_squared, freedom);
    }
}

/* The image of one place, and its distance from the image of its neighbour, in a count that is no
 * power of two. */
static void places_and_distances_are_uniform(void **state) {
    (void)state;
    enum { COUNT = 37, TRIALS = 37 * 60 };
    int32_t places[COUNT] = {0}, distances[COUNT] = {0};
    for (int32_t epoch = 0; epoch < TRIALS; epoch++) {
        Permutation permutation;
        permutation_begin(&permutation, COUNT, 23, (uint64_t)epoch);
        int64_t first = permutation_at(&permutation, 17), next = permutation_at(&permutation, 18);
        places[first]++;
        distances[(next - first + COUNT) % COUNT]++;
    }
    double of_places = 0, of_distances = 0;
    assert_int_equal(distances[0], 0);
    for (int32_t k = 0; k < COUNT; k++) of_places += (places[k] - 60.0) * (places[k] - 60.0) / 60.0;
    for (int32_t k = 1; k < COUNT; k++) {
        double expected = TRIALS / (COUNT - 1.0);
        of_distances += (distances[k] - expected) * (distances[k] - expected) / expected;
    }
    assert_true(of_places < 36 + 5 * sqrt(72.0));
    assert_true(of_distances < 35 + 5 * sqrt(70.0));
}

static void large_counts(void **state) {
    (void)state;
    Permutation permutation;
    permutation_begin(&permutation, INT64_MAX, 1, 0);
    assert_int_equal(permutation.rounds, PERMUTATION_MAX_ROUNDS);
    for (int64_t k = 0; k < 100; k++) {
        int64_t place = permutation_at(&permutation, k);
        assert_true(place >= 0 && place < INT64_MAX);
        for (int64_t j = 0; j < k; j++) assert_true(permutation_at(&permutation, j) != place);
    }
    permutation_begin(&permutation, 0, 1, 0);
    permutation_begin(&permutation, 1, 1, 0);
    assert_true(permutation_at(&permutation, 0) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_place_once),
        cmocka_unit_test(the_same_key_gives_the_same_order),
        cmocka_unit_test(all_orders_come_alike_often),
        cmocka_unit_test(places_and_distances_are_uniform),
        cmocka_unit_test(large_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
