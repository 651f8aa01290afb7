/* Hints on scopes: membership of names, nested scopes, and the requirements for weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "propagation/propagate/scopes.h"
#include "tests/support/model_case.h"

#define MOST_PINS 4

static void test_names(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *path;
        bool is_in;
    } cases[] = {
        {"layer_3/.*", "jit(step)/transpose(jvp(layer_3))/dot_general", true},
        {"layer_3", "jit(step)/jvp(layer_3)/attention/dot_general", true},
        {"layer_3", "jit(step)/jvp(layer_30)/attention/dot_general", false},
        {"layer_*/attention", "jit(step)/jvp(layer_30)/attention/dot_general", true},
        {"layer_*/attention", "jit(step)/jvp(layer_30)/mlp/dot_general", false},
        {"layers/1/.*", "state['params']['layers'][1]['mlp_in']['kernel']", true},
        {"layers/1/.*", "state['params']['layers'][11]['mlp_in']['kernel']", false},
        {"layers/.*/kernel", "state['params']['layers'][11]['mlp_in']['kernel']", true},
        {"layers/.*/kernel", "state['params']['layers'][11]['mlp_in']['bias']", false},
        {"Dense_0", "state.params['Dense_0']['kernel']", true},
        {"jvp", "jit(step)/jvp(layer)/add", false}, /* a transform is not a scope */
        {"step/*/add", "jit(step)/jvp(layer)/add", true},
        {".*", "x", true},
        {"*", "", false},
        {"layer", "layer", true},
        {"", "layer", false},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        if (scopes_match(cases[k].pattern, cases[k].path) != cases[k].is_in)
            fail_msg("%s in %s", cases[k].path, cases[k].pattern);
}

typedef struct Asked {
    PinnedParameter *pinned;
} Asked;

static AmStatus resolve(Asked *asked, Arena *arena, const PlanContext *context, const char *mesh_text,
                        const char *const *texts, AmError *error) {
    Mesh mesh;
    PropagationPin *pins = ARENA_ARRAY(arena, PropagationPin, MOST_PINS);
    int32_t count = 0;
    assert_int_equal(mesh_parse(&mesh, arena, mesh_text, error), AM_OK);
    for (; texts[count]; count++) TRY(propagation_parse_pin(&pins[count], arena, texts[count], error));
    TRY(scopes_resolve(&asked->pinned, arena, context, &mesh, pins, count, error));
    for (int32_t p = 0; p < context->roles->parameter_count; p++)
        if (asked->pinned[p].refusal)
            return am_fail(error, AM_ERROR_INFEASIBLE, "", "%s", asked->pinned[p].refusal);
    return AM_OK;
}

/* Returns the requested state of the weight with that path, as text; "" where nothing is asked. */
static const char *state_of(const Asked *asked, const PlanContext *context, const char *path) {
    static char text[32];
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        if (strcmp(context->roles->parameters[p].path, path) != 0) continue;
        text[0] = '\0';
        const PinnedParameter *of = &asked->pinned[p];
        if (of->pin) snprintf(text, sizeof text, "%d,%d", of->state.axis[0], of->state.axis[1]);
        return text;
    }
    fail_msg("no parameter %s", path);
    return NULL;
}

#define KERNEL(layer, name) "state['params']['layers'][" layer "]" name "['kernel']"

/* The inner scope counts, whatever the order in which they are given. */
static void test_nested(void **state) {
    (void)state;
    PlanContext *context = read_model("gpt2_tiny");
    static const char *const orders[2][4] = {
        {"layers/.*=split(model)", "layers/1=replicate", "layers/1/mlp_*=split(model)", NULL},
        {"layers/1/mlp_*=split(model)", "layers/1=replicate", "layers/.*=split(model)", NULL}};
    for (int32_t k = 0; k < 2; k++) {
        Arena arena = {0};
        AmError error = {0};
        Asked asked;
        if (resolve(&asked, &arena, context, "data=2,model=4", orders[k], &error) != AM_OK)
            fail_msg("%s", error.text);
        assert_string_equal(state_of(&asked, context, KERNEL("0", "['mlp_in']")), "0,2");
        assert_string_equal(state_of(&asked, context, KERNEL("0", "['mlp_out']")), "0,1");
        assert_string_equal(state_of(&asked, context, KERNEL("0", "['attention']['query']")), "0,2");
        assert_string_equal(state_of(&asked, context, KERNEL("0", "['attention']['output']")), "0,1");
        assert_string_equal(state_of(&asked, context, KERNEL("1", "['attention']['query']")), "0,0");
        assert_string_equal(state_of(&asked, context, KERNEL("1", "['mlp_in']")), "0,2");
        assert_string_equal(
            state_of(&asked, context, "state['params']['layers'][1]['attention_norm']['scale']"), "0,0");
        assert_string_equal(
            state_of(&asked, context, "state['params']['layers'][0]['attention_norm']['scale']"),
            ""); /* no group splits it */
        assert_string_equal(state_of(&asked, context, "state['params']['position_table']"), "");
        arena_free(&arena);
    }
    plan_context_free(context);
}

