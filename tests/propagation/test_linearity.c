/* Partial values through operators: operators that carry them reduce once, afterwards, and give one
 * device's results bit for bit; other operators do not get them. */
/* labels: threads */
#include <stdio.h>

#include "tests/support/split_case.h"

#define COMPUTATIONS                                                                        \
    "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"      \
    "max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }\n"  \
    "min { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] minimum(a, b) }\n"  \
    "mul { a = s32[] parameter(0) b = s32[] parameter(1) ROOT c = s32[] multiply(a, b) }\n" \
    "and { a = pred[] parameter(0) b = pred[] parameter(1) ROOT c = pred[] and(a, b) }\n"   \
    "or { a = pred[] parameter(0) b = pred[] parameter(1) ROOT c = pred[] or(a, b) }\n"

/* s is a sum, maximum, ... [8,6] over 12 elements; y the second operand, z zeros, m a mask. */
#define OF(TYPE, INIT, OPERATOR)                                                                    \
    "x = " TYPE "[8,6,12] parameter(0) y = " TYPE "[8,6] parameter(1) m = pred[8,6] parameter(2)\n" \
    "i = s32[] parameter(3) w = " TYPE "[6,5] parameter(4) j = s32[3,1] parameter(5)\n"             \
    "o = " TYPE "[] constant(" INIT ") z = " TYPE "[8,6] broadcast(o), dimensions={}\n"             \
    "s = " TYPE "[8,6] reduce(x, o), dimensions={2}, to_apply=" OPERATOR "\n"
#define SUM     OF("f32", "0", "add")
#define MAXIMUM OF("f32", "-inf", "max")
#define MINIMUM OF("f32", "inf", "min")
#define PRODUCT OF("s32", "1", "mul")
#define ALL     OF("pred", "true", "and")
#define ANY     OF("pred", "false", "or")
/* The result is small, so that it is best reduced at last. */
#define SMALL(TYPE) "\nROOT r = " TYPE "[1,2] slice(u), slice={[1:2], [0:2]}"

static int32_t partial_operators; /* local operators that make partial values */

static void watch(const Program *program) {

    partial_operators = 0;
    for (int32_t k = 0; k < program->instruction_count; k++) {
        const ProgramInstruction *instruction = &program->instructions[k];
        bool is_local = instruction->kind != PROGRAM_COLLECTIVE;
        partial_operators += is_local && sbp_has_partial(program->values[instruction->first_result].state);
    }
}

/* Splits the reduction s over the axis; returns how many operators made partial values. */
static int32_t run(const char *body, const char *mesh, uint64_t seed) {
    SplitCase self;
    char text[8192];
    snprintf(text, sizeof text, "HloModule test\n%sENTRY main {\n%s\n}\n", COMPUTATIONS, body);
    split_open(&self, text, seed);
    int32_t s = split_instruction(&self, "s"), f = 0;
    while (self.context.rules->rules[s].factors[f].kind != FACTOR_REDUCTION) f++;
    Arena arena = {0};
    PlanOverride override = {.instruction = s, .has_factors = true, .factors = {f, -1, -1, -1}};
    PlanStage stage = {.overrides = &override, .override_count = 1};
    assert_int_equal(mesh_parse(&stage.mesh, &arena, mesh, NULL), AM_OK);
    split_check_stage(&self, &stage, body, watch);
    arena_free(&arena);
    split_close(&self);
    return partial_operators;
}

typedef struct Case {
    const char *body;
    int32_t operators; /* that make partial values, s among them */
} Case;

static void check(const Case *cases, size_t count) {
    for (size_t k = 0; k < count; k++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            int32_t found = run(cases[k].body, seed == 0 ? "data=2" : "data=3", seed);
            if (found != cases[k].operators)
                fail_msg("%s\n%d operators make partial values, expected %d", cases[k].body, found,
                         cases[k].operators);
        }
}
#define CHECK(cases) check(cases, sizeof cases / sizeof *cases)

