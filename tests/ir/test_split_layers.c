/* Layers as separate values: which parameters are split, which loops are unrolled, and which values are
 * unchanged.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "ir/layers/layers.h"
#include "propagation/plan/plan.h"

/* A step whose loop takes matrix `index` of the stack w in trip i, and whose update is w - w * w. */
typedef struct Layers {
    const char *index;   /* of i and c, which is 3; defines `at` */
    const char *bound;   /* of the loop: defines `k`; "": the carried n */
    const char *update;  /* of w and z, which is 0; defines `new` */
    const char *aliases; /* of the header */
    const char *reason;  /* part of why nothing is split; NULL: it is */
    int32_t order[4];    /* the layer of each product */
} Layers;

static PlanContext *read_layers(const Layers *layers) {
    Text text = {0};
    AmError error = {0};
    PlanContext *context = NULL;
    text_append(
        &text,
        "HloModule layers%s\n"
        "sum { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] add(a, b) }\n"
        "body {\n t = (s32[], f32[2,3], f32[4,3,3], s32[]) parameter(0)\n"
        " i = s32[] get-tuple-element(t), index=0\n x = f32[2,3] get-tuple-element(t), index=1\n"
        " w = f32[4,3,3] get-tuple-element(t), index=2\n n = s32[] get-tuple-element(t), index=3\n"
        " z = s32[] constant(0)\n c = s32[] constant(3)\n one = s32[] constant(1)\n %s\n"
        " s = f32[1,3,3] dynamic-slice(w, at, z, z), dynamic_slice_sizes={1,3,3}\n"
        " r = f32[3,3] reshape(s)\n"
        " y = f32[2,3] dot(x, r), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        " next = s32[] add(i, one)\n ROOT o = (s32[], f32[2,3], f32[4,3,3], s32[]) tuple(next, y, w, n)\n}\n",
        layers->aliases, layers->index);
    text_append(
        &text,
        "cond {\n t = (s32[], f32[2,3], f32[4,3,3], s32[]) parameter(0)\n"
        " i = s32[] get-tuple-element(t), index=0\n n = s32[] get-tuple-element(t), index=3\n"
        " %s\n ROOT go = pred[] compare(i, %s), direction=LT\n}\n"
        "ENTRY main {\n w = f32[4,3,3] parameter(0)\n x = f32[2,3] parameter(1)\n n = s32[] parameter(2)\n"
        " start = s32[] constant(0)\n"
        " begin = (s32[], f32[2,3], f32[4,3,3], s32[]) tuple(start, x, w, n)\n"
        " loop = (s32[], f32[2,3], f32[4,3,3], s32[]) while(begin), condition=cond, body=body\n"
        " y = f32[2,3] get-tuple-element(loop), index=1\n z = f32[] constant(0)\n"
        " loss = f32[] reduce(y, z), dimensions={0,1}, to_apply=sum\n %s\n"
        " ROOT out = (f32[4,3,3], f32[]) tuple(new, loss)\n}\n",
        layers->bound, *layers->bound ? "k" : "n", layers->update);
    if (plan_context_parse(&context, "layers.hlo.txt", text.data, (int64_t)text.length, &error) != AM_OK)
        fail_msg("line %d: %s\n%s", (int)error.line, error.text, text.data);
    text_free(&text);
    return context;
}

static int32_t count_opcode(const IrModule *module, IrOpcode opcode) {
    int32_t count = 0;
    for (int32_t i = 0; i < module->instruction_count; i++) count += module->instructions[i].opcode == opcode;
    return count;
}

#define UPDATE "square = f32[4,3,3] multiply(w, w)\n new = f32[4,3,3] subtract(w, square)"
#define ALIAS  ", input_output_alias={ {0}: (0, {}, may-alias) }"

static const Layers cases[] = {
    {"at = s32[] copy(i)", "k = s32[] constant(4)", UPDATE, ALIAS, NULL, {0, 1, 2, 3}},
    {"at = s32[] subtract(c, i)", "k = s32[] constant(4)", UPDATE, "", NULL, {3, 2, 1, 0}},
    {"at = s32[] add(i, i)", "k = s32[] constant(4)", UPDATE, "", NULL, {0, 2, 3, 3}}, /* clamped */
    {"p = pred[] compare(i, z), direction=LT\n j = s32[] add(i, c)\n at = s32[] select(p, j, i)",
     "k = s32[] constant(4)",
     UPDATE,
     "",
     NULL,
     {0, 1, 2, 3}},
    {"at = s32[] copy(i)", "k = s32[] constant(1000000000)", UPDATE, "", "no stacked parameters", {0}},
    {"at = s32[] copy(i)",
     "k = s32[] constant(3)",
     UPDATE,
     "",
     "needs the stacked array",
     {0}}, /* a trip less than layers */
    {"at = s32[] copy(i)", "", UPDATE, "", "no stacked parameters", {0}},
    {"at = s32[] copy(n)", "k = s32[] constant(4)", UPDATE, "", "needs the stacked array", {0}}, /* the index
                                                                                                    is data */
    {"at = s32[] copy(i)",
     "k = s32[] constant(4)",
     "turned = f32[4,3,3] reverse(w), dimensions={0}\n new = f32[4,3,3] subtract(w, turned)",
     "",
     "needs the stacked array",
     {0}},
};

