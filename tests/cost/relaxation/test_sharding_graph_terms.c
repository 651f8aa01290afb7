/* The sharding graph's computing costs, term by term: never above those of the lowered program, for
 * random plans of a module for every operator, and of partial sums before every operator that may
 * carry them; and exact for modules made for one term. */
/* cost: 4 seconds */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cost/relaxation/sharding_graph.h"
#include "cost/step/price.h"
#include "propagation/plan/plan.h"
#include "tests/support/carrier_cases.h"
#include "tests/support/model_case.h"
#include "tests/support/rule_cases.h"
#include "tests/support/sample.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/random.h"

enum { MOST_OVERRIDES = 64 };

static Cluster *cluster;
static Arena cluster_arena;

static int open_cluster(void **state) {
    (void)state;
    AmError error = {0};
    return cluster_read(&cluster, &cluster_arena, "C", &error) == AM_OK ? 0 : -1;
}

static int close_cluster(void **state) {
    (void)state;
    cluster_free(cluster);
    arena_free(&cluster_arena);
    return 0;
}

/* Seconds of computing that the graph and the price, of the device that does most, say of a plan; false: the
 * plan is refused. */
static bool compare(double *graph_seconds, double *price_seconds, Arena *arena, const PlanContext *context,
                    const PlanStage *stage) {
    static const int32_t devices[] = {0, 1, 2, 3, 4, 5, 6, 7};
    AmError error = {0};
    ShardingGraph *graph;
    Assignment *assignment;
    if (plan_assign(&assignment, arena, context, stage, &error) != AM_OK) return false;
    assert_int_equal(
        sharding_graph_create(&graph, arena, context, &(PlacedMesh){&stage->mesh, cluster, devices}, &error),
        AM_OK);
    assert_non_null(graph);
    *graph_seconds = sharding_graph_cost(graph, assignment).compute_seconds;
    *price_seconds = 0;
    for (int32_t device = 0; device < stage->mesh.device_count; device++) {
        Program *program;
        StepPrice price;
        assert_int_equal(plan_lower(&program, arena, context, assignment, device, &error), AM_OK);
        assert_int_equal(price_program(&price, program, cluster, devices, &error), AM_OK);
        *price_seconds = fmax(*price_seconds, price.compute_seconds);
    }
    return true;
}

/* ---- never more ---- */

/* Random factors, and sometimes a stored state. `is_partial`: sums over split dimensions where
 * possible, otherwise mostly the default of empty axis priorities. */
static void choose(PlanStage *stage, const PlanContext *context, bool is_partial, Random *random) {
    const SplitOptions *split_options = context->split_options;
    stage->override_count = 0;
    for (int32_t n = 0; n < split_options->decided_count && stage->override_count < MOST_OVERRIDES; n++) {
        int32_t i = split_options->decided[n], sum = -1;
        const FactorRule *rule = &context->rules->rules[i];
        const IrShape *shape = split_options_array_shape(&context->canonical->instructions[i]);
        PlanOverride *override = &stage->overrides[stage->override_count];
        for (int32_t f = 0; f < rule->factor_count; f++)
            if (rule->factors[f].kind == FACTOR_REDUCTION) sum = f;
        if (is_partial && sum < 0 && random_below(random, 8) > 0) continue;
        stage->override_count++;
        *override = (PlanOverride){.instruction = i,
                                   .has_factors = rule->operand_count > 0 && random_below(random, 3) > 0,
                                   .has_states = random_below(random, is_partial ? 9 : 3) == 0};
        for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
            override->factors[axis] = -1;
            if (axis >= stage->mesh.axis_count) continue;
            int32_t f = (int32_t)random_below(random, rule->factor_count + 1) - 1;
            if (is_partial && sum >= 0 && random_below(random, 2) > 0) f = sum;
            if (f >= 0 && factor_may_split(&rule->factors[f])) override->factors[axis] = f;
            int32_t d = shape->type == DTYPE_TUPLE ? -1 : (int32_t)random_below(random, shape->rank + 1) - 1;
            if (d >= 0 && shape->dimensions[d] > 1) override->states.axis[axis] = sbp_split(d);
        }
    }
}

