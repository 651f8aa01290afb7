/* Factors with halos: slices, pads, concatenations, reversals, convolutions and windows with a
 * split dimension give one device's results, bit for bit, with split operands and replicated
 * operands. */
/* labels: threads */
/* cost: 5 seconds */
#include <stdio.h>

#include "planners/export/export_jax.h"
#include "tests/support/split_case.h"

#define COMPUTATIONS                                                                                     \
    "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"                   \
    "max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }\n"               \
    "least { a = s32[] parameter(0) b = s32[] parameter(1) ROOT c = s32[] minimum(a, b) }\n"             \
    "more { s = (s32[], f32[2,9,3], f32[3,3,3]) parameter(0) i = s32[] get-tuple-element(s), index=0\n"  \
    "  n = s32[] constant(3) ROOT c = pred[] compare(i, n), direction=LT }\n"                            \
    "layer { s = (s32[], f32[2,9,3], f32[3,3,3]) parameter(0) i = s32[] get-tuple-element(s), index=0\n" \
    "  x = f32[2,9,3] get-tuple-element(s), index=1 k = f32[3,3,3] get-tuple-element(s), index=2\n"      \
    "  one = s32[] constant(1) j = s32[] add(i, one)\n"                                                  \
    "  r = f32[2,9,3] convolution(x, k), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f\n"             \
    "  ROOT t = (s32[], f32[2,9,3], f32[3,3,3]) tuple(j, r, k) }\n"                                      \
    "largest { a = f32[] parameter(0) i = s32[] parameter(1) b = f32[] parameter(2) j = s32[] "          \
    "parameter(3)\n"                                                                                     \
    "  g = pred[] compare(b, a), direction=GT c = f32[] select(g, b, a) k = s32[] select(g, j, i)\n"     \
    "  ROOT t = (f32[], s32[]) tuple(c, k) }\n"                                                          \
    "ge { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = pred[] compare(a, b), direction=GE }\n"

typedef struct Case {
    const char *body;
    int32_t factors; /* of r that have a halo */
} Case;

/* The split arrays of an instruction; the others are replicated. */
typedef enum Stored { STORED_WHOLE, STORED_OPERANDS, STORED_RESULT, STORED_ALL, STORED_COUNT } Stored;

static int32_t exchanges;

static void count_exchanges(const Program *program) {
    for (int32_t k = 0; k < program->instruction_count; k++)
        exchanges += program->instructions[k].kind == PROGRAM_COLLECTIVE &&
                     program->instructions[k].collective->kind == PROGRAM_HALO_EXCHANGE;
}

/* Says that instruction i splits `factors`, or is stored split along the dimensions that they have in
 * `slot`. */
static void add_override(PlanStage *stage, const SplitCase *self, int32_t i, const int32_t *factors,
                         int32_t user, int32_t slot) {
    const FactorRule *rule = &self->context.rules->rules[user];
    PlanOverride *override = &stage->overrides[stage->override_count];
    for (int32_t k = 0; k < stage->override_count; k++)
        if (stage->overrides[k].instruction == i) return;
    *override = (PlanOverride){.instruction = i, .has_states = true};
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
        override->factors[axis] = factors[axis];
        int32_t d = factors[axis] < 0 ? -1 : rule->factors[factors[axis]].dimension[slot];
        if (d < 0) continue;
        const IrShape *shape = rules_leaf(&self->context.canonical->instructions[i].shape, 0);
        int32_t ways = stage->mesh.axes[axis].size;
        for (int32_t k = 0; k < axis; k++)
            if (override->states.axis[k] == sbp_split(d)) ways *= stage->mesh.axes[k].size;
        if (shape->dimensions[d] >= ways) sbp_set(&override->states, axis, sbp_split(d));
    }
    override->has_factors = i == user;
    stage->override_count++;
}

