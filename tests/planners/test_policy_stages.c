/* The number of stages as a decision of the policy: pipelines with given prices, and those of a search. */
#include <unistd.h>

#include "planners/pipeline/pipeline_search.h"
#include "planners/plan_search.h"
#include "planners/single_stage/assignment_problems.h"
#include "planners/single_stage/stage_choices.h"
#include "tests/support/sample.h"
#include "tests/support/search_case.h"

enum { PROBLEMS = 24, SEED = 78, FEW = 14, BATCH = 1024, WIDTH = 4096, DEEP = 8 };

static const int64_t equal[DEEP + 1] = {WIDTH, WIDTH, WIDTH, WIDTH, WIDTH, WIDTH, WIDTH, WIDTH, WIDTH};

static PlanContext *make_layers(void) {
    Text text = {0};
    write_layers(&text, BATCH, equal, DEEP);
    PlanContext *context = read_model_text(text.data);
    text_free(&text);
    return context;
}

/* Four devices on a link that is slow for the layers' weights. */
static Cluster *make_slow(Arena *arena) {
    Random random;
    random_seed(&random, 2);
    Cluster *cluster = make_cluster(&random, arena, LARGE_MEMORY);
    return cluster;
}

/* Two pipelines of stages on one mesh. The first one takes half of the time of the module on that mesh, and
 * the other is too slow. */
typedef struct Offered {
    StageChoices choices;
    StageProblem *problem; /* the module on the mesh */
    double best;           /* of the first: the least score of its prices */
    int32_t prices;        /* of the first, its opening included */
    bool opened_slow;      /* the other */
} Offered;

static AmStatus price_offered(void *user, int32_t choice, StageProblem *problem, const AxisPlan *axis_plan,
                              StagePrice *price, AmError *error) {
    Offered *self = user;
    int64_t before = self->problem->budget.used;
    assert_int_equal(choice, 0);
    assert_ptr_equal(problem, self->problem);
    TRY(problem_price(self->problem, axis_plan, &price->price, error));
    price->price.seconds /= 2;
    price->is_new = self->problem->budget.used > before;
    self->best = fmin(self->best, plan_price_score(&price->price));
    self->prices += price->is_new;
    return AM_OK;
}

static AmStatus open_offered(void *user, int32_t choice, StageOpening *opening, AmError *error) {
    Offered *self = user;
    self->opened_slow |= choice == 1;
    opening->problems[opening->problem_count++] = self->problem;
    StagePrice price;
    TRY(price_offered(self, 0, self->problem, &opening->axis_plan, &price, error));
    opening->price = price.price;
    return AM_OK;
}

/* Offers both pipelines, beside plans that split the batch, to a bare search with few evaluations. */
static void search_offered(Offered *self, StageProblem *problem, const char *policy) {
    char mesh[64];
    snprintf(mesh, sizeof mesh, "data=%d,model=1", problem->cluster->device_count);
    const SearchRequest request = {
        .constraints.memory_fraction = problem->constraints.memory_fraction,
        .method = {.no_seeds = true, .no_polish = true, .policy = policy},
        .space = {.no_overrides = true, .mesh = mesh},
    };
    const SearchScope scope = {.request = &request,
                               .kind = SPACE_SINGLE_STAGE,
                               .searcher = SEARCHER_DQN,
                               .skip_bound = true,
                               .stages = &self->choices,
                               .limits = {.evaluations = FEW, .cap = FEW, .has_cap = true}};
    Arena arena = {0};
    AmError error = {0};
    SearchResult result;
    *self = (Offered){
        .best = INFINITY,
        .problem = problem,
        .choices = {
            .user = self, .count = 2, .seconds = {1e-9, 1e9}, .open = open_offered, .price = price_offered}};
    AmStatus status =
        single_stage_search(&result, &arena, problem->context, problem->cluster, &scope, &error);
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE) fail_msg("%s", error.text);
    assert_true(result.evaluations >= self->prices);
    assert_true(result.evaluations <= FEW);
    arena_free(&arena);
}

/* The policy opens the pipeline that the tables call fast, and prices plans of its stages. It leaves out the
 * slow one. */
static void test_masks_slow_stages(void **state) {
    (void)state;
    static const int32_t devices[] = {0, 1};
    const Mesh mesh = {.axis_count = 2,
                       .axes = {{.name = "data", .size = 2}, {.name = "model", .size = 1}},
                       .device_count = 2};
    ProblemSettings settings = problem_settings(SPACE_AUTO, 0.9);
    Arena arena = {0};
    AmError error = {0};
    StageProblem *problem;
    Offered offered;
    Cluster *cluster = make_slow(&arena);
    PlanContext *context = make_layers();
    settings.budget.limit = FEW;
    if (problem_create(&problem, context, cluster, &mesh, devices, &settings, &error) != AM_OK)
        fail_msg("%s", error.text);
    search_offered(&offered, problem, NULL);
    assert_true(offered.prices > 1);
    assert_false(offered.opened_slow);
    problem_free(problem);
    plan_context_free(context);
    cluster_free(cluster);
    arena_free(&arena);
}

