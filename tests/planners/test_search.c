/* Searchers against exhaustive search on generated training steps: multi-layer
 * perceptrons of random widths on clusters of random speeds, small enough to
 * enumerate every plan. */
/* cost: 5 seconds */
#include "lowering/spmd/lower.h"
#include "tests/support/sample.h"
#include "tests/support/search_case.h"

/* The default search finds the optimum of the space, with and without the
 * baselines to start from. */
static void test_dqn_equals_exhaustive(void **state) {
    (void)state;
    int32_t random_was_worse = 0, cases = sample_of(24, 4);
    for (int32_t number = 0; number < cases; number++) {
        Random random;
        random_seed(&random, 1000 + (uint64_t)number);
        Arena arena = {0};
        int32_t layers = 1 + number % 2;
        PlanContext *context = make_context(&random, layers);
        Cluster *cluster = make_cluster(&random, &arena, LARGE_MEMORY);
        SearchRequest request = {.space.mesh = layers == 1 ? "data=2,model=2" : "data=4",
                                 .space.no_overrides = true};
        SearchScope scope = {.request = &request, .seed = (uint64_t)number};
        scope.searcher = SEARCHER_EXHAUSTIVE;
        double best = searched(context, cluster, scope);
        scope.searcher = SEARCHER_DQN;
        double seeded = searched(context, cluster, scope);
        request.method.no_seeds = true;
        double unseeded = searched(context, cluster, scope);
        if (fabs(seeded / best - 1) > 1e-12 || fabs(unseeded / best - 1) > 1e-12)
            fail_msg("case %d: exhaustive %g, dqn %g, without baselines %g", number, best, seeded, unseeded);
        scope.searcher = SEARCHER_RANDOM;
        random_was_worse += searched(context, cluster, scope) > best * 1.01;
        cluster_free(cluster);
        arena_free(&arena);
        plan_context_free(context);
    }
    /* The cases decide something: a random plan is usually not the best. */
    assert_true(random_was_worse > cases / 2);
}

static void check_kept(const PlanContext *context, Arena *arena, const Plan *plan, const char *path, Sbp data,
                       Sbp model) {
    AmError error = {0};
    Assignment *assignment;
    assert_int_equal(plan_assign(&assignment, arena, context, &plan->stages[0], &error), AM_OK);
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        if (strcmp(context->roles->parameters[p].path, path) != 0) continue;
        SbpState found = assignment->stored[context->roles->parameters[p].instruction];
        assert_int_equal(found.axis[0], data);
        assert_int_equal(found.axis[1], model);
        return;
    }
    fail_msg("no parameter %s", path);
}

/* Every searcher's plan keeps the pins, on a mesh where they hold. Without overrides none is better than the
 * best of all that keep them. */
static void test_pins_are_kept(void **state) {
    (void)state;
    static const PropagationPin pins[] = {{.pattern = "w0", .sharding = "-,model"},
                                          {.pattern = "w1", .sharding = "-,-"},
                                          {.pattern = "h*", .sharding = "data,-"}};
    static const Searcher searchers[] = {SEARCHER_EXHAUSTIVE, SEARCHER_DQN, SEARCHER_RANDOM};
    for (uint64_t number = 0; number < 6; number++) {
        Random random;
        random_seed(&random, 2000 + number);
        Arena arena = {0};
        PlanContext *context = make_context(&random, 2);
        Cluster *cluster = make_cluster(&random, &arena, LARGE_MEMORY);
        double best = 0;
        for (int32_t count = 1; count <= 3; count += 2) {
            for (size_t k = 0; k < sizeof searchers / sizeof *searchers; k++) {
                AmError error = {0};
                SearchResult result;
                SearchRequest request = {.constraints.memory_fraction = 0.9,
                                         .space.mesh = count == 3 ? NULL : "data=2,model=2",
                                         .space.no_overrides = number % 2 == 0,
                                         .constraints.pins = pins,
                                         .constraints.pin_count = count};
                SearchScope scope = {
                    .request = &request, .searcher = searchers[k], .seed = number, .limits.evaluations = 200};
                AmStatus status = single_stage_search(&result, &arena, context, cluster, &scope, &error);
                /* w1's rows are w0's columns: whole and split at once. */
                if (count == 3) {
                    assert_int_equal(status, AM_ERROR_INFEASIBLE);
                    assert_non_null(strstr(error.text, "pin \"w"));
                    continue;
                }
                if (status != AM_OK) fail_msg("%s", error.text);
                check_kept(context, &arena, result.plan, "w0", SBP_B, sbp_split(1));
                if (k == 0) best = result.plan->predicted_step_seconds;
                if (request.space.no_overrides)
                    assert_true(result.plan->predicted_step_seconds >= best * (1 - 1e-12));
            }
        }
        cluster_free(cluster);
        arena_free(&arena);
        plan_context_free(context);
    }
}

