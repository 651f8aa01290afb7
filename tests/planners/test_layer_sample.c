/* Samples of repeated layers: their contents, and their prices and plans, which are those of the module. */
#include "tests/support/search_case.h"

#include "cost/simulate/simulate.h"
#include "ir/analysis/loops.h"
#include "lowering/micro_batch/micro_batches.h"
#include "models/transformer.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/layers/layer_costs.h"
#include "planners/single_stage/single_stage_state.h"
#include "propagation/plan/plan_sample.h"
#include "tests/support/sample.h"

enum { MOST_LAYERS = 48, DEVICES = 8 };

static PlanContext *read_steps(int32_t layers, int64_t width, int64_t odd_width) {
    Text text = {0};
    AmError error = {0};
    PlanContext *context = NULL;
    int64_t widths[MOST_LAYERS + 1];
    for (int32_t k = 0; k <= layers; k++) widths[k] = width;
    widths[layers / 2] = odd_width;
    write_layers(&text, 4096, widths, layers);
    if (plan_context_parse(&context, "layers.hlo.txt", text.data, (int64_t)text.length, &error) != AM_OK)
        fail_msg("line %d: %s", (int)error.line, error.text);
    text_free(&text);
    return context;
}

static void test_layers(void **state) {
    (void)state;
    static const struct {
        int32_t layers;
        int64_t odd_width;
        bool is_sampled;
    } cases[] = {{48, 512, true}, {31, 512, true}, {20, 512, true}, {8, 512, false}, {24, 256, false}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        PlanContext *context = read_steps(cases[k].layers, 512, cases[k].odd_width);
        PlanSample sample;
        AmError error = {0};
        assert_int_equal(plan_sample_make(&sample, context, &error), AM_OK);
        assert_int_equal(sample.context != NULL, cases[k].is_sampled);
        if (sample.context) {
            const IrRoles *roles = sample.context->roles;
            int32_t weights = 0;
            for (int32_t p = 0; p < roles->parameter_count; p++) {
                if (roles->parameters[p].role != IR_ROLE_WEIGHT) continue;
                assert_true(roles->parameters[p].output >= 0);
                weights += ir_layers_of(sample.context->canonical, roles->parameters[p].instruction);
            }
            assert_int_equal(weights, cases[k].layers);
            assert_true(sample.context->rules->count < context->rules->count * 16 / cases[k].layers);
            assert_true(abs(ir_represented(sample.context->canonical) - context->rules->count) < 8);
        }
        plan_sample_free(&sample);
        plan_context_free(context);
    }
}

/* Stages of the sample, moved, have the FLOPs that the sample counts for them. */
static void test_cuts(void **state) {
    (void)state;
    PlanContext *primary = read_steps(MOST_LAYERS, 512, 512);
    PlanSample sample;
    AmError error = {0};
    Arena arena = {0};
    PipelineWork work, of_sample;
    assert_int_equal(plan_sample_make(&sample, primary, &error), AM_OK);
    assert_int_equal(even_pipeline_work(&work, &arena, primary, &error), AM_OK);
    assert_int_equal(even_pipeline_work(&of_sample, &arena, sample.context, &error), AM_OK);
    double total = 0;
    for (int32_t i = 0; i < work.count; i++) total += work.flops[i];
    for (int32_t stages = 2; stages <= 4; stages++) {
        int32_t cuts[5], ranges[4][1][2];
        PlanStage from[4] = {{0}}, moved[4];
        bool found;
        assert_int_equal(even_pipeline_cuts(cuts, &found, sample.context, stages, 1, &error), AM_OK);
        assert_true(found);
        for (int32_t s = 0; s < stages; s++) {
            ranges[s][0][0] = cuts[s];
            ranges[s][0][1] = cuts[s + 1];
            from[s] = (PlanStage){.ranges = ranges[s], .range_count = 1};
        }
        const Plan plan = {.stages = from, .stage_count = stages, .micro_batches = 1};
        assert_int_equal(plan_sample_cut(moved, &arena, &sample, &plan, &error), AM_OK);
        for (int32_t s = 0; s < stages; s++) {
            double flops = 0, counted = 0;
            for (int32_t i = moved[s].ranges[0][0]; i < moved[s].ranges[0][1]; i++) flops += work.flops[i];
            for (int32_t i = cuts[s]; i < cuts[s + 1]; i++) counted += of_sample.flops[i];
            if (fabs(flops - counted) >= 1.5 * total / MOST_LAYERS)
                fail_msg("stage %d of %d has %g layers, %g on the sample", s, stages,
                         flops / total * MOST_LAYERS, counted / total * MOST_LAYERS);
        }
    }
    plan_sample_free(&sample);
    plan_context_free(primary);
    arena_free(&arena);
}

