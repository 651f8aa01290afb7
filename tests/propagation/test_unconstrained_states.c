/* The states that the assignment gives to open values, compared with every choice of states: random
 * trees of element-wise operators and views between products with given factors, of f32 and of
 * bf16, whose sums are moved in f32. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/random.h"
#include "base/text.h"
#include "cost/collective/collective.h"
#include "lowering/spmd/lower.h"
#include "tests/support/model_case.h"
#include "tests/support/sample.h"

#define CASES       sample_of(240, 60) /* of each other type one */
#define MOST_VALUES 8

/* A tree: `leaves` products p0, p1, ..., then operators o0, o1, ...; the last is an operand of a
 * product. */
typedef struct Tree {
    int32_t leaves, operators;
    bool has_linear; /* an operator that partial sums pass */
    Text text;
} Tree;

static void grow(Tree *tree, const char *type, Random *random) {
    static const struct {
        const char *name;
        int32_t operands;
        bool is_linear;
    } kinds[] = {{"tanh", 1, false},    {"negate", 1, true}, {"transpose", 1, true},
                 {"maximum", 2, false}, {"add", 2, true},    {"power", 2, false}};
    char open[MOST_VALUES][16];
    int32_t open_count = 0;
    *tree = (Tree){.leaves = 1 + (int32_t)random_below(random, 3)};
    text_append_string(&tree->text, "HloModule tree\nENTRY main {\n");
    for (int32_t k = 0; k < tree->leaves; k++) {
        text_append(&tree->text,
                    " a%d = %s[8,16] parameter(%d)\n b%d = %s[16,8] parameter(%d)\n"
                    " p%d = %s[8,8] dot(a%d, b%d), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n",
                    k, type, 2 * k, k, type, 2 * k + 1, k, type, k, k);
        snprintf(open[open_count++], sizeof open[0], "p%d", k);
    }
    int32_t least = 1 + (int32_t)random_below(random, 2);
    while (open_count > 1 || tree->operators < least) {
        int32_t kind = (int32_t)random_below(random, 6), at = (int32_t)random_below(random, open_count);
        if (kinds[kind].operands > open_count || tree->operators >= 2) {
            if (open_count == 1 && tree->operators >= least) break;
            kind = open_count > 1 ? 3 : 0;
        }
        char first[16], own[16];
        memcpy(first, open[at], sizeof first);
        memcpy(open[at], open[--open_count], sizeof open[0]);
        snprintf(own, sizeof own, "o%d", tree->operators++);
        text_append(&tree->text, " %s = %s[8,8] %s(%s", own, type, kinds[kind].name, first);
        if (kinds[kind].operands == 2) text_append(&tree->text, ", %s", open[--open_count]);
        text_append(&tree->text, ")%s\n", kind == 2 ? ", dimensions={1,0}" : "");
        memcpy(open[open_count++], own, sizeof own);
        tree->has_linear = tree->has_linear || kinds[kind].is_linear;
    }
    text_append(&tree->text,
                " c = %s[8,4] parameter(%d)\n"
                " ROOT r = %s[8,4] dot(%s, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n",
                type, 2 * tree->leaves, type, open[0]);
}

/* Bytes that a device sends in all collectives. */
static double sent_bytes(const PlanContext *context, const PlanStage *stage) {
    AmError error = {0};
    Arena arena = {0};
    Assignment *assignment;
    Program *program;
    AmStatus status = plan_assign(&assignment, &arena, context, stage, &error);
    if (status == AM_OK) status = plan_lower(&program, &arena, context, assignment, 0, &error);
    if (status != AM_OK) fail_msg("%s: %s", error.source, error.text);
    double total = 0;
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (instruction->kind != PROGRAM_COLLECTIVE) continue;
        total += collective_sent_bytes(instruction->collective->kind,
                                       collective_tensor_bytes(program, instruction),
                                       instruction->collective->group_count);
    }
    arena_free(&arena);
    return total;
}

/* The factor of a product: 0 its rows, 1 its columns, 2 the contracted dimension, 3 none. */
static int32_t factor_of(const PlanContext *context, int32_t i, int32_t which) {
    const FactorRule *rule = &context->rules->rules[i];
    for (int32_t f = 0; f < rule->factor_count; f++) {
        const Factor *factor = &rule->factors[f];
        if (factor->kind == FACTOR_REDUCTION ? which == 2 : factor->dimension[rule->operand_count] == which)
            return f;
    }
    return -1;
}

/* The least over all states of the operators and products from number k of `overrides` on. */
static double least_bytes(const PlanContext *context, PlanStage *stage, int32_t k) {
    if (k == stage->override_count) return sent_bytes(context, stage);
    PlanOverride *override = &stage->overrides[k];
    bool is_product = context->canonical->instructions[override->instruction].opcode == IR_DOT;
    double least = -1;
    for (int32_t state = 0; state < 3; state++) {
        override->has_states = true;
        sbp_set(&override->states, 0, state == 0 ? SBP_B : sbp_split(state - 1));
        if (!is_product) {
            override->has_factors = true;
            override->factors[0] = state == 0 ? -1 : factor_of(context, override->instruction, state - 1);
        }
        double bytes = least_bytes(context, stage, k + 1);
        if (least < 0 || bytes < least) least = bytes;
    }
    return least;
}

