/* Launches that no plan saves: counted by hand for a perceptron, and at most those of any plan of
 * launch-heavy models: random one-stage plans, in micro-batches too, and the pipelines of hybrid
 * searches. */
/* cost: 5 seconds */
#include "planners/bounds/bound_launches.h"

#include "planners/bounds/bound_of_work.h"
#include "planners/bounds/bound_pipelines.h"
#include "planners/pipeline/stage_dp.h"
#include "planners/plan_search.h"
#include "tests/support/model_case.h"
#include "tests/support/sample.h"
#include "tests/support/search_case.h"

/* Two layers: three products of the backward pass beside two of the forward pass; fusions of two relus, two
 * of their gradients and two updates; the sum of the loss. The longest chain is product, relu, product,
 * gradient of relu, product, gradient of relu, product, update. */
static void test_counts_by_hand(void **state) {
    (void)state;
    const int64_t width[] = {16, 16, 16};
    Arena arena = {0};
    AmError error = {0};
    BoundLaunches launches;
    Cluster *cluster;
    Text text = {0};
    write_layers(&text, 8, width, 2);
    PlanContext *context = read_model_text(text.data);
    text_free(&text);
    assert_int_equal(cluster_read(&cluster, &arena, "t4:1", &error), AM_OK);
    assert_int_equal(bound_launches_find(&launches, context, cluster, &error), AM_OK);
    assert_true(launches.total == 12);
    assert_true(launches.chain == 8);
    assert_true(launches.seconds == cluster->types[0].kernel_launch_seconds);
    assert_true(bound_launches_seconds(&launches, 1) == 12 * launches.seconds);
    assert_true(bound_launches_seconds(&launches, 2) == 8 * launches.seconds);
    cluster_free(cluster);
    plan_context_free(context);
    arena_free(&arena);
}

typedef struct Checked {
    const BoundLaunches *launches;
    const char *model, *cluster;
    int32_t most_stages, count;
} Checked;

static void check_seconds(Checked *self, double seconds, int32_t stages) {
    double bound = bound_launches_seconds(self->launches, stages);
    if (seconds < bound * (1 - 1e-9))
        fail_msg("%s on %s, %d stages: %g s, the bound is %g s", self->model, self->cluster, stages, seconds,
                 bound);
    self->count++;
}

/* Whatever a hybrid search simulates. */
static void check_line(void *user, const char *line) {
    Checked *self = user;
    json_t *root = json_loads(line, 0, NULL);
    double seconds = json_number_value(json_object_get(root, "seconds"));
    if (seconds > 0) check_seconds(self, seconds, self->most_stages);
    json_decref(root);
}

static void check_search(Checked *self, PlanContext *context, const Cluster *cluster, SearchScope scope,
                         int32_t micro_batches) {
    Arena arena = {0};
    AmError error = {0};
    SearchResult result;
    SearchRequest request = *scope.request;
    request.constraints.memory_fraction = 0.9;
    scope.request = &request;
    scope.skip_bound = true;
    scope.micro_batches = micro_batches;
    AmStatus status = plan_search(&result, &arena, context, cluster, &scope, &error);
    if (status == AM_OK) check_seconds(self, result.plan->predicted_step_seconds, result.plan->stage_count);
    else assert_int_equal(status, AM_ERROR_INFEASIBLE);
    arena_free(&arena);
}

/* `least_part`: the least ratio of the one-stage bound to the best plan's step. `splits`: with separate
 * layers, whose form has a body of its own for each loop, so that all loops are planned. */
static void check(const char *model, const char *name, double least_part, bool splits) {
    Arena arena = {0};
    AmError error = {0};
    BoundLaunches launches;
    Cluster *cluster;
    SearchResult best;
    PlanContext *source = read_model(model), *context = source;
    if (splits)
        assert_int_equal(
            plan_context_rewrite(&context, source, (PlanRewrites){.splits_layers = true}, &error), AM_OK);
    assert_int_equal(cluster_read(&cluster, &arena, name, &error), AM_OK);
    assert_int_equal(bound_launches_find(&launches, context, cluster, &error), AM_OK);
    Checked self = {&launches, model, name, .most_stages = PIPELINE_MOST_STAGES};
    for (int32_t seed = 0; seed < sample_of(6, 1); seed++) {
        const SearchRequest request = {0};
        const SearchScope scope = {.request = &request,
                                   .kind = SPACE_SINGLE_STAGE,
                                   .searcher = SEARCHER_RANDOM,
                                   .seed = (uint64_t)seed};
        check_search(&self, context, cluster, scope, 1 + seed % 2);
    }
    const SearchRequest hybrid_request = {.callbacks.on_episode = check_line, .callbacks.user = &self};
    const SearchScope hybrid = {
        .request = &hybrid_request, .kind = SPACE_HYBRID, .limits.evaluations = sample_of(80, 30)};
    check_search(&self, context, cluster, hybrid, 0);
    assert_true(self.count > sample_of(4, 1));
    const SearchRequest request = {.constraints.memory_fraction = 0.9};
    const SearchScope scope = {
        .request = &request, .kind = SPACE_SINGLE_STAGE, .limits.evaluations = 40, .skip_bound = true};
    assert_int_equal(single_stage_search(&best, &arena, context, cluster, &scope, &error), AM_OK);
    check_seconds(&self, best.plan->predicted_step_seconds, 1);
    if (bound_launches_seconds(&launches, 1) < least_part * best.plan->predicted_step_seconds)
        fail_msg("%s on %s: %g launches, %g s, are far from %g s", model, name, launches.total,
                 bound_launches_seconds(&launches, 1), best.plan->predicted_step_seconds);
    cluster_free(cluster);
    plan_context_free(source);
    arena_free(&arena);
}

static void test_no_plan_launches_less(void **state) {
    (void)state;
    static const struct {
        const char *model, *cluster;
        double least_part;
        bool splits;
    } cases[] = {{"dropout_tiny", "h100:1", 0.25, true}, {"dropout_tiny", "h100:4", 0.6, false},
                 {"lstm_tiny", "C", 0.2, false},         {"accumulated_tiny", "h100:4", 0.4, false},
                 {"llama_tiny", "whale-pp", 0.3, false}, {"flax_tiny", "whale-dp", 0.4, false}};
    for (size_t k = 0; k < (size_t)sample_of(6, 1); k++)
        check(cases[k].model, cases[k].cluster, cases[k].least_part, cases[k].splits);
}

/* A bound of any number of stages is above the parts that a launch-heavy model's work takes. */
static void test_bounds_of_all_stages_count_launches(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    PlanBound work, bound;
    PlanContext *context = read_model("dropout_tiny");
    const BoundSpace space = {.most_stages = PIPELINE_MOST_STAGES, .schedule = SCHEDULE_ZB_H1};
    assert_int_equal(cluster_read(&cluster, &arena, "h100:4", &error), AM_OK);
    assert_int_equal(plan_bound_of_work(&work, context, cluster, &error), AM_OK);
    assert_int_equal(plan_bound_pipelines(&bound, context, cluster, &space, &error), AM_OK);
    assert_true(bound.seconds > 20 * work.seconds);
    cluster_free(cluster);
    plan_context_free(context);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts_by_hand),
                                       cmocka_unit_test(test_no_plan_launches_less),
                                       cmocka_unit_test(test_bounds_of_all_stages_count_launches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
