/* Conditionals planned through their branches: split over devices they give one device's results
 * for either branch, with collectives inside. */
/* labels: threads */
#include <stdio.h>

#include "tests/support/split_case.h"

#define ADD "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"

/* Two arrays in, two out: row sums against the other operand's product. */
static const char tuples[] = "HloModule test\n" ADD "yes { p = (f32[8,6], f32[6,4]) parameter(0)\n"
                             "  x = f32[8,6] get-tuple-element(p), index=0\n"
                             "  w = f32[6,4] get-tuple-element(p), index=1\n"
                             "  y = f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                             "  n = f32[8,4] negate(y) z = f32[] constant(0)\n"
                             "  s = f32[4] reduce(n, z), dimensions={0}, to_apply=add\n"
                             "  ROOT t = (f32[8,4], f32[4]) tuple(n, s) }\n"
                             "no { p = (f32[8,4], f32[4], f32[9]) parameter(0)\n"
                             "  x = f32[8,4] get-tuple-element(p), index=0\n"
                             "  s = f32[4] get-tuple-element(p), index=1\n"
                             "  ROOT t = (f32[8,4], f32[4]) tuple(x, s) }\n"
                             "ENTRY main { n = %s parameter(0) x = f32[8,6] parameter(1)\n"
                             "  w = f32[6,4] parameter(2) a = f32[8,4] parameter(3) b = f32[4] parameter(4)\n"
                             "  e = f32[9] parameter(5) u = f32[8,6] add(x, x)\n"
                             "  g = (f32[8,6], f32[6,4]) tuple(u, w)\n"
                             "  h = (f32[8,4], f32[4], f32[9]) tuple(a, b, e)\n"
                             "  c = (f32[8,4], f32[4]) conditional(n, g, h), %s\n"
                             "  y = f32[8,4] get-tuple-element(c), index=0\n"
                             "  s = f32[4] get-tuple-element(c), index=1\n"
                             "  v = f32[8,4] broadcast(s), dimensions={1} r = f32[8,4] add(y, v)\n"
                             "  ROOT t = (f32[8,4], f32[4]) tuple(r, s) }\n";

/* An array in, an array out, in a loop; a constant from one branch. */
static const char arrays[] =
    "HloModule test\n" ADD "twice { x = f32[8,6] parameter(0) ROOT y = f32[8,6] add(x, x) }\n"
    "ones { x = f32[6] parameter(0) o = f32[] constant(1)\n"
    "  ROOT y = f32[8,6] broadcast(o), dimensions={} }\n"
    "condition { s = (f32[8,6], f32[6], s32[]) parameter(0)\n"
    "  n = s32[] get-tuple-element(s), index=2 z = s32[] constant(0)\n"
    "  ROOT c = pred[] compare(n, z), direction=GT }\n"
    "body { s = (f32[8,6], f32[6], s32[]) parameter(0)\n"
    "  x = f32[8,6] get-tuple-element(s), index=0\n"
    "  k = f32[6] get-tuple-element(s), index=1\n"
    "  n = s32[] get-tuple-element(s), index=2 one = s32[] constant(1)\n"
    "  two = s32[] constant(2) h = s32[] remainder(n, two)\n"
    "  is = pred[] compare(h, one), direction=EQ\n"
    "  y = f32[8,6] conditional(is, k, x), true_computation=ones, "
    "false_computation=twice\n"
    "  z = f32[8,6] add(y, x) less = s32[] subtract(n, one)\n"
    "  ROOT r = (f32[8,6], f32[6], s32[]) tuple(z, k, less) }\n"
    "ENTRY main { x = f32[8,6] parameter(0) k = f32[6] parameter(1)\n"
    "  n = s32[] constant(4) t = (f32[8,6], f32[6], s32[]) tuple(x, k, n)\n"
    "  r = (f32[8,6], f32[6], s32[]) while(t), condition=condition, body=body\n"
    "  y = f32[8,6] get-tuple-element(r), index=0 z = f32[] constant(0)\n"
    "  ROOT s = f32[8] reduce(y, z), dimensions={1}, to_apply=add }\n";

static int32_t split_results, collectives_inside;

static void count_inside(const Program *program, bool is_region) {
    for (int32_t k = 0; k < program->instruction_count; k++) {
        const ProgramInstruction *instruction = &program->instructions[k];
        collectives_inside += is_region && instruction->kind == PROGRAM_COLLECTIVE;
        for (int32_t r = 0; r < instruction->regions.count; r++)
            count_inside(instruction->regions.programs[r], true);
        if (instruction->opcode != IR_CONDITIONAL) continue;
        for (int32_t r = 0; r < instruction->result_count; r++)
            split_results += sbp_has_split(program->values[instruction->first_result + r].state);
    }
}

