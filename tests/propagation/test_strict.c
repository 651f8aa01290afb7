/* Strict mode: the published counts, and the rules after them one by one. */
#include "tests/support/model_case.h"

#include <stdint.h>
#include <string.h>

#include "lowering/micro_batch/micro_batches.h"
#include "propagation/groups/strict.h"
#include "propagation/propagate/propagate.h"

static const char *path_of(const PlanContext *context, LinkageMember member) {
    return context->roles->parameters[member.parameter].path;
}

/* Auto-MAP's table 5 and the T5 figures: dimensions, groups, most that go together. */
static void test_published_counts(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int32_t dimensions, groups, partitioned;
    } cases[] = {{"t5_paper_6", 286, 33, 111},
                 {"t5_paper_24_3b", 1116, 120, 432},
                 {"t5_paper_24_11b", 1114, 120, 432},
                 {"vgg19", 89, 3, 5}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        PlanContext *context = read_model(cases[k].model);
        Arena arena = {0};
        AmError error = {0};
        LinkageGroups *groups;
        assert_int_equal(strict_groups(&groups, &arena, context, 8, STRICT_STATE, &error), AM_OK);
        assert_int_equal(groups->dimension_count, cases[k].dimensions);
        assert_int_equal(groups->group_count, cases[k].groups);
        assert_int_equal(groups->best_partitioned, cases[k].partitioned);
        assert_true(groups->best_is_exact);
        arena_free(&arena);
        plan_context_free(context);
    }
}

/* Valid axis sizes: an attention's width can be split between heads. */
static void test_axis_sizes(void **state) {
    (void)state;
    PlanContext *context = read_model("t5_paper_6");
    static const int32_t sizes[] = {2, 4, 16, 24, 32}, partitioned[] = {111, 111, 39, 0, 39};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        Arena arena = {0};
        AmError error = {0};
        LinkageGroups *groups;
        assert_int_equal(strict_groups(&groups, &arena, context, sizes[k], STRICT_STATE, &error), AM_OK);
        assert_int_equal(groups->best_partitioned, partitioned[k]);
        arena_free(&arena);
    }
    plan_context_free(context);
}

static bool has_member(const PlanContext *context, const LinkageGroup *group, const char *part,
                       int32_t dimension) {
    for (int32_t k = 0; k < group->member_count; k++) {
        if (group->members[k].dimension == dimension && strstr(path_of(context, group->members[k]), part))
            return true;
    }
    return false;
}

static void test_vgg_groups(void **state) {
    (void)state;
    PlanContext *context = read_model("vgg19");
    Arena arena = {0};
    AmError error = {0};
    LinkageGroups *groups;
    assert_int_equal(strict_groups(&groups, &arena, context, 8, STRICT_STATE, &error), AM_OK);
    int32_t exclusions = 0, middle = -1;
    for (int32_t g = 0; g < groups->group_count; g++) {
        exclusions += groups->groups[g].exclude_count;
        if (groups->groups[g].exclude_count == 2) middle = g;
    }
    assert_int_equal(exclusions, 4); /* two pairs, seen from both sides */
    assert_true(middle >= 0);
    const LinkageGroup *rival = &groups->groups[middle];
    assert_int_equal(rival->member_count, 3);
    assert_true(has_member(context, rival, "['fc2']['kernel']", 1));
    assert_true(has_member(context, rival, "['fc2']['bias']", 0));
    assert_true(has_member(context, rival, "['predictions']['kernel']", 0));
    for (int32_t k = 0; k < groups->best_count; k++) assert_int_not_equal(groups->best[k], middle);
    /* Every dimension is in a group or rejected with a reason. */
    int32_t members = 0;
    for (int32_t g = 0; g < groups->group_count; g++) members += groups->groups[g].member_count;
    assert_int_equal(members + groups->rejected_count, groups->dimension_count);
    for (int32_t k = 0; k < groups->rejected_count; k++) assert_non_null(groups->rejected[k].reason);
    json_t *root;
    assert_int_equal(groups_to_json(&root, groups, context, NULL, &error), AM_OK);
    json_t *best = json_object_get(root, "best");
    assert_int_equal(json_integer_value(json_object_get(best, "partitioned")), 5);
    assert_int_equal(json_array_size(json_object_get(best, "groups")), 2);
    json_decref(root);
    Text text = {0};
    groups_print(&text, groups, context, NULL);
    assert_non_null(strstr(text.data, "5 dimensions in 2 groups"));
    text_free(&text);
    arena_free(&arena);
    plan_context_free(context);
}

