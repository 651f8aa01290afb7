/* Budgets: caps, parts, and the contract that a larger cap prices all plans of a smaller one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "planners/problem/budget.h"

enum { MOST = 64 };

/* Prices the numbers of a part in batches of three, up to its limit. */
static void price_part(SearchBudget *part, int32_t first, int32_t *log, int32_t *count) {
    while (part->used < part->limit && !budget_is_over(part)) {
        int64_t taken = budget_take(part, part->limit - part->used < 3 ? part->limit - part->used : 3);
        for (int64_t k = 0; k < taken; k++) log[(*count)++] = first + (int32_t)part->used++;
    }
}

/* Prices a sequence of four parts with a cap (0: none); the second is a nested part of the first. */
static int32_t price_all(int64_t cap, int32_t *log) {
    SearchBudget whole = {0};
    int32_t count = 0;
    budget_set_cap(&whole, cap);
    for (int32_t k = 0; k < 4 && !budget_is_over(&whole); k++) {
        SearchBudget part = budget_part(&whole);
        part.limit = 5 + k;
        price_part(&part, 100 * k, log, &count);
        if (k == 0) {
            SearchBudget nested = budget_part(&part);
            nested.limit = 4;
            price_part(&nested, 50, log, &count);
            budget_return(&part, nested.used, nested.is_cut);
        }
        budget_return(&whole, part.used, part.is_cut);
    }
    assert_int_equal(whole.used, count);
    return count;
}

static void test_larger_caps_price_a_superset(void **state) {
    (void)state;
    int32_t all[MOST], some[MOST], count = price_all(0, all);
    assert_int_equal(count, 5 + 4 + 6 + 7 + 8);
    for (int32_t cap = 1; cap <= count + 1; cap++) {
        int32_t priced = price_all(cap, some);
        assert_int_equal(priced, cap < count ? cap : count);
        assert_memory_equal(some, all, sizeof *all * (size_t)priced);
    }
}

static void test_nothing_follows_a_cut(void **state) {
    (void)state;
    SearchBudget budget = {0};
    budget_set_cap(&budget, 5);
    assert_true(budget_try_take(&budget, 5));
    budget.used = 3;
    assert_false(budget_is_over(&budget));
    assert_false(budget_try_take(&budget, 3));
    assert_true(budget.is_cut && budget_is_over(&budget));
    assert_int_equal(budget_left(&budget), 2);
    assert_int_equal(budget_take(&budget, 1), 0);
}

/* A part of a budget that is used up has a cap of zero, which differs from none. */
static void test_parts_keep_an_empty_cap(void **state) {
    (void)state;
    SearchBudget budget = {.used = 7};
    assert_false(budget_part(&budget).has_cap);
    assert_int_equal(budget_left(&budget), INT64_MAX);
    budget_set_cap(&budget, 6);
    SearchBudget part = budget_part(&budget);
    assert_true(part.has_cap && part.used == 0 && budget_left(&part) == 0);
    assert_true(budget_is_over(&part));
}

static void test_stop_signals_end_budgets(void **state) {
    (void)state;
    volatile sig_atomic_t flag = 0;
    SearchBudget budget = {.stop.interrupted = &flag};
    assert_false(budget_is_over(&budget));
    stop_flag_set(&flag);
    assert_true(budget_is_over(&budget));
    SearchBudget part = budget_part(&budget);
    assert_true(budget_is_over(&part));
    budget = (SearchBudget){.stop.deadline = 1e-9};
    assert_true(budget_is_over(&budget));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_larger_caps_price_a_superset), cmocka_unit_test(test_nothing_follows_a_cut),
        cmocka_unit_test(test_parts_keep_an_empty_cap), cmocka_unit_test(test_stop_signals_end_budgets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
