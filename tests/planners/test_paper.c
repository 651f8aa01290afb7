/* Auto-MAP's own mode: the published counts by DQN, the environment's rewards by hand, and every sequence of
 * decisions on small models against the exact maximum. */
#include <math.h>
#include <string.h>

#include "tests/support/model_case.h"

#include "cost/cluster/cluster.h"
#include "planners/automap_paper/paper_search.h"
#include "tests/support/sample.h"

static PaperPartition *partition_of(Arena *arena, const PlanContext *context, int32_t size,
                                    StrictRoots roots) {
    PaperPartition *partition;
    AmError error = {0};
    if (paper_partition_create(&partition, arena, context, size, roots, &error) != AM_OK)
        fail_msg("%s", error.text);
    return partition;
}

static const SearchScope *options_of(SearchScope *scope, PlanSpace space, uint64_t seed) {
    static const SearchRequest request = {.objective = OBJECTIVE_PAPER, .constraints.memory_fraction = 0.9};
    *scope = (SearchScope){.request = &request,
                           .kind = space,
                           .searcher = SEARCHER_DQN,
                           .micro_batches = 1,
                           .limits.evaluations = SEARCH_PAPER_EPISODES,
                           .seed = seed};
    return scope;
}

/* Searches a model of the zoo on cluster C. The arena keeps the result. */
static SearchResult search_zoo(Arena *arena, PlanContext *context, PlanSpace space, uint64_t seed) {
    SearchScope scope;
    SearchResult result;
    Cluster *cluster;
    AmError error = {0};
    assert_int_equal(cluster_read(&cluster, arena, "C", &error), AM_OK);
    if (paper_search(&result, arena, context, cluster, options_of(&scope, space, seed), &error) != AM_OK)
        fail_msg("%s", error.text);
    cluster_free(cluster);
    return result;
}

/* Table 5: dimensions of weights, and those that the DQN partitions over a server's 8 devices. */
static void test_published_counts(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int32_t variables, dimensions, partitioned;
    } cases[] = {{"vgg19", 38, 89, 5}, {"t5_paper_6", 187, 286, 111}, {"t5_paper_24_3b", 728, 1116, 432}};
    for (int32_t k = 0; k < sample_of(3, 2); k++) {
        Arena arena = {0};
        PlanContext *context = read_model(cases[k].model);
        SearchResult result = search_zoo(&arena, context, SPACE_OPERATOR, 1);
        const PaperReport *report = result.paper;
        assert_int_equal(report->learning.end, PAPER_SETTLED);
        assert_int_equal(report->partition.variable_count, cases[k].variables);
        assert_int_equal(report->partition.dimension_count, cases[k].dimensions);
        assert_int_equal(report->partition.partitioned, cases[k].partitioned);
        assert_int_equal(report->partition.replicated, cases[k].dimensions - cases[k].partitioned);
        assert_int_equal(report->partition.maximum, cases[k].partitioned);
        assert_true(report->partition.is_exact && result.plan->predicted_step_seconds > 0);
        arena_free(&arena);
        plan_context_free(context);
    }
}

/* Table 4: of VGG-19 the fully connected head alone, fc2's bias whole. */
static void test_vgg_head(void **state) {
    (void)state;
    static const struct {
        const char *path;
        int32_t dimension;
    } expected[] = {
        {"['fc1']['bias']", 0},         {"['fc1']['kernel']", 1},         {"['fc2']['kernel']", 0},
        {"['predictions']['bias']", 0}, {"['predictions']['kernel']", 1},
    };
    Arena arena = {0};
    PlanContext *context = read_model("vgg19");
    const PaperReport *report = search_zoo(&arena, context, SPACE_OPERATOR, 7).paper;
    assert_int_equal(report->partition.partitioned, 5);
    for (int32_t k = 0; k < 5; k++) {
        assert_non_null(strstr(context->roles->parameters[report->partition.dimensions[k].parameter].path,
                               expected[k].path));
        assert_int_equal(report->partition.dimensions[k].dimension, expected[k].dimension);
    }
    arena_free(&arena);
    plan_context_free(context);
}

/* Table 6: the first dimension of every data input. */
static void test_data_parallelism(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int32_t inputs;
    } cases[] = {{"vgg19", 2}, {"t5_paper_6", 3}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Arena arena = {0};
        PlanContext *context = read_model(cases[k].model);
        const PaperReport *report = search_zoo(&arena, context, SPACE_DATA, 1).paper;
        assert_int_equal(report->partition.partitioned, cases[k].inputs);
        for (int32_t m = 0; m < report->partition.partitioned; m++)
            assert_int_equal(report->partition.dimensions[m].dimension, 0);
        assert_true(report->failures > 0); /* without linkage groups some episodes run into conflicts */
        arena_free(&arena);
        plan_context_free(context);
    }
}