/* Operators' names make scopes too: flax names its layers there. A pin with a sharding counts before. */
static void test_operators(void **state) {
    (void)state;
    PlanContext *context = read_model("flax_tiny");
    Arena arena = {0};
    AmError error = {0};
    Asked asked;
    static const char *const texts[] = {"Network/Dense_*=replicate", "*Dense_0*kernel*=-,data", NULL};
    if (resolve(&asked, &arena, context, "data=2,model=2", texts, &error) != AM_OK)
        fail_msg("%s", error.text);
    assert_string_equal(state_of(&asked, context, "state.params['Dense_0']['bias']"), "0,0");
    assert_string_equal(state_of(&asked, context, "state.params['Dense_1']['kernel']"), "0,0");
    assert_string_equal(state_of(&asked, context, "state.params['Dense_0']['kernel']"), "");
    assert_string_equal(state_of(&asked, context, "state.params['Conv_0']['kernel']"), "");
    arena_free(&arena);
    plan_context_free(context);
}

/* A conditional is in the scopes of the operators of its branches, and of the weights that these use. */
static void test_branches(void **state) {
    (void)state;
    PlanContext *context = read_model_text(
        "HloModule branches\n"
        "one { p = (f32[4,4], f32[4,4]) parameter(0) a = f32[4,4] get-tuple-element(p), index=0\n"
        "  b = f32[4,4] get-tuple-element(p), index=1\n"
        "  ROOT c = f32[4,4] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0},\n"
        "    metadata={op_name=\"jit(step)/expert/dot_general\"} }\n"
        "other { p = f32[4,4] parameter(0) ROOT c = f32[4,4] negate(p) }\n"
        "ENTRY main { is = pred[] parameter(0) x = f32[4,4] parameter(1) w = f32[4,4] parameter(2)\n"
        "  p = (f32[4,4], f32[4,4]) tuple(x, w)\n"
        "  y = f32[4,4] conditional(is, p, x), true_computation=one, false_computation=other\n"
        "  ROOT q = f32[4,4] sine(y) }\n");
    static const struct {
        const char *pattern;
        int32_t count;
    } cases[] = {{"expert", 1}, {"experts", 0}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Arena arena = {0};
        AmError error = {0};
        int32_t count;
        bool *is_in = ARENA_ARRAY(&arena, bool, context->rules->entry_count + 1);
        assert_int_equal(scopes_find_operators(is_in, &count, &arena, context, cases[k].pattern, &error),
                         AM_OK);
        assert_int_equal(count, cases[k].count);
        for (int32_t i = 0; i < context->rules->entry_count; i++)
            assert_int_equal(is_in[i], count && context->canonical->instructions[i].opcode == IR_CONDITIONAL);
        arena_free(&arena);
    }
    plan_context_free(context);
}

static void test_refusals(void **state) {
    (void)state;
    PlanContext *context = read_model("gpt2_tiny");
    static const struct {
        const char *texts[3];
        AmStatus status;
        const char *says;
    } cases[] = {
        {{"nowhere=replicate"}, AM_ERROR_USAGE, "no weight is in the scope"},
        {{"layers=split(rows)"}, AM_ERROR_USAGE, "expected split(AXIS)"},
        {{"layers=split(model"}, AM_ERROR_USAGE, "expected split(AXIS)"},
        {{"layers/0=replicate", "layers/*/mlp_in=split(model)"}, AM_ERROR_USAGE, "neither lies inside"},
        {{"layers/0=replicate", "layers/0/.*=split(model)"}, AM_ERROR_USAGE, "contradict each other"},
        {{"position_table=split(model)"}, AM_ERROR_INFEASIBLE, "no linkage group"},
        {{"layers/0=replicate", "layers/0=split(4)"},
         AM_ERROR_USAGE,
         "pin \"layers/0=replicate\" and pin \"layers/0=split(4)\" contradict each other"},
        {{"layers/0=split(3)"}, AM_ERROR_INFEASIBLE, "no axis of the mesh has 3 devices"},
        {{"layers/0=split(0)"}, AM_ERROR_USAGE, "expected split(AXIS) or split(DEVICES)"},
        {{"layers/0=stage(x)"}, AM_ERROR_USAGE, "expected stage(N)"},
        {{"layers/0=devices()"}, AM_ERROR_USAGE, "expected devices(TYPE)"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Arena arena = {0};
        AmError error = {0};
        Asked asked;
        assert_int_equal(resolve(&asked, &arena, context, "data=2,model=4", cases[k].texts, &error),
                         cases[k].status);
        if (!strstr(error.text, cases[k].says)) fail_msg("%s", error.text);
        arena_free(&arena);
    }
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_nested),
                                       cmocka_unit_test(test_operators), cmocka_unit_test(test_branches),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