static void check_stored(SplitCase *self, const char *mesh, int32_t first, int32_t second, Stored stored) {
    static const int32_t none[MESH_MAX_AXES] = {-1, -1, -1, -1};
    const int32_t factors[MESH_MAX_AXES] = {first, second, -1, -1};
    Arena arena = {0};
    AmError error = {0};
    char what[128];
    PlanOverride overrides[SPLIT_MOST_ARRAYS];
    PlanStage stage = {.overrides = overrides};
    int32_t user = split_instruction(self, "r");
    const IrInstruction *instruction = &self->context.canonical->instructions[user];
    assert_int_equal(mesh_parse(&stage.mesh, &arena, mesh, &error), AM_OK);
    bool splits_result = stored == STORED_RESULT || stored == STORED_ALL;
    bool splits_operands = stored == STORED_OPERANDS || stored == STORED_ALL;
    add_override(&stage, self, user, factors, user, instruction->operand_count);
    if (!splits_result) overrides[0].states = (SbpState){.axis = {0}};
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t producer = self->context.rules->alias[instruction->operands[k]];
        if (!self->context.rules->on_demand[producer])
            add_override(&stage, self, producer, splits_operands ? factors : none, user, k);
    }
    snprintf(what, sizeof what, "%s, factors %d and %d, stored %d", mesh, first, second, (int)stored);
    split_check_stage(self, &stage, what, count_exchanges);
    arena_free(&arena);
}

static bool is_halo(const SplitCase *self, int32_t factor, int32_t ways) {
    const FactorRule *rule = &self->context.rules->rules[split_instruction(self, "r")];
    return rule->factors[factor].halo && rule->factors[factor].size >= ways;
}

static void check_case(const Case *its, uint64_t seed) {
    static const struct {
        const char *mesh;
        int32_t ways;
    } meshes[] = {{"a=2", 2}, {"a=3", 3}, {"a=4", 4}};
    SplitCase self;
    char text[4096];
    snprintf(text, sizeof text, "HloModule test\n%sENTRY main {\n%s\n}\n", COMPUTATIONS, its->body);
    split_open(&self, text, seed);
    int32_t count = self.context.rules->rules[split_instruction(&self, "r")].factor_count, found = 0;
    for (int32_t f = 0; f < count; f++) {
        found += is_halo(&self, f, 1);
        for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++)
            for (Stored stored = STORED_WHOLE; stored < STORED_COUNT; stored++)
                if (is_halo(&self, f, meshes[m].ways)) check_stored(&self, meshes[m].mesh, f, -1, stored);
        for (int32_t g = 0; g < count && is_halo(&self, f, 2); g++) {
            const Factor *other = &self.context.rules->rules[split_instruction(&self, "r")].factors[g];
            /* One in blocks of the same dimension cannot be split beside it. */
            if (other->kind == FACTOR_BLOCKED || other->blocks || (g == f && !is_halo(&self, f, 4))) continue;
            if (other->size < 2) continue;
            check_stored(&self, "a=2,b=2", f, g, STORED_ALL);
            check_stored(&self, "a=2,b=2", g, f, STORED_OPERANDS);
        }
    }
    if (found != its->factors)
        fail_msg("%s\n%d factors have a halo, expected %d", its->body, found, its->factors);
    split_close(&self);
}

static void check(const Case *cases, size_t count) {
    for (size_t k = 0; k < count; k++) check_case(&cases[k], 100 * k);
}
#define CHECK(cases) check(cases, sizeof cases / sizeof *cases)

static void test_slices(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[3,16] parameter(0) ROOT r = f32[3,12] slice(a), slice={[0:3], [2:14]}", 1},
        {"a = f32[16,3] parameter(0) ROOT r = f32[4,3] slice(a), slice={[12:16], [0:3]}", 1},
        {"a = f32[16,9] parameter(0) ROOT r = f32[7,4] slice(a), slice={[1:15:2], [0:4]}", 2},
        {"a = f32[17,3] parameter(0) ROOT r = f32[9,3] slice(a), slice={[0:17:2], [0:3]}", 1},
        {"a = s8[5,13] parameter(0) ROOT r = s8[5,5] slice(a), slice={[0:5], [0:13:3]}", 1},
    };
    CHECK(cases);
}

