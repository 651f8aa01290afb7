/* Dimensions that are cut in blocks: q, k and v of one projection, gate and up of
 * another. Split between heads, or in every half, a fused projection moves
 * nothing but the sums that a projection of its own would. */
/* labels: threads */
#include "tests/support/split_case.h"

#define MLP                                                                             \
    "x = f32[6,8] parameter(0) w = f32[8,24] parameter(1) o = f32[12,8] parameter(2)\n" \
    "h = f32[6,24] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
#define OUT "ROOT y = f32[6,8] dot(m, o), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"

/* Gate and up by slices, by a reshape, and by a concatenation of two weights. */
static const char gate_by_slices[] =
    MLP "g = f32[6,12] slice(h), slice={[0:6], [0:12]} u = f32[6,12] slice(h), slice={[0:6], [12:24]}\n"
        "m = f32[6,12] multiply(g, u)\n" OUT;
static const char gate_by_reshape[] =
    MLP "p = f32[6,2,12] reshape(h) a = f32[6,1,12] slice(p), slice={[0:6], [0:1], [0:12]}\n"
        "b = f32[6,1,12] slice(p), slice={[0:6], [1:2], [0:12]}\n"
        "g = f32[6,12] reshape(a) u = f32[6,12] reshape(b) m = f32[6,12] multiply(g, u)\n" OUT;
static const char gate_by_concatenation[] =
    "x = f32[6,8] parameter(0) v = f32[8,12] parameter(1) o = f32[12,8] parameter(2) z = f32[8,12] "
    "parameter(3)\n"
    "w = f32[8,24] concatenate(v, z), dimensions={1}\n"
    "h = f32[6,24] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "g = f32[6,12] slice(h), slice={[0:6], [0:12]} u = f32[6,12] slice(h), slice={[0:6], [12:24]}\n"
    "m = f32[6,12] multiply(g, u)\n" OUT;

/* Attention of 6 heads of 4 with one projection for q, k and v, with a bias. */
static const char attention[] =
    "x = f32[2,5,8] parameter(0) w = f32[8,72] parameter(1) c = f32[72] parameter(2) o = f32[24,8] "
    "parameter(3)\n"
    "d = f32[2,5,72] dot(x, w), lhs_contracting_dims={2}, rhs_contracting_dims={0}\n"
    "e = f32[2,5,72] broadcast(c), dimensions={2} h = f32[2,5,72] add(d, e)\n"
    "q1 = f32[2,5,24] slice(h), slice={[0:2], [0:5], [0:24]} q = f32[2,5,6,4] reshape(q1)\n"
    "k1 = f32[2,5,24] slice(h), slice={[0:2], [0:5], [24:48]} k = f32[2,5,6,4] reshape(k1)\n"
    "v1 = f32[2,5,24] slice(h), slice={[0:2], [0:5], [48:72]} v = f32[2,5,6,4] reshape(v1)\n"
    "s = f32[2,6,5,5] dot(q, k), lhs_batch_dims={0,2}, rhs_batch_dims={0,2}, lhs_contracting_dims={3},\n"
    "  rhs_contracting_dims={3}\n"
    "t = f32[2,6,5,4] dot(s, v), lhs_batch_dims={0,1}, rhs_batch_dims={0,2}, lhs_contracting_dims={3},\n"
    "  rhs_contracting_dims={1}\n"
    "r = f32[2,5,6,4] transpose(t), dimensions={0,2,1,3} m = f32[2,5,24] reshape(r)\n"
    "ROOT y = f32[2,5,8] dot(m, o), lhs_contracting_dims={2}, rhs_contracting_dims={0}\n";

/* The collectives of one rank's program. */
static int32_t collectives_of[PROGRAM_HALO_EXCHANGE + 1];

static void count_collectives(const Program *program) {
    memset(collectives_of, 0, sizeof collectives_of);
    for (int32_t k = 0; k < program->instruction_count; k++)
        if (program->instructions[k].kind == PROGRAM_COLLECTIVE)
            collectives_of[program->instructions[k].collective->kind]++;
}

/* No value is cut in blocks or between granules. */
static void expect_plain(const Program *program) {
    for (int32_t v = 0; v < program->value_count; v++)
        for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
            assert_true(!sbp_is_split(program->values[v].state.axis[axis]) ||
                        program->values[v].state.cut[axis].count == 0);
}

