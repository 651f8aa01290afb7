/* Dimension classes of the small models. tests/cases/classes/ has small modules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ir/canonical/canonical.h"
#include "propagation/groups/groups.h"
#include "propagation/plan/plan.h"
#include "tests/support/model_case.h"

static int32_t find_parameter(const PlanContext *context, const char *path) {
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        if (strcmp(context->roles->parameters[p].path, path) == 0) return p;
    }
    fail_msg("no parameter %s", path);
    return -1;
}

static int32_t class_of(const PlanContext *context, const char *path, int32_t dimension) {
    int32_t parameter = find_parameter(context, path);
    return classes_of(context->classes, context->rules, context->roles->parameters[parameter].instruction,
                      dimension);
}

/* Returns whether these weight dimensions are a class, and all the weights of it. */
static void assert_class(const PlanContext *context, const char *prefix, const char *const *paths,
                         const int32_t *dimensions, int32_t count) {
    char path[256];
    int32_t expected = -1;
    for (int32_t k = 0; k < count; k++) {
        snprintf(path, sizeof path, "%s%s", prefix, paths[k]);
        int32_t found = class_of(context, path, dimensions[k]);
        if (k == 0) expected = found;
        if (found < 0 || found != expected)
            fail_msg("%s dimension %d is in class %d, not %d", path, dimensions[k], found, expected);
    }
    assert_int_equal(context->classes->classes[expected].weight_count, count);
}

static const char *const attention[] = {"['attention']['query']['kernel']", "['attention']['key']['kernel']",
                                        "['attention']['value']['kernel']",
                                        "['attention']['output']['kernel']"};
static const char *const cross[] = {
    "['cross_attention']['query']['kernel']", "['cross_attention']['key']['kernel']",
    "['cross_attention']['value']['kernel']", "['cross_attention']['output']['kernel']"};
static const int32_t attention_dimensions[] = {1, 1, 1, 0};
static const char *const mlp[] = {"['mlp_in']['kernel']", "['mlp_in']['bias']", "['mlp_out']['kernel']"};
static const int32_t mlp_dimensions[] = {1, 0, 0};

static void test_t5(void **state) {
    (void)state;
    PlanContext *context = read_model("t5_tiny");
    for (int32_t layer = 0; layer < 2; layer++) {
        char encoder[64], decoder[64];
        snprintf(encoder, sizeof encoder, "state['params']['encoder'][%d]", layer);
        snprintf(decoder, sizeof decoder, "state['params']['decoder'][%d]", layer);
        assert_class(context, encoder, attention, attention_dimensions, 4);
        assert_class(context, encoder, mlp, mlp_dimensions, 3);
        assert_class(context, decoder, attention, attention_dimensions, 4);
        assert_class(context, decoder, cross, attention_dimensions, 4);
        assert_class(context, decoder, mlp, mlp_dimensions, 3);
    }
    /* A fused dimension can be split between heads, not inside them. */
    int32_t heads = class_of(context, "state['params']['encoder'][0]['attention']['query']['kernel']", 1);
    assert_int_equal(context->classes->classes[heads].size, 8);
    int32_t batch = class_of(context, "inputs", 0);
    assert_int_equal(context->classes->classes[batch].data_count, 3);
    assert_int_equal(context->classes->classes[batch].weight_count, 0);
    assert_int_not_equal(class_of(context, "inputs", 1), class_of(context, "targets", 1));
    plan_context_free(context);
}

static void test_bert_with_fused_bias(void **state) {
    (void)state;
    PlanContext *context = read_model("gpt2_tiny");
    static const char *const paths[] = {
        "['attention']['query']['kernel']", "['attention']['key']['kernel']",
        "['attention']['value']['kernel']", "['attention']['output']['kernel']",
        "['attention']['query']['bias']",   "['attention']['value']['bias']"};
    static const int32_t dimensions[] = {1, 1, 1, 0, 0, 0};
    const char *prefix = "state['params']['layers'][1]";
    int32_t heads = class_of(context, "state['params']['layers'][1]['attention']['query']['kernel']", 1);
    assert_int_equal(context->classes->classes[heads].weight_count, 6);
    char path[256];
    for (int32_t k = 0; k < 4; k++) {
        snprintf(path, sizeof path, "%s%s", prefix, paths[k]);
        assert_int_equal(class_of(context, path, dimensions[k]), heads);
    }
    assert_class(context, prefix, mlp, mlp_dimensions, 3);
    plan_context_free(context);
}