/* The same seed gives the same strategy in as many steps; another one another run. */
static void test_same_seed(void **state) {
    (void)state;
    Arena arena = {0};
    PlanContext *context = read_model("vgg19");
    const PaperReport *first = search_zoo(&arena, context, SPACE_DATA, 5).paper;
    const PaperReport *again = search_zoo(&arena, context, SPACE_DATA, 5).paper;
    const PaperReport *other = search_zoo(&arena, context, SPACE_DATA, 6).paper;
    assert_int_equal(first->learning.episodes, again->learning.episodes);
    assert_int_equal(first->learning.steps, again->learning.steps);
    assert_int_equal(first->failures, again->failures);
    assert_memory_equal(first->partition.dimensions, again->partition.dimensions,
                        sizeof *first->partition.dimensions * (size_t)first->partition.partitioned);
    assert_true(first->learning.steps != other->learning.steps || first->failures != other->failures);
    arena_free(&arena);
    plan_context_free(context);
}

/* Plays `actions`, bit k for decision k; the summed reward, and whether a conflict ended it. */
static double play(PaperPartition *partition, uint64_t actions, int32_t *steps, bool *conflict) {
    Environment *environment = &partition->base;
    AmError error = {0};
    double total = 0, reward;
    bool done = false;
    int64_t conflicts = partition->conflicts;
    assert_int_equal(environment->methods->reset(environment, &error), AM_OK);
    for (*steps = 0; !done; ++*steps) {
        assert_int_equal(
            environment->methods->step(environment, (int32_t)(actions >> *steps & 1), &reward, &done, &error),
            AM_OK);
        total += reward;
    }
    *conflict = partition->conflicts > conflicts;
    return total;
}

/* Every sequence of decisions of a small model: none beats the maximum, and one reaches it. */
static void test_every_strategy(void **state) {
    (void)state;
    static const char *const models[] = {"mlp_tiny", "vgg_tiny", "gpt2_tiny", "moe_tiny"};
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        Arena arena = {0};
        AmError error = {0};
        PlanContext *context = read_model(models[k]);
        PaperPartition *partition = partition_of(&arena, context, 2, STRICT_STATE);
        LinkageGroups *groups;
        assert_int_equal(strict_groups(&groups, &arena, context, 2, STRICT_STATE, &error), AM_OK);
        assert_true(groups->best_is_exact);
        int32_t bits = partition->decision_count < 11 ? partition->decision_count : 11, steps;
        bool conflict;
        for (uint64_t actions = 0; actions < (uint64_t)1 << bits; actions++) {
            play(partition, ~actions, &steps, &conflict); /* beyond `bits` everything is partitioned */
            assert_true(steps <= partition->decision_count);
        }
        if (partition->best.partitioned != groups->best_partitioned)
            fail_msg("%s: %d of %d", models[k], partition->best.partitioned, groups->best_partitioned);
        arena_free(&arena);
        plan_context_free(context);
    }
}

/* Rewards: 0.4 and 0.1 for every dimension that a step decides, on top of those decided from the start. */
static void test_rewards(void **state) {
    (void)state;
    Arena arena = {0};
    PlanContext *context = read_model("vgg_tiny");
    PaperPartition *partition = partition_of(&arena, context, 2, STRICT_STATE);
    int32_t steps;
    bool conflict;
    double nothing = play(partition, 0, &steps, &conflict);
    assert_false(conflict);
    assert_int_equal(partition->best.partitioned, 0);
    double everything = play(partition, UINT64_MAX, &steps, &conflict);
    assert_false(conflict);
    assert_true(partition->best.partitioned > 0);
    assert_int_equal(partition->best.partitioned + partition->best.replicated, partition->dimension_count);
    /* A dimension replicated by decision earns 0.3 more if it is partitioned. */
    assert_true(fabs(everything - nothing - 0.3 * partition->best.partitioned) < 1e-9);
    /* The image's channels are read whole: splitting them is a conflict, at once. */
    PaperPartition *data = partition_of(&arena, context, 2, STRICT_DATA);
    double reward = play(data, 1u << 1, &steps, &conflict);
    assert_true(conflict);
    assert_true(steps == 2 && fabs(reward - (0.1 - 1)) < 1e-9);
    arena_free(&arena);
    plan_context_free(context);
}

/* Options that have no meaning in this mode are refused, not ignored. */
static void test_refusals(void **state) {
    (void)state;
    Arena arena = {0};
    PlanContext *context = read_model("mlp_tiny");
    Cluster *cluster;
    SearchScope scope;
    SearchResult result;
    AmError error = {0};
    assert_int_equal(cluster_read(&cluster, &arena, "A", &error), AM_OK);
    options_of(&scope, SPACE_AUTO, 1);
    assert_int_equal(paper_search(&result, &arena, context, cluster, &scope, &error), AM_ERROR_USAGE);
    options_of(&scope, SPACE_OPERATOR, 1);
    scope.micro_batches = 2;
    error = (AmError){0};
    assert_int_equal(paper_search(&result, &arena, context, cluster, &scope, &error), AM_ERROR_USAGE);
    scope.micro_batches = 1;
    scope.searcher = SEARCHER_EXHAUSTIVE;
    error = (AmError){0};
    assert_int_equal(paper_search(&result, &arena, context, cluster, &scope, &error), AM_ERROR_USAGE);
    cluster_free(cluster);
    arena_free(&arena);
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_counts), cmocka_unit_test(test_vgg_head),
        cmocka_unit_test(test_data_parallelism), cmocka_unit_test(test_same_seed),
        cmocka_unit_test(test_every_strategy),   cmocka_unit_test(test_rewards),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