/* Splits the class of parameter `number`'s dimension over all axes of the mesh. */
static void check_list(const char *body, const char *mesh, int32_t number, int32_t dimension, bool is_even) {
    SplitCase self;
    Arena arena = {0};
    AmError error = {0};
    char text[4096], what[64];
    snprintf(text, sizeof text, "HloModule test\nENTRY main {\n%s\n}\n", body);
    split_open(&self, text, 7);
    const PlanContext *context = &self.context;
    PlanEntry entry = {.class_index = classes_of(context->classes, context->rules,
                                                 context->roles->parameters[number].instruction, dimension)};
    assert_true(entry.class_index >= 0);
    PlanStage stage = {.is_even = is_even};
    assert_int_equal(mesh_parse(&stage.mesh, &arena, mesh, &error), AM_OK);
    for (int32_t axis = 0; axis < stage.mesh.axis_count; axis++)
        stage.axis_priorities[axis] = (PlanAxisPriority){.count = 1, .entries = &entry};
    snprintf(what, sizeof what, "%s", mesh);
    split_check_stage(&self, &stage, what, is_even ? expect_plain : count_collectives);
    split_close(&self);
    arena_free(&arena);
}

/* One sum, that of the second projection, and nothing else. */
static void expect_one_sum(void) {
    assert_int_equal(collectives_of[PROGRAM_ALL_REDUCE], 1);
    for (int32_t kind = 0; kind <= PROGRAM_HALO_EXCHANGE; kind++)
        if (kind != PROGRAM_ALL_REDUCE) assert_int_equal(collectives_of[kind], 0);
}

static void test_fused_projections(void **state) {
    (void)state;
    static const struct {
        const char *body;
        int32_t output; /* the parameter whose first dimension is split */
    } cases[] = {{gate_by_slices, 2}, {gate_by_reshape, 2}, {gate_by_concatenation, 2}, {attention, 3}};
    static const char *const meshes[] = {"a=2", "a=3", "a=2,b=2", "a=4", "a=5", "a=2,b=3"};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
            check_list(cases[k].body, meshes[m], cases[k].output, 0, false);
            expect_one_sum();
            check_list(cases[k].body, meshes[m], cases[k].output, 0, true);
        }
    }
}

/* The same with one decision about the fused projection that does not fit: its shards are gathered, moved
 * to another dimension, or cut otherwise. */
static void check_override(const char *mesh, Sbp stored, int32_t factor) {
    SplitCase self;
    Arena arena = {0};
    AmError error = {0};
    char text[4096], what[64];
    snprintf(text, sizeof text, "HloModule test\nENTRY main {\n%s\n}\n", gate_by_slices);
    split_open(&self, text, 23);
    const PlanContext *context = &self.context;
    PlanEntry entry = {.class_index = classes_of(context->classes, context->rules,
                                                 context->roles->parameters[2].instruction, 0)};
    PlanOverride override = {.instruction = split_instruction(&self, "h"),
                             .has_states = true,
                             .has_factors = true,
                             .states = {.axis = {stored}},
                             .factors = {factor, -1, -1, -1}};
    PlanStage stage = {.overrides = &override, .override_count = 1};
    assert_int_equal(mesh_parse(&stage.mesh, &arena, mesh, &error), AM_OK);
    stage.axis_priorities[0] = (PlanAxisPriority){.count = 1, .entries = &entry};
    snprintf(what, sizeof what, "%s, state %d, factor %d", mesh, (int)stored, factor);
    split_check_stage(&self, &stage, what, count_collectives);
    split_close(&self);
    arena_free(&arena);
}

static void test_reshard_in_blocks(void **state) {
    (void)state;
    static const char *const meshes[] = {"a=2", "a=3", "a=4", "a=5"};
    static const Sbp stored[] = {SBP_B, 1 /* S(0) */, 2 /* S(1) */};
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++)
        for (size_t s = 0; s < sizeof stored / sizeof *stored; s++)
            for (int32_t factor = -1; factor < 3; factor++) check_override(meshes[m], stored[s], factor);
}