/* Writes the shipped policy with the numbers of both networks in another order. */
static void write_shuffled(const char *path) {
    AmError error = {0};
    AssignmentPolicy policy;
    AgentSettings settings = assignment_settings();
    Random random;
    random_seed(&random, SEED);
    settings.replay_capacity = settings.batch;
    if (assignment_policy_built_in(&policy, &settings, &error) != AM_OK) fail_msg("%s", error.text);
    Agent *agents[] = {policy.actions, policy.errors};
    for (int32_t a = 0; a < 2; a++) {
        int64_t count = agent_parameter_count(agents[a]);
        float *parameters = malloc(sizeof *parameters * (size_t)count);
        assert_non_null(parameters);
        assert_int_equal(agent_parameters(agents[a], parameters, &error), AM_OK);
        for (int64_t k = count - 1; k > 0; k--) {
            int64_t other = random_below(&random, k + 1);
            float kept = parameters[k];
            parameters[k] = parameters[other];
            parameters[other] = kept;
        }
        assert_int_equal(agent_set_parameters(agents[a], parameters, count, "", &error), AM_OK);
        free(parameters);
    }
    if (assignment_policy_write(&policy, path, "shuffled", "", &error) != AM_OK) fail_msg("%s", error.text);
    assignment_policy_close(&policy);
}

/* Mean logarithm of the best step of the first pipeline, on generated problems. */
static double mean_step(const AssignmentModule *module, const char *policy) {
    double sum = 0;
    int32_t problems = sample_of(PROBLEMS, 1);
    for (int32_t k = 0; k < problems; k++) {
        AmError error = {0};
        GeneratedProblem given;
        Offered offered;
        if (generated_problem_open(&given, module, 1, SEED, (uint64_t)k, &error) != AM_OK)
            fail_msg("%s", error.text);
        search_offered(&offered, given.problem, policy);
        assert_true(isfinite(offered.best));
        sum += log(offered.best) / problems;
        generated_problem_close(&given);
    }
    return sum;
}

/* Inside a number of stages the shipped policy finds faster plans of an unseen kind than the same numbers in
 * another order. */
static void test_learnt_inside_stages(void **state) {
    (void)state;
    AssignmentModule module;
    AmError error = {0};
    char path[] = "/tmp/automap-shuffled-XXXXXX.safetensors";
    int file = mkstemps(path, 12);
    assert_true(file >= 0);
    close(file);
    write_shuffled(path);
    PlanContext *context = read_model("vgg_tiny");
    if (assignment_module_measure(&module, context, &error) != AM_OK) fail_msg("%s", error.text);
    double trained = mean_step(&module, NULL), shuffled = mean_step(&module, path);
    if (sample_of(true, false) && shuffled - trained < log(1.05))
        fail_msg("the step of the shuffled network is %.3f times that of the trained one",
                 exp(shuffled - trained));
    unlink(path);
    plan_context_free(context);
}

/* Over slow links the first round of a search has pipelines of the policy. It simulates none before the
 * policy chooses. Those of the baselines are choices, too: the round has no other baselines. */
static void test_search_has_stages(void **state) {
    (void)state;
    enum { EVALUATIONS = 30 };
    Arena arena = {0};
    AmError error = {0}, refusal = {0};
    SearchResult result;
    const SearchRequest request = {.constraints.memory_fraction = 0.9,
                                   .method = {.no_seeds = true, .no_polish = true}};
    const SearchScope scope = {.request = &request,
                               .kind = SPACE_AUTO,
                               .searcher = SEARCHER_DQN,
                               .purpose = PURPOSE_STAGES,
                               .limits.evaluations = EVALUATIONS};
    Cluster *cluster = make_slow(&arena);
    PlanContext *context = make_layers();
    if (pipeline_search(&result, &arena, context, cluster, &scope, &refusal) != AM_OK)
        fail_msg("%s", refusal.text);
    const Plan *plan = result.pool.of[PLAN_ORIGIN_POLICY].plan;
    const Plan *of_tables = result.pool.of[PLAN_ORIGIN_STAGES].plan;
    assert_non_null(plan);
    assert_true(plan->stage_count > 1);
    assert_true(!of_tables || plan->predicted_step_seconds < of_tables->predicted_step_seconds);
    assert_null(result.pool.of[PLAN_ORIGIN_IMPROVEMENT].plan);
    if (plan_search(&result, &arena, context, cluster,
                    &(SearchScope){.request = &request,
                                   .kind = SPACE_AUTO,
                                   .searcher = SEARCHER_DQN,
                                   .skip_bound = true,
                                   .limits.evaluations = EVALUATIONS},
                    &error) != AM_OK)
        fail_msg("%s", error.text);
    assert_int_equal(result.plan->origin, PLAN_ORIGIN_POLICY);
    assert_true(result.evaluations <= EVALUATIONS);
    plan_context_free(context);
    cluster_free(cluster);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_slow_stages),
        cmocka_unit_test(test_learnt_inside_stages),
        cmocka_unit_test(test_search_has_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
