/* Estimates approximate the sharding graph's cost of the same plan with decisions for a part of the
 * module, and a screened search begins with better plans than the baselines. A climb prices the least
 * estimates first. Screening and the memory of ranks end at a deadline. The memory that a simulation found
 * is not found again. */
#include <math.h>

#include "tests/support/problem_case.h"

#include "cost/memory/rank_memory.h"
#include "cost/relaxation/reshard_costs.h"
#include "cost/relaxation/sharding_graph.h"
#include "cost/simulate/simulate.h"
#include "lowering/micro_batch/micro_batches.h"
#include "lowering/spmd/lower.h"
#include "lowering/spmd/reshard_path.h"
#include "planners/baselines/baseline.h"
#include "planners/explain/explain_plan.h"
#include "planners/single_stage/estimate.h"
#include "planners/single_stage/screen.h"
#include "planners/single_stage/searchers.h"
#include "planners/single_stage/single_stage_state.h"
#include "tests/support/sample.h"

/* The relative difference between the estimate of an axis plan and the whole model's figure. */
static double difference(ProblemCase *self, Estimator *estimator, const ShardingGraph *graph,
                         const AxisPlan *axis_plan) {
    AmError error = {0};
    ArenaMark mark = arena_mark(&self->arena);
    PlanStage stage;
    Assignment *assignment;
    PlanPrice estimate;
    problem_stage(self->problem, axis_plan, &self->arena, &stage);
    assert_int_equal(plan_assign(&assignment, &self->arena, self->context, &stage, &error), AM_OK);
    const ShardingGraphCost cost = sharding_graph_cost(graph, assignment);
    assert_int_equal(estimate_axis_plan(&estimate, estimator, axis_plan, &error), AM_OK);
    assert_true(estimate.seconds == estimate.compute_seconds + estimate.communication_seconds);
    arena_release(&self->arena, mark);
    return fabs(estimate.seconds / (cost.compute_seconds + cost.communication_seconds) - 1);
}

/* Checks estimates of random axis plans: on average at most `limit` off, by samples of at most `most` of the
 * module. */
static void check_estimates(ProblemCase *self, const char *name, double limit, double most, uint64_t seed) {
    enum { AXIS_PLANS = 30 };
    AmError error = {0};
    Estimator *estimator;
    ShardingGraph *graph;
    ShardingGraphSample *sample;
    Random random;
    double sum = 0;
    random_seed(&random, seed);
    assert_int_equal(estimator_of(&estimator, self->problem, &error), AM_OK);
    assert_non_null(estimator);
    assert_int_equal(sharding_graph_create(&graph, &self->arena, self->context,
                                           &(PlacedMesh){&self->mesh, self->cluster, self->devices}, &error),
                     AM_OK);
    assert_int_equal(sharding_graph_sample(&sample, &self->arena, graph, &error), AM_OK);
    assert_true(sharding_graph_sample_context(sample)->split_options->decided_count <=
                most * self->context->split_options->decided_count);
    for (int32_t k = 0; k < AXIS_PLANS; k++) {
        AxisPlan axis_plan;
        random_axis_plan(self->problem, &random, &axis_plan);
        sum += difference(self, estimator, graph, &axis_plan) / AXIS_PLANS;
    }
    if (sum > limit) fail_msg("%s: estimates are %.2f %% off", name, 100 * sum);
}

static void test_near_the_model(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2_tiny", "bert_tiny", "t5_tiny", "vgg_tiny", "llama_tiny"};
    for (size_t m = 0; m < (size_t)sample_of(5, 2); m++) {
        ProblemCase self;
        problem_case_open(&self, models[m], "C", "data=4,model=8", 1);
        check_estimates(&self, models[m], 0.01, 1, m);
        problem_case_close(&self);
    }
}