static void test_sums(void **state) {
    (void)state;
    static const Case cases[] = {
        {SUM "u = f32[8,6] negate(s)" SMALL("f32"), 3},
        {SUM "t = f32[6,8] transpose(s), dimensions={1,0} u = f32[4,12] reshape(t)" SMALL("f32"), 4},
        {SUM "u = f32[8,6] reverse(s), dimensions={0}" SMALL("f32"), 3},
        {SUM "u = f32[8,6] multiply(s, y)" SMALL("f32"), 3},
        {SUM "q = f32[] constant(4) d = f32[8,6] broadcast(q), dimensions={}\n"
             "u = f32[8,6] divide(s, d)" SMALL("f32"),
         3},
        {SUM "u = f32[8,6] select(m, s, z)" SMALL("f32"), 3},
        {SUM "u = f32[8,8] pad(s, o), padding=0_0x1_1" SMALL("f32"), 3},
        {SUM "u = f32[8,12] concatenate(z, s), dimensions={1}" SMALL("f32"), 3},
        {SUM "l = f32[9,6] broadcast(o), dimensions={}\n"
             "u = f32[9,6] dynamic-update-slice(l, s, i, i)" SMALL("f32"),
         3},
        {SUM "ROOT r = f32[1,6] dynamic-slice(s, i, i), dynamic_slice_sizes={1,6}", 2},
        {SUM "ROOT r = f32[3,6] gather(s, j), offset_dims={1}, collapsed_slice_dims={0}, "
             "start_index_map={0}, index_vector_dim=1, slice_sizes={1,6}",
         2},
        {SUM "ROOT r = f32[8] reduce(s, o), dimensions={1}, to_apply=add", 2},
        {SUM "ROOT r = f32[8,5] dot(s, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}", 2},
        {SUM "ROOT r = f32[4,3] reduce-window(s, o), window={size=2x2 stride=2x2}, to_apply=add", 2},
        /* One device alone adds a whole operand. */
        {SUM "u = f32[8,6] add(s, y)" SMALL("f32"), 4},
        {SUM "u = f32[8,6] subtract(y, s)" SMALL("f32"), 4},
        /* Refused: a second operand would count in every part; and non-linear operators. */
        {SUM "u = f32[8,6] divide(y, s)" SMALL("f32"), 1},
        {SUM "u = f32[8,6] select(m, s, y)" SMALL("f32"), 1},
        {SUM "u = f32[8,12] concatenate(y, s), dimensions={1}" SMALL("f32"), 1},
        {SUM "l = f32[9,6] pad(y, o), padding=0_1x0_0\n"
             "u = f32[9,6] dynamic-update-slice(l, s, i, i)" SMALL("f32"),
         1},
        {SUM "u = f32[8,6] abs(s)" SMALL("f32"), 1},
        {SUM "u = f32[8,6] maximum(s, y)" SMALL("f32"), 1},
        {SUM "u = bf16[8,6] convert(s)" SMALL("bf16"), 1},
        {SUM "b = f32[] constant(1) ROOT r = f32[8] reduce(s, b), dimensions={1}, to_apply=add", 1},
    };
    CHECK(cases);
}

static void test_extremes(void **state) {
    (void)state;
    static const Case cases[] = {
        {MAXIMUM "u = f32[8,6] negate(s)" SMALL("f32"), 3},
        {MINIMUM "n = f32[8,6] negate(s) u = f32[8,6] maximum(n, y)" SMALL("f32"), 4},
        {MAXIMUM "u = f32[8,6] maximum(y, s)" SMALL("f32"), 3},
        {MAXIMUM "u = bf16[8,6] convert(s)" SMALL("bf16"), 3},
        {MAXIMUM "u = f32[8,6] floor(s)" SMALL("f32"), 3},
        {MAXIMUM "u = f32[8,6] select(m, s, y)" SMALL("f32"), 3},
        {MINIMUM "u = f32[8,12] concatenate(y, s), dimensions={1}" SMALL("f32"), 3},
        {MAXIMUM "ROOT r = f32[8] reduce(s, o), dimensions={1}, to_apply=max", 2},
        {MAXIMUM "u = f32[8,6] minimum(y, s)" SMALL("f32"), 1},
        {MAXIMUM "u = f32[8,6] multiply(y, s)" SMALL("f32"), 1},
        {MAXIMUM "u = s32[8,6] convert(s)" SMALL("s32"), 1},
        {MAXIMUM "h = f32[] constant(inf) ROOT r = f32[8] reduce(s, h), dimensions={1}, to_apply=min", 1},
    };
    CHECK(cases);
}

static void test_others(void **state) {
    (void)state;
    static const Case cases[] = {
        {ALL "u = pred[8,6] not(s)" SMALL("pred"), 3},
        {ALL "u = pred[8,6] and(s, y)" SMALL("pred"), 3},
        {ANY "n = pred[8,6] or(y, s) u = pred[8,6] reverse(n), dimensions={0}" SMALL("pred"), 4},
        {ANY "u = pred[8,6] and(s, y)" SMALL("pred"), 1},
        {PRODUCT "u = s32[8,6] reverse(s), dimensions={0}" SMALL("s32"), 3},
        {PRODUCT "u = s32[8,6] multiply(s, y)" SMALL("s32"), 1},
    };
    CHECK(cases);
}

/* Two products a and b of parts; y is whole. */
#define PRODUCTS                                                                                           \
    "HloModule test\n" COMPUTATIONS "ENTRY main { x = f32[8,12] parameter(0) w = f32[12,6] parameter(1)\n" \
    "  v = f32[12,6] parameter(2) y = f32[8,6] parameter(3)\n"                                             \
    "  a = f32[8,6] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"                       \
    "  b = f32[8,6] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"

static int32_t sums; /* over devices */

static void watch_sums(const Program *program) {
    watch(program);
    sums = 0;
    for (int32_t k = 0; k < program->instruction_count; k++)
        sums += program->instructions[k].kind == PROGRAM_COLLECTIVE;
}