/* 4 heads of queries share 2 of keys and values: an axis for these, and one for the queries of each. */
static const char grouped[] =
    "x = f32[2,5,8] parameter(0) wq = f32[8,16] parameter(1) wk = f32[8,8] parameter(2)\n"
    "wv = f32[8,8] parameter(3) o = f32[16,8] parameter(4)\n"
    "q1 = f32[2,5,16] dot(x, wq), lhs_contracting_dims={2}, rhs_contracting_dims={0}\n"
    "q = f32[2,5,2,2,4] reshape(q1)\n"
    "k1 = f32[2,5,8] dot(x, wk), lhs_contracting_dims={2}, rhs_contracting_dims={0}\n"
    "k = f32[2,5,2,4] reshape(k1)\n"
    "v1 = f32[2,5,8] dot(x, wv), lhs_contracting_dims={2}, rhs_contracting_dims={0}\n"
    "v = f32[2,5,2,4] reshape(v1)\n"
    "s = f32[2,2,5,2,5] dot(q, k), lhs_batch_dims={0,2}, rhs_batch_dims={0,2}, lhs_contracting_dims={4},\n"
    "  rhs_contracting_dims={3}\n"
    "t = f32[2,2,5,2,4] dot(s, v), lhs_batch_dims={0,1}, rhs_batch_dims={0,2}, lhs_contracting_dims={4},\n"
    "  rhs_contracting_dims={1}\n"
    "r = f32[2,5,2,2,4] transpose(t), dimensions={0,2,1,3,4} m = f32[2,5,16] reshape(r)\n"
    "ROOT y = f32[2,5,8] dot(m, o), lhs_contracting_dims={2}, rhs_contracting_dims={0}\n";

static void test_grouped_queries(void **state) {
    (void)state;
    SplitCase self;
    Arena arena = {0};
    AmError error = {0};
    char text[4096];
    snprintf(text, sizeof text, "HloModule test\nENTRY main {\n%s\n}\n", grouped);
    split_open(&self, text, 3);
    const PlanContext *context = &self.context;
    PlanEntry entries[2] = {
        {.class_index = classes_of(context->classes, context->rules, split_instruction(&self, "k"), 2)},
        {.class_index = classes_of(context->classes, context->rules, split_instruction(&self, "q"), 3)}};
    assert_true(entries[0].class_index >= 0 && entries[1].class_index >= 0);
    assert_int_not_equal(entries[0].class_index, entries[1].class_index);
    PlanStage stage = {0};
    assert_int_equal(mesh_parse(&stage.mesh, &arena, "a=2,b=2", &error), AM_OK);
    for (int32_t axis = 0; axis < 2; axis++)
        stage.axis_priorities[axis] = (PlanAxisPriority){.count = 1, .entries = &entries[axis]};
    split_check_stage(&self, &stage, "grouped queries", count_collectives);
    expect_one_sum();
    split_close(&self);
    arena_free(&arena);
}

/* Parts of z are computed and added to sums over axis b, while axis a splits the addition in
 * blocks: z is split along the same dimension in one block. */
static const char sum_in_blocks[] =
    "a = f32[12,8] parameter(0) b = f32[8,6] parameter(1) c = f32[8,6] parameter(2) d = f32[12,6] "
    "parameter(3)\n"
    "p = f32[12,6] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "q = f32[12,6] dot(a, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "z = f32[12,6] negate(d) r = f32[12,6] add(q, z) s = f32[12,6] add(p, r)\n"
    "u = f32[3,4,6] reshape(s) e = f32[3,4,6] parameter(4) ROOT y = f32[3,4,6] multiply(u, e)\n";

static void test_sum_in_blocks(void **state) {
    (void)state;
    SplitCase self;
    Arena arena = {0};
    AmError error = {0};
    char text[4096];
    snprintf(text, sizeof text, "HloModule test\nENTRY main {\n%s\n}\n", sum_in_blocks);
    split_open(&self, text, 3);
    const PlanContext *context = &self.context;
    PlanEntry entries[2] = {{.class_index = classes_of(context->classes, context->rules,
                                                       context->roles->parameters[4].instruction, 1)},
                            {.class_index = classes_of(context->classes, context->rules,
                                                       context->roles->parameters[1].instruction, 0)}};
    assert_true(entries[0].class_index >= 0 && entries[1].class_index >= 0);
    PlanOverride override = {.instruction = split_instruction(&self, "z"),
                             .has_states = true,
                             .has_factors = true,
                             .states = {.axis = {sbp_split(1), sbp_split(0)}},
                             .factors = {1, 0, -1, -1}};
    PlanStage stage = {.overrides = &override, .override_count = 1};
    assert_int_equal(mesh_parse(&stage.mesh, &arena, "a=3,b=2", &error), AM_OK);
    for (int32_t axis = 0; axis < 2; axis++)
        stage.axis_priorities[axis] = (PlanAxisPriority){.count = 1, .entries = &entries[axis]};
    split_check_stage(&self, &stage, "sum in blocks", count_collectives);
    split_close(&self);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fused_projections),
        cmocka_unit_test(test_reshard_in_blocks),
        cmocka_unit_test(test_grouped_queries),
        cmocka_unit_test(test_sum_in_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