/* The same rules with the data free give auto data parallelism: the batch of every input. */
static void test_data_parallelism(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int32_t inputs;
    } cases[] = {{"t5_paper_6", 3}, {"vgg19", 2}, {"bert48", 2}, {"gpt2", 2}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        PlanContext *context = read_model(cases[k].model);
        Arena arena = {0};
        AmError error = {0};
        LinkageGroups *groups;
        assert_int_equal(strict_groups(&groups, &arena, context, 4, STRICT_DATA, &error), AM_OK);
        assert_int_equal(groups->best_partitioned, cases[k].inputs);
        for (int32_t m = 0; m < groups->groups[groups->best[0]].member_count; m++)
            assert_int_equal(groups->groups[groups->best[0]].members[m].dimension, 0);
        arena_free(&arena);
        plan_context_free(context);
    }
}

/* Decisions add up, contradict one another, and are taken back. */
static void test_decisions(void **state) {
    (void)state;
    PlanContext *context = read_model("vgg_tiny");
    Arena arena = {0};
    AmError error = {0};
    StrictProblem *problem;
    assert_int_equal(strict_build(&problem, &arena, context, 2, STRICT_STATE, &error), AM_OK);
    int32_t fc1 = -1, fc2 = -1, bias = -1;
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const char *path = context->roles->parameters[p].path;
        if (strcmp(path, "state['params']['fc1']['kernel']") == 0) fc1 = p;
        if (strcmp(path, "state['params']['fc2']['kernel']") == 0) fc2 = p;
        if (strcmp(path, "state['params']['fc1']['bias']") == 0) bias = p;
    }
    assert_true(fc1 >= 0 && fc2 >= 0 && bias >= 0);
    assert_true(strict_may_split(problem, fc2, 1));
    assert_int_equal(strict_partition(problem, fc1, 1), -1);
    assert_true(strict_must_split(problem, fc2, 0));
    assert_true(strict_must_split(problem, bias, 0));
    assert_false(strict_may_split(problem, fc2, 1));
    assert_true(strict_partition(problem, fc2, 1) >= 0);
    strict_undo(problem);
    assert_true(strict_may_split(problem, fc2, 1));
    assert_false(strict_must_split(problem, fc2, 0));
    assert_int_equal(strict_replicate(problem, fc1, 1), -1);
    assert_false(strict_may_split(problem, bias, 0));
    assert_int_equal(strict_complete(problem), -1);
    assert_int_equal(strict_state(problem, context->roles->parameters[bias].instruction), SBP_B);
    assert_int_equal(strict_build(&problem, &arena, context, 1, STRICT_STATE, &error), AM_ERROR_USAGE);
    arena_free(&arena);
    plan_context_free(context);
}

/* The sum of losses over micro-batches precedes no product, so that a vocabulary is split as in the whole
 * step. */
static void test_micro_batches(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2_tiny", "gpt2_bf16_tiny"};
    for (int32_t k = 0; k < 4; k++) {
        PlanContext *context = read_model(models[k / 2]);
        const MicroBatchSettings settings = {.micro_batches = 4, .separate_backward = k % 2 == 1};
        const PlanContext *split;
        Arena arena = {0};
        AmError error = {0};
        LinkageGroups *whole_groups, *groups;
        bool found = false;
        assert_int_equal(plan_context_for(&split, context, &settings, &error), AM_OK);
        assert_int_equal(strict_groups(&whole_groups, &arena, context, 4, STRICT_STATE, &error), AM_OK);
        assert_int_equal(strict_groups(&groups, &arena, split, 4, STRICT_STATE, &error), AM_OK);
        assert_int_equal(groups->group_count, whole_groups->group_count);
        assert_int_equal(groups->best_partitioned, whole_groups->best_partitioned);
        for (int32_t g = 0; g < groups->group_count; g++)
            found = found || has_member(split, &groups->groups[g], "softmax_table", 0);
        assert_true(found);
        arena_free(&arena);
        plan_context_free(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_counts), cmocka_unit_test(test_axis_sizes),
        cmocka_unit_test(test_vgg_groups),       cmocka_unit_test(test_data_parallelism),
        cmocka_unit_test(test_decisions),        cmocka_unit_test(test_micro_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
