/* Unequal shares beside a rival: plans that beat the rival are found as without it, and plans far above it
 * take fewer simulations. Random plans of random modules on two device types. */
/* cost: 2 seconds */
#include "tests/support/search_case.h"

#include "cost/simulate/simulate.h"
#include "planners/improve/uneven_shares.h"
#include "planners/single_stage/searchers.h"

enum { CASES = 12, PLANS = 6 };

static const char cluster_text[] =
    "{\"format\": \"automap-cluster-1\", \"name\": \"mixed\", \"device_types\": {"
    "\"fast\": {\"memory_bytes\": 64000000000, \"memory_bytes_per_second\": 8e11,"
    " \"flops_per_second\": {\"f32\": 8e12}, \"kernel_launch_seconds\": 1e-7},"
    "\"slow\": {\"memory_bytes\": 64000000000, \"memory_bytes_per_second\": 2e11,"
    " \"flops_per_second\": {\"f32\": 2e12}, \"kernel_launch_seconds\": 1e-7}},"
    "\"links\": {\"link\": {\"bytes_per_second\": 1e10, \"latency_seconds\": 1e-6}},"
    "\"servers\": [{\"device_type\": \"fast\", \"devices\": 2, \"link\": \"link\"},"
    " {\"device_type\": \"slow\", \"devices\": 2, \"link\": \"link\"}], \"between_servers\": \"link\"}";

/* Returns the seconds of the best shares of a plan, or of the plan itself, which takes `equal` seconds. */
static double share(int64_t *evaluations, Arena *arena, const Plan *plan, const Cluster *cluster,
                    double equal, double rival) {
    const StopSignal never = {0};
    const ShareSearch search = {
        .cluster = cluster, .memory_fraction = 0.9, .most = 1000, .rival_seconds = rival, .stop = &never};
    AmError error = {0};
    MemoryFit fit;
    Plan *best;
    *evaluations = 0;
    if (uneven_shares_find(&best, &fit, evaluations, arena, plan, &search, &error) != AM_OK)
        fail_msg("%s", error.text);
    return best ? best->predicted_step_seconds : equal;
}

static void test_a_rival_loses_no_better_plan(void **state) {
    (void)state;
    int64_t alone = 0, beside = 0;
    int32_t compared = 0, equal = 0;
    for (int32_t number = 0; number < CASES; number++) {
        Arena arena = {0};
        AmError error = {0};
        Random random;
        Cluster *cluster;
        Mesh mesh;
        StageProblem *problem;
        const int32_t devices[] = {0, 1, 2, 3};
        random_seed(&random, 40 + (uint64_t)number);
        PlanContext *context = make_context(&random, 1 + number % 2);
        json_t *object = json_loads(cluster_text, 0, NULL);
        assert_int_equal(cluster_from_json(&cluster, &arena, object, "test", &error), AM_OK);
        json_decref(object);
        assert_int_equal(mesh_parse(&mesh, &arena, number % 3 == 0 ? "data=2,model=2" : "data=4", &error),
                         AM_OK);
        const ProblemSettings settings = {.constraints.memory_fraction = 0.9, .budget = {.limit = 1000}};
        assert_int_equal(problem_create(&problem, context, cluster, &mesh, devices, &settings, &error),
                         AM_OK);
        for (int32_t p = 0; p < PLANS; p++) {
            PlanStage stage;
            AxisPlan axis_plan;
            Simulation *simulation;
            int64_t first, more, fewer;
            random_axis_plan(problem, &random, &axis_plan);
            problem_stage(problem, &axis_plan, &arena, &stage);
            Plan plan = {.context = context, .micro_batches = 1, .stages = &stage, .stage_count = 1};
            const SimulationOptions options = {.memory_fraction = 0.9};
            if (simulate_plan(&simulation, &arena, context, &plan, cluster, &options, &error) != AM_OK)
                continue;
            assert_int_equal(simulation_predict(&plan, &arena, simulation, &error), AM_OK);
            double seconds = plan.predicted_step_seconds;
            double best = share(&first, &arena, &plan, cluster, seconds, 0);
            if (!(best < seconds)) continue;
            compared++;
            equal += share(&more, &arena, &plan, cluster, seconds, best * 1.02) == best;
            share(&fewer, &arena, &plan, cluster, seconds, best / 10);
            assert_true(more <= first && fewer <= first);
            alone += first;
            beside += fewer;
        }
        problem_free(problem);
        cluster_free(cluster);
        plan_context_free(context);
        arena_free(&arena);
    }
    assert_true(compared >= CASES);
    if (equal < compared) print_message("%d of %d plans found\n", equal, compared);
    assert_true(10 * equal >= 9 * compared);
    assert_true(2 * beside < alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_rival_loses_no_better_plan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
