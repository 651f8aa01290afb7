/* The state of a search for observers: counts, the best time, limits; a watched search finds the same plan.
 */
/* labels: threads */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "planners/plan_search.h"
#include "tests/support/sample.h"

static void test_counts_and_keeps_the_best(void **state) {
    SearchWatch *watch = search_watch_create(0);
    (void)state;
    assert_non_null(watch);
    SearchProgress progress = search_watch_read(watch);
    assert_int_equal(progress.evaluations, 0);
    assert_true(isnan(progress.best_seconds) && isnan(progress.bound_seconds) &&
                isnan(progress.seconds_left));
    search_watch_phase(watch, SEARCH_PHASE_TABLES);
    search_watch_count(watch, 3, NAN);
    search_watch_count(watch, 1, 2);
    search_watch_count(watch, 1, 5);
    search_watch_count(watch, 0, 1);
    search_watch_count(watch, 1, NAN);
    search_watch_bound(watch, 0.5);
    progress = search_watch_read(watch);
    assert_int_equal(progress.phase, SEARCH_PHASE_TABLES);
    assert_int_equal(progress.evaluations, 6);
    assert_true(progress.best_seconds == 1 && progress.bound_seconds == 0.5);
    search_watch_expect(watch, 10);
    progress = search_watch_read(watch);
    assert_int_equal(progress.limit, 16);
    assert_true(isnan(progress.seconds_left)); /* no rate yet */
    search_watch_count(watch, 10, NAN);
    assert_true(search_watch_read(watch).seconds_left == 0);
    search_watch_free(watch);
}

static void test_keeps_the_limit_of_the_user(void **state) {
    SearchWatch *watch = search_watch_create(50);
    (void)state;
    search_watch_expect(watch, 10);
    assert_int_equal(search_watch_read(watch).limit, 50);
    search_watch_free(watch);
}

static void test_accepts_no_watch(void **state) {
    (void)state;
    search_watch_phase(NULL, SEARCH_PHASE_BOUND);
    search_watch_count(NULL, 1, 1);
    search_watch_expect(NULL, 1);
    search_watch_bound(NULL, 1);
    search_watch_free(NULL);
    for (int k = 0; k < SEARCH_PHASE_COUNT; k++) assert_true(search_phase_name((SearchPhase)k)[0] != '\0');
}

static void run_search(SearchResult *result, Arena *arena, SearchWatch *watch, PlanSpace space,
                       const char *model, int64_t evaluations) {
    char path[512];
    AmError error = {0};
    PlanContext *context;
    Cluster *cluster;
    const SearchRequest request = {.constraints.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION,
                                   .callbacks.watch = watch};
    const SearchScope scope = {.request = &request,
                               .kind = space,
                               .micro_batches = space == SPACE_AUTO ? 0 : 1,
                               .limits.evaluations = evaluations,
                               .searcher = SEARCHER_ANNEAL};
    snprintf(path, sizeof path, SOURCE_DIR "/datasets/models/%s/model.hlo.pb", model);
    assert_int_equal(plan_context_read(&context, path, NULL, &error), AM_OK);
    assert_int_equal(cluster_read(&cluster, arena, "nominal:4", &error), AM_OK);
    assert_int_equal(plan_search(result, arena, context, cluster, &scope, &error), AM_OK);
    cluster_free(cluster);
    plan_context_free(context);
}

/* The watch and the result have equal counts and times; plans that a batch comes to twice count once. */
static void test_watches_a_search(void **state) {
    const struct {
        PlanSpace space;
        const char *model;
        int64_t evaluations;
    } cases[] = {{SPACE_SINGLE_STAGE, "gpt2_tiny", 40},
                 {SPACE_AUTO, "mlp_tiny", sample_of(400, 100)},
                 {SPACE_AUTO, "gpt2_tiny", 40}};
    (void)state;
    for (size_t k = is_searched_for_races(); k < (size_t)sample_of(3, 2); k++) {
        Arena arena = {0};
        SearchResult plain, watched;
        SearchWatch *watch = search_watch_create(0);
        run_search(&plain, &arena, NULL, cases[k].space, cases[k].model, cases[k].evaluations);
        run_search(&watched, &arena, watch, cases[k].space, cases[k].model, cases[k].evaluations);
        SearchProgress progress = search_watch_read(watch);
        assert_true(plain.plan->predicted_step_seconds == watched.plan->predicted_step_seconds);
        assert_int_equal(plain.evaluations, watched.evaluations);
        assert_int_equal(progress.evaluations, watched.evaluations);
        assert_true(fabs(progress.best_seconds / watched.plan->predicted_step_seconds - 1) < 0.05);
        assert_int_equal(progress.phase, SEARCH_PHASE_BOUND);
        search_watch_free(watch);
        arena_free(&arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_and_keeps_the_best),
        cmocka_unit_test(test_keeps_the_limit_of_the_user),
        cmocka_unit_test(test_accepts_no_watch),
        cmocka_unit_test(test_watches_a_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