/* Plans estimated at once, some of them twice, have the figures of plans estimated one by one. */
static void test_several_at_once(void **state) {
    (void)state;
    AmError error = {0};
    ProblemCase cases[2];
    Estimator *estimators[2];
    AxisPlan axis_plans[ESTIMATE_BATCH];
    const AxisPlan *list[ESTIMATE_BATCH + 1];
    Random random;
    random_seed(&random, 1);
    for (int32_t k = 0; k < 2; k++) {
        problem_case_open(&cases[k], "gpt2", "C", "data=4,model=8", 1);
        assert_int_equal(estimator_of(&estimators[k], cases[k].problem, &error), AM_OK);
        assert_non_null(estimators[k]);
    }
    for (int32_t k = 0; k < ESTIMATE_BATCH; k++) {
        random_axis_plan(cases[0].problem, &random, &axis_plans[k]);
        list[k] = &axis_plans[k % 2 ? k : 0];
    }
    list[ESTIMATE_BATCH] = &axis_plans[2]; /* more than are estimated */
    assert_int_equal(estimate_axis_plans(estimators[0], list, ESTIMATE_BATCH + 1, &error), AM_OK);
    for (int32_t k = 0; k < ESTIMATE_BATCH; k++) {
        PlanPrice at_once, alone;
        assert_int_equal(estimate_axis_plan(&at_once, estimators[0], &axis_plans[k], &error), AM_OK);
        assert_int_equal(estimate_axis_plan(&alone, estimators[1], &axis_plans[k], &error), AM_OK);
        assert_true(at_once.seconds == alone.seconds && at_once.compute_seconds == alone.compute_seconds);
        assert_true(at_once.communication_seconds == alone.communication_seconds);
        assert_int_equal(at_once.peak_bytes, alone.peak_bytes);
        assert_true(at_once.excess == alone.excess && at_once.gathers_again == alone.gathers_again);
    }
    for (int32_t k = 0; k < 2; k++) problem_case_close(&cases[k]);
}

/* The twelve layers of a module in micro-batches, whose loops hand on the gradients of every layer. */
static void test_near_the_model_in_micro_batches(void **state) {
    (void)state;
    const MicroBatchSettings settings = {.micro_batches = 4};
    const ProblemSettings of_problem = {.constraints.memory_fraction = 0.9, .budget = {.limit = 1}};
    AmError error = {0};
    ProblemCase self;
    problem_case_open(&self, "gpt2", "C", "data=4,model=8", 1);
    PlanContext *primary = self.context;
    const PlanContext *split;
    assert_int_equal(plan_context_for(&split, primary, &settings, &error), AM_OK);
    problem_free(self.problem);
    assert_int_equal(
        problem_create(&self.problem, split, self.cluster, &self.mesh, self.devices, &of_problem, &error),
        AM_OK);
    assert_true(split->rules->loop_count > 0);
    self.context = (PlanContext *)split;
    check_estimates(&self, "gpt2", 0.002, 0.25, 1);
    self.context = primary;
    problem_case_close(&self);
}

static void assert_ok(AmStatus status) {
    assert_int_equal(status, AM_OK);
}

/* Cached estimates of an axis plan or of an axis equal those of a fresh problem. */
static void test_remembered(void **state) {
    (void)state;
    ProblemCase self;
    AmError error = {0};
    Estimator *estimator;
    int32_t counts[2];
    problem_case_open(&self, "llama_tiny", "C", "data=2,model=16", 1);
    assert_int_equal(estimator_of(&estimator, self.problem, &error), AM_OK);
    for (int32_t k = 0; k < sample_of(2 * BASELINE_COUNT, 3); k++)
        for (int32_t axis = 0; axis < 2; axis++) {
            AxisPlan axis_plan = {0}, alone = {0};
            PlanPrice estimate, again;
            bool found, found_alone;
            ProblemCase other;
            Estimator *fresh;
            const char *reason;
            assert_ok(baseline_megatron(self.problem, axis, &axis_plan, &found, &error));
            counts[axis] = axis_plan.count[axis];
            problem_case_open(&other, "llama_tiny", "C", "data=2,model=16", 1);
            assert_ok(baseline_megatron(other.problem, axis, &alone, &found_alone, &error));
            assert_true(found == found_alone);
            assert_memory_equal(&axis_plan, &alone, sizeof axis_plan);
            assert_ok(baseline_axis_plan(self.problem, (Baseline)(k % BASELINE_COUNT), &axis_plan, &reason,
                                         &error));
            assert_ok(estimate_axis_plan(&estimate, estimator, &axis_plan, &error));
            assert_ok(estimator_of(&fresh, other.problem, &error));
            assert_ok(estimate_axis_plan(&again, fresh, &axis_plan, &error));
            assert_true(estimate.compute_seconds == again.compute_seconds);
            assert_true(estimate.communication_seconds == again.communication_seconds);
            problem_case_close(&other);
        }
    assert_true(counts[0] > counts[1]); /* else nothing is said of axes */
    problem_case_close(&self);
}