static int32_t check_plans(const char *name, const char *entry, const int64_t *sizes, bool is_partial,
                           int32_t plans, Random *random) {
    static const char *const meshes[] = {"x=2", "x=4", "x=2,y=2", "x=2,y=3"};
    static char text[RULE_CASE_TEXT];
    int32_t checked = 0;
    rule_case_text(text, entry, sizes);
    PlanContext *context = read_model_text(text);
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++)
        for (int32_t k = 0; k < plans; k++) {
            Arena arena = {0};
            AmError error = {0};
            PlanOverride overrides[MOST_OVERRIDES];
            PlanStage stage = {.overrides = overrides};
            double graph, price;
            assert_int_equal(mesh_parse(&stage.mesh, &arena, meshes[m], &error), AM_OK);
            choose(&stage, context, is_partial, random);
            if (compare(&graph, &price, &arena, context, &stage)) {
                checked++;
                if (graph > price * (1 + 1e-6))
                    fail_msg("%s on %s: the graph has %g s, the price is %g s", name, meshes[m], graph,
                             price);
            }
            arena_free(&arena);
        }
    plan_context_free(context);
    return checked;
}

/* Small sizes, for which launches count, large ones, for which bytes count, and sizes with few
 * divisors. */
static const int64_t sizes[][4] = {{6, 8, 12, 4}, {768, 384, 128, 256}, {7, 10, 5, 9}};
enum { SIZE_COUNT = sizeof sizes / sizeof *sizes };

static void test_never_above_an_operator(void **state) {
    (void)state;
    Random random;
    int32_t checked = 0;
    random_seed(&random, 11);
    for (int32_t k = 0; k < RULE_CASE_COUNT; k++)
        for (int32_t size = 0; size < SIZE_COUNT; size++)
            checked += check_plans(rule_cases[k].name, rule_cases[k].text, sizes[size], false,
                                   sample_of_all(8, 4, 1), &random);
    assert_true(checked > sample_of_all(8, 4, 1) * RULE_CASE_COUNT);
}

static void test_never_above_partial_sums(void **state) {
    (void)state;
    Random random;
    int32_t checked = 0;
    random_seed(&random, 12);
    for (int32_t p = 0; p < PRODUCER_CASE_COUNT; p++)
        for (int32_t c = 0; c < CARRIER_CASE_COUNT; c++) {
            char entry[2048], name[128];
            if (!carrier_case_entry(entry, &producer_cases[p], &carrier_cases[c])) continue;
            snprintf(name, sizeof name, "%s, %s", producer_cases[p].name, carrier_cases[c].name);
            checked += check_plans(name, entry, sizes[(p + c) % 2], true, sample_of_all(4, 2, 1), &random);
        }
    assert_true(checked > 1000);
}

