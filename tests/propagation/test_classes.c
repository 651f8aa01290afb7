/* Dimension classes: those of a hand-made block, and those of the small models. */
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

#define MODELS SOURCE_DIR "/datasets/models/"

static PlanContext *read_model(const char *name) {
    PlanContext *context;
    AmError error = {0};
    char path[512];
    snprintf(path, sizeof path, MODELS "%s", name);
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    return context;
}

/* A module from text, without a roles file. */
static PlanContext *read_text(const char *text) {
    PlanContext *context = calloc(1, sizeof *context);
    AmError error = {0};
    if (ir_read_bytes(&context->module, "test", text, (int64_t)strlen(text), &error) != AM_OK)
        fail_msg("line %d: %s", (int)error.line, error.text);
    assert_int_equal(ir_canonicalize(&context->canonical, context->module, &error), AM_OK);
    assert_int_equal(ir_find_roles(&context->roles, &context->arena, context->canonical, NULL, &error),
                     AM_OK);
    assert_int_equal(rules_build(&context->rules, &context->arena, context->canonical, &error), AM_OK);
    assert_int_equal(
        classes_build(&context->classes, &context->arena, context->rules, context->roles, &error), AM_OK);
    return context;
}

static void free_text(PlanContext *context) {
    ir_module_free(context->canonical);
    ir_module_free(context->module);
    arena_free(&context->arena);
    free(context);
}

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

static int32_t named(const PlanContext *context, const char *name) {
    for (int32_t i = 0; i < context->rules->count; i++) {
        if (strcmp(context->canonical->instructions[i].name, name) == 0) return i;
    }
    fail_msg("no instruction %s", name);
    return -1;
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
    PlanContext *context = read_model("t5_tiny/model.hlo.pb");
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
    PlanContext *context = read_model("gpt2_tiny/model.hlo.pb");
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
    check_ties("t5_paper_6/model.hlo.pb.zst", 6, 10);
    /* Encoder and decoder of equal lengths: only their neighbourhoods differ. */
    check_ties("t5_paper_24_3b/model.hlo.pb.zst", 24, 10);
}

/* Four equal blocks: the third's result is used, the fourth's input is made, by another operator. */
static void test_neighbourhoods(void **state) {
    (void)state;
    static const char *const inputs[] = {"abs", "abs", "abs", "exponential"};
    static const char *const users[] = {"add", "add", "multiply", "add"};
    char text[8192];
    int length = snprintf(text, sizeof text, "HloModule test\nENTRY main {\n  x = f32[4,16] parameter(0)\n");
    for (int32_t k = 0; k < 4; k++)
        length +=
            snprintf(text + length, sizeof text - (size_t)length,
                     "  v%d = f32[16,32] parameter(%d)\n  w%d = f32[32,16] parameter(%d)\n"
                     "  i%d = f32[4,16] %s(x)\n"
                     "  h%d = f32[4,32] dot(i%d, v%d), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                     "  o%d = f32[4,16] dot(h%d, w%d), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                     "  u%d = f32[4,16] %s(o%d, x)\n",
                     k, 2 * k + 1, k, 2 * k + 2, k, inputs[k], k, k, k, k, k, k, k, users[k], k);
    snprintf(text + length, sizeof text - (size_t)length,
             "  ROOT t = (f32[4,16], f32[4,16], f32[4,16], f32[4,16]) tuple(u0, u1, u2, u3)\n}\n");
    PlanContext *context = read_text(text);
    int32_t ties[4];
    for (int32_t k = 0; k < 4; k++) {
        char name[16];
        snprintf(name, sizeof name, "h%d", k);
        ties[k] =
            context->classes->classes[classes_of(context->classes, context->rules, named(context, name), 1)]
                .tie;
    }
    assert_int_equal(ties[0], ties[1]);
    assert_int_not_equal(ties[0], ties[2]);
    assert_int_not_equal(ties[0], ties[3]);
    assert_int_not_equal(ties[2], ties[3]);
    free_text(context);
}

