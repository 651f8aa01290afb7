/* Benchmark of the simulator: T5-11B (24 + 24 layers) in 32 micro-batches, stages of Megatron-LM's tensor
 * parallelism, 1F1B.
 *   4 x 8      4 stages of 8 devices, cluster C
 *   16 x 64    16 stages of 64 devices, 128 servers like those of cluster C
 * Columns: lowering across stages, with the lists of their events; prices of every operator, collective and
 * transfer; the events of a step as a search asks for them, folded; both together; and the same step by step,
 * with the critical path. Targets: prices and events in 1 ms, and in 20 ms. Medians of RUNS, in processor
 * time of the only thread; run in the source folder.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/system/clock.h"
#include "bench/check.h"
#include "bench/zoo.h"
#include "cost/simulate/simulate.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/baselines/baseline.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/problem/problem.h"

enum { RUNS = 15, MICRO_BATCHES = 32 };

typedef struct Setting {
    const char *name;
    int32_t stages, tensor, servers;
    double target;
} Setting;

static const Setting settings[] = {{"4 x 8", 4, 8, 4, 1e-3}, {"16 x 64", 16, 64, 128, 20e-3}};

/* Cluster C with as many servers as it takes. */
static Cluster *make_cluster(Arena *arena, int32_t servers) {
    AmError error = {0};
    Cluster *cluster;
    json_t *description;
    bench_check(cluster_builtin(&description, "C", &error), &error);
    json_object_set_new(json_array_get(json_object_get(description, "servers"), 0), "count",
                        json_integer(servers));
    bench_check(cluster_from_json(&cluster, arena, description, "C", &error), &error);
    json_decref(description);
    return cluster;
}

static void make_plan(Plan *plan, Arena *arena, const PlanContext *primary, const PlanContext *context,
                      const Cluster *cluster, const Setting *setting) {
    AmError error = {0};
    const Mesh mesh = {.axis_count = 2,
                       .axes = {{.name = "data", .size = 1}, {.name = "model", .size = setting->tensor}},
                       .device_count = setting->tensor};
    const ProblemSettings problem_settings = {
        .space = SPACE_AUTO, .constraints.memory_fraction = 1, .budget = {.limit = 1}};
    const SearchRequest request = {0};
    const SearchScope described = {.request = &request, .searcher = SEARCHER_BASELINE};
    int32_t *devices = ARENA_ARRAY(arena, int32_t, mesh.device_count);
    int32_t *cuts = ARENA_ARRAY(arena, int32_t, setting->stages + 1);
    bool found;
    StageProblem *problem;
    AxisPlan axis_plan = {0};
    PlanStage *inside = ARENA_ARRAY(arena, PlanStage, 1);
    for (int32_t d = 0; d < mesh.device_count; d++) devices[d] = d;
    bench_check(problem_create(&problem, context, cluster, &mesh, devices, &problem_settings, &error),
                &error);
    bench_check(baseline_megatron(problem, 1, &axis_plan, &found, &error), &error);
    problem_stage(problem, &axis_plan, arena, inside);
    problem_free(problem);
    search_describe_plan(plan, context, cluster, &described);
    plan->stage_count = setting->stages;
    plan->schedule = "1f1b";
    bench_check(even_pipeline_cuts(cuts, &found, primary, setting->stages, 1, &error), &error);
    bench_check(even_pipeline_stages(&plan->stages, arena, inside, cuts, setting->stages, &error), &error);
}

static void run(const PlanContext *primary, const PlanContext *context, const Setting *setting) {
    Arena fixed = {0}, arena = {0}; /* memory that was used before, as in a search */
    AmError error = {0};
    Plan plan;
    double lower[RUNS], price[RUNS], folded[RUNS], full[RUNS], step_seconds[2] = {0};
    Cluster *cluster = make_cluster(&fixed, setting->servers);
    make_plan(&plan, &fixed, primary, context, cluster, setting);
    for (int32_t k = 0; k < RUNS; k++) {
        ArenaMark mark = arena_mark(&arena);
        PlanRanks ranks;
        PlanCosts *costs;
        Simulation *simulation;
        SimulationOptions options = {.memory_fraction = 1};
        double at[5] = {clock_thread_seconds()};
        bench_check(plan_ranks(&ranks, &arena, context, &plan, &error), &error);
        bench_check(plan_costs_lower(&costs, &arena, &ranks, cluster, &error), &error);
        at[1] = clock_thread_seconds();
        bench_check(plan_costs_price(costs, &error), &error);
        at[2] = clock_thread_seconds();
        bench_check(simulate_costs(&simulation, &arena, costs, &options, &error), &error);
        at[3] = clock_thread_seconds();
        step_seconds[0] = simulation->step_seconds;
        options.with_details = true;
        bench_check(simulate_costs(&simulation, &arena, costs, &options, &error), &error);
        at[4] = clock_thread_seconds();
        step_seconds[1] = simulation->step_seconds;
        lower[k] = at[1] - at[0];
        price[k] = at[2] - at[1];
        folded[k] = at[3] - at[2];
        full[k] = at[4] - at[3];
        arena_release(&arena, mark);
    }
    double prices = zoo_median(price, RUNS), events = zoo_median(folded, RUNS);
    printf("%-8s %9.1f %9.3f %9.3f %9.3f %9.1f   %s (target %g ms); step %.4g s, %s\n", setting->name,
           1e3 * zoo_median(lower, RUNS), 1e3 * prices, 1e3 * events, 1e3 * (prices + events),
           1e3 * zoo_median(full, RUNS), prices + events <= setting->target ? "met" : "NOT MET",
           1e3 * setting->target, step_seconds[0],
           step_seconds[0] == step_seconds[1] ? "both alike" : "THE TWO DIFFER");
    cluster_free(cluster);
    arena_free(&arena);
    arena_free(&fixed);
}

int main(void) {
    char binary[4096], roles[4096];
    AmError error = {0};
    PlanContext *primary, *context;
    const MicroBatchSettings split = {.micro_batches = MICRO_BATCHES, .separate_backward = true};
    if (!zoo_paths("t5_paper_24_11b", binary, roles)) {
        fprintf(stderr, "bench_simulate: no model t5_paper_24_11b in " ZOO_FOLDER "\n");
        return 1;
    }
    bench_check(plan_context_read(&primary, binary, roles, &error), &error);
    bench_check(plan_context_split(&context, primary, &split, &error), &error);
    printf("%-8s %9s %9s %9s %9s %9s\n", "stages", "lower", "prices", "events", "both", "unfolded");
    printf("%-8s %9s %9s %9s %9s %9s\n", "", "ms", "ms", "ms", "ms", "ms");
    for (size_t k = 0; k < sizeof settings / sizeof *settings; k++) run(primary, context, &settings[k]);
    plan_context_free(context);
    plan_context_free(primary);
    return 0;
}