/* Repeated layers are tied, and unique ones are not. */
static void check_ties(const char *model, int32_t layers, int32_t expected) {
    PlanContext *context = read_model(model);
    int32_t with_weights = 0, heads_tie = -1, cross_tie = -1, encoder_tie = -1;
    bool *seen = calloc((size_t)context->classes->tie_count, sizeof *seen);
    for (int32_t c = 0; c < context->classes->count; c++) {
        const DimensionClass *entry = &context->classes->classes[c];
        with_weights += entry->weight_count > 0 && !seen[entry->tie];
        seen[entry->tie] = true;
    }
    free(seen);
    assert_int_equal(with_weights, expected);
    for (int32_t layer = 0; layer < layers; layer++) {
        char path[256];
        snprintf(path, sizeof path, "state['params']['decoder'][%d]['attention']['query']['kernel']", layer);
        int32_t tie = context->classes->classes[class_of(context, path, 1)].tie;
        if (layer == 0) heads_tie = tie;
        assert_int_equal(tie, heads_tie);
        snprintf(path, sizeof path, "state['params']['decoder'][%d]['cross_attention']['query']['kernel']",
                 layer);
        tie = context->classes->classes[class_of(context, path, 1)].tie;
        if (layer == 0) cross_tie = tie;
        assert_int_equal(tie, cross_tie);
        snprintf(path, sizeof path, "state['params']['encoder'][%d]['attention']['query']['kernel']", layer);
        tie = context->classes->classes[class_of(context, path, 1)].tie;
        if (layer == 0) encoder_tie = tie;
        assert_int_equal(tie, encoder_tie);
    }
    assert_int_not_equal(heads_tie, cross_tie);
    assert_int_not_equal(encoder_tie, cross_tie);
    assert_int_not_equal(heads_tie, encoder_tie);
    plan_context_free(context);
}

static void test_ties(void **state) {
    (void)state;
    check_ties("t5_paper_6", 6, 10);
    /* Encoder and decoder of equal lengths: only their neighbourhoods differ. */
    check_ties("t5_paper_24_3b", 24, 10);
}

static void test_names_are_found(void **state) {
    (void)state;
    PlanContext *context = read_model("t5_tiny");
    const Classes *classes = context->classes;
    for (int32_t c = 0; c < classes->count; c++) {
        const DimensionClass *entry = &classes->classes[c];
        assert_int_equal(classes_find(classes, entry->named_by_parameter, entry->number, entry->dimension),
                         c);
        int32_t instruction =
            entry->named_by_parameter ? context->roles->parameters[entry->number].instruction : entry->number;
        assert_int_equal(classes_of(classes, context->rules, instruction, entry->dimension), c);
        assert_true(entry->size > 1);
    }
    assert_int_equal(classes_find(classes, true, 0, 3), -1);
    plan_context_free(context);
}

/* No tensor has two dimensions in one class, and factors of one class agree with their tensors. */
static void test_one_dimension_per_class(void **state) {
    (void)state;
    static const char *const models[] = {"t5_tiny", "gpt2_tiny", "bert_tiny", "vgg_tiny"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        PlanContext *context = read_model(models[m]);
        for (int32_t i = 0; i < context->rules->count; i++) {
            const IrShape *shape = &context->canonical->instructions[i].shape;
            if (shape->type == DTYPE_TUPLE) continue;
            for (int32_t d = 0; d < shape->rank; d++) {
                int32_t found = classes_of(context->classes, context->rules, i, d);
                for (int32_t other = 0; found >= 0 && other < d; other++)
                    assert_int_not_equal(classes_of(context->classes, context->rules, i, other), found);
            }
        }
        plan_context_free(context);
    }
}

/* Groups of classes: classes that share a weight exclude one another. */
static void test_groups(void **state) {
    (void)state;
    PlanContext *context = read_model("mlp_tiny");
    Arena arena = {0};
    AmError error = {0};
    LinkageGroups *groups;
    assert_int_equal(groups_of_classes(&groups, &arena, context, 2, &error), AM_OK);
    int32_t members = 0;
    for (int32_t g = 0; g < groups->group_count; g++) {
        members += groups->groups[g].member_count;
        for (int32_t e = 0; e < groups->groups[g].exclude_count; e++) {
            const LinkageGroup *other = &groups->groups[groups->groups[g].excludes[e]];
            bool is_mutual = false;
            for (int32_t k = 0; k < other->exclude_count; k++) is_mutual |= other->excludes[k] == g;
            assert_true(is_mutual);
        }
    }
    assert_int_equal(members + groups->rejected_count, groups->dimension_count);
    json_t *root;
    assert_int_equal(groups_to_json(&root, groups, context, NULL, &error), AM_OK);
    assert_string_equal(json_string_value(json_object_get(root, "mode")), "classes");
    assert_int_equal(json_array_size(json_object_get(root, "groups")), groups->group_count);
    json_decref(root);
    assert_int_equal(groups_of_classes(&groups, &arena, context, 1, &error), AM_ERROR_USAGE);
    arena_free(&arena);
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_t5),
        cmocka_unit_test(test_bert_with_fused_bias),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_names_are_found),
        cmocka_unit_test(test_one_dimension_per_class),
        cmocka_unit_test(test_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
