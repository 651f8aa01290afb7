/* Overrides that are added to a plan's axis priorities: each makes the plan quicker by the real price,
 * whatever the number of threads, in no more evaluations than are allowed, and the plan that is written has
 * them. Pinned weights and their readers are unchanged. */
/* cost: 6 seconds */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/problem_case.h"

#include "cost/relaxation/graph_bound.h"
#include "cost/step/price.h"
#include "planners/baselines/baseline.h"
#include "planners/single_stage/override_search.h"
#include "planners/single_stage/searchers.h"
#include "planners/single_stage/single_stage_state.h"
#include "tests/support/sample.h"

typedef struct Case {
    ProblemCase of;
    PlanStage stage;
    PlanPrice before, after;
} Case;

/* The Megatron-like baseline of a model, refined with so many evaluations. */
static void open_case(Case *self, const char *model, const char *cluster, const char *mesh,
                      int64_t evaluations, OverrideExtent extent) {
    AmError error = {0};
    AxisPlan axis_plan;
    const char *reason;
    problem_case_open(&self->of, model, cluster, mesh, 1000);
    StageProblem *problem = self->of.problem;
    assert_int_equal(baseline_axis_plan(problem, BASELINE_MEGATRON, &axis_plan, &reason, &error), AM_OK);
    assert_null(reason);
    assert_int_equal(problem_price(problem, &axis_plan, &self->before, &error), AM_OK);
    problem_stage(problem, &axis_plan, &self->of.arena, &self->stage);
    self->after = self->before;
    problem->budget.limit = problem->budget.used + evaluations;
    assert_int_equal(
        stage_add_overrides(&self->stage, &self->after, &self->of.arena, problem, extent, &error), AM_OK);
}

static double price_again(Case *self) {
    AmError error = {0};
    Assignment *assignment;
    Program *program;
    StepPrice price;
    assert_int_equal(plan_assign(&assignment, &self->of.arena, self->of.context, &self->stage, &error),
                     AM_OK);
    assert_int_equal(plan_lower(&program, &self->of.arena, self->of.context, assignment, 0, &error), AM_OK);
    assert_int_equal(price_program(&price, program, self->of.cluster, self->of.devices, &error), AM_OK);
    return price.step_seconds;
}

static void test_overrides_make_plans_quicker(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2_tiny", "llama_tiny", "gpt2", "vgg19"};
    int32_t gained = 0;
    for (size_t k = 0; k < (size_t)sample_of(4, 1); k++) {
        Case self;
        open_case(&self, models[k], "C", "data=4,model=8", 24, OVERRIDES_ALL);
        assert_true(price_again(&self) == self.after.seconds);
        assert_true(self.after.seconds <= self.before.seconds);
        assert_true((self.stage.override_count > 0) == (self.after.seconds < self.before.seconds));
        assert_true(self.of.problem->budget.used <= self.of.problem->budget.limit);
        gained += self.after.seconds < 0.99 * self.before.seconds;
        problem_case_close(&self.of);
    }
    assert_true(gained >= sample_of(2, 0));
}

/* After a sample one batch of patches is priced, and those that help together. */
static void test_one_batch_after_sample(void **state) {
    (void)state;
    enum { MOST = PROBLEM_BATCH + 1 };
    Case all, batch;
    open_case(&all, "vgg19", "C", "data=4,model=8", 24, OVERRIDES_ALL);
    int64_t used = all.of.problem->budget.used;
    problem_case_close(&all.of);
    open_case(&batch, "vgg19", "C", "data=4,model=8", 24, OVERRIDES_AFTER_SAMPLE);
    assert_true(used > 1 + MOST);
    assert_in_range(batch.of.problem->budget.used, 2, 1 + MOST);
    assert_true(batch.stage.override_count > 0 && batch.after.seconds < batch.before.seconds);
    problem_case_close(&batch.of);
}

/* Returns the instruction of a parameter. */
static int32_t parameter_of(const PlanContext *context, const char *path) {
    for (int32_t p = 0; p < context->roles->parameter_count; p++)
        if (strcmp(context->roles->parameters[p].path, path) == 0)
            return context->roles->parameters[p].instruction;
    fail_msg("no parameter %s", path);
    return -1;
}