static void simulate(Simulation **simulation, Arena *arena, Plan *plan, const PlanContext *context,
                     PlanStage *stages, const Cluster *cluster) {
    AmError error = {0};
    *plan = (Plan){.stages = stages,
                   .stage_count = 1,
                   .micro_batches = plan_context_micro_batches(context),
                   .schedule = "none",
                   .context = context};
    if (simulate_plan(simulation, arena, context, plan, cluster, &(SimulationOptions){.memory_fraction = 0.9},
                      &error) != AM_OK)
        fail_msg("%s", error.text);
}

/* Prices every baseline on a sample and, moved, on the module. */
static void compare_baselines(PlanContext *primary, const PlanSample *sample, const Cluster *cluster,
                              const char *mesh_text, int32_t micro_batches) {
    Arena arena = {0};
    AmError error = {0};
    const MicroBatchSettings settings = {.micro_batches = micro_batches};
    const ProblemSettings of_problem = {.constraints.memory_fraction = 0.9, .budget = {.limit = 100}};
    const PlanContext *context, *of_sample;
    int32_t devices[DEVICES] = {0, 1, 2, 3, 4, 5, 6, 7};
    StageProblem *problem;
    Mesh mesh;
    assert_int_equal(plan_context_for(&context, primary, &settings, &error), AM_OK);
    assert_int_equal(plan_context_for(&of_sample, sample->context, &settings, &error), AM_OK);
    assert_int_equal(mesh_parse(&mesh, &arena, mesh_text, &error), AM_OK);
    assert_int_equal(problem_create(&problem, of_sample, cluster, &mesh, devices, &of_problem, &error),
                     AM_OK);
    for (int32_t e = 0; e < BASELINE_EVEN_PIPELINE; e++) {
        AxisPlan axis_plan;
        const char *reason;
        Simulation *small, *large;
        Plan plan, moved;
        PlanStage *stages = ARENA_ARRAY(&arena, PlanStage, 2);
        assert_int_equal(baseline_axis_plan(problem, (Baseline)e, &axis_plan, &reason, &error), AM_OK);
        if (reason) continue;
        problem_stage(problem, &axis_plan, &arena, &stages[0]);
        simulate(&small, &arena, &plan, of_sample, &stages[0], cluster);
        assert_int_equal(plan_sample_cut(&stages[1], &arena, sample, &plan, &error), AM_OK);
        assert_int_equal(plan_sample_decide(&stages[1], &arena, sample, &plan, context, &error), AM_OK);
        simulate(&large, &arena, &moved, context, &stages[1], cluster);
        const SimulatedDevice *a = &small->devices[0], *b = &large->devices[0];
        const char *name = baseline_name((Baseline)e);
        if (fabs(a->compute_seconds / b->compute_seconds - 1) > 0.02)
            fail_msg("%s x %d: computes %g s, the module %g s", name, micro_batches, a->compute_seconds,
                     b->compute_seconds);
        if (fabs(a->communication_seconds - b->communication_seconds) > 0.03 * large->step_seconds)
            fail_msg("%s x %d: communicates %g s, the module %g s", name, micro_batches,
                     a->communication_seconds, b->communication_seconds);
        /* At the borders of a loop all collectives end: those of several layers are not hidden there. In
         * groups each gradient has two of them, inside a group and between groups. */
        double of_loop = baseline_has_groups((Baseline)e) ? 0.06 : 0.03;
        double most = micro_batches > 1 ? of_loop : 0.01;
        if (fabs(small->step_seconds / large->step_seconds - 1) > most)
            fail_msg("%s x %d: %g s, the module %g s", name, micro_batches, small->step_seconds,
                     large->step_seconds);
        double bytes = (double)a->needed_bytes / (double)b->needed_bytes;
        if (fabs(bytes - 1) > 0.14)
            fail_msg("%s x %d on %s: %g of the module's bytes", name, micro_batches, mesh_text, bytes);
        assert_int_equal(a->memory.weights_bytes, b->memory.weights_bytes);
    }
    problem_free(problem);
    arena_free(&arena);
}