static void watch(const Program *program) {
    count_inside(program, false);
}

/* Each class alone, and all together. */
static void check_all(SplitCase *self) {
    static const char *const meshes[] = {"data=2", "data=3", "data=2,model=2"};
    int32_t count = self->context.classes->count;
    assert_true(count > 1 && count < 60);
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        for (int32_t c = 0; c < count; c++) split_check_classes(self, meshes[m], 1ull << c, watch);
        split_check_classes(self, meshes[m], (1ull << count) - 1, watch);
    }
}

static void test_tuples(void **state) {
    (void)state;
    static const struct {
        const char *selector, *branches;
    } cases[] = {
        {"pred[]", "true_computation=yes, false_computation=no"},
        {"s32[]", "branch_computations={yes, no}"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (uint64_t seed = 0; seed < 3; seed++) {
            SplitCase self;
            char text[4096];
            snprintf(text, sizeof text, tuples, cases[k].selector, cases[k].branches);
            split_open(&self, text, seed);
            assert_int_equal(self.context.rules->conditional_count, 1);
            assert_int_equal(self.context.canonical->warnings.count, 0);
            split_results = collectives_inside = 0;
            check_all(&self);
            assert_true(split_results > 0 && collectives_inside > 0);
            split_close(&self);
        }
    }
}

static void test_arrays_in_a_loop(void **state) {
    (void)state;
    SplitCase self;
    split_open(&self, arrays, 1);
    assert_int_equal(self.context.rules->conditional_count, 1);
    split_results = 0;
    check_all(&self);
    split_close(&self);
}

/* A branch that two conditionals share stays replicated, with both conditionals. */
static void test_shared_branches_stay_whole(void **state) {
    (void)state;
    static const char text[] = "HloModule test\nf { x = f32[8] parameter(0) ROOT y = f32[8] add(x, x) }\n"
                               "ENTRY main { n = pred[] parameter(0) x = f32[8] parameter(1)\n"
                               "  y = f32[8] conditional(n, x, x), true_computation=f, false_computation=f\n"
                               "  ROOT z = f32[8] negate(y) }\n";
    SplitCase self;
    split_open(&self, text, 1);
    assert_int_equal(self.context.rules->conditional_count, 0);
    split_check_classes(&self, "data=2", ~0ull, NULL);
    split_close(&self);
}

/* Two stages, cut before every instruction of the entry: the conditional is on one of them. */
static void check_cuts(SplitCase *self) {
    int32_t count = self->context.rules->entry_count, classes = self->context.classes->count;
    for (int32_t cut = 1; cut < count; cut++) {
        Arena arena = {0};
        PlanStage stages[2] = {{.range_count = 1}, {.range_count = 1}};
        char what[64];
        for (int32_t s = 0; s < 2; s++) {
            PlanAxisPriority *priority = &stages[s].axis_priorities[0];
            assert_int_equal(mesh_parse(&stages[s].mesh, &arena, s == 0 ? "data=2" : "data=3", NULL), AM_OK);
            priority->entries = ARENA_ARRAY(&arena, PlanEntry, classes + 1);
            for (int32_t c = 0; c < classes; c++) priority->entries[priority->count++].class_index = c;
            stages[s].ranges = arena_alloc(&arena, sizeof *stages[s].ranges);
            stages[s].ranges[0][0] = s == 0 ? 0 : cut;
            stages[s].ranges[0][1] = s == 0 ? cut : count;
        }
        snprintf(what, sizeof what, "cut before %d", cut);
        split_check_plan(self, &(Plan){.micro_batches = 1, .stages = stages, .stage_count = 2}, what, NULL);
        arena_free(&arena);
    }
}

static void test_stages(void **state) {
    (void)state;
    SplitCase self;
    char text[4096];
    snprintf(text, sizeof text, tuples, "pred[]", "true_computation=yes, false_computation=no");
    for (uint64_t seed = 0; seed < 2; seed++) {
        split_open(&self, text, seed);
        check_cuts(&self);
        split_close(&self);
    }
    split_open(&self, arrays, 1);
    check_cuts(&self);
    split_close(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tuples),
        cmocka_unit_test(test_arrays_in_a_loop),
        cmocka_unit_test(test_shared_branches_stay_whole),
        cmocka_unit_test(test_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