static void test_pads(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[8,3] parameter(0) z = f32[] parameter(1) ROOT r = f32[12,3] pad(a, z), padding=1_3x0_0", 1},
        {"a = f32[6,5] parameter(0) z = f32[] parameter(1) ROOT r = f32[19,4] pad(a, z), padding=1_2_2x-1_0",
         2},
        {"a = f32[9,5] parameter(0) z = f32[] parameter(1) ROOT r = f32[13,5] pad(a, z), padding=-2_-2_1x0_0",
         1},
        {"a = f32[2,5] parameter(0) z = f32[] parameter(1) ROOT r = f32[14,5] pad(a, z), padding=12_0x0_0",
         1},
    };
    CHECK(cases);
}

static void test_concatenations(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[8,3] parameter(0) b = f32[8,3] parameter(1) ROOT r = f32[16,3] concatenate(a, b), "
         "dimensions={0}",
         1},
        {"a = f32[4,7] parameter(0) b = f32[4,1] parameter(1) c = f32[4,5] parameter(2)\n"
         "ROOT r = f32[4,13] concatenate(a, b, c), dimensions={1}",
         1},
        {"a = f32[4,7] parameter(0) ROOT r = f32[4,14] concatenate(a, a), dimensions={1}", 1},
    };
    CHECK(cases);
}

/* Operands that are made on demand, or are identical. */
static void test_operands_at_hand(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[9,4] parameter(0) n = f32[] constant(2) b = f32[7,4] broadcast(n), dimensions={}\n"
         "ROOT r = f32[16,4] concatenate(b, a), dimensions={0}",
         1},
        {"a = f32[9,4] parameter(0) i = f32[9,4] iota(), iota_dimension=0\n"
         "ROOT r = f32[18,4] concatenate(i, a), dimensions={0}",
         1},
        {"a = f32[2,8,3] parameter(0) n = f32[] constant(2) k = f32[3,3,2] broadcast(n), dimensions={}\n"
         "ROOT r = f32[2,8,2] convolution(a, k), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f",
         1},
        {"a = f32[2,8,3] parameter(0) w = f32[8] parameter(1) x = f32[2,8,3] broadcast(w), dimensions={1}\n"
         "k = f32[3,3,2] parameter(2)\n"
         "ROOT r = f32[2,8,2] convolution(x, k), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f",
         1},
    };
    CHECK(cases);
}

/* The largest of a window and its place: two inputs and two results. */
static void test_several_results(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[11,4] parameter(0) i = s32[11,4] parameter(1) z = f32[] constant(-inf) n = s32[] "
         "constant(-1)\n"
         "r = (f32[6,4], s32[6,4]) reduce-window(a, i, z, n), window={size=3x1 stride=2x1 pad=1_1x0_0}, "
         "to_apply=largest\n"
         "x = f32[6,4] get-tuple-element(r), index=0 y = s32[6,4] get-tuple-element(r), index=1\n"
         "ROOT t = (f32[6,4], s32[6,4]) tuple(x, y)",
         1},
    };
    CHECK(cases);
}

static void test_reversals(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[8,5] parameter(0) ROOT r = f32[8,5] reverse(a), dimensions={0}", 1},
        {"a = f32[7,6] parameter(0) ROOT r = f32[7,6] reverse(a), dimensions={0,1}", 2},
    };
    CHECK(cases);
}