/* With equal evaluations: prices after screening, and the baselines. */
static void test_screening_beats_recipes(void **state) {
    (void)state;
    static const char *const models[] = {"bert_tiny", "t5_tiny", "moe_tiny"};
    int32_t better = 0;
    for (size_t m = 0; m < (size_t)sample_of(3, 1); m++) {
        ProblemCase screened, recipes;
        AmError error = {0};
        problem_case_open(&screened, models[m], "C", "data=4,model=8", BASELINE_COUNT);
        problem_case_open(&recipes, models[m], "C", "data=4,model=8", BASELINE_COUNT);
        Screening screening;
        assert_int_equal(screen_search(&screening, screened.problem, 0, &error), AM_OK);
        assert_int_equal(screen_price(&screening, screened.problem, &error), AM_OK);
        assert_int_equal(baseline_price_seeds(recipes.problem, &error), AM_OK);
        assert_true(screened.problem->best.is_known);
        assert_true(screened.problem->budget.used <= BASELINE_COUNT);
        better += screened.problem->best.price.seconds < 0.95 * recipes.problem->best.price.seconds;
        problem_case_close(&screened);
        problem_case_close(&recipes);
    }
    assert_true(better >= sample_of(2, 1));
}

/* A climb with evaluations for one batch prices the insertion with the least estimate of all. */
static void test_climb_prices_least_estimates(void **state) {
    (void)state;
    ProblemCase self;
    AmError error = {0};
    Estimator *estimator;
    PlanPrice price;
    AxisPlan least = {0}, unsplit = {0};
    double least_score = INFINITY;
    problem_case_open(&self, "vgg_tiny", "C", "data=4,model=8", 1 + PROBLEM_BATCH);
    assert_int_equal(estimator_of(&estimator, self.problem, &error), AM_OK);
    for (int32_t axis = 0; axis < 2; axis++)
        for (int32_t k = 0; k < self.problem->class_set_count; k++) {
            AxisPlan changed = {0};
            if (!problem_can_split(self.problem, k, axis) || !axis_plan_insert(&changed, axis, 0, k))
                continue;
            assert_int_equal(estimate_axis_plan(&price, estimator, &changed, &error), AM_OK);
            if (plan_price_score(&price) >= least_score) continue;
            least_score = plan_price_score(&price);
            least = changed;
        }
    assert_int_equal(problem_price(self.problem, &unsplit, &price, &error), AM_OK);
    assert_int_equal(polish_climb(self.problem, &error), AM_OK);
    int64_t used = self.problem->budget.used;
    assert_true(used > 1);
    assert_int_equal(problem_price(self.problem, &least, &price, &error), AM_OK);
    assert_int_equal(self.problem->budget.used, used); /* it is remembered */
    problem_case_close(&self);
}

/* Past the deadline a mesh is not screened: the sample of a large module takes a tenth of a second. */
static void test_screening_ends(void **state) {
    (void)state;
    ProblemCase self;
    Screening screening;
    AmError error = {0};
    problem_case_open(&self, "mlp_tiny", "C", "data=4,model=8", BASELINE_COUNT);
    self.problem->budget.stop.deadline = clock_seconds() - 1;
    assert_int_equal(screen_search(&screening, self.problem, 0, &error), AM_OK);
    assert_int_equal(screening.count, 0);
    self.problem->budget.stop.deadline = clock_seconds() + 1000;
    assert_int_equal(screen_search(&screening, self.problem, 0, &error), AM_OK);
    assert_true(screening.count > 0);
    problem_case_close(&self);
}

