/* Hybrid plans: never slower than even pipelines, deterministic, and each figure equals that of the
 * plan simulated separately. */
/* labels: threads */
/* cost: 5 seconds */
#include "tests/support/cluster_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cost/simulate/simulate.h"
#include "planners/pipeline/pipeline_search.h"
#include "planners/plan_search.h"
#include "tests/support/sample.h"

#define FRACTION        0.9
#define SHORT_OF_MEMORY 2.6e-4
#define EVALUATIONS     sample_of_all(0, 60, 20) /* 0: until the search ends by itself */

static const Plan *search_iterations(ClusterCase *self, PlanSpace space, double fraction,
                                     int32_t micro_batches) {
    const SearchRequest request = {.constraints.memory_fraction = fraction};
    const SearchScope scope = {.request = &request,
                               .kind = space,
                               .searcher = space == SPACE_HYBRID ? SEARCHER_DQN : SEARCHER_BASELINE,
                               .baseline = BASELINE_EVEN_PIPELINE,
                               .micro_batches = micro_batches,
                               .limits.evaluations = EVALUATIONS,
                               .skip_bound = true};
    SearchResult found;
    AmError error = {0};
    if (plan_search(&found, &self->arena, self->context, self->cluster, &scope, &error) != AM_OK)
        fail_msg("%s", error.text);
    return found.plan;
}

static const Plan *search_space(ClusterCase *self, PlanSpace space, double fraction) {
    return search_iterations(self, space, fraction, 0);
}

static void test_no_slower_than_even(void **state) {
    (void)state;
    ClusterCase self;
    open_case(&self, "bert_tiny", "whale-pp");
    const Plan *plan = search_space(&self, SPACE_HYBRID, FRACTION);
    const Plan *even = search_space(&self, SPACE_PIPELINE, FRACTION);
    assert_true(plan->predicted_step_seconds <= even->predicted_step_seconds);
    assert_true(plan->evaluations > 0);
    Simulation *simulation;
    AmError error = {0};
    assert_int_equal(simulate_plan(&simulation, &self.arena, plan->context, plan, self.cluster,
                                   &(SimulationOptions){.memory_fraction = FRACTION}, &error),
                     AM_OK);
    assert_true(simulation->step_seconds == plan->predicted_step_seconds);
    assert_true(simulation->fit.fits);
    close_case(&self);
}

typedef struct Wanted {
    double seconds;
    bool found;
} Wanted;

static void look_for_seconds(void *user, const char *line) {
    Wanted *wanted = user;
    const char *at = strstr(line, "\"seconds\": ");
    double seconds = at ? strtod(at + strlen("\"seconds\": "), NULL) : NAN;
    wanted->found |= fabs(seconds - wanted->seconds) <= 1e-8 * wanted->seconds;
}

/* The search itself, without the baselines that are priced beside it, simulates the best even pipeline, with
 * its own cuts. */
static void test_simulates_even(void **state) {
    (void)state;
    if (is_searched_for_races()) skip(); /* the first test starts the same threads */
    static const char *const models[] = {"bert_tiny", "gpt2_tiny"};
    for (size_t k = 0; k < (size_t)sample_of(2, 1); k++) {
        ClusterCase self;
        SearchResult found;
        AmError error = {0};
        open_case(&self, models[k], "whale-pp");
        Wanted wanted = {.seconds = search_space(&self, SPACE_PIPELINE, FRACTION)->predicted_step_seconds};
        const SearchRequest request = {.constraints.memory_fraction = FRACTION,
                                       .callbacks.on_episode = look_for_seconds,
                                       .callbacks.user = &wanted};
        const SearchScope scope = {
            .request = &request, .kind = SPACE_HYBRID, .limits.evaluations = sample_of(60, 30)};
        assert_int_equal(pipeline_search(&found, &self.arena, self.context, self.cluster, &scope, &error),
                         AM_OK);
        assert_true(wanted.found);
        assert_true(found.plan->predicted_step_seconds <= wanted.seconds);
        close_case(&self);
    }
}

