/* Linkage groups: the orders in which they are decided, exclusions from pairs, and sets of
 * groups that go together among many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "propagation/groups/independent_set.h"
#include "propagation/groups/strict.h"
#include "tests/support/model_case.h"

#define MANY 20000

static void test_orders(void **state) {
    (void)state;
    PlanContext *context = read_model("t5_tiny");
    for (int32_t is_strict = 0; is_strict < 2; is_strict++) {
        Arena arena = {0};
        AmError error = {0};
        LinkageGroups *groups;
        assert_int_equal(is_strict ? strict_groups(&groups, &arena, context, 2, STRICT_STATE, &error)
                                   : groups_of_classes(&groups, &arena, context, 2, &error),
                         AM_OK);
        int32_t count = groups->group_count;
        assert_true(count > 3);
        int32_t *order = ARENA_ARRAY(&arena, int32_t, count);
        assert_int_equal(groups_sort(order, groups, context, GROUPS_BY_MEMBER, &error), AM_OK);
        for (int32_t k = 0; k < count; k++) assert_int_equal(order[k], k);
        assert_int_equal(groups_sort(order, groups, context, GROUPS_BY_SIZE, &error), AM_OK);
        for (int32_t k = 1; k < count; k++) {
            const LinkageGroup *before = &groups->groups[order[k - 1]], *group = &groups->groups[order[k]];
            assert_true(before->member_count > group->member_count ||
                        (before->member_count == group->member_count && order[k - 1] < order[k]));
        }
        assert_int_equal(groups_sort(order, groups, context, GROUPS_BY_IMPACT, &error), AM_OK);
        for (int32_t k = 1; k < count; k++) {
            const LinkageGroup *before = &groups->groups[order[k - 1]], *group = &groups->groups[order[k]];
            assert_true(before->flops > group->flops ||
                        (before->flops == group->flops && before->bytes >= group->bytes));
        }
        assert_true(groups->groups[order[0]].flops > 0 && groups->groups[order[0]].bytes > 0);
        arena_free(&arena);
    }
    plan_context_free(context);
}

/* Pairs in any order, twice and reversed, become ascending symmetric lists. */
static void test_pairs(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    LinkageGroup list[5] = {{0}};
    LinkageGroups groups = {.groups = list, .group_count = 5};
    Exclusions exclusions = {0};
    static const int32_t pairs[][2] = {{3, 1}, {0, 4}, {1, 3}, {1, 0}, {4, 1}, {2, 2}};
    for (int32_t g = 0; g < 5; g++) list[g].member_count = 1;
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
        groups_add_exclusion(&exclusions, &arena, pairs[k][0], pairs[k][1]);
    assert_int_equal(groups_exclude(&groups, &arena, &exclusions, &error), AM_OK);
    static const int32_t expected[5][3] = {{1, 4, -1}, {0, 3, 4}, {-1}, {1, -1}, {0, 1, -1}};
    for (int32_t g = 0; g < 5; g++) {
        for (int32_t e = 0; e < list[g].exclude_count; e++)
            assert_int_equal(list[g].excludes[e], expected[g][e]);
        assert_true(list[g].exclude_count == 3 || expected[g][list[g].exclude_count] == -1);
    }
    assert_int_equal(groups.best_count, 3); /* 0 or 4, with 2 and 3 */
    assert_true(groups.best_is_exact);
    arena_free(&arena);
}

/* A long chain in which neighbours exclude one another: too large for a proof, chosen heaviest
 * first; and many pairs, which are proved. */
static void test_many(void **state) {
    (void)state;
    static int32_t first[MANY + 1], others[2 * MANY];
    static int64_t weights[MANY];
    static bool is_chosen[MANY];
    AmError error = {0};
    bool is_exact;
    int32_t edges = 0;
    for (int32_t g = 0; g < MANY; g++) {
        weights[g] = 1 + (g % 2);
        if (g > 0) others[edges++] = g - 1;
        if (g + 1 < MANY) others[edges++] = g + 1;
        first[g + 1] = edges;
    }
    ExclusionGraph graph = {MANY, first, others, weights};
    assert_int_equal(independent_set(is_chosen, &is_exact, &graph, &error), AM_OK);
    assert_false(is_exact);
    for (int32_t g = 0; g < MANY; g++) assert_int_equal(is_chosen[g], g % 2);
    edges = 0;
    for (int32_t g = 0; g < MANY; g++) {
        others[edges++] = g ^ 1;
        weights[g] = g % 2 ? 1 : 1 + g % 3;
        first[g + 1] = edges;
    }
    assert_int_equal(independent_set(is_chosen, &is_exact, &graph, &error), AM_OK);
    assert_true(is_exact);
    for (int32_t g = 0; g < MANY; g += 2) assert_true(is_chosen[g] && !is_chosen[g + 1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_orders), cmocka_unit_test(test_pairs),
                                       cmocka_unit_test(test_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
