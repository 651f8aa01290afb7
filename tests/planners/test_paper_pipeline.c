/* Pipelines in Auto-MAP's own mode: the chain adds up, the environment follows the paper's windows
 * and rewards, and the DQN's result is near the shortest of all pipelines. */
#include <math.h>
#include <string.h>

#include "tests/support/model_case.h"

#include "base/random.h"
#include "cost/cluster/cluster.h"
#include "planners/automap_paper/paper_search.h"
#include "tests/support/sample.h"

typedef struct Fixture {
    Arena arena;
    PlanContext *context;
    Cluster *cluster;
    PaperChain *chain;
} Fixture;

static int open_t5(void **state) {
    static Fixture fixture;
    AmError error = {0};
    const char *path = SOURCE_DIR "/datasets/models/t5_pipeline_6/model.hlo.pb.zst";
    if (plan_context_read(&fixture.context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    assert_int_equal(cluster_read(&fixture.cluster, &fixture.arena, "C", &error), AM_OK);
    if (paper_chain_build(&fixture.chain, &fixture.arena, fixture.context, fixture.cluster, 4, 8, &error) !=
        AM_OK)
        fail_msg("%s", error.text);
    *state = &fixture;
    return 0;
}

static int close_t5(void **state) {
    Fixture *fixture = *state;
    cluster_free(fixture->cluster);
    plan_context_free(fixture->context);
    arena_free(&fixture->arena);
    return 0;
}

static PaperPipeline *pipeline_of(Fixture *fixture, double memory_fraction) {
    PaperPipeline *pipeline;
    AmError error = {0};
    if (paper_pipeline_create(&pipeline, &fixture->arena, fixture->chain, fixture->cluster, 4,
                              memory_fraction, &error) != AM_OK)
        fail_msg("%s", error.text);
    return pipeline;
}

/* Sums before pivots increase, and at the end cover all of the module: every weight, backward about
 * twice forward, and the accumulation of gradients.
 */
static void test_chain(void **state) {
    const Fixture *fixture = *state;
    const PaperChain *chain = fixture->chain;
    double bytes = 0;
    int32_t weights = 0;
    const IrRoles *roles = fixture->context->roles;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        if (roles->parameters[p].role != IR_ROLE_WEIGHT) continue;
        bytes += (double)ir_shape_bytes(
            &fixture->context->canonical->instructions[roles->parameters[p].instruction].shape);
        weights++;
    }
    assert_int_equal(chain->end.weights, weights);
    assert_true(fabs(chain->end.weight_bytes - bytes) < 1);
    assert_true(fabs(chain->end.state_bytes - 2 * bytes) < 0.01 * bytes); /* Adam's two moments */
    assert_true(chain->end.seconds[PAPER_GRADIENTS] > 0.7 * chain->end.seconds[PAPER_FORWARD]);
    double ratio = (chain->end.seconds[PAPER_BACKWARD] + chain->end.seconds[PAPER_GRADIENTS]) /
                   chain->end.seconds[PAPER_FORWARD];
    assert_true(ratio > 1.8 && ratio < 3);
    for (int32_t k = 1; k < chain->count; k++) {
        const PaperPivot *a = &chain->pivots[k - 1], *b = &chain->pivots[k];
        assert_true(a->instruction < b->instruction && a->weights <= b->weights);
        assert_true(a->seconds[PAPER_FORWARD] < b->seconds[PAPER_FORWARD]);
        assert_true(a->kept_bytes <= b->kept_bytes && b->crossing > 0);
    }
    /* 64 sequences of 64 tokens, 512 wide: between two layers of the encoder only these cross, and
     * the decoder's values so far. */
    const char *before, *behind;
    int32_t boundaries = 0;
    for (int32_t k = 0; k < chain->count; k++) {
        paper_chain_layers(&before, &behind, fixture->context, chain->pivots[k].instruction);
        if (!before || !behind || !strstr(before, "['encoder'][2]['mlp_out']['bias']")) continue;
        assert_non_null(strstr(behind, "['encoder'][3]['attention_norm']"));
        assert_true(chain->pivots[k].crossing <= 2.0 * 64 * 64 * 512 * 4);
        boundaries++;
    }
    assert_int_equal(boundaries, 1);
}

/* Every legal action is within the radius of its boundary and after the cut before; other actions are
 * not. */
static void test_windows(void **state) {
    PaperPipeline *pipeline = pipeline_of(*state, 0.9);
    Environment *environment = &pipeline->base;
    uint8_t mask[1024];
    float observation[4096];
    AmError error = {0};
    Random random;
    random_seed(&random, 3);
    assert_true(environment->action_count <= 1024 && environment->observation_size <= 4096);
    assert_int_equal(pipeline->stage_count, 4);
    for (int32_t episode = 0; episode < 200; episode++) {
        bool done = false;
        double reward = 0;
        pipeline->best_seconds = 0; /* so that the episode's cuts become the best */
        environment->methods->reset(environment, &error);
        for (int32_t steps = 0; !done; steps++) {
            int32_t legal = 0, action = 0;
            environment->methods->mask(environment, mask);
            environment->methods->observe(environment, observation);
            for (int32_t k = 0; k < environment->action_count; k++) {
                legal += mask[k];
                if (mask[k] && random_below(&random, legal) == 0) action = k;
            }
            for (int32_t k = 0; k < environment->observation_size; k++)
                assert_true(observation[k] >= 0 && observation[k] <= 1);
            assert_true(legal > 0 && steps < 3 && reward == 0);
            assert_int_equal(environment->methods->step(environment, action, &reward, &done, &error), AM_OK);
        }
        assert_true(reward > 0 && reward < 1 && pipeline->best_seconds > 0);
        assert_true(fabs(reward - pipeline->unit / pipeline->best_seconds) < 1e-12);
        for (int32_t k = 0; k < 3; k++) {
            assert_true(abs(pipeline->best[k].device - 8 * (k + 1)) <= PAPER_RADIUS);
            if (k > 0) assert_true(pipeline->best[k].pivot > pipeline->best[k - 1].pivot);
        }
        bool fits;
        assert_true(paper_pipeline_seconds(pipeline, pipeline->best, &fits) == pipeline->best_seconds &&
                    fits);
    }
}

/* If no plan fits every episode earns -1/sqrt(L), and the nearest miss is reported. */
static void test_out_of_memory(void **state) {
    PaperPipeline *pipeline = pipeline_of(*state, 0.005);
    Environment *environment = &pipeline->base;
    uint8_t mask[1024];
    AmError error = {0};
    bool done = false;
    double reward = 0;
    environment->methods->reset(environment, &error);
    while (!done) {
        int32_t action = 0;
        environment->methods->mask(environment, mask);
        while (!mask[action]) action++;
        environment->methods->step(environment, action, &reward, &done, &error);
    }
    assert_true(reward < 0 && reward > -1);
    assert_int_equal(pipeline->failures, 1);
    assert_false(pipeline->best_fit.fits);
    assert_true(pipeline->best_fit.needed_bytes > pipeline->best_fit.limit_bytes);
    assert_true(isnan(paper_pipeline_shortest(pipeline)));
}

/* Table 7, T5 on B and C: servers' boundaries; within 1 % of the shortest; the plan is one of stages. */
static void test_published_cuts(void **state) {
    Fixture *fixture = *state;
    static const char *const names[] = {"B", "C"};
    for (int32_t k = 0; k < sample_of(2, 1); k++) {
        const SearchRequest request = {.objective = OBJECTIVE_PAPER, .constraints.memory_fraction = 0.9};
        SearchScope scope = {.request = &request,
                             .kind = SPACE_PIPELINE,
                             .searcher = SEARCHER_DQN,
                             .limits.evaluations = SEARCH_PAPER_EPISODES,
                             .seed = 1};
        SearchResult result, again;
        Cluster *cluster;
        AmError error = {0};
        assert_int_equal(cluster_read(&cluster, &fixture->arena, names[k], &error), AM_OK);
        assert_int_equal(paper_search(&result, &fixture->arena, fixture->context, cluster, &scope, &error),
                         AM_OK);
        assert_int_equal(paper_search(&again, &fixture->arena, fixture->context, cluster, &scope, &error),
                         AM_OK);
        const PaperReport *report = result.paper;
        assert_int_equal(report->pipeline.micro_batches, 4); /* 64 examples, 16 each */
        assert_int_equal(result.plan->stage_count, cluster->server_count);
        assert_int_equal(report->pipeline.cut_count, cluster->server_count - 1);
        for (int32_t c = 0; c < report->pipeline.cut_count; c++) {
            assert_int_equal(report->pipeline.cuts[c].device, 8 * (c + 1));
            assert_int_equal(report->pipeline.cuts[c].instruction, again.paper->pipeline.cuts[c].instruction);
            assert_int_equal(result.plan->stages[c].ranges[0][1], report->pipeline.cuts[c].instruction);
        }
        assert_true(report->pipeline.seconds <= 1.01 * report->pipeline.shortest_seconds);
        assert_true(report->pipeline.seconds >= report->pipeline.shortest_seconds);
        assert_true(result.plan->predicted_step_seconds == again.plan->predicted_step_seconds);
        double ratio = report->pipeline.seconds / result.plan->predicted_step_seconds;
        assert_true(ratio > 0.9 && ratio < 1.1);
        cluster_free(cluster);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_published_cuts),
    };
    return cmocka_run_group_tests(tests, open_t5, close_t5);
}