/* Operators that may be fused, recomputed, rounded or omitted. */
static const RuleCase fused_cases[] = {
    {"two readers of a product of 16 bits",
     "p = bf16[4096,512] parameter(0) q = bf16[512,256] parameter(1)\n"
     "d = bf16[4096,256] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
     "s = bf16[4096,256] exponential(d) t = bf16[4096,256] tanh(d)\n"
     "ROOT r = (bf16[4096,256], bf16[4096,256]) tuple(s, t)"},
    {"a widened product", "p = bf16[4096,512] parameter(0) q = bf16[512,256] parameter(1)\n"
                          "d = bf16[4096,256] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                          "ROOT r = f32[4096,256] convert(d)"},
    {"a sum of products of 16 bits",
     "p = bf16[4096,512] parameter(0) q = bf16[512,256] parameter(1) v = bf16[512,256] parameter(2)\n"
     "d = bf16[4096,256] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
     "e = bf16[4096,256] dot(p, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
     "s = bf16[4096,256] add(d, e) c = f32[4096,256] convert(s)\n"
     "ROOT r = f32[4096,256] exponential(c)"},
    {"a sum of products", "p = f32[4096,512] parameter(0) q = f32[512,256] parameter(1)\n"
                          "v = f32[512,256] parameter(2)\n"
                          "d = f32[4096,256] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                          "e = f32[4096,256] dot(p, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                          "ROOT r = f32[4096,256] add(d, e)"},
    {"made again", "q = bf16[4096,512] parameter(0) p = bf16[4096,512] reverse(q), dimensions={0}\n"
                   "c = f32[4096,512] convert(p) n = f32[] parameter(1)\n"
                   "m = f32[4096] reduce(c, n), dimensions={1}, to_apply=max\n"
                   "b = f32[4096,512] broadcast(m), dimensions={0} s = f32[4096,512] subtract(c, b)\n"
                   "ROOT r = pred[4096,512] is-finite(s)"},
    {"softmax of 16 bits and its gradient",
     "p = bf16[4096,512] parameter(0) g = bf16[4096,512] parameter(1) n = f32[] parameter(2)\n"
     "c = f32[4096,512] convert(p) m = f32[4096] reduce(c, n), dimensions={1}, to_apply=max\n"
     "b = f32[4096,512] broadcast(m), dimensions={0} s = f32[4096,512] subtract(c, b)\n"
     "x = f32[4096,512] exponential(s) u = f32[4096] reduce(x, n), dimensions={1}, to_apply=add\n"
     "w = f32[4096,512] broadcast(u), dimensions={0} y = f32[4096,512] divide(x, w)\n"
     "h = f32[4096,512] convert(g) k = f32[4096,512] multiply(h, y)\n"
     "t = f32[4096] reduce(k, n), dimensions={1}, to_apply=add\n"
     "v = f32[4096,512] broadcast(t), dimensions={0} o = f32[4096,512] subtract(h, v)\n"
     "z = f32[4096,512] multiply(o, y) ROOT r = bf16[4096,512] convert(z)"},
    {"padded and cut", "p = f32[4096,512] parameter(0) n = f32[] parameter(1)\n"
                       "e = f32[4096,512] exponential(p) q = f32[4104,512] pad(e, n), padding=4_4x0_0\n"
                       "t = f32[4104,512] tanh(q) s = f32[4096,512] slice(t), slice={[8:4104], [0:512]}\n"
                       "v = f32[4096,512] reverse(s), dimensions={0}\n"
                       "ROOT r = f32[4096,512] add(v, e)"},
};

static void test_never_above_fusions(void **state) {
    (void)state;
    Random random;
    random_seed(&random, 13);
    for (size_t k = 0; k < sizeof fused_cases / sizeof *fused_cases; k++)
        for (int32_t partial = 0; partial < 2; partial++)
            assert_true(check_plans(fused_cases[k].name, fused_cases[k].text, sizes[0], partial > 0,
                                    sample_of_all(150, 60, 4), &random) > 0);
}

/* ---- all that there is ---- */

static const RuleCase exact_cases[] = {
    {"concatenate", "p = f32[4096,512] parameter(0) q = f32[4096,512] parameter(1)\n"
                    "ROOT r = f32[4096,1024] concatenate(p, q), dimensions={1}"},
    {"pad", "p = f32[4096,512] parameter(0) z = f32[] parameter(1)\n"
            "ROOT r = f32[4096,1024] pad(p, z), padding=0_0x256_256"},
    {"reverse", "p = f32[4096,512] parameter(0) ROOT r = f32[4096,512] reverse(p), dimensions={1}"},
    {"gather", "p = f32[4096,512] parameter(0) i = s32[8192] parameter(1)\n"
               "ROOT r = f32[8192,512] gather(p, i), offset_dims={1}, collapsed_slice_dims={0},\n"
               "  start_index_map={0}, index_vector_dim=1, slice_sizes={1,512}"},
    {"scatter", "z = f32[] parameter(2) p = f32[4096,512] broadcast(z), dimensions={}\n"
                "i = s32[8192] parameter(0) u = f32[8192,512] parameter(1)\n"
                "ROOT r = f32[4096,512] scatter(p, i, u), update_window_dims={1}, inserted_window_dims={0},\n"
                "  scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add"},
    {"one fusion", "p = f32[4096,512] parameter(0) q = f32[4096,512] parameter(1)\n"
                   "s = f32[4096,512] subtract(p, q) ROOT r = f32[4096,512] exponential(s)"},
    {"one fusion, little", "p = f32[64,512] parameter(0) q = f32[64,512] parameter(1)\n"
                           "s = f32[64,512] subtract(p, q) ROOT r = f32[64,512] exponential(s)"},
    {"two readers of one array", "p = f32[4096,512] parameter(0)\n"
                                 "s = s32[4096,512] convert(p) t = pred[4096,512] is-finite(p)\n"
                                 "ROOT r = (s32[4096,512], pred[4096,512]) tuple(s, t)"},
    {"before and after a step", "p = f32[4096,512] parameter(0) e = f32[4096,512] exponential(p)\n"
                                "v = f32[4096,512] reverse(e), dimensions={0}\n"
                                "ROOT r = f32[4096,512] add(e, v)"},
    {"a range that is written out", "p = f32[4096,512] parameter(0) i = f32[4096] iota(), iota_dimension=0\n"
                                    "b = f32[4096,512] broadcast(i), dimensions={0}\n"
                                    "ROOT r = f32[4096,512] multiply(p, b)"},
    {"bytes that a fusion makes of a sum of 16 bits",
     "p = bf16[4096,512] parameter(0) q = bf16[4096,512] parameter(1)\n"
     "s = bf16[4096,512] add(p, q) c = f32[4096,512] convert(s)\n"
     "ROOT r = f32[4096,512] exponential(c)"},
};

/* Few costs are omitted: those of a broadcast, and the rates of rounded widths. */
static void test_all_that_there_is(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof exact_cases / sizeof *exact_cases; k++) {
        static char text[RULE_CASE_TEXT];
        Arena arena = {0};
        AmError error = {0};
        PlanStage stage = {.override_count = 0};
        double graph, price;
        rule_case_text(text, exact_cases[k].text, sizes[0]);
        PlanContext *context = read_model_text(text);
        assert_int_equal(mesh_parse(&stage.mesh, &arena, "x=2", &error), AM_OK);
        assert_true(compare(&graph, &price, &arena, context, &stage));
        if (graph > price * (1 + 1e-6) || graph < price * 0.9)
            fail_msg("%s: the graph has %g s, the price is %g s", exact_cases[k].name, graph, price);
        plan_context_free(context);
        arena_free(&arena);
    }
}

/* ---- one node ---- */

/* An operator of a module on two devices, its factor, and its moved bytes there. All sizes are so
 * large that a memory of cluster C has its last rate, and a launch is negligible. */
typedef struct NodeCase {
    RuleCase of;
    IrOpcode opcode;
    int32_t dimension; /* of the result, split; -1: products contract the split dimension, and it uses their
                          parts */
    double bytes;
} NodeCase;

#define HALF (65536.0 * 2048 * 4 / 2) /* of f32[65536,2048] on a device */
#define TURNED                                                              \
    "p = f32[65536,2048] parameter(0) e = f32[65536,2048] exponential(p)\n" \
    "v = f32[65536,2048] reverse(e), dimensions={0} ROOT r = f32[65536,2048] add(e, v)"

/* Along a reversed dimension a device's shard reads a range of others', which may be empty
 * elsewhere: the operand is not counted then. A 16-bit sum pays half of the later reads of its
 * parts. */
static const NodeCase node_cases[] = {
    {{"turned rows", TURNED}, IR_REVERSE, 0, HALF},
    {{"columns", TURNED}, IR_REVERSE, 1, 2 * HALF},

    {{"parts of a sum of 16 bits",
      "p = bf16[65536,512] parameter(0) q = bf16[512,2048] parameter(1) v = bf16[512,2048] parameter(2)\n"
      "d = bf16[65536,2048] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
      "e = bf16[65536,2048] dot(p, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
      "s = bf16[65536,2048] add(d, e) c = f32[65536,2048] convert(s)\n"
      "ROOT r = f32[65536,2048] exponential(c)"},
     IR_ADD,
     -1,
     HALF / 2},
};

static int32_t factor_along(const FactorRule *rule, int32_t dimension) {
    for (int32_t f = 0; f < rule->factor_count; f++)
        if (dimension < 0 ? rule->factors[f].kind == FACTOR_REDUCTION
                          : rule->factors[f].dimension[rule->operand_count] == dimension)
            return f;
    return -1;
}

/* Seconds of the case's operator. */
static double node_seconds(const NodeCase *one, Arena *arena, const PlanContext *context) {
    static const int32_t devices[] = {0, 1};
    AmError error = {0};
    PlanOverride overrides[MOST_OVERRIDES];
    PlanStage stage = {.overrides = overrides};
    ShardingGraph *graph;
    Assignment *assignment;
    int32_t *labels;
    double seconds = -1;
    assert_int_equal(mesh_parse(&stage.mesh, arena, "x=2", &error), AM_OK);
    for (int32_t i = 0; i < context->rules->entry_count; i++) {
        IrOpcode opcode = context->canonical->instructions[i].opcode;
        if (opcode != (one->dimension < 0 ? IR_DOT : one->opcode)) continue;
        PlanOverride *override = &stage.overrides[stage.override_count++];
        *override = (PlanOverride){.instruction = i, .has_factors = true};
        for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) override->factors[axis] = -1;
        override->factors[0] = factor_along(&context->rules->rules[i], one->dimension);
        assert_true(override->factors[0] >= 0);
    }
    assert_int_equal(plan_assign(&assignment, arena, context, &stage, &error), AM_OK);
    assert_int_equal(
        sharding_graph_create(&graph, arena, context, &(PlacedMesh){&stage.mesh, cluster, devices}, &error),
        AM_OK);
    assert_int_equal(sharding_graph_labels(&labels, arena, graph, assignment, &error), AM_OK);
    for (int32_t n = 0; n < graph->node_count; n++)
        if (!graph->nodes[n].is_tensor && graph->nodes[n].seconds &&
            context->canonical->instructions[graph->nodes[n].instruction].opcode == one->opcode)
            seconds = (double)graph->nodes[n].seconds[labels[n]];
    return seconds;
}

static void test_one_node(void **state) {
    (void)state;
    const double rate = 900e9 * 0.88;
    for (size_t k = 0; k < sizeof node_cases / sizeof *node_cases; k++) {
        static char text[RULE_CASE_TEXT];
        Arena arena = {0};
        rule_case_text(text, node_cases[k].of.text, sizes[0]);
        PlanContext *context = read_model_text(text);
        double seconds = node_seconds(&node_cases[k], &arena, context);
        if (fabs(seconds * rate / node_cases[k].bytes - 1) > 0.03)
            fail_msg("%s: %g bytes are counted, it moves %g", node_cases[k].of.name, seconds * rate,
                     node_cases[k].bytes);
        plan_context_free(context);
        arena_free(&arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_above_an_operator), cmocka_unit_test(test_never_above_partial_sums),
        cmocka_unit_test(test_never_above_fusions), cmocka_unit_test(test_all_that_there_is),
        cmocka_unit_test(test_one_node)};
    return cmocka_run_group_tests(tests, open_cluster, close_cluster);
}
