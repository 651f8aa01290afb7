/* Factor rules: sizes of factors, operators without a rule, aliases, free values and the table of the
 * documentation. tests/cases/rules has the rules as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/files/file.h"
#include "ir/canonical/canonical.h"
#include "propagation/rules/rules.h"

/* The order of a sort, which to_apply may name. */
#define COMPUTATIONS                                                                                 \
    "pair_greater { a = f32[] parameter(0) b = f32[] parameter(1) i = s32[] parameter(2) j = s32[] " \
    "parameter(3)\n"                                                                                 \
    "  ROOT c = pred[] compare(a, b), direction=GT }\n"

typedef struct Derived {
    IrModule *module, *canonical;
    Arena arena;
    Rules *rules;
} Derived;

static Derived derive(const char *body) {
    Derived derived = {0};
    AmError error = {0};
    char text[8192];
    int length = snprintf(text, sizeof text, "HloModule test\n" COMPUTATIONS "ENTRY main {\n%s\n}\n", body);
    if (ir_read_bytes(&derived.module, "test", text, length, &error) != AM_OK)
        fail_msg("%s: line %d: %s\n%s", body, (int)error.line, error.text, error.excerpt);
    assert_int_equal(ir_canonicalize(&derived.canonical, derived.module, &error), AM_OK);
    assert_int_equal(rules_build(&derived.rules, &derived.arena, derived.canonical, &error), AM_OK);
    return derived;
}

static void release(Derived *derived) {
    ir_module_free(derived->canonical);
    ir_module_free(derived->module);
    arena_free(&derived->arena);
}

static int32_t root_of(const Derived *derived) {
    return derived->canonical->computations[derived->canonical->entry].root;
}

/* In a split or merged dimension the factor is the major part. */
static void test_reshape_sizes(void **state) {
    (void)state;
    static const struct {
        const char *body;
        int64_t size;
    } cases[] = {
        {"a = f32[32] parameter(0) ROOT r = f32[8,4] reshape(a)", 8},
        {"a = f32[8,4] parameter(0) ROOT r = f32[32] reshape(a)", 8},
        {"a = f32[6,4] parameter(0) ROOT r = f32[4,6] reshape(a)", 2},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Derived derived = derive(cases[k].body);
        const FactorRule *rule = &derived.rules->rules[root_of(&derived)];
        assert_int_equal(rule->factors[0].size, cases[k].size);
        assert_int_equal(rule->factors[0].kind, FACTOR_PARALLEL);
        release(&derived);
    }
}

static void test_without_rule(void **state) {
    (void)state;
    Derived derived =
        derive("a = f32[8,4] parameter(0) b = f32[8,4] custom-call(a), custom_call_target=\"mystery\"\n"
               "ROOT r = f32[8,4] custom-call(b), custom_call_target=\"mystery\"");
    Text text = {0};
    rule_print(&text, &derived.rules->rules[root_of(&derived)]);
    assert_string_equal(text.data, "([a,b])->[a,b] whole a whole b");
    assert_int_equal(derived.canonical->warnings.count, 1);
    assert_non_null(strstr(derived.canonical->warnings.texts[0], "custom-call"));
    text_free(&text);
    release(&derived);
}

/* docs/plans.md has one row for each operator whose rule is neither element-wise nor blocked; rows of
 * blocked ones say that they are whole, and no others. */
static void test_document(void **state) {
    (void)state;
    static const struct {
        const char *name, *rule;
    } operators[] = {
#define OPCODE(name, text, arity, rule, ...) {text, #rule},
#include "ir/opcodes.def"
#undef OPCODE
    };
    FileBytes bytes;
    assert_int_equal(file_read(&bytes, SOURCE_DIR "/docs/plans.md", NULL), AM_OK);
    char *text = calloc(1, (size_t)bytes.length + 1);
    assert_non_null(text);
    memcpy(text, bytes.data, (size_t)bytes.length);
    file_release(&bytes);
    const char *table = strstr(text, "### How each operator is split");
    assert_non_null(table);
    for (size_t k = 0; k < sizeof operators / sizeof *operators; k++) {
        char row[128];
        snprintf(row, sizeof row, "\n| `%s` | ", operators[k].name);
        const char *found = strstr(table, row);
        bool is_blocked = strcmp(operators[k].rule, "BLOCKED") == 0;
        if (!found && (is_blocked || strcmp(operators[k].rule, "ELEMENTWISE") == 0)) continue;
        if (!found || strstr(found + 1, row)) fail_msg("no single row for %s", operators[k].name);
        found += strlen(row);
        bool is_whole = strncmp(found, "whole |", 7) == 0, is_through = strncmp(found, "through ", 8) == 0;
        if (is_blocked != (is_whole || is_through)) fail_msg("the row of %s is wrong", operators[k].name);
    }
    free(text);
}