/* Fails unless operators that read an instruction split the same factors in both assignments. */
static void check_readers(const SplitOptions *split_options, int32_t source, const Assignment *before,
                          const Assignment *after) {
    for (int32_t i = 0; i < split_options->count; i++)
        for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++)
            if (split_options->operands[k] == source)
                assert_memory_equal(&after->factor[(size_t)i * MESH_MAX_AXES],
                                    &before->factor[(size_t)i * MESH_MAX_AXES], MESH_MAX_AXES);
}

/* Adds overrides to the plan of a pin alone, which splits dimension `d` of a weight over `data`. The weight
 * keeps the split, and so do its readers. */
static void check_pin(const char *path, const char *sharding, int32_t d) {
    AmError error = {0};
    const PropagationPin pin = {.pattern = path, .sharding = sharding};
    const ProblemSettings settings = {.constraints = {.memory_fraction = 0.9, .pins = &pin, .pin_count = 1},
                                      .budget = {.limit = 1000}};
    const AxisPlan axis_plan = {0};
    ProblemCase of;
    PlanStage stage;
    PlanPrice price;
    Assignment *before, *after;
    problem_case_open_with(&of, "gpt2_tiny", "C", "data=8,model=4", &settings);
    problem_stage(of.problem, &axis_plan, &of.arena, &stage);
    const PlanStage pinned = stage;
    assert_int_equal(problem_price(of.problem, &axis_plan, &price, &error), AM_OK);
    assert_int_equal(plan_assign(&before, &of.arena, of.context, &pinned, &error), AM_OK);
    of.problem->budget.limit = of.problem->budget.used + 40;
    double seconds = price.seconds;
    assert_int_equal(stage_add_overrides(&stage, &price, &of.arena, of.problem, OVERRIDES_ALL, &error),
                     AM_OK);
    assert_true(stage.override_count > 0 && price.seconds < seconds);
    assert_int_equal(plan_assign(&after, &of.arena, of.context, &stage, &error), AM_OK);
    int32_t weight = parameter_of(of.context, path);
    assert_int_equal(after->stored[weight].axis[0], sbp_split(d));
    assert_int_equal(after->stored[weight].axis[1], SBP_B);
    check_readers(of.context->split_options, weight, before, after);
    assert_true(pins_hold(&of.problem->pins, of.context, after));
    PlanOverride other = {.instruction = weight, .has_states = true};
    PlanStage broken = pinned;
    broken.overrides = &other;
    broken.override_count = 1;
    assert_int_equal(plan_assign(&after, &of.arena, of.context, &broken, &error), AM_OK);
    assert_false(pins_hold(&of.problem->pins, of.context, after));
    problem_case_close(&of);
}

static void test_overrides_keep_pins(void **state) {
    (void)state;
    check_pin("state['params']['layers'][0]['mlp_in']['kernel']", "data,-", 0);
    check_pin("state['params']['layers'][0]['mlp_out']['kernel']", "-,data", 1);
}

/* ---- patches ---- */

static double reshard_seconds(const ShardingGraph *graph, const ShardingGraphEdge *edge, ReshardState from,
                              ReshardState to) {
    if (from == RESHARD_ANY || to == RESHARD_ANY) return 0;
    return (double)graph->reshards->seconds[edge->is_f32_sum][from][to] * edge->scale;
}

/* The cost of labels, added up directly: all computing, and resharding once for every tensor and
 * needed state. */
static double count_seconds(const ShardingGraph *graph, const int32_t *labels) {
    bool *is_paid = calloc((size_t)graph->node_count * RESHARD_STATES + 1, 1);
    double seconds = 0;
    for (int32_t n = 0; n < graph->node_count; n++)
        if (graph->nodes[n].seconds) seconds += (double)graph->nodes[n].seconds[labels[n]];
    for (int32_t e = 0; e < graph->edge_count; e++) {
        const ShardingGraphEdge *edge = &graph->edges[e];
        ReshardState from = edge->produced_states[labels[edge->producer]],
                     to = edge->needed_states[labels[edge->reader]];
        bool is_shared = graph->nodes[edge->producer].is_tensor && to != RESHARD_ANY;
        if (is_shared && is_paid[edge->producer * RESHARD_STATES + to]) continue;
        if (is_shared) is_paid[edge->producer * RESHARD_STATES + to] = true;
        seconds += reshard_seconds(graph, edge, from, to);
    }
    free(is_paid);
    return seconds;
}

/* A patch makes the graph's sum less by just its gain, and changes every node; the first patches, at least so
 * many, have no node in common, and all others have one in common with them. */
