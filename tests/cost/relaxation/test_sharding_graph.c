/* The sharding graph and its bound, compared with the lowered program of random plans: the graph's
 * cost of a plan never exceeds its price, and no plan costs less than the bound. On trees the bound
 * is the optimum, found by brute force. */
#include <math.h>
#include <string.h>

#include "tests/support/model_case.h"

#include "cost/relaxation/graph_bound.h"
#include "cost/relaxation/graph_fold.h"
#include "cost/simulate/simulate.h"
#include "cost/step/price.h"
#include "planners/bounds/bound.h"
#include "planners/bounds/bound_of_work.h"
#include "planners/bounds/bound_pipelines.h"
#include "planners/plan_search.h"
#include "planners/single_stage/searchers.h"
#include "planners/single_stage/single_stage_search.h"
#include "tests/support/sample.h"

typedef struct Case {
    PlanContext *context;
    Cluster *cluster;
    Mesh mesh;
    int32_t devices[64];
    Arena arena;
    ShardingGraph *graph;
    ShardingGraphFold *fold;
} Case;

static void open_case(Case *self, const char *name, const char *cluster, const char *mesh) {
    AmError error = {0};
    *self = (Case){.context = read_model(name)};
    if (cluster_read(&self->cluster, &self->arena, cluster, &error) != AM_OK) fail_msg("%s", error.text);
    assert_int_equal(mesh_parse(&self->mesh, &self->arena, mesh, &error), AM_OK);
    for (int32_t d = 0; d < 64; d++) self->devices[d] = d;
    assert_int_equal(sharding_graph_create(&self->graph, &self->arena, self->context,
                                           &(PlacedMesh){&self->mesh, self->cluster, self->devices}, &error),
                     AM_OK);
    assert_non_null(self->graph);
    assert_int_equal(sharding_graph_fold(&self->fold, &self->arena, self->graph, &error), AM_OK);
}

static void close_case(Case *self) {
    cluster_free(self->cluster);
    plan_context_free(self->context);
    arena_free(&self->arena);
}

/* Random axis priorities, with and without storage. */
static void check_plans(Case *self, const char *name, int32_t plans) {
    AmError error = {0};
    StageProblem *problem;
    Random random;
    ProblemSettings settings = {.constraints.memory_fraction = 1, .budget = {.limit = 1000}};
    double bound = sharding_graph_bound(self->fold, &(ShardingGraphWeights){1, 1}, 60);
    assert_true(bound > 0);
    random_seed(&random, 7);
    assert_int_equal(
        problem_create(&problem, self->context, self->cluster, &self->mesh, self->devices, &settings, &error),
        AM_OK);
    for (int32_t k = 0; k < plans; k++) {
        ArenaMark mark = arena_mark(&self->arena);
        AxisPlan axis_plan;
        PlanStage stage;
        Assignment *assignment;
        Program *program;
        StepPrice price;
        random_axis_plan(problem, &random, &axis_plan);
        problem_stage(problem, &axis_plan, &self->arena, &stage);
        assert_int_equal(plan_assign(&assignment, &self->arena, self->context, &stage, &error), AM_OK);
        assert_int_equal(plan_lower(&program, &self->arena, self->context, assignment, 0, &error), AM_OK);
        assert_int_equal(price_program(&price, program, self->cluster, self->devices, &error), AM_OK);
        const ShardingGraphCost cost = sharding_graph_cost(self->graph, assignment);
        if (cost.compute_seconds > price.compute_seconds * (1 + 1e-6) ||
            cost.communication_seconds > price.communication_seconds * (1 + 1e-6))
            fail_msg("%s, plan %d: the graph has %g s and %g s, the price is %g s and %g s", name, k,
                     cost.compute_seconds, cost.communication_seconds, price.compute_seconds,
                     price.communication_seconds);
        double sum = cost.compute_seconds + cost.communication_seconds;
        if (bound > sum * (1 + 1e-6))
            fail_msg("%s, plan %d costs %g s, the bound is %g", name, k, sum, bound);
        arena_release(&self->arena, mark);
    }
    problem_free(problem);
}