/* Past the deadline only the first rank of a stage is lowered; the others keep the memory of the
 * simulation. */
static void test_ranks_end(void **state) {
    (void)state;
    const StopSignal over = {.deadline = clock_seconds() - 1};
    ProblemCase self;
    PlanStage stage;
    PlanRanks ranks;
    MemoryUse *uses, *some;
    AxisPlan axis_plan = {0};
    AmError error = {0};
    problem_case_open(&self, "mlp_tiny", "nominal:3", "data=3", 1); /* a batch of 16: 6, 5 and 5 */
    assert_true(baseline_batch(self.problem, 0, &axis_plan));
    problem_stage(self.problem, &axis_plan, &self.arena, &stage);
    const Plan plan = {.stages = &stage, .stage_count = 1, .micro_batches = 1, .device_count = 3};
    assert_int_equal(plan_ranks(&ranks, &self.arena, self.context, &plan, &error), AM_OK);
    assert_int_equal(rank_memory(&uses, &self.arena, &ranks, self.cluster, NULL, &error), AM_OK);
    assert_int_equal(rank_memory(&some, &self.arena, &ranks, self.cluster, &over, &error), AM_OK);
    assert_memory_equal(&some[0], &uses[0], sizeof *uses);
    for (int32_t rank = 1; rank < 3; rank++) {
        assert_true(uses[rank].peak_bytes > 0 && uses[rank].peak_bytes < uses[0].peak_bytes);
        assert_true(some[rank].peak_bytes == 0);
    }
    problem_case_close(&self);
}

/* A simulation with details has the need of each rank, not that of the first one of its stage. */
static void test_details_have_the_need_of_each_rank(void **state) {
    (void)state;
    ProblemCase self;
    PlanStage stage;
    Simulation *simulation;
    AxisPlan axis_plan = {0};
    AmError error = {0};
    problem_case_open(&self, "mlp_tiny", "nominal:3", "data=3", 1); /* a batch of 16: 6, 5 and 5 */
    assert_true(baseline_batch(self.problem, 0, &axis_plan));
    problem_stage(self.problem, &axis_plan, &self.arena, &stage);
    const Plan plan = {.stages = &stage, .stage_count = 1, .micro_batches = 1, .device_count = 3};
    const SimulationOptions options = {.memory_fraction = 0.9, .with_details = true};
    assert_int_equal(
        simulate_plan(&simulation, &self.arena, self.context, &plan, self.cluster, &options, &error), AM_OK);
    for (int32_t d = 0; d < 3; d++)
        assert_int_equal(simulation->devices[d].needed_bytes, simulation->devices[d].memory.peak_bytes);
    assert_true(simulation->devices[2].needed_bytes < simulation->devices[0].needed_bytes);
    assert_int_equal(simulation->fit.needed_bytes, simulation->devices[0].needed_bytes);
    problem_case_close(&self);
}

/* A later rank that needs more than the first one decides the fit of a candidate and the fullest device of a
 * report. */
