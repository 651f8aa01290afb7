/* The bound over pipelines is held against what hybrid searches simulate: every pipeline of theirs takes at
 * least as long as the bound of its number of micro-batches and schedule, and as that of all numbers. The
 * bound of a search is at most that of each schedule that it covers. */
/* labels: threads */
/* cost: 4 seconds */
#include <math.h>
#include <string.h>

#include "tests/support/model_case.h"

#include "planners/bounds/bound_pipelines.h"
#include "planners/pipeline/stage_dp.h"
#include "planners/plan_search.h"
#include "planners/search_bound.h"
#include "tests/support/sample.h"

enum { MOST_NUMBERS = 8 };

typedef struct Tried {
    double least[SCHEDULE_KINDS][MOST_NUMBERS]; /* seconds, by schedule and log2 of the micro-batches */
    int32_t count;
} Tried;

static void note_try(void *user, const char *line) {
    Tried *tried = user;
    json_t *root = json_loads(line, 0, NULL);
    json_t *schedule = json_object_get(root, "schedule"), *seconds = json_object_get(root, "seconds");
    int32_t iterations = (int32_t)json_integer_value(json_object_get(root, "micro_batches"));
    if (schedule && seconds && iterations > 0) {
        ScheduleKind kind = schedule_kind_find(json_string_value(schedule));
        /* One stage has none, and is bounded by every schedule's. */
        const json_t *fits = json_object_get(root, "fits");
        double *least = &tried->least[kind == SCHEDULE_KINDS ? SCHEDULE_1F1B : kind][ilogb(iterations)];
        if (!json_is_false(fits)) *least = fmin(*least, json_number_value(seconds));
        tried->count++;
    }
    json_decref(root);
}

static double bound_of(const PlanContext *context, const Cluster *cluster, int32_t iterations,
                       ScheduleKind kind) {
    const BoundSpace space = {.micro_batches = iterations,
                              .most_stages = PIPELINE_MOST_STAGES,
                              .schedule = kind,
                              .memory.fraction = 0.9};
    PlanBound bound;
    AmError error = {0};
    assert_int_equal(plan_bound_pipelines(&bound, context, cluster, &space, &error), AM_OK);
    return bound.seconds;
}

static void check(const char *model, const char *name, int32_t iterations) {
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    SearchResult result;
    Tried tried = {0};
    PlanContext *context = read_model(model);
    for (int32_t kind = 0; kind < SCHEDULE_KINDS; kind++)
        for (int32_t k = 0; k < MOST_NUMBERS; k++) tried.least[kind][k] = INFINITY;
    assert_int_equal(cluster_read(&cluster, &arena, name, &error), AM_OK);
    const SearchRequest request = {
        .constraints.memory_fraction = 0.9, .callbacks.on_episode = note_try, .callbacks.user = &tried};
    SearchScope scope = {.request = &request,
                         .kind = SPACE_HYBRID,
                         .micro_batches = iterations,
                         .skip_bound = true,
                         .limits.evaluations = 24};
    assert_int_equal(plan_search(&result, &arena, context, cluster, &scope, &error), AM_OK);
    if (tried.count == 0) fail_msg("%s on %s: no pipeline was tried", model, name);
    uint32_t covered = search_bounded_schedules(&request, &(Plan){.stage_count = 1});
    double of_search = bound_of(context, cluster, 0, bound_schedule_of(covered));
    for (int32_t kind = 0; kind < SCHEDULE_KINDS; kind++) {
        double every = bound_of(context, cluster, 0, (ScheduleKind)kind);
        double both = bound_of(context, cluster, 0, bound_schedule_of(covered | 1U << kind));
        assert_true(every > 0);
        /* More schedules have weaker paths, but other mixes of them, which may give a greater bound. */
        assert_true(both <= every * 1.05);
        assert_true(kind == SCHEDULE_ZB_2P || both <= of_search * 1.05);
        for (int32_t k = 0; k < MOST_NUMBERS; k++) {
            double least = tried.least[kind][k];
            if (isinf(least)) continue;
            double bound = bound_of(context, cluster, 1 << k, (ScheduleKind)kind);
            if (bound > least * (1 + 1e-6) || every > least * (1 + 1e-6))
                fail_msg("%s on %s, %s, %d micro-batches: %g s, the bound is %g s, of all %g s", model, name,
                         schedule_kind_name((ScheduleKind)kind), 1 << k, least, bound, every);
        }
    }
    cluster_free(cluster);
    plan_context_free(context);
    arena_free(&arena);
}

/* The covered schedules are those that the search may propose and that fill, the requested one, and the
 * plan's. */
static void test_covered_schedules(void **state) {
    (void)state;
    const Plan one = {.stage_count = 1}, next = {.stage_count = 2, .schedule = "zb_2p"};
    SearchRequest request = {0};
    assert_int_equal(search_bounded_schedules(&request, &one), BOUND_FILLED);
    assert_int_equal(search_bounded_schedules(&request, &next), BOUND_FILLED | 1U << SCHEDULE_ZB_2P);
    assert_int_equal(search_schedules(&request), (1U << SCHEDULE_KINDS) - 1);
    request.constraints.target = TARGET_TORCH;
    assert_int_equal(search_bounded_schedules(&request, &one), 1U << SCHEDULE_GPIPE | 1U << SCHEDULE_1F1B);
    request.space.schedule = "interleaved_1f1b";
    assert_int_equal(search_bounded_schedules(&request, &one), 1U << SCHEDULE_INTERLEAVED);
    assert_int_equal(bound_schedule_of(1U << SCHEDULE_GPIPE), SCHEDULE_GPIPE);
    assert_int_equal(bound_schedule_of((1U << SCHEDULE_KINDS) - 1), SCHEDULE_INTERLEAVED);
}

static void test_no_pipeline_is_quicker(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2_tiny", "vgg_tiny", "bert_tiny", "t5_tiny", "llama_tiny"};
    static const char *const clusters[] = {"nominal:4",
                                           "nominal:8",
                                           "whale-pp",
                                           SOURCE_DIR "/tests/data/clusters/three_types.json",
                                           SOURCE_DIR "/tests/data/clusters/slow_launches.json",
                                           SOURCE_DIR "/tests/data/clusters/scarce_memory.json"};
    int32_t count = sample_of_all(30, 10, 1);
    for (int32_t k = 0; k < count; k++) check(models[k % 5], clusters[(k % 5 + k / 5) % 6], 4 << k % 2);
}

/* Stages on four devices of each of three types have 124 choices of devices. */
static void test_many_choices_of_devices(void **state) {
    (void)state;
    const char *name = SOURCE_DIR "/tests/data/clusters/three_types_of_four.json";
    const BoundSpace space = {.most_stages = PIPELINE_MOST_STAGES, .memory.fraction = 0.9};
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    PlanBound quick;
    PlanContext *context = read_model("gpt2_tiny");
    assert_int_equal(cluster_read(&cluster, &arena, name, &error), AM_OK);
    assert_int_equal(plan_bound_quickly(&quick, context, cluster, &space, &error), AM_OK);
    assert_true(bound_of(context, cluster, 0, SCHEDULE_1F1B) > 1.01 * quick.seconds);
    cluster_free(cluster);
    plan_context_free(context);
    arena_free(&arena);
    check("gpt2_tiny", name, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_covered_schedules),
                                       cmocka_unit_test(test_many_choices_of_devices),
                                       cmocka_unit_test(test_no_pipeline_is_quicker)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