static void test_equals_every_assignment(void **state) {
    (void)state;
    int32_t split = 0;
    Random random;
    random_seed(&random, 11);
    for (int32_t number = 0; number < CASES; number++) {
        Tree tree;
        AmError error = {0};
        Arena arena = {0};
        grow(&tree, number % 2 ? "bf16" : "f32", &random);
        PlanContext *context = read_model_text(tree.text.data);
        PlanStage stage = {0};
        PlanOverride overrides[MOST_VALUES * 2] = {0};
        assert_int_equal(mesh_parse(&stage.mesh, &arena, "data=4", &error), AM_OK);
        stage.overrides = overrides;
        int32_t root = context->rules->alias[context->roles->outputs[0]], products = 0;
        for (int32_t i = 0; i < context->rules->entry_count; i++) { /* the root last */
            if (context->canonical->instructions[i].opcode != IR_DOT || i == root) continue;
            overrides[products].instruction = i;
            overrides[products].has_factors = true;
            overrides[products++].factors[0] = factor_of(context, i, (int32_t)random_below(&random, 4));
        }
        PlanOverride of_root = {.instruction = root, .has_factors = true};
        of_root.factors[0] = factor_of(context, root, (int32_t[]){0, 2, 3}[random_below(&random, 3)]);
        overrides[products] = of_root;
        stage.override_count = products + 1;
        double found = sent_bytes(context, &stage);
        stage.overrides =
            overrides + MOST_VALUES; /* the root, which nothing is tried with, before the rest */
        stage.overrides[0] = of_root;
        stage.override_count = 1;
        for (int32_t k = 0; k < products; k++) stage.overrides[stage.override_count++] = overrides[k];
        for (int32_t i = 0; i < context->rules->entry_count; i++) {
            IrOpcode opcode = context->canonical->instructions[i].opcode;
            if (opcode == IR_DOT || opcode == IR_PARAMETER || opcode == IR_TUPLE) continue;
            stage.overrides[stage.override_count++] = (PlanOverride){.instruction = i};
        }
        assert_true(stage.override_count <= MOST_VALUES);
        double least = least_bytes(context, &stage, 1), whole;
        for (int32_t k = 1; k < stage.override_count; k++) {
            bool is_product = k <= products;
            sbp_set(&stage.overrides[k].states, 0, SBP_B);
            if (!is_product) stage.overrides[k].factors[0] = -1;
        }
        whole = sent_bytes(context, &stage);
        if (found > least + 1e-9 || (!tree.has_linear && found < least - 1e-9))
            fail_msg("case %d: %g bytes, the best assignment has %g\n%s", number, found, least,
                     tree.text.data);
        split += found < whole - 1e-9;
        text_free(&tree.text);
        arena_free(&arena);
        plan_context_free(context);
    }
    assert_true(split > CASES / 4); /* leaving everything whole would not do */
}

/* The gradient of a flat weight, in 16 bits: one axis's split in a row excludes a split in blocks
 * by another, whatever classes the axes split. */
static void test_axes_agree_on_blocks(void **state) {
    (void)state;
    PlanContext *context = read_model_text(
        "HloModule flat\n"
        "sum {\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] add(a, b)\n}\n"
        "ENTRY main {\n"
        " w = f32[32,32] parameter(0)\n"
        " x = f32[8,8,32] parameter(1)\n"
        " t = f32[8,8,32] parameter(2)\n"
        " half = bf16[8,8,32] convert(x)\n"
        " flat = f32[1024] reshape(w)\n"
        " narrow = bf16[1024] convert(flat)\n"
        " square = bf16[32,32] reshape(narrow)\n"
        " y = bf16[8,8,32] dot(half, square), lhs_contracting_dims={2}, rhs_contracting_dims={0}\n"
        " wide = f32[8,8,32] convert(y)\n"
        " e = f32[8,8,32] subtract(wide, t)\n"
        " f = bf16[8,8,32] convert(e)\n"
        " q = bf16[32,32] dot(f, half), lhs_contracting_dims={0,1}, rhs_contracting_dims={0,1}\n"
        " turned = bf16[32,32] transpose(q), dimensions={1,0}\n"
        " r = bf16[1024] reshape(turned)\n"
        " c = f32[1024] convert(r)\n"
        " g = f32[32,32] reshape(c)\n"
        " rate = f32[] constant(0.5)\n"
        " rates = f32[32,32] broadcast(rate), dimensions={}\n"
        " u = f32[32,32] multiply(g, rates)\n"
        " n = f32[32,32] subtract(w, u)\n"
        " zero = f32[] constant(0)\n"
        " loss = f32[] reduce(e, zero), dimensions={0,1,2}, to_apply=sum\n"
        " ROOT out = (f32[32,32], f32[]) tuple(n, loss)\n"
        "}\n");
    AmError error = {0};
    Arena arena = {0};
    PlanEntry first[] = {{.kind = PLAN_COMPUTE},
                         {.class_index = PLAN_ANY_CLASS, .kind = PLAN_OPTIMIZER},
                         {.class_index = PLAN_ANY_CLASS, .kind = PLAN_GRADIENTS}},
              second = {.kind = PLAN_COMPUTE};
    PlanStage stage = {.axis_priorities = {{3, first}, {1, &second}}};
    assert_int_equal(mesh_parse(&stage.mesh, &arena, "first=2,second=2", &error), AM_OK);
    for (int32_t a = 0; a < context->classes->count; a++)
        for (int32_t b = 0; b < context->classes->count; b++) {
            first[0].class_index = a;
            second.class_index = b;
            assert_true(sent_bytes(context, &stage) >= 0);
        }
    arena_free(&arena);
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_every_assignment),
        cmocka_unit_test(test_axes_agree_on_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