static void test_fullest_rank_is_not_the_first(void **state) {
    (void)state;
    ProblemCase self;
    PlanStage stage;
    Simulation *simulation;
    Explanation *explanation;
    AxisPlan axis_plan = {0};
    AmError error = {0};
    problem_case_open(&self, "mlp_tiny", "nominal:5", "data=5", 1); /* a batch of 16: 4, 3, 3, 3 and 3 */
    assert_true(baseline_batch(self.problem, 0, &axis_plan));
    problem_stage(self.problem, &axis_plan, &self.arena, &stage);
    const Plan plan = {.stages = &stage, .stage_count = 1, .micro_batches = 1, .device_count = 5};
    SimulationOptions options = {.memory_fraction = 0.9, .with_details = true};
    assert_int_equal(
        simulate_plan(&simulation, &self.arena, self.context, &plan, self.cluster, &options, &error), AM_OK);
    const MemoryFit fit = simulation->fit;
    int64_t first = simulation->devices[0].needed_bytes;
    assert_true(simulation->fullest > 0 && fit.needed_bytes > first);
    options = (SimulationOptions){.memory_fraction = 0.5 * (double)(fit.needed_bytes + first) /
                                                     (double)simulation->devices[0].memory_bytes};
    assert_int_equal(
        simulate_plan(&simulation, &self.arena, self.context, &plan, self.cluster, &options, &error), AM_OK);
    assert_int_equal(simulation->fit.needed_bytes, fit.needed_bytes);
    assert_false(simulation->fit.fits);
    const ExplainOptions without_changes = {.without_changes = true};
    assert_int_equal(explain_plan(&explanation, &self.arena, self.context, &plan, NULL, self.cluster,
                                  &without_changes, &error),
                     AM_OK);
    assert_int_equal(explanation->stages.of[0].fullest.needed_bytes, fit.needed_bytes);
    assert_true(explanation->stages.of[0].fullest.rank > 0);
    problem_case_close(&self);
}

/* Returns how many devices have another memory in the plan than rank_memory() finds. */
static int32_t count_differences(ProblemCase *self, const Cluster *cluster, const Plan *plan) {
    int32_t differ = 0;
    AmError error = {0};
    PlanRanks ranks;
    MemoryUse *uses;
    assert_int_equal(plan_ranks(&ranks, &self->arena, self->context, plan, &error), AM_OK);
    assert_int_equal(rank_memory(&uses, &self->arena, &ranks, cluster, NULL, &error), AM_OK);
    for (int32_t d = 0; d < plan->device_count; d++) {
        const PlanDevicePrediction *device = &plan->predicted[d];
        if (plan->is_for_jax) memory_use_drop_spare(&uses[d]);
        differ +=
            device->peak_bytes != uses[d].peak_bytes || device->weights_bytes != uses[d].weights_bytes ||
            device->gradients_bytes != uses[d].gradients_bytes ||
            device->optimizer_bytes != uses[d].optimizer_bytes ||
            device->activation_bytes != uses[d].activation_bytes || device->host_bytes != uses[d].host_bytes;
    }
    return differ;
}

/* The memory that a simulation found is kept if that of each rank is the same: if shards are equal, or if too
 * many ranks are left to lower. A batch of 16 does not divide by 3. */
static void test_ranks_have_the_memory_of_a_simulation(void **state) {
    (void)state;
    static const struct {
        const char *model, *cluster, *mesh;
        bool is_even, is_kept;
    } cases[] = {{"mlp_tiny", "nominal:2", "data=2", true, true},
                 {"mlp_tiny", "nominal:3", "data=3", false, false},
                 {"t5_tiny", "nominal:768", "data=3,model=256", false, true}};
    static int32_t devices[768];
    for (int32_t d = 0; d < 768; d++) devices[d] = d;
    for (int32_t k = 0; k < 6; k++) {
        ProblemCase self;
        PlanStage stage;
        Cluster *cluster;
        Simulation *simulation;
        AxisPlan axis_plan = {0};
        AmError error = {0};
        problem_case_open(&self, cases[k / 2].model, "nominal:3", k < 2 ? "data=2" : "data=3", 1);
        assert_true(baseline_batch(self.problem, 0, &axis_plan));
        problem_stage(self.problem, &axis_plan, &self.arena, &stage);
        assert_int_equal(cluster_read(&cluster, &self.arena, cases[k / 2].cluster, &error), AM_OK);
        assert_int_equal(mesh_parse(&stage.mesh, &self.arena, cases[k / 2].mesh, &error), AM_OK);
        stage.devices = devices;
        Plan plan = {.stages = &stage, .stage_count = 1, .micro_batches = 1, .is_for_jax = k % 2};
        assert_int_equal(simulate_plan(&simulation, &self.arena, self.context, &plan, cluster,
                                       &(SimulationOptions){.memory_fraction = 0.9}, &error),
                         AM_OK);
        assert_int_equal(simulation_predict(&plan, &self.arena, simulation, &error), AM_OK);
        const PlanDevicePrediction *simulated = plan.predicted;
        assert_int_equal(simulated[0].is_even, cases[k / 2].is_even);
        assert_int_equal(count_differences(&self, cluster, &plan) == 0, cases[k / 2].is_kept);
        assert_int_equal(rank_memory_predict(&plan, &self.arena, self.context, cluster, NULL, &error), AM_OK);
        assert_int_equal(plan.predicted == simulated, cases[k / 2].is_kept);
        assert_int_equal(count_differences(&self, cluster, &plan), 0);
        cluster_free(cluster);
        problem_case_close(&self);
    }
}