static void test_never_above_a_plan(void **state) {
    (void)state;
    static const char *const models[] = {"mlp_tiny",  "gpt2_tiny",      "bert_tiny",  "t5_tiny",
                                         "vgg_tiny",  "gpt2_bf16_tiny", "moe_tiny",   "llama_tiny",
                                         "lstm_tiny", "resnet_tiny",    "fused_tiny", "adafactor_tiny"};
    static const char *const meshes[] = {"data=4,model=8", "data=2,model=2", "data=8"};
    static const char *const clusters[] = {"C", "nominal:4", "A"};
    int32_t count = sample_of(36, 9);
    for (int32_t k = 0; k < count; k++) {
        Case self;
        open_case(&self, models[k % 12], clusters[(k + k / 12) % 3], meshes[(k + k / 12) % 3]);
        check_plans(&self, models[k % 12], 6);
        close_case(&self);
    }
}

/* The least of all labellings, one node after the other. */
static double least_by_counting(const ShardingGraph *graph, int32_t *labels, int32_t node) {
    double least = INFINITY;
    if (node < graph->node_count) {
        for (labels[node] = 0; labels[node] < graph->nodes[node].label_count; labels[node]++)
            least = fmin(least, least_by_counting(graph, labels, node + 1));
        return least;
    }
    least = 0;
    for (int32_t n = 0; n < graph->node_count; n++)
        if (graph->nodes[n].seconds) least += graph->nodes[n].seconds[labels[n]];
    for (int32_t e = 0; e < graph->edge_count; e++) {
        const ShardingGraphEdge *edge = &graph->edges[e];
        ReshardState produced = edge->produced_states[labels[edge->producer]],
                     needed = edge->needed_states[labels[edge->reader]];
        least += (double)graph->reshards->seconds[edge->is_f32_sum][produced][needed] * edge->scale;
    }
    return least;
}

/* A chain of five nodes of three states each, with random costs of nodes and states that are boxed by the
 * cluster's rates: the bound of a tree is its optimum. */
static void test_a_tree_is_solved(void **state) {
    (void)state;
    Case self;
    open_case(&self, "mlp_tiny", "C", "data=8");
    Random random;
    random_seed(&random, 3);
    for (int32_t round = 0; round < 20; round++) {
        enum { NODES = 5, LABELS = 3 };
        float seconds[NODES][LABELS];
        static const ReshardState states[LABELS] = {0, 2 * RESHARD_AXIS_STATES, 3 * RESHARD_AXIS_STATES};
        ShardingGraphNode nodes[NODES];
        ShardingGraphEdge edges[NODES - 1];
        ShardingGraph chain = *self.graph;
        ShardingGraphFold *fold;
        AmError error = {0};
        int32_t labels[NODES];
        for (int32_t n = 0; n < NODES; n++) {
            for (int32_t k = 0; k < LABELS; k++) seconds[n][k] = (float)random_uniform(&random);
            nodes[n] = (ShardingGraphNode){.instruction = n, .label_count = LABELS, .seconds = seconds[n]};
        }
        for (int32_t n = 1; n < NODES; n++)
            edges[n - 1] = (ShardingGraphEdge){.producer = round % 2 ? n / 2 : n - 1,
                                               .reader = n,
                                               .produced_states = states,
                                               .needed_states = states,
                                               .scale = (float)(5e8 * random_uniform(&random)),
                                               .share = 1};
        chain.nodes = nodes;
        chain.edges = edges;
        chain.node_count = NODES;
        chain.edge_count = NODES - 1;
        assert_int_equal(sharding_graph_fold(&fold, &self.arena, &chain, &error), AM_OK);
        double bound = sharding_graph_bound(fold, &(ShardingGraphWeights){1, 1}, 60);
        double least = least_by_counting(&chain, labels, 0);
        if (fabs(bound - least) > 1e-5 * least) fail_msg("round %d: bound %g, least %g", round, bound, least);
    }
    close_case(&self);
}

/* The least of all labellings of a star: node 0 is a tensor, brought into each state that its readers need
 * once. */
