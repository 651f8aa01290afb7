/* Repeated layers decide as one, and are priced one by one: the search's price of a plan is the
 * time of the program lowered from it, collective by collective. Three prices are compared to the
 * last bit: that of the search, the simulation with all iterations folded, and one that walks every
 * step of every iteration; the collectives of the program are added up here a fourth time. Covers
 * every model with AUTOMAP_FULL=1. */
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cost/simulate/simulate.h"
#include "lowering/spmd/lower.h"
#include "planners/single_stage/single_stage_search.h"
#include "tests/support/model_case.h"
#include "tests/support/sample.h"

#define EVALUATIONS sample_of(24, 4)

static const char *const few[] = {"gpt2_tiny", "t5_tiny", "moe_tiny", "llama_tiny", "vgg_tiny", "lstm_tiny"};
static const char *const clusters[] = {"nominal:4", "C"};

/* Adds up the rows of a priced program by kind. */
static void add_collectives(CollectivePrice total[PRICE_COLLECTIVE_KINDS], const StepCost *costs,
                            int32_t count) {
    for (int32_t s = 0; s < count; s++) {
        if (!costs[s].is_collective) continue;
        CollectivePrice *kind = &total[costs[s].kind];
        kind->count += (int64_t)costs[s].executed.times;
        kind->tensor_bytes += costs[s].executed.times * costs[s].bytes;
        kind->seconds += costs[s].executed.times * costs[s].seconds;
    }
}

/* Simulated time is in whole picoseconds, the price of a program is not. */
static const double picosecond = 1e-12;

static void compare_collectives(const char *model, const CollectivePrice *a, const CollectivePrice *b) {
    for (int32_t kind = 0; kind < PRICE_COLLECTIVE_KINDS; kind++) {
        if (a[kind].count == b[kind].count && a[kind].tensor_bytes == b[kind].tensor_bytes &&
            fabs(a[kind].seconds - b[kind].seconds) <= picosecond * (double)a[kind].count)
            continue;
        fail_msg("%s: %s: %lld of %.17g bytes in %.17g s, and %lld of %.17g in %.17g", model,
                 program_collective_name((ProgramCollectiveKind)kind), (long long)a[kind].count,
                 a[kind].tensor_bytes, a[kind].seconds, (long long)b[kind].count, b[kind].tensor_bytes,
                 b[kind].seconds);
    }
}

static void compare_seconds(const char *model, const char *what, double a, double b) {
    if (memcmp(&a, &b, sizeof a) != 0) fail_msg("%s: %s %.17g and %.17g", model, what, a, b);
}

static void check_plan(const char *model, const PlanContext *context, const Cluster *cluster,
                       const Plan *plan) {
    Arena arena = {0};
    AmError error = {0};
    Assignment *assignment;
    Program *program;
    StepPrice price;
    StepCost *costs;
    Simulation *folded, *walked;
    int32_t count;
    CollectivePrice added[PRICE_COLLECTIVE_KINDS] = {{0}};
    const SimulationOptions details = {.memory_fraction = 0.9, .with_details = true};
    const int32_t *devices = plan->stages[0].devices;
    assert_int_equal(plan_assign(&assignment, &arena, context, &plan->stages[0], &error), AM_OK);
    assert_int_equal(plan_lower(&program, &arena, context, assignment, 0, &error), AM_OK);
    assert_int_equal(price_program(&price, program, cluster, devices, &error), AM_OK);
    assert_int_equal(price_steps(&costs, &count, &arena, program, cluster, devices, &error), AM_OK);
    assert_int_equal(simulate_plan(&folded, &arena, context, plan, cluster,
                                   &(SimulationOptions){.memory_fraction = 0.9}, &error),
                     AM_OK);
    assert_int_equal(simulate_plan(&walked, &arena, context, plan, cluster, &details, &error), AM_OK);
    add_collectives(added, costs, count);
    compare_seconds(model, "price and plan", price.step_seconds, plan->predicted_step_seconds);
    compare_seconds(model, "price and simulation", price.step_seconds, folded->step_seconds);
    compare_seconds(model, "simulation and every step", folded->step_seconds, walked->step_seconds);
    compare_collectives(model, price.collectives, folded->collectives);
    compare_collectives(model, price.collectives, walked->collectives);
    compare_collectives(model, added, price.collectives);
    arena_free(&arena);
}