static void test_prices(void **state) {
    (void)state;
    static const char *const meshes[] = {"data=8,model=1", "data=2,model=4"};
    PlanContext *primary = read_steps(MOST_LAYERS, 4096, 4096);
    PlanSample sample;
    Cluster *cluster;
    Arena arena = {0};
    AmError error = {0};
    assert_int_equal(cluster_read(&cluster, &arena, "h100:1", &error), AM_OK);
    assert_int_equal(plan_sample_make(&sample, primary, &error), AM_OK);
    for (int32_t k = 0; k < 2; k++)
        for (int32_t micro_batches = 1; micro_batches <= 4; micro_batches *= 4)
            compare_baselines(primary, &sample, cluster, meshes[k], micro_batches);
    plan_sample_free(&sample);
    plan_context_free(primary);
    cluster_free(cluster);
    arena_free(&arena);
}

/* ---- pipelines ---- */

typedef struct PipelineCase {
    int32_t stages, micro_batches;
    Baseline baseline;
    bool recomputes; /* every layer for itself */
} PipelineCase;

/* A plan of the sample whose stages have equally many layers. */
static void make_pipeline(Plan *plan, Arena *arena, PlanContext *context, const Cluster *cluster,
                          const PipelineCase *of) {
    AmError error = {0};
    int32_t cuts[DEVICES + 1], count = context->rules->entry_count, width = DEVICES / of->stages;
    bool found;
    const IrLoops *loops = context->canonical->loops;
    const PlanContext *split;
    PlanStage *stages = ARENA_ARRAY(arena, PlanStage, of->stages);
    MicroBatchSettings settings = {.micro_batches = of->micro_batches, .separate_backward = of->stages > 1};
    assert_int_equal(even_pipeline_cuts(cuts, &found, context, of->stages, 1, &error), AM_OK);
    assert_true(found);
    PlanRecomputation *all = &settings.recomputed;
    all->ranges = arena_alloc(arena, sizeof *all->ranges * (size_t)count);
    for (int32_t s = 0, last = -1; s < of->stages; s++, last = -1) {
        stages[s].recompute.ranges = &all->ranges[all->range_count];
        for (int32_t i = cuts[s]; i <= cuts[s + 1] && of->recomputes; i++) {
            bool is_border = i == cuts[s] || i == cuts[s + 1] || (loops->may_cut[i] && loops->layers[i] > 1);
            if (!is_border) continue;
            if (last >= 0) {
                stages[s].recompute.ranges[stages[s].recompute.range_count][0] = last;
                stages[s].recompute.ranges[stages[s].recompute.range_count++][1] = i;
            }
            last = i;
        }
        all->range_count += stages[s].recompute.range_count;
    }
    assert_int_equal(plan_context_for(&split, context, &settings, &error), AM_OK);
    for (int32_t s = 0; s < of->stages; s++) {
        const ProblemSettings of_problem = {.constraints.memory_fraction = 0.9, .budget = {.limit = 100}};
        PlanRecomputation recompute = stages[s].recompute;
        int32_t *devices = ARENA_ARRAY(arena, int32_t, DEVICES);
        char mesh_text[32];
        Mesh mesh;
        StageProblem *problem;
        AxisPlan axis_plan;
        const char *reason;
        for (int32_t d = 0; d < width; d++) devices[d] = s * width + d;
        snprintf(mesh_text, sizeof mesh_text, "data=%d,model=1", width);
        assert_int_equal(mesh_parse(&mesh, arena, mesh_text, &error), AM_OK);
        assert_int_equal(problem_create(&problem, split, cluster, &mesh, devices, &of_problem, &error),
                         AM_OK);
        assert_int_equal(baseline_axis_plan(problem, of->baseline, &axis_plan, &reason, &error), AM_OK);
        if (reason && width > 1) fail_msg("%s", reason);
        if (width == 1) axis_plan = (AxisPlan){0};
        problem_stage(problem, &axis_plan, arena, &stages[s]);
        problem_free(problem);
        stages[s].devices = devices;
        stages[s].recompute = recompute;
        stages[s].ranges = arena_alloc(arena, sizeof *stages[s].ranges);
        stages[s].range_count = 1;
        stages[s].ranges[0][0] = cuts[s];
        stages[s].ranges[0][1] = cuts[s + 1];
    }
    *plan = (Plan){.stages = stages,
                   .stage_count = of->stages,
                   .micro_batches = of->micro_batches,
                   .schedule = of->stages > 1 ? "1f1b" : "none",
                   .context = split};
}