static int32_t named(const Derived *derived, const char *name) {
    for (int32_t i = 0; i < derived->rules->count; i++) {
        if (strcmp(derived->canonical->instructions[i].name, name) == 0) return i;
    }
    fail_msg("no instruction %s", name);
    return -1;
}

/* Elements of tuples in tuples, through a barrier on the outer one. */
static void test_nested_tuples(void **state) {
    (void)state;
    Derived derived = derive("a = f32[8] parameter(0) b = f32[4] parameter(1)\n"
                             "i = (f32[8], f32[4]) tuple(a, b)\n"
                             "t = (f32[4], (f32[8], f32[4])) tuple(b, i)\n"
                             "o = (f32[4], (f32[8], f32[4])) opt-barrier(t)\n"
                             "g = (f32[8], f32[4]) get-tuple-element(o), index=1\n"
                             "p = (f32[8], f32[4]) opt-barrier(g)\n"
                             "x = f32[8] get-tuple-element(p), index=0\n"
                             "y = f32[4] get-tuple-element(p), index=1\n"
                             "z = f32[4] get-tuple-element(o), index=0\n"
                             "c = s32[4] iota(), iota_dimension=0\n"
                             "s = (f32[4], s32[4]) sort(y, c), dimensions={0}, to_apply=pair_greater\n"
                             "u = s32[4] get-tuple-element(s), index=1\n"
                             "ROOT r = (f32[8], f32[4], s32[4]) tuple(x, z, u)");
    const Rules *rules = derived.rules;
    assert_int_equal(rules->alias[named(&derived, "x")], named(&derived, "a"));
    assert_int_equal(rules->alias[named(&derived, "y")], named(&derived, "b"));
    assert_int_equal(rules->alias[named(&derived, "z")], named(&derived, "b"));
    assert_int_equal(rules->leaf[named(&derived, "y")], 0);
    assert_int_equal(rules->alias[named(&derived, "u")], named(&derived, "s"));
    assert_int_equal(rules->leaf[named(&derived, "u")], 1);
    release(&derived);
}

static void test_alias_and_free(void **state) {
    (void)state;
    Derived derived =
        derive("a = f32[8] parameter(0) c = f32[] constant(2) z = f32[8] broadcast(c), dimensions={}\n"
               "i = s32[4,8] iota(), iota_dimension=0 s = s32[4,8] add(i, i)\n"
               "w = f32[4,8] broadcast(a), dimensions={1}\n"
               "t = (f32[8], f32[8]) tuple(z, a) o = (f32[8], f32[8]) opt-barrier(t)\n"
               "g0 = f32[8] get-tuple-element(o), index=0\n"
               "g1 = f32[8] get-tuple-element(o), index=1\n"
               "ROOT r = f32[8] add(g0, g1), control-predecessors={s, w}");
    const Rules *rules = derived.rules;
    assert_int_equal(rules->alias[named(&derived, "g0")], named(&derived, "z"));
    assert_int_equal(rules->alias[named(&derived, "g1")], named(&derived, "a"));
    assert_true(rules->is_free[named(&derived, "z")]);
    assert_true(rules->is_free[named(&derived, "g0")]);
    assert_true(rules->is_free[named(&derived, "s")]);
    assert_true(rules->on_demand[named(&derived, "s")]);
    assert_false(rules->is_free[named(&derived, "a")]);
    assert_false(rules->is_free[named(&derived, "g1")]);
    assert_false(rules->on_demand[named(&derived, "g1")]);
    assert_false(rules->is_free[named(&derived, "w")]);
    assert_true(rules->on_demand[named(&derived, "w")]);
    assert_false(rules->on_demand[named(&derived, "r")]);
    int32_t instruction = named(&derived, "w"), leaf = 0, dimension = 1;
    assert_true(rules_resolve(rules, &instruction, &leaf, &dimension));
    assert_int_equal(instruction, named(&derived, "a"));
    assert_int_equal(dimension, 0);
    instruction = named(&derived, "w");
    dimension = 0;
    assert_false(rules_resolve(rules, &instruction, &leaf, &dimension));
    release(&derived);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reshape_sizes),  cmocka_unit_test(test_without_rule),
        cmocka_unit_test(test_alias_and_free), cmocka_unit_test(test_nested_tuples),
        cmocka_unit_test(test_document),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