static double least_of_star(const ShardingGraph *graph, int32_t *labels, int32_t node) {
    double least = INFINITY;
    if (node < graph->node_count) {
        for (labels[node] = 0; labels[node] < graph->nodes[node].label_count; labels[node]++)
            least = fmin(least, least_of_star(graph, labels, node + 1));
        return least;
    }
    bool is_paid[RESHARD_STATES] = {false};
    least = 0;
    for (int32_t n = 0; n < graph->node_count; n++) least += graph->nodes[n].seconds[labels[n]];
    for (int32_t e = 0; e < graph->edge_count; e++) {
        const ShardingGraphEdge *edge = &graph->edges[e];
        ReshardState kept = edge->produced_states[labels[0]],
                     needed = edge->needed_states[labels[edge->reader]];
        if (!is_paid[needed]) least += (double)graph->reshards->seconds[0][kept][needed] * edge->scale;
        is_paid[needed] = true;
    }
    return least;
}

/* A tensor's readers share the cost of its resharding. For any distribution of shares the bound
 * stays below the minimum; and it comes near to it, also if one reader alone needs another state,
 * for which equal shares would count a quarter. */
static void test_readers_share_a_reshard(void **state) {
    (void)state;
    enum { NODES = 5, LABELS = 3, ROUNDS = 40 };
    static const ReshardState states[LABELS] = {0, 2 * RESHARD_AXIS_STATES, 3 * RESHARD_AXIS_STATES};
    Case self;
    Random random;
    double ratios = 0;
    open_case(&self, "mlp_tiny", "C", "data=8");
    random_seed(&random, 5);
    for (int32_t round = 0; round < ROUNDS; round++) {
        float seconds[NODES][LABELS];
        ShardingGraphNode nodes[NODES];
        ShardingGraphEdge edges[NODES - 1];
        ShardingGraph star = *self.graph;
        ShardingGraphFold *fold;
        AmError error = {0};
        int32_t labels[NODES];
        float scale = (float)(1e11 * random_uniform(&random));
        for (int32_t n = 0; n < NODES; n++) {
            for (int32_t k = 0; k < LABELS; k++) seconds[n][k] = (float)random_uniform(&random);
            nodes[n] = (ShardingGraphNode){
                .instruction = n, .is_tensor = n == 0, .label_count = LABELS, .seconds = seconds[n]};
        }
        for (int32_t n = 1; n < NODES; n++)
            edges[n - 1] = (ShardingGraphEdge){.reader = n,
                                               .produced_states = states,
                                               .needed_states = states,
                                               .scale = scale,
                                               .share = 1.0f / (NODES - 1)};
        star.nodes = nodes;
        star.edges = edges;
        star.node_count = NODES;
        star.edge_count = NODES - 1;
        assert_int_equal(sharding_graph_fold(&fold, &self.arena, &star, &error), AM_OK);
        double bound = sharding_graph_bound(fold, &(ShardingGraphWeights){1, 1}, 200);
        double least = least_of_star(&star, labels, 0);
        if (bound > least * (1 + 1e-6)) fail_msg("round %d: bound %g, least %g", round, bound, least);
        ratios += bound / least / ROUNDS;
    }
    if (ratios < 0.99) fail_msg("bounds are %g of the least on average", ratios);
    close_case(&self);
}

/* Alike layers share their nodes. */
static void test_layers_are_folded(void **state) {
    (void)state;
    Case self;
    open_case(&self, "t5_tiny", "C", "data=4,model=8");
    assert_true(self.fold->class_count < self.graph->node_count * 3 / 4);
    close_case(&self);
}

/* The output of a search: no plan that it finds is better than the bound of a shorter one. */
static void test_bounds_hold_for_searches(void **state) {
    (void)state;
    static const char *const models[] = {"mlp_tiny", "vgg_tiny", "gpt2_tiny"};
    for (size_t k = 0; k < (size_t)sample_of_all(3, 2, 1); k++) {
        Arena arena = {0};
        AmError error = {0};
        Cluster *cluster;
        SearchResult result;
        double bound = 0;
        PlanContext *context = read_model(models[k]);
        assert_int_equal(cluster_read(&cluster, &arena, "C", &error), AM_OK);
        for (int64_t evaluations = 20; evaluations <= sample_of(200, 20); evaluations += 180) {
            const SearchRequest request = {.constraints.memory_fraction = 0.9};
            SearchScope scope = {.request = &request, .limits.evaluations = evaluations};
            assert_int_equal(single_stage_search(&result, &arena, context, cluster, &scope, &error), AM_OK);
            assert_string_equal(result.plan->bound, "lower");
            bound = fmax(bound, result.plan->bound_seconds);
            assert_true(result.plan->predicted_step_seconds >= bound * (1 - 1e-9));
            assert_true(result.model_gap >= 0);
        }
        cluster_free(cluster);
        plan_context_free(context);
        arena_free(&arena);
    }
}