/* Moves a plan of the sample to the module. */
static void move_pipeline(Plan *moved, Arena *arena, PlanContext *primary, const PlanSample *sample,
                          const Plan *plan) {
    AmError error = {0};
    const PlanContext *context;
    PlanStage *stages = ARENA_ARRAY(arena, PlanStage, plan->stage_count);
    MicroBatchSettings settings = {.micro_batches = plan->micro_batches,
                                   .separate_backward = plan->stage_count > 1};
    PlanRecomputation *all = &settings.recomputed;
    if (plan_sample_cut(stages, arena, sample, plan, &error) != AM_OK) fail_msg("%s", error.text);
    all->ranges = arena_alloc(arena, sizeof *all->ranges * (size_t)primary->rules->entry_count);
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t r = 0; r < stages[s].recompute.range_count; r++, all->range_count++)
            memcpy(all->ranges[all->range_count], stages[s].recompute.ranges[r], sizeof *all->ranges);
    assert_int_equal(plan_context_for(&context, primary, &settings, &error), AM_OK);
    assert_int_equal(plan_sample_decide(stages, arena, sample, plan, context, &error), AM_OK);
    *moved = *plan;
    moved->stages = stages;
    moved->context = context;
}

static PlanContext *make_gpt(void) {
    const TransformerShape shape = {.family = TRANSFORMER_GPT,
                                    .layers = MOST_LAYERS,
                                    .width = 1024,
                                    .heads = 16,
                                    .kv_heads = 16,
                                    .ffn = 4096,
                                    .vocabulary = 1024,
                                    .sequence = 512,
                                    .batch = 64,
                                    .type = DTYPE_BF16,
                                    .optimizer = TRANSFORMER_ADAM};
    AmError error = {0};
    IrModule *module;
    PlanContext *primary;
    if (transformer_module(&module, &shape, &error) != AM_OK) fail_msg("%s", error.text);
    assert_int_equal(plan_context_of(&primary, module, NULL, &error), AM_OK);
    return primary;
}

/* The kept layers represent an eighth of a model of 48 layers each, though those next to the loss are not in
 * the run: stages of equally many layers begin at kept ones. */
static void test_eighths(void **state) {
    (void)state;
    enum { LAYERS = 48, EACH = LAYERS / 8 };
    PlanContext *primary = read_steps(47, 512, 512);
    PlanSample sample;
    AmError error = {0};
    int32_t kept[LAYERS + 4] = {0}, last = 0;
    assert_int_equal(plan_sample_make(&sample, primary, &error), AM_OK);
    const int32_t *layer = sample.context->canonical->loops->layer;
    for (int32_t i = 0; i < primary->rules->entry_count; i++) {
        if (sample.record->layer[i] < 0 || sample.record->standing[i] < 0) continue;
        kept[sample.record->layer[i]] = layer[sample.record->standing[i]];
        if (sample.record->layer[i] > last) last = sample.record->layer[i];
    }
    assert_int_equal(last + 1, LAYERS);
    for (int32_t l = EACH; l < LAYERS - EACH; l++)
        assert_int_equal(kept[l] - kept[l - 1], l % EACH == 0 ? 1 : 0);
    plan_sample_free(&sample);
    plan_context_free(primary);
}

/* Returns the weights and the kept bytes of all layers, casts included, and the most that one unit computes
 * again, by the table of data parallelism. */