static void check_patches(const char *name, const char *mesh, int32_t least) {
    AmError error = {0};
    const ShardingGraphWeights both = {1, 1};
    Case self;
    ShardingGraph *graph;
    ShardingGraphFold *fold;
    ShardingGraphChange *patches;
    Assignment *assignment;
    int32_t count, *labels, apart = 0;
    open_case(&self, name, "C", mesh, 0, OVERRIDES_ALL);
    Arena *arena = &self.of.arena;
    assert_int_equal(sharding_graph_create(&graph, arena, self.of.context,
                                           &(PlacedMesh){&self.of.mesh, self.of.cluster, self.of.devices},
                                           &error),
                     AM_OK);
    assert_int_equal(sharding_graph_fold(&fold, arena, graph, &error), AM_OK);
    sharding_graph_bound(fold, &both, 40);
    assert_int_equal(plan_assign(&assignment, arena, self.of.context, &self.stage, &error), AM_OK);
    assert_int_equal(sharding_graph_labels(&labels, arena, graph, assignment, &error), AM_OK);
    assert_int_equal(sharding_graph_patches(&patches, &count, arena, fold, labels, &both, &error), AM_OK);
    double before = count_seconds(graph, labels);
    int32_t *changed = calloc((size_t)graph->node_count, sizeof *changed);
    for (int32_t k = 0; k < count; k++) {
        const ShardingGraphChange *patch = &patches[k];
        memcpy(changed, labels, sizeof *labels * (size_t)graph->node_count);
        for (int32_t r = 0; r < patch->count; r++)
            for (int32_t n = 0; n < graph->node_count; n++)
                if (sharding_graph_is_alike(fold, n, patch->relabels[r].node)) {
                    assert_int_not_equal(labels[n], patch->relabels[r].label);
                    changed[n] = patch->relabels[r].label;
                }
        double gain = before - count_seconds(graph, changed);
        if (!(fabs(gain - patch->gain) <= 1e-6 * before) || !(gain > 0))
            fail_msg("%s, patch %d: a gain of %g is told, it is %g", name, k, patch->gain, gain);
        bool is_apart = true;
        for (int32_t other = 0; other < k; other++)
            is_apart &= !sharding_graph_share_a_node(patch, &patches[other]);
        assert_true(k == apart || !is_apart);
        apart += is_apart;
    }
    assert_true(apart >= least);
    free(changed);
    problem_case_close(&self.of);
}

static void test_patches_gain_what_they_say(void **state) {
    (void)state;
    check_patches("llama_tiny", "data=8,model=4", 2);
    if (sample_of(1, 0) == 0) return;
    check_patches("gpt2", "data=4,model=8", 2);
    check_patches("vgg19", "data=4,model=8", 1);
}

static void test_threads_change_nothing(void **state) {
    (void)state;
    Case one, two;
    setenv("AUTOMAP_THREADS", "1", 1);
    open_case(&one, "llama_tiny", "C", "data=8,model=4", sample_of(25, 8), OVERRIDES_ALL);
    setenv("AUTOMAP_THREADS", "2", 1);
    open_case(&two, "llama_tiny", "C", "data=8,model=4", sample_of(25, 8), OVERRIDES_ALL);
    unsetenv("AUTOMAP_THREADS");
    assert_int_equal(one.stage.override_count, two.stage.override_count);
    assert_memory_equal(one.stage.overrides, two.stage.overrides,
                        sizeof *one.stage.overrides * (size_t)one.stage.override_count);
    assert_true(one.after.seconds == two.after.seconds);
    problem_case_close(&one.of);
    problem_case_close(&two.of);
}

static void test_no_evaluations_no_overrides(void **state) {
    (void)state;
    Case self;
    open_case(&self, "llama_tiny", "C", "data=8,model=4", 0, OVERRIDES_ALL);
    assert_int_equal(self.stage.override_count, 0);
    assert_true(self.after.seconds == self.before.seconds);
    problem_case_close(&self.of);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overrides_make_plans_quicker),
        cmocka_unit_test(test_one_batch_after_sample),
        cmocka_unit_test(test_overrides_keep_pins),
        cmocka_unit_test(test_patches_gain_what_they_say),
        cmocka_unit_test(test_threads_change_nothing),
        cmocka_unit_test(test_no_evaluations_no_overrides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