/* Sums together, one of them over devices. */
static void test_several_parts(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t operators; /* that make partial values */
    } cases[] = {
        /* Both dots, and their difference; it has two uses. */
        {PRODUCTS "  c = f32[8,6] subtract(a, b) d = f32[8,12] concatenate(c, c), dimensions={1}\n"
                  "  ROOT r = f32[1,2] slice(d), slice={[1:2], [5:7]} }\n",
         3},
        /* As gradients after several products of a layer: y's part, and two sums. */
        {PRODUCTS "  c = f32[8,6] add(y, a) d = f32[8,6] add(c, b)\n"
                  "  ROOT r = f32[8,6] multiply(d, d) }\n",
         5},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        SplitCase self;
        split_open(&self, cases[n].text, 5);
        PlanOverride overrides[2];
        for (int32_t k = 0; k < 2; k++) {
            int32_t i = split_instruction(&self, k == 0 ? "a" : "b"), f = 0;
            while (self.context.rules->rules[i].factors[f].kind != FACTOR_REDUCTION) f++;
            overrides[k] = (PlanOverride){.instruction = i, .has_factors = true, .factors = {f, -1, -1, -1}};
        }
        Arena arena = {0};
        PlanStage stage = {.overrides = overrides, .override_count = 2};
        assert_int_equal(mesh_parse(&stage.mesh, &arena, "data=3", NULL), AM_OK);
        split_check_stage(&self, &stage, cases[n].text, watch_sums);
        assert_int_equal(partial_operators, cases[n].operators);
        assert_int_equal(sums, 1);
        arena_free(&arena);
        split_close(&self);
    }
}

/* A loop that combines an array with reductions over a split dimension, by OPERATOR from INIT. */
#define LOOP(INIT, OPERATOR, TO_APPLY)                                                                  \
    "HloModule test\n" COMPUTATIONS "condition { s = (f32[6], f32[4,6,8], s32[]) parameter(0)\n"        \
    "  n = s32[] get-tuple-element(s), index=2 z = s32[] constant(0)\n"                                 \
    "  ROOT c = pred[] compare(n, z), direction=GT }\n"                                                 \
    "body { s = (f32[6], f32[4,6,8], s32[]) parameter(0) a = f32[6] get-tuple-element(s), index=0\n"    \
    "  x = f32[4,6,8] get-tuple-element(s), index=1 n = s32[] get-tuple-element(s), index=2\n"          \
    "  z = s32[] constant(0) one = s32[] constant(1) f = f32[] constant(" INIT ")\n"                    \
    "  y = f32[1,6,8] dynamic-slice(x, n, z, z), dynamic_slice_sizes={1,6,8} w = f32[6,8] reshape(y)\n" \
    "  p = f32[6] reduce(w, f), dimensions={1}, to_apply=" TO_APPLY " b = f32[6] " OPERATOR "(a, p)\n"  \
    "  l = s32[] subtract(n, one) ROOT r = (f32[6], f32[4,6,8], s32[]) tuple(b, x, l) }\n"              \
    "ENTRY main { x = f32[4,6,8] parameter(0) i = f32[] constant(" INIT ")\n"                           \
    "  a = f32[6] broadcast(i), dimensions={} n = s32[] constant(3)\n"                                  \
    "  t = (f32[6], f32[4,6,8], s32[]) tuple(a, x, n)\n"                                                \
    "  u = (f32[6], f32[4,6,8], s32[]) while(t), condition=condition, body=body\n"                      \
    "  ROOT v = f32[6] get-tuple-element(u), index=0 }\n"

static int32_t collectives_inside, collectives_outside;

static void watch_loop(const Program *program) {
    collectives_inside = collectives_outside = 0;
    for (int32_t k = 0; k < program->instruction_count; k++) {
        const ProgramInstruction *instruction = &program->instructions[k];
        collectives_outside += instruction->kind == PROGRAM_COLLECTIVE;
        if (instruction->opcode != IR_WHILE || instruction->regions.count == 0) continue;
        for (int32_t i = 0; i < instruction->regions.programs[0]->instruction_count; i++)
            collectives_inside +=
                instruction->regions.programs[0]->instructions[i].kind == PROGRAM_COLLECTIVE;
    }
}

/* A loop's combination of parts is reduced after the loop, for every reduction. */
static void test_loops(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t inside, outside; /* collectives */
    } cases[] = {
        {LOOP("0", "add", "add"), 0, 1},
        {LOOP("-inf", "maximum", "max"), 0, 1},
        {LOOP("inf", "minimum", "min"), 0, 1},
        {LOOP("-inf", "minimum", "max"), 1, 0},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        SplitCase self;
        split_open(&self, cases[k].text, k);
        const Classes *classes = self.context.classes;
        uint64_t chosen = 0;
        for (int32_t c = 0; c < classes->count; c++)
            if (classes->classes[c].named_by_parameter && classes->classes[c].dimension == 2)
                chosen |= 1ull << c;
        assert_true(chosen != 0);
        split_check_classes(&self, "data=2", chosen, watch_loop);
        assert_int_equal(collectives_inside, cases[k].inside);
        assert_int_equal(collectives_outside, cases[k].outside);
        split_check_classes(&self, "data=3", chosen, NULL);
        split_close(&self);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),          cmocka_unit_test(test_extremes), cmocka_unit_test(test_others),
        cmocka_unit_test(test_several_parts), cmocka_unit_test(test_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