/* Every class that is tied to a listed one is in the priority, too. */
static void check_ties(const char *model, const PlanContext *context, const Plan *plan) {
    const Classes *classes = context->classes;
    const PlanStage *stage = &plan->stages[0];
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        const PlanAxisPriority *priority = &stage->axis_priorities[axis];
        for (int32_t e = 0; e < priority->count; e++) {
            int32_t listed = priority->entries[e].class_index, tied = 0, found = 0;
            if (listed < 0) continue;
            for (int32_t c = 0; c < classes->count; c++)
                tied += classes->classes[c].tie == classes->classes[listed].tie;
            for (int32_t k = 0; k < priority->count; k++)
                found +=
                    priority->entries[k].class_index >= 0 &&
                    classes->classes[priority->entries[k].class_index].tie == classes->classes[listed].tie;
            if (found != tied) fail_msg("%s: %d of %d tied classes are listed", model, found, tied);
        }
    }
}

static void check_model(const char *model) {
    PlanContext *context = NULL;
    AmError error = {0};
    char path[1024];
    snprintf(path, sizeof path, SOURCE_DIR "/datasets/models/%s/model.hlo.pb", model);
    FILE *file = fopen(path, "rb");
    if (file) fclose(file);
    else snprintf(path, sizeof path, SOURCE_DIR "/datasets/models/%s/model.hlo.pb.zst", model);
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s: %s", model, error.text);
    for (size_t k = 0; k < (size_t)sample_of(2, 1); k++) {
        Arena arena = {0};
        Cluster *cluster;
        SearchResult result;
        const SearchRequest request = {.constraints.memory_fraction = 0.9};
        const SearchScope scope = {.request = &request,
                                   .searcher = SEARCHER_RANDOM,
                                   .limits.evaluations = EVALUATIONS,
                                   .skip_bound = true};
        assert_int_equal(cluster_read(&cluster, &arena, clusters[k], &error), AM_OK);
        AmStatus status = single_stage_search(&result, &arena, context, cluster, &scope, &error);
        if (status != AM_OK && status != AM_ERROR_INFEASIBLE) fail_msg("%s: %s", model, error.text);
        const Plan *plan = status == AM_OK ? result.plan : result.nearest;
        error = (AmError){0};
        if (plan) check_plan(model, context, cluster, plan);
        if (plan) check_ties(model, context, plan);
        cluster_free(cluster);
        arena_free(&arena);
    }
    plan_context_free(context);
}

static void test_folded_is_unfolded(void **state) {
    (void)state;
    const char *full = getenv("AUTOMAP_FULL");
    if (full && strcmp(full, "1") == 0) {
        DIR *folder = opendir(SOURCE_DIR "/datasets/models");
        assert_non_null(folder);
        for (struct dirent *entry; (entry = readdir(folder));)
            if (entry->d_name[0] != '.') check_model(entry->d_name);
        closedir(folder);
        return;
    }
    int32_t count = sample_of((int32_t)(sizeof few / sizeof *few), 1);
    for (int32_t k = 0; k < count; k++) check_model(few[k]);
}

/* Devices of two types: runs of operators as sums, and step by step, give every device the same times. */
static void test_runs_of_mixed_devices(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    PlanContext *context;
    Cluster *cluster;
    SearchResult result;
    Simulation *summed, *walked;
    const SearchRequest request = {.constraints.memory_fraction = 0.9};
    const SearchScope search = {.request = &request,
                                .searcher = SEARCHER_BASELINE,
                                .baseline = BASELINE_DATA_PARALLEL,
                                .skip_bound = true};
    SimulationOptions options = {.memory_fraction = 0.9};
    const char *path = SOURCE_DIR "/datasets/models/gpt2/model.hlo.pb.zst";
    assert_int_equal(plan_context_read(&context, path, NULL, &error), AM_OK);
    assert_int_equal(cluster_read(&cluster, &arena, "whale-dp", &error), AM_OK);
    assert_int_equal(single_stage_search(&result, &arena, context, cluster, &search, &error), AM_OK);
    assert_int_equal(simulate_plan(&summed, &arena, context, result.plan, cluster, &options, &error), AM_OK);
    options.with_details = true;
    assert_int_equal(simulate_plan(&walked, &arena, context, result.plan, cluster, &options, &error), AM_OK);
    compare_seconds("gpt2", "sums and every step", summed->step_seconds, walked->step_seconds);
    double hidden = 0;
    for (int32_t d = 0; d < summed->device_count; d++) {
        const SimulatedDevice *a = &summed->devices[d], *b = &walked->devices[d];
        compare_seconds("gpt2", "computing", a->compute_seconds, b->compute_seconds);
        compare_seconds("gpt2", "hidden", a->hidden_seconds, b->hidden_seconds);
        hidden += a->hidden_seconds;
    }
    assert_true(hidden > 0);
    cluster_free(cluster);
    arena_free(&arena);
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_folded_is_unfolded),
                                       cmocka_unit_test(test_runs_of_mixed_devices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