static void test_convolutions(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[2,8,8,3] parameter(0) k = f32[3,3,3,2] parameter(1)\n"
         "ROOT r = f32[2,8,8,2] convolution(a, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
         2},
        {"a = f32[2,11,9,3] parameter(0) k = f32[3,2,3,2] parameter(1)\n"
         "ROOT r = f32[2,6,8,2] convolution(a, k), window={size=3x2 stride=2x1 pad=1_1x0_0}, "
         "dim_labels=b01f_01io->b01f",
         2},
        {"a = f32[2,12,3] parameter(0) k = f32[3,3,2] parameter(1)\n"
         "ROOT r = f32[2,9,2] convolution(a, k), window={size=3 pad=0_1 rhs_dilate=2}, "
         "dim_labels=b0f_0io->b0f",
         1},
        /* No wider than its stride: nothing is read twice, and some elements not at all. */
        {"a = f32[2,12,3] parameter(0) k = f32[1,3,2] parameter(1)\n"
         "ROOT r = f32[2,6,2] convolution(a, k), window={size=1 stride=2}, dim_labels=b0f_0io->b0f",
         1},
        /* The gradient of an input, of a stride of 2. */
        {"a = f32[2,5,5,3] parameter(0) k = f32[3,3,3,2] parameter(1)\n"
         "ROOT r = f32[2,10,10,2] convolution(a, k), window={size=3x3 pad=1_2x1_2 lhs_dilate=2x2 "
         "rhs_reversal=1x1}, dim_labels=b01f_01io->b01f",
         2},
        /* The gradient of a kernel: windows as large as the input. */
        {"a = f32[8,8,2,3] parameter(0) h = f32[8,8,2,4] parameter(1) g = f32[8,8,2,4] add(h, h)\n"
         "ROOT r = f32[3,3,3,4] convolution(a, g), window={size=8x8 pad=1_1x1_1}, dim_labels=01fb_01io->01bf",
         2},
        {"a = f32[8,8,2,3] parameter(0) g = f32[8,8,2,4] parameter(1)\n"
         "ROOT r = f32[3,3,3,4] convolution(a, g), window={size=8x8 pad=1_1x1_1}, dim_labels=01fb_01io->01bf",
         2},
        {"a = f32[2,11,3] parameter(0) h = f32[2,6,4] parameter(1) g = f32[2,6,4] add(h, h)\n"
         "ROOT r = f32[3,3,4] convolution(a, g), window={size=6 pad=1_1 rhs_dilate=2}, "
         "dim_labels=f0b_i0o->0bf",
         1},
        {"a = f32[2,9,3] parameter(0) h = f32[2,7,4] parameter(1) g = f32[2,7,4] add(h, h)\n"
         "ROOT r = f32[3,3,4] convolution(a, g), window={size=7 rhs_reversal=1}, dim_labels=f0b_i0o->0bf",
         1},
        {"a = f32[2,9,4] parameter(0) k = f32[3,1,4] parameter(1)\n"
         "ROOT r = f32[2,9,4] convolution(a, k), window={size=3 pad=2_0}, dim_labels=b0f_0io->b0f, "
         "feature_group_count=4",
         1},
    };
    CHECK(cases);
}

static void test_windows(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[2,8,8,3] parameter(0) z = f32[] constant(-inf)\n"
         "ROOT r = f32[2,4,4,3] reduce-window(a, z), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=max",
         2},
        {"a = f32[2,9,3] parameter(0) z = f32[] parameter(1)\n"
         "ROOT r = f32[2,5,3] reduce-window(a, z), window={size=1x3x1 stride=1x2x1 pad=0_0x1_1x0_0}, "
         "to_apply=add",
         1},
        {"a = s32[13] parameter(0) z = s32[] constant(5)\n"
         "ROOT r = s32[25] reduce-window(a, z), window={size=2 pad=1_0 lhs_dilate=2 rhs_dilate=1}, "
         "to_apply=least",
         1},
        {"a = f32[12] parameter(0) z = f32[] constant(0)\n"
         "ROOT r = f32[12] reduce-window(a, z), window={size=12 pad=11_0}, to_apply=add",
         0},
    };
    CHECK(cases);
}