static LayerBytes sum_table(const PlanContext *context, const Cluster *cluster) {
    const ProblemSettings settings = problem_settings(SPACE_AUTO, 0.9);
    LayerTable table = {.local_batch = 8, .tensor = 1};
    LayerBytes sum = {0};
    LayerCosts *costs;
    AmError error = {0};
    if (layer_costs_open(&costs, context, cluster, &settings, NULL, &error) != AM_OK)
        fail_msg("%s", error.text);
    if (layer_costs_fill(costs, &table, 1, 1, &error) != AM_OK) fail_msg("%s", error.text);
    assert_true(table.found);
    for (int32_t u = 0; u < costs->units.count; u++) {
        double layers = table.bytes[u].kept / table.bytes[u].again;
        sum.kept += table.bytes[u].kept + layers * table.bytes[u].casts;
        sum.weights += table.bytes[u].weights;
        sum.again = fmax(sum.again, table.bytes[u].again);
    }
    layer_tables_free(&table, 1);
    layer_costs_close(costs);
    return sum;
}

/* The table of the sample has the activations of all layers, and those of one for its recomputation. */
static void test_tables(void **state) {
    (void)state;
    PlanContext *primary = make_gpt();
    PlanSample sample;
    Cluster *cluster;
    Arena arena = {0};
    AmError error = {0};
    assert_int_equal(cluster_read(&cluster, &arena, "h100:1", &error), AM_OK);
    assert_int_equal(plan_sample_make(&sample, primary, &error), AM_OK);
    const LayerBytes of_whole = sum_table(primary, cluster), of_sample = sum_table(sample.context, cluster);
    assert_float_equal(of_sample.weights / of_whole.weights, 1, 0.001);
    assert_float_equal(of_sample.kept / of_whole.kept, 1, 0.03);
    assert_true(of_sample.again < of_whole.kept / (MOST_LAYERS / 4));
    plan_sample_free(&sample);
    plan_context_free(primary);
    cluster_free(cluster);
    arena_free(&arena);
}

/* Plans of a GPT of many layers have on the sample the step and the peak that they have on the module. */
static void test_pipelines(void **state) {
    (void)state;
    static const PipelineCase cases[] = {
        {1, 1, BASELINE_ZERO3, false},        {1, 4, BASELINE_ZERO3, true},
        {2, 8, BASELINE_ZERO1, false},        {2, 8, BASELINE_ZERO1, true},
        {4, 8, BASELINE_DATA_PARALLEL, true}, {8, 16, BASELINE_DATA_PARALLEL, false},
    };
    AmError error = {0};
    PlanContext *primary = make_gpt();
    PlanSample sample;
    Cluster *cluster;
    Arena arena = {0};
    assert_int_equal(cluster_read(&cluster, &arena, "h100:1", &error), AM_OK);
    assert_int_equal(plan_sample_make(&sample, primary, &error), AM_OK);
    assert_non_null(sample.context);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k += (size_t)sample_of(1, 3)) {
        Plan plan, moved;
        Simulation *small, *large;
        make_pipeline(&plan, &arena, sample.context, cluster, &cases[k]);
        move_pipeline(&moved, &arena, primary, &sample, &plan);
        if (simulate_plan(&small, &arena, plan.context, &plan, cluster,
                          &(SimulationOptions){.memory_fraction = 0.9}, &error) != AM_OK)
            fail_msg("%s", error.text);
        if (simulate_plan(&large, &arena, moved.context, &moved, cluster,
                          &(SimulationOptions){.memory_fraction = 0.9}, &error) != AM_OK)
            fail_msg("%s", error.text);
        double step = small->step_seconds / large->step_seconds;
        const char *name = baseline_name(cases[k].baseline);
        if (fabs(step - 1) > 0.01)
            fail_msg("%s, %d stages, x %d: %g of the module's step", name, plan.stage_count,
                     plan.micro_batches, step);
        for (int32_t s = 0; s < plan.stage_count; s++) {
            int32_t d = s * DEVICES / plan.stage_count;
            const SimulatedDevice *a = &small->devices[d], *b = &large->devices[d];
            double bytes = (double)a->needed_bytes / (double)b->needed_bytes;
            assert_int_equal(a->memory.weights_bytes, b->memory.weights_bytes);
            if (fabs(bytes - 1) > 0.03)
                fail_msg("%s, %d stages, x %d: stage %d has %g of the module's bytes", name, plan.stage_count,
                         plan.micro_batches, s, bytes);
        }
    }
    plan_sample_free(&sample);
    plan_context_free(primary);
    cluster_free(cluster);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers), cmocka_unit_test(test_cuts),
                                       cmocka_unit_test(test_prices), cmocka_unit_test(test_eighths),
                                       cmocka_unit_test(test_tables), cmocka_unit_test(test_pipelines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