/* Work bounds every number of stages: a pipeline by hand and the best of a hybrid search are above it, and
 * it is half as much on twice the devices. */
static void test_work_bounds_pipelines(void **state) {
    (void)state;
    double bounds[2];
    for (int32_t k = 0; k < 2; k++) {
        Arena arena = {0};
        AmError error = {0};
        Cluster *cluster;
        PlanBound bound;
        PlanContext *context = read_model("vgg_tiny");
        assert_int_equal(cluster_read(&cluster, &arena, k == 0 ? "nominal:2" : "nominal:4", &error), AM_OK);
        assert_int_equal(plan_bound_of_work(&bound, context, cluster, &error), AM_OK);
        bounds[k] = bound.seconds;
        SearchResult result;
        const SearchRequest request = {.constraints.memory_fraction = 0.9};
        SearchScope scope = {
            .request = &request, .kind = SPACE_HYBRID, .limits.evaluations = sample_of_all(0, 60, 20)};
        assert_int_equal(plan_search(&result, &arena, context, cluster, &scope, &error), AM_OK);
        assert_true(result.plan->predicted_step_seconds >= bound.seconds);
        assert_true(result.plan->bound_seconds >= bound.seconds * (1 - 1e-9));
        cluster_free(cluster);
        plan_context_free(context);
        arena_free(&arena);
    }
    assert_true(bounds[0] > 0);
    assert_true(fabs(bounds[0] / bounds[1] - 2) < 0.01);
}

/* The model gap of a pipeline covers all its stages: it is not negative, and grows if a stage
 * splits nothing, though the other has not changed. */
static void test_stages_have_a_model_gap(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    SearchResult result;
    Simulation *simulation;
    double found, worse;
    const StopSignal never = {0};
    PlanContext *context = read_model("gpt2_tiny");
    const SearchRequest request = {.constraints.memory_fraction = 0.9};
    const SearchScope scope = {.request = &request,
                               .kind = SPACE_PIPELINE,
                               .searcher = SEARCHER_BASELINE,
                               .baseline = BASELINE_EVEN_PIPELINE,
                               .micro_batches = 2};
    assert_int_equal(cluster_read(&cluster, &arena, "C", &error), AM_OK);
    assert_int_equal(plan_search(&result, &arena, context, cluster, &scope, &error), AM_OK);
    assert_true(result.plan->stage_count > 1);
    assert_int_equal(plan_model_gap(&found, context, cluster, result.plan, &never, &error), AM_OK);
    assert_true(found >= 0);
    for (int32_t axis = 0; axis < result.plan->stages[0].mesh.axis_count; axis++)
        result.plan->stages[0].axis_priorities[axis].count = 0;
    assert_int_equal(simulate_plan(&simulation, &arena, context, result.plan, cluster,
                                   &(SimulationOptions){.memory_fraction = 1}, &error),
                     AM_OK);
    assert_int_equal(simulation_predict(result.plan, &arena, simulation, &error), AM_OK);
    assert_int_equal(plan_model_gap(&worse, context, cluster, result.plan, &never, &error), AM_OK);
    assert_true(worse > found * 1.2);
    cluster_free(cluster);
    plan_context_free(context);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_above_a_plan),       cmocka_unit_test(test_a_tree_is_solved),
        cmocka_unit_test(test_readers_share_a_reshard),  cmocka_unit_test(test_layers_are_folded),
        cmocka_unit_test(test_bounds_hold_for_searches), cmocka_unit_test(test_work_bounds_pipelines),
        cmocka_unit_test(test_stages_have_a_model_gap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