/* If two axes split one dimension, the first stays major: it can leave or join only together with
 * the second, since the lowered program's path between the same states has more than one step.
 * Elsewhere order costs nothing. */
static void test_axes_keep_their_order(void **state) {
    (void)state;
    AmError error = {0};
    ProblemCase self;
    ReshardCosts *any, *ordered;
    problem_case_open(&self, "mlp_tiny", "C", "data=4,model=8", 1);
    Arena *arena = &self.arena;
    assert_int_equal(reshard_costs_create(&any, arena, &(PlacedMesh){&self.mesh, self.cluster, self.devices},
                                          RESHARD_ANY_ORDER, &error),
                     AM_OK);
    assert_int_equal(reshard_costs_create(&ordered, arena,
                                          &(PlacedMesh){&self.mesh, self.cluster, self.devices},
                                          RESHARD_AXIS_ORDER, &error),
                     AM_OK);
    const IrShape *shape = &(IrShape){.type = DTYPE_F32, .rank = 2, .dimensions = (int64_t[]){64, 64}};
    int32_t dearer = 0;
    for (int32_t from = 0; from < RESHARD_STATES; from++)
        for (int32_t to = 0; to < RESHARD_STATES; to++) {
            SbpState states[2] = {{.axis = {SBP_B}}, {.axis = {SBP_B}}};
            bool is_fit = true;
            for (int32_t axis = 0; axis < 2; axis++) {
                const Sbp sbp[2] = {reshard_axis_sbp((ReshardState)from, axis),
                                    reshard_axis_sbp((ReshardState)to, axis)};
                for (int32_t k = 0; k < 2; k++) {
                    is_fit &= !sbp_is_partial(sbp[k]) && !(sbp_is_split(sbp[k]) && sbp_dimension(sbp[k]) > 1);
                    sbp_set(&states[k], axis, sbp[k]);
                }
            }
            float less = any->seconds[0][from][to], more = ordered->seconds[0][from][to];
            assert_true(more >= less * (1 - 1e-6F));
            if (!is_fit) continue;
            dearer += more > less * (1 + 1e-6F);
            /* These figures are zero exactly for changes without data movement in a program. */
            assert_true((reshard_weight(&self.mesh, shape, states[0], states[1]) > 0) == (more > 0));
        }
    assert_true(dearer > 0);
    problem_case_close(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_near_the_model),
                                       cmocka_unit_test(test_several_at_once),
                                       cmocka_unit_test(test_near_the_model_in_micro_batches),
                                       cmocka_unit_test(test_remembered),
                                       cmocka_unit_test(test_screening_beats_recipes),
                                       cmocka_unit_test(test_climb_prices_least_estimates),
                                       cmocka_unit_test(test_screening_ends),
                                       cmocka_unit_test(test_ranks_end),
                                       cmocka_unit_test(test_details_have_the_need_of_each_rank),
                                       cmocka_unit_test(test_fullest_rank_is_not_the_first),
                                       cmocka_unit_test(test_ranks_have_the_memory_of_a_simulation),
                                       cmocka_unit_test(test_axes_keep_their_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
