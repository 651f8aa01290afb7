/* Even pipelines: every stage has work, however uneven the operators are, and a schedule that some number of
 * stages cannot have leaves the others. */
#include "tests/support/model_case.h"

#include <string.h>

#include "lowering/micro_batch/micro_batches.h"
#include "planners/baselines/even_pipeline.h"
#include "propagation/stages/stages.h"

enum { LAYERS = 4, WIDE = 64, NARROW = 2 };

/* Writes a chain of LAYERS products; number `heavy` has nearly all FLOPs. */
static void write_chain(FILE *file, int32_t heavy) {
    fprintf(file, "HloModule chain\n\nENTRY main {\n  x0 = f32[8,%d] parameter(0)\n", NARROW);
    for (int32_t k = 0; k < LAYERS; k++)
        fprintf(file,
                "  a%d = f32[%d,%d] parameter(%d)\n  b%d = f32[%d,%d] parameter(%d)\n"
                "  w%d = f32[%d,%d] dot(a%d, b%d), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n",
                k, NARROW, k == heavy ? WIDE * WIDE : 1, 2 * k + 1, k, k == heavy ? WIDE * WIDE : 1, NARROW,
                2 * k + 2, k, NARROW, NARROW, k, k);
    for (int32_t k = 0; k < LAYERS; k++)
        fprintf(file,
                "  %sx%d = f32[8,%d] dot(x%d, w%d), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n",
                k + 1 == LAYERS ? "ROOT " : "", k + 1, NARROW, k, k);
    fprintf(file, "}\n");
}

static PlanContext *read_chain(int32_t heavy) {
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    write_chain(file, heavy);
    assert_int_equal(fclose(file), 0);
    PlanContext *context = read_model_text(text);
    free(text);
    return context;
}

static void test_no_stage_is_empty(void **state) {
    (void)state;
    for (int32_t heavy = 0; heavy < LAYERS; heavy++) {
        PlanContext *context = read_chain(heavy);
        Arena arena = {0};
        PipelineWork work;
        AmError error = {0};
        int32_t operators = 0;
        assert_int_equal(even_pipeline_work(&work, &arena, context, &error), AM_OK);
        for (int32_t i = 0; i < work.count; i++) operators += work.is_cut[i];
        assert_true(operators >= LAYERS);
        for (int32_t stages = 2; stages <= operators + 1; stages++) {
            int32_t cuts[STAGES_MOST + 1];
            bool found;
            assert_int_equal(even_pipeline_cuts(cuts, &found, context, stages, 1, &error), AM_OK);
            assert_int_equal(found, stages <= operators);
            for (int32_t s = 0; s < stages && found; s++) {
                int32_t of_stage = 0;
                for (int32_t i = cuts[s]; i < cuts[s + 1]; i++) of_stage += work.is_cut[i];
                if (of_stage == 0) fail_msg("layer %d is heavy: stage %d of %d is empty", heavy, s, stages);
            }
        }
        arena_free(&arena);
        plan_context_free(context);
    }
}