static void test_cases(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const Layers *it = &cases[k];
        AmError error = {0};
        PlanContext *context = read_layers(it), *split = NULL;
        AmStatus status =
            plan_context_rewrite(&split, context, (PlanRewrites){.splits_layers = true}, &error);
        if (it->reason) {
            assert_int_equal(status, AM_ERROR_INFEASIBLE);
            if (!strstr(error.text, it->reason)) fail_msg("case %zu: %s", k, error.text);
            plan_context_free(context);
            continue;
        }
        if (status != AM_OK) fail_msg("case %zu: %s", k, error.text);
        const IrModule *module = split->canonical;
        assert_string_equal(split->sha256, context->sha256);
        assert_int_equal(count_opcode(module, IR_WHILE), 0);
        assert_int_equal(count_opcode(module, IR_DYNAMIC_SLICE), 0);
        assert_int_equal(split->roles->parameter_count, 6); /* 4 layers, x and n */
        assert_int_equal(module->alias_count, *it->aliases ? 4 : 0);
        int32_t products = 0, last_update = 0, loss = 0; /* XLA writes the loss after the updates */
        for (int32_t i = 0; i < module->instruction_count; i++) {
            const IrInstruction *dot = &module->instructions[i];
            if (dot->opcode == IR_MULTIPLY) last_update = i;
            if (dot->opcode == IR_REDUCE) loss = i;
            if (dot->opcode != IR_DOT) continue;
            const IrInstruction *weight = &module->instructions[dot->operands[1]];
            assert_int_equal(weight->opcode, IR_PARAMETER);
            assert_int_equal(weight->attributes->parameter_number, it->order[products++]);
        }
        assert_int_equal(products, 4);
        assert_true(loss > last_update);
        for (int32_t p = 0; p < 4; p++) {
            IrLayerPart part = plan_source_parameter(split, p);
            assert_int_equal(part.original, 0);
            assert_int_equal(part.first, 9 * p);
            assert_int_equal(split->roles->parameters[p].output, p);
            assert_int_equal(split->roles->parameters[p].role, IR_ROLE_WEIGHT);
        }
        assert_int_equal(split->roles->loss, 4);
        PlanContext *again = NULL;
        assert_int_equal(plan_context_rewrite(&again, context, split->rewriting, &error), AM_OK);
        assert_ptr_equal(again, split);
        plan_context_free(context);
    }
}

/* Layers that double their product and add it to a sum, which is zero before the first trip: the layers share
 * one broadcast of 2, and the first sum is its product. */
static const char summing[] =
    "HloModule summing\n"
    "sum { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] add(a, b) }\n"
    "body {\n t = (s32[], f32[2,3], f32[4,3,3], f32[2,3]) parameter(0)\n"
    " i = s32[] get-tuple-element(t), index=0\n x = f32[2,3] get-tuple-element(t), index=1\n"
    " w = f32[4,3,3] get-tuple-element(t), index=2\n total = f32[2,3] get-tuple-element(t), index=3\n"
    " z = s32[] constant(0)\n one = s32[] constant(1)\n two = f32[] constant(2)\n"
    " s = f32[1,3,3] dynamic-slice(w, i, z, z), dynamic_slice_sizes={1,3,3}\n r = f32[3,3] reshape(s)\n"
    " y = f32[2,3] dot(x, r), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    " twos = f32[2,3] broadcast(two), dimensions={}\n doubled = f32[2,3] multiply(y, twos)\n"
    " more = f32[2,3] add(total, doubled)\n next = s32[] add(i, one)\n"
    " ROOT o = (s32[], f32[2,3], f32[4,3,3], f32[2,3]) tuple(next, y, w, more)\n}\n"
    "cond {\n t = (s32[], f32[2,3], f32[4,3,3], f32[2,3]) parameter(0)\n"
    " i = s32[] get-tuple-element(t), index=0\n k = s32[] constant(4)\n"
    " ROOT go = pred[] compare(i, k), direction=LT\n}\n"
    "ENTRY main {\n w = f32[4,3,3] parameter(0)\n x = f32[2,3] parameter(1)\n start = s32[] constant(0)\n"
    " yes = pred[] constant(true)\n z = f32[] constant(0)\n always = pred[2,3] broadcast(yes), "
    "dimensions={}\n"
    " zeros = f32[2,3] broadcast(z), dimensions={}\n none = f32[2,3] select(always, zeros, x)\n"
    " begin = (s32[], f32[2,3], f32[4,3,3], f32[2,3]) tuple(start, x, w, none)\n"
    " loop = (s32[], f32[2,3], f32[4,3,3], f32[2,3]) while(begin), condition=cond, body=body\n"
    " all = f32[2,3] get-tuple-element(loop), index=3\n"
    " loss = f32[] reduce(all, z), dimensions={0,1}, to_apply=sum\n"
    " square = f32[4,3,3] multiply(w, w)\n new = f32[4,3,3] subtract(w, square)\n"
    " ROOT out = (f32[4,3,3], f32[]) tuple(new, loss)\n}\n";

static void test_shared(void **state) {
    (void)state;
    AmError error = {0};
    PlanContext *context = NULL, *split = NULL;
    if (plan_context_parse(&context, "summing.hlo.txt", summing, (int64_t)strlen(summing), &error) != AM_OK)
        fail_msg("line %d: %s", (int)error.line, error.text);
    if (plan_context_rewrite(&split, context, (PlanRewrites){.splits_layers = true}, &error) != AM_OK)
        fail_msg("%s", error.text);
    assert_int_equal(count_opcode(split->canonical, IR_DOT), 4);
    assert_int_equal(count_opcode(split->canonical, IR_BROADCAST), 1);
    assert_int_equal(count_opcode(split->canonical, IR_SELECT), 0);
    assert_int_equal(count_opcode(split->canonical, IR_ADD),
                     3 + 1); /* one is in the computation of the loss */
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_shared)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