static void test_selections(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[2,8,8,3] parameter(0) g = f32[2,4,4,3] parameter(1) z = f32[] constant(0)\n"
         "ROOT r = f32[2,8,8,3] select-and-scatter(a, g, z), window={size=1x2x2x1 stride=1x2x2x1}, "
         "select=ge, scatter=add",
         2},
        {"a = f32[2,9,9,3] parameter(0) g = f32[2,5,4,3] parameter(1) z = f32[] constant(1)\n"
         "ROOT r = f32[2,9,9,3] select-and-scatter(a, g, z), window={size=1x3x3x1 stride=1x2x2x1 "
         "pad=0_0x1_1x0_0x0_0}, select=ge, scatter=add",
         2},
        {"a = f32[11] parameter(0) g = f32[3] parameter(1) z = f32[] constant(0)\n"
         "ROOT r = f32[11] select-and-scatter(a, g, z), window={size=2 stride=4}, select=ge, scatter=add",
         1},
    };
    CHECK(cases);
}

/* The same convolution three times, each on the result of the previous one. */
static void test_a_loop(void **state) {
    (void)state;
    static const Case its = {
        "x = f32[2,9,3] parameter(0) k = f32[3,3,3] parameter(1) zero = s32[] constant(0)\n"
        "s = (s32[], f32[2,9,3], f32[3,3,3]) tuple(zero, x, k)\n"
        "l = (s32[], f32[2,9,3], f32[3,3,3]) while(s), condition=more, body=layer\n"
        "ROOT y = f32[2,9,3] get-tuple-element(l), index=1",
        1};
    check_case(&its, 1);
}

static void test_exchanges_take_place(void **state) {
    (void)state;
    assert_true(exchanges > 400);
}

static AmStatus export_split_pool(const char *window, const char *source) {
    static const char text[] =
        "HloModule test\n" COMPUTATIONS "ENTRY main {\na = f32[8] parameter(0) g = f32[%s] parameter(1)\n"
        "z = f32[] constant(0)\nROOT r = f32[8] select-and-scatter(a, g, z), "
        "window={%s}, select=ge, scatter=add\n}\n";
    char filled[2048];
    SplitCase self;
    Arena arena = {0};
    AmError error = {0};
    json_t *root = NULL;
    snprintf(filled, sizeof filled, text, source, window);
    split_open(&self, filled, 1);
    PlanOverride override = {.instruction = split_instruction(&self, "r"), .has_states = true};
    PlanStage stage = {.overrides = &override, .override_count = 1, .devices = (int32_t[]){0, 1}};
    Plan plan = {.stages = &stage, .stage_count = 1, .micro_batches = 1};
    sbp_set(&override.states, 0, sbp_split(0));
    assert_int_equal(mesh_parse(&stage.mesh, &arena, "a=2", &error), AM_OK);
    AmStatus status = export_jax(&root, &self.context, &plan, &error);
    assert_true(status == AM_OK || strstr(error.text, "overlapping windows"));
    json_decref(root);
    arena_free(&arena);
    split_close(&self);
    return status;
}

/* XLA would train wrongly where windows of a max pool overlap, and rightly where they lie side by side. */
static void test_exports_of_pools(void **state) {
    (void)state;
    assert_int_equal(export_split_pool("size=2 stride=2", "4"), AM_OK);
    assert_int_equal(export_split_pool("size=3 stride=2 pad=0_1", "4"), AM_ERROR_INFEASIBLE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices),           cmocka_unit_test(test_pads),
        cmocka_unit_test(test_concatenations),   cmocka_unit_test(test_reversals),
        cmocka_unit_test(test_operands_at_hand), cmocka_unit_test(test_several_results),
        cmocka_unit_test(test_convolutions),     cmocka_unit_test(test_windows),
        cmocka_unit_test(test_selections),       cmocka_unit_test(test_a_loop),
        cmocka_unit_test(test_exports_of_pools), cmocka_unit_test(test_exchanges_take_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