/* A loop of four trips with a product in one of two branches, and an operator behind it. */
static const char branches[] =
    "HloModule branches\n"
    "one { p = (f32[4,4], f32[4,4]) parameter(0) a = f32[4,4] get-tuple-element(p), index=0\n"
    "  b = f32[4,4] get-tuple-element(p), index=1\n"
    "  ROOT c = f32[4,4] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0} }\n"
    "other { p = f32[4,4] parameter(0) ROOT c = f32[4,4] negate(p) }\n"
    "condition { s = (s32[], f32[4,4], f32[4,4]) parameter(0) n = s32[] get-tuple-element(s), index=0\n"
    "  z = s32[] constant(4) ROOT c = pred[] compare(n, z), direction=LT }\n"
    "body { s = (s32[], f32[4,4], f32[4,4]) parameter(0) n = s32[] get-tuple-element(s), index=0\n"
    "  x = f32[4,4] get-tuple-element(s), index=1 w = f32[4,4] get-tuple-element(s), index=2\n"
    "  i = s32[] constant(1) two = s32[] constant(2) h = s32[] remainder(n, two)\n"
    "  is = pred[] compare(h, i), direction=EQ p = (f32[4,4], f32[4,4]) tuple(x, w)\n"
    "  y = f32[4,4] conditional(is, p, x), true_computation=one, false_computation=other\n"
    "  m = s32[] add(n, i) ROOT t = (s32[], f32[4,4], f32[4,4]) tuple(m, y, w) }\n"
    "ENTRY main { x = f32[4,4] parameter(0) w = f32[4,4] parameter(1) z = s32[] constant(0)\n"
    "  s = (s32[], f32[4,4], f32[4,4]) tuple(z, x, w)\n"
    "  r = (s32[], f32[4,4], f32[4,4]) while(s), condition=condition, body=body\n"
    "  y = f32[4,4] get-tuple-element(r), index=1 ROOT q = f32[4,4] sine(y) }\n";

/* The FLOPs of branches, each as likely as another, count at the loop around them. */
static void test_branches_count(void **state) {
    (void)state;
    PlanContext *context = read_model_text(branches);
    Arena arena = {0};
    PipelineWork work;
    AmError error = {0};
    int32_t loops = 0;
    assert_int_equal(even_pipeline_work(&work, &arena, context, &error), AM_OK);
    for (int32_t i = 0; i < work.count; i++) {
        if (context->canonical->instructions[i].opcode != IR_WHILE) continue;
        loops++;
        assert_true(work.flops[i] >= 4 * 0.5 * 2 * 4 * 4 * 4);
        assert_true(work.flops[i] < 4 * 2 * 4 * 4 * 4);
    }
    assert_int_equal(loops, 1);
    arena_free(&arena);
    plan_context_free(context);
}

/* Four stages of two chunks cut attention layers in their middles. Eight chunks are refused. */
static void test_fewer_stages(void **state) {
    (void)state;
    static const struct {
        const char *mesh;
        int32_t chunks, stages;
        const char *refusal; /* or NULL */
    } cases[] = {
        {NULL, 0, 2, NULL}, {"data=2", 0, 2, NULL}, {"data=1", 0, 4, NULL}, {NULL, 8, 0, "fewer stages"}};
    MicroBatchSettings settings = {.micro_batches = 4, .separate_backward = true};
    PlanContext *primary = read_model("gpt2_tiny");
    const PlanContext *split;
    Arena arena = {0};
    Cluster *cluster;
    AmError error = {0};
    assert_int_equal(plan_context_for(&split, primary, &settings, &error), AM_OK);
    assert_int_equal(cluster_read(&cluster, &arena, "nominal:4", &error), AM_OK);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const SearchRequest request = {.space.mesh = cases[k].mesh,
                                       .constraints.memory_fraction = 1,
                                       .space.schedule = "interleaved_1f1b",
                                       .space.chunks = cases[k].chunks};
        SearchScope scope = {.request = &request};
        Plan *plan;
        const char *reason;
        int64_t evaluations;
        error = (AmError){0};
        AmStatus status =
            even_pipeline_plan(&plan, &reason, &evaluations, &arena, split, cluster, &scope, &error);
        if (cases[k].refusal) {
            assert_int_equal(status, AM_ERROR_INFEASIBLE);
            if (!strstr(error.text, cases[k].refusal)) fail_msg("%s", error.text);
        } else {
            if (status != AM_OK) fail_msg("%s", error.text);
            assert_int_equal(plan->stage_count, cases[k].stages);
        }
    }
    assert_true(arena.used < (size_t)1 << 18); /* plans alone: their simulations are released */
    cluster_free(cluster);
    plan_context_free(primary);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_stage_is_empty),
                                       cmocka_unit_test(test_branches_count),
                                       cmocka_unit_test(test_fewer_stages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