static void test_repeats(void **state) {
    (void)state;
    if (sample_of(0, 1)) skip(); /* the other tests run the same lines */
    ClusterCase self;
    open_case(&self, "gpt2_tiny", "nominal:4");
    const Plan *first = search_space(&self, SPACE_HYBRID, FRACTION);
    const Plan *second = search_space(&self, SPACE_HYBRID, FRACTION);
    assert_true(first->predicted_step_seconds == second->predicted_step_seconds);
    assert_int_equal(first->stage_count, second->stage_count);
    assert_int_equal(first->evaluations, second->evaluations);
    for (int32_t s = 0; s < first->stage_count; s++)
        assert_memory_equal(first->stages[s].ranges, second->stages[s].ranges, sizeof(int32_t[2]));
    close_case(&self);
}

/* No plan fits into nearly no memory. */
static void test_infeasible(void **state) {
    (void)state;
    if (is_searched_for_races()) skip(); /* the first test starts the same threads */
    ClusterCase self;
    SearchResult found;
    AmError error = {0};
    const SearchRequest request = {.constraints.memory_fraction = 1e-6};
    const SearchScope scope = {.request = &request, .kind = SPACE_HYBRID, .limits.evaluations = EVALUATIONS};
    open_case(&self, "gpt2_tiny", "nominal:2");
    assert_int_equal(pipeline_search(&found, &self.arena, self.context, self.cluster, &scope, &error),
                     AM_ERROR_INFEASIBLE);
    assert_true(error.text[0] != '\0');
    close_case(&self);
}

/* Stopped from the start, a search with a given pipeline returns that one, and a search without one
 * reports it. */
static void test_given(void **state) {
    (void)state;
    if (is_searched_for_races()) skip(); /* the first test starts the same threads */
    ClusterCase self;
    SearchResult found;
    AmError error = {0};
    volatile sig_atomic_t interrupted = 1;
    open_case(&self, "bert_tiny", "whale-pp");
    const Plan *even = search_space(&self, SPACE_PIPELINE, FRACTION);
    const SearchRequest request = {.constraints.memory_fraction = FRACTION,
                                   .space.initial = even,
                                   .callbacks.interrupted = &interrupted};
    const SearchScope scope = {.request = &request, .kind = SPACE_HYBRID};
    assert_true(even->stage_count > 1);
    assert_int_equal(pipeline_search(&found, &self.arena, self.context, self.cluster, &scope, &error), AM_OK);
    assert_true(found.interrupted);
    assert_int_equal(found.plan->stage_count, even->stage_count);
    assert_true(found.plan->predicted_step_seconds == even->predicted_step_seconds);
    close_case(&self);
}

/* In memory that no plan of one iteration fits into which keeps all activations. */
static void test_recomputes(void **state) {
    (void)state;
    if (is_searched_for_races()) skip(); /* the first test starts the same threads */
    ClusterCase self;
    int32_t ranges = 0;
    open_case(&self, "bert_tiny", "nominal:2");
    const Plan *plan = search_iterations(&self, SPACE_HYBRID, SHORT_OF_MEMORY, 1);
    for (int32_t s = 0; s < plan->stage_count; s++) ranges += plan->stages[s].recompute.range_count;
    assert_true(ranges > 0);
    Simulation *simulation;
    AmError error = {0};
    assert_int_equal(simulate_plan(&simulation, &self.arena, plan->context, plan, self.cluster,
                                   &(SimulationOptions){.memory_fraction = SHORT_OF_MEMORY}, &error),
                     AM_OK);
    assert_true(simulation->fit.fits);
    assert_true(simulation->step_seconds == plan->predicted_step_seconds);
    close_case(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_slower_than_even),
                                       cmocka_unit_test(test_simulates_even),
                                       cmocka_unit_test(test_repeats),
                                       cmocka_unit_test(test_infeasible),
                                       cmocka_unit_test(test_given),
                                       cmocka_unit_test(test_recomputes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
