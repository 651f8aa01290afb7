/* The lower bound of every key in sorted numbers with repetitions, against a linear search. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/compare.h"
#include "base/lower_bound.h"

static void equals_a_linear_search(void **state) {
    (void)state;
    static const int32_t numbers[] = {1, 3, 3, 3, 7, 8, 8};
    for (int32_t count = 0; count <= 7; count++)
        for (int32_t key = 0; key < 10; key++) {
            int32_t first = 0;
            while (first < count && numbers[first] < key) first++;
            assert_int_equal(lower_bound(&key, numbers, count, sizeof *numbers, compare_integers), first);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_a_linear_search)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