static void test_names_are_found(void **state) {
    (void)state;
    PlanContext *context = read_model("t5_tiny/model.hlo.pb");
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
    static const char *const models[] = {"t5_tiny/model.hlo.pb", "gpt2_tiny/model.hlo.pb",
                                         "bert_tiny/model.hlo.pb", "vgg_tiny/model.hlo.pb"};
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

/* Scores have the query positions in the class of x and the key positions in a strand of their own;
 * one constant that two layers share ties nothing. */
static void test_strands_and_shared_constants(void **state) {
    (void)state;
    PlanContext *context = read_text(
        "HloModule test\n"
        "ENTRY main {\n"
        "  x = f32[4,16,8] parameter(0)\n"
        "  y = f32[4,16,8] parameter(1)\n"
        "  w = f32[8,8] parameter(2)\n"
        "  i = f32[4,16,8] iota(), iota_dimension=1\n"
        "  z = f32[4,16,8] negate(i)\n"
        "  rx = f32[4,16,8] maximum(x, z)\n"
        "  ry = f32[4,16,8] maximum(y, z)\n"
        "  k = f32[4,16,8] dot(rx, w), lhs_contracting_dims={2}, rhs_contracting_dims={0}\n"
        "  s = f32[4,16,16] dot(rx, k), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, "
        "rhs_contracting_dims={2}\n"
        "  o = f32[4,16,8] dot(s, rx), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, "
        "rhs_contracting_dims={1}\n"
        "  ROOT r = (f32[4,16,8], f32[4,16,8]) tuple(o, ry)\n"
        "}\n");
    const Classes *classes = context->classes;
    const Rules *rules = context->rules;
    int32_t x = named(context, "x"), y = named(context, "y"), s = named(context, "s");
    for (int32_t d = 0; d < 3; d++)
        assert_int_not_equal(classes_of(classes, rules, x, d), classes_of(classes, rules, y, d));
    assert_int_equal(classes_of(classes, rules, s, 0), classes_of(classes, rules, x, 0));
    int32_t queries = classes_of(classes, rules, s, 1), keys = classes_of(classes, rules, s, 2);
    assert_int_equal(queries, classes_of(classes, rules, x, 1));
    assert_int_equal(queries, classes_of(classes, rules, named(context, "k"), 1));
    assert_true(keys >= 0);
    assert_int_not_equal(keys, queries);
    /* The cut factors belong to the strand: rhs free of s, contracted of o. */
    assert_int_equal(classes_of_factor(classes, s, 1), queries);
    assert_int_equal(classes_of_factor(classes, s, 2), keys);
    assert_int_equal(classes_of_factor(classes, named(context, "o"), 3), keys);
    free_text(context);
}

/* A parameter and the output that updates it are one tensor, whatever is between them. */
static void test_paired_state(void **state) {
    (void)state;
    PlanContext *context = read_text("HloModule test\n"
                                     "ENTRY main {\n"
                                     "  a = f32[4,16] parameter(0)\n"
                                     "  b = f32[4,16] parameter(1)\n"
                                     "  r = f32[4,16] reverse(b), dimensions={0,1}\n"
                                     "  ROOT t = (f32[4,16]) tuple(r)\n"
                                     "}\n");
    int32_t a = named(context, "a"), r = named(context, "r");
    for (int32_t pairs = 0; pairs < 2; pairs++) {
        AmError error = {0};
        context->roles->parameters[0].output = pairs ? 0 : -1;
        context->roles->parameters[1].output = -1;
        assert_int_equal(
            classes_build(&context->classes, &context->arena, context->rules, context->roles, &error), AM_OK);
        for (int32_t d = 0; d < 2; d++) {
            int32_t updated = classes_of(context->classes, context->rules, r, d);
            int32_t parameter = classes_of(context->classes, context->rules, a, d);
            assert_true(parameter >= 0);
            assert_int_equal(updated == parameter, pairs == 1);
        }
    }
    free_text(context);
}

/* Groups of classes: classes that share a weight exclude one another. */
static void test_groups(void **state) {
    (void)state;
    PlanContext *context = read_model("mlp_tiny/model.hlo.pb");
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
        cmocka_unit_test(test_neighbourhoods),
        cmocka_unit_test(test_names_are_found),
        cmocka_unit_test(test_one_dimension_per_class),
        cmocka_unit_test(test_strands_and_shared_constants),
        cmocka_unit_test(test_paired_state),
        cmocka_unit_test(test_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