/* If weights do not fit together with their gradients, data parallelism needs them in shards, and
 * the search finds that with and without the baseline. */
static void test_storage_makes_plans_fit(void **state) {
    (void)state;
    static const int64_t width[] = {3, 8192, 8192, 8192}; /* two weights of 268 MB */
    Random random;
    random_seed(&random, 4000);
    Arena arena = {0};
    Text text = {0};
    write_layers(&text, 64, width, 3);
    PlanContext *context = read_model_text(text.data);
    text_free(&text);
    Cluster *cluster = make_cluster(&random, &arena, 830000000);
    for (int32_t seeds = 0; seeds < 2; seeds++) {
        AmError error = {0};
        SearchResult result;
        SearchRequest request = {
            .constraints.memory_fraction = 0.9, .space.mesh = "data=4", .method.no_seeds = seeds == 0};
        SearchScope scope = {.request = &request, .kind = SPACE_DATA, .limits.evaluations = 100};
        if (single_stage_search(&result, &arena, context, cluster, &scope, &error) != AM_OK)
            fail_msg("%s", error.text);
        assert_true(isnan(result.baselines[BASELINE_DATA_PARALLEL].seconds));
        assert_true(isnan(result.baselines[BASELINE_ZERO2].seconds));
        assert_false(isnan(result.baselines[BASELINE_ZERO3].seconds));
        const PlanAxisPriority *priority = &result.plan->stages[0].axis_priorities[0];
        assert_true(priority->count > 0 && priority->entries[priority->count - 1].kind == PLAN_WEIGHTS);
    }
    cluster_free(cluster);
    arena_free(&arena);
    plan_context_free(context);
}

/* All ordered meshes, a data input pinned as well, and the baselines. */
static void test_pins_leave_meshes_out(void **state) {
    (void)state;
    static const PropagationPin pins[] = {{.pattern = "w0", .sharding = "-,model"},
                                          {.pattern = "h*", .sharding = "data,-"},
                                          {.pattern = "w0", .sharding = "model,-"}};
    Random random;
    random_seed(&random, 3000);
    Arena arena = {0};
    AmError error = {0};
    SearchResult result;
    PlanContext *context = make_context(&random, 2);
    Cluster *cluster = make_cluster(&random, &arena, LARGE_MEMORY);
    SearchRequest request = {
        .constraints.memory_fraction = 0.9, .constraints.pins = pins, .constraints.pin_count = 2};
    SearchScope scope = {.request = &request, .limits.evaluations = 50};
    if (single_stage_search(&result, &arena, context, cluster, &scope, &error) != AM_OK)
        fail_msg("%s", error.text);
    /* data=4 and model=4 would leave an axis of one device. */
    assert_int_equal(result.plan->stages[0].mesh.axes[0].size, 2);
    check_kept(context, &arena, result.plan, "w0", SBP_B, sbp_split(1));
    check_kept(context, &arena, result.plan, "h0", sbp_split(0), SBP_B);
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        assert_true(isnan(result.baselines[e].seconds) ||
                    result.plan->predicted_step_seconds <= result.baselines[e].seconds);
    request.constraints.pin_count = 3; /* w0 in two ways */
    assert_int_equal(single_stage_search(&result, &arena, context, cluster, &scope, &error), AM_ERROR_USAGE);
    assert_non_null(strstr(error.text, "pin \"w0=-,model\" and pin \"w0=model,-\" contradict each other"));
    cluster_free(cluster);
    arena_free(&arena);
    plan_context_free(context);
}

/* A search that has no time finds one plan; beside a plan that there is already it prices none. */
static void test_no_time(void **state) {
    (void)state;
    Random random;
    random_seed(&random, 5000);
    Arena arena = {0};
    AmError error = {0};
    SearchResult result;
    PlanContext *context = make_context(&random, 2);
    Cluster *cluster = make_cluster(&random, &arena, LARGE_MEMORY);
    const SearchRequest request = {.constraints.memory_fraction = 0.9};
    SearchScope scope = {
        .request = &request, .limits.evaluations = 50, .limits.seconds = 1e-9, .skip_bound = true};
    if (single_stage_search(&result, &arena, context, cluster, &scope, &error) != AM_OK)
        fail_msg("%s", error.text);
    assert_true(result.evaluations > 0 && result.plan);
    scope.known.rival_seconds = 1;
    assert_int_equal(single_stage_search(&result, &arena, context, cluster, &scope, &error),
                     AM_ERROR_INFEASIBLE);
    assert_int_equal(result.evaluations, 0);
    cluster_free(cluster);
    arena_free(&arena);
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_time), cmocka_unit_test(test_dqn_equals_exhaustive),
        cmocka_unit_test(test_storage_makes_plans_fit), cmocka_unit_test(test_pins_are_kept),
        cmocka_unit_test(test_pins_leave_meshes_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
