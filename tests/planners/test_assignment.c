/* The assignment policy: the trained network on unseen modules, short trainings, and files. */
#include "base/files/array_file.h"
#include "base/files/file.h"
#include "planners/single_stage/assignment_train.h"
#include "tests/support/sample.h"
#include "tests/support/search_case.h"

#include "tests/support/model_case.h"

/* Perceptrons of three layers whose widths ask for different splits. */
static const int64_t widths[][4] = {{64, 512, 2048, 64}, {512, 512, 512, 512}, {2048, 64, 2048, 64}};
enum { MODULES = 3, SEED = 77, BATCH = 256, SMALL_BATCH = 8, LARGE_BATCH = 8192, ESTIMATES = 3 };

typedef struct Modules {
    PlanContext *contexts[MODULES];
    AssignmentModule modules[MODULES];
    int32_t count;
} Modules;

/* `factor`: of all widths. */
static void open_modules(Modules *self, int64_t batch, int64_t factor) {
    self->count = MODULES;
    for (int32_t k = 0; k < MODULES; k++) {
        Text text = {0};
        AmError error = {0};
        int64_t wide[4];
        for (int32_t w = 0; w < 4; w++) wide[w] = factor * widths[k][w];
        write_layers(&text, batch, wide, 3);
        self->contexts[k] = read_model_text(text.data);
        text_free(&text);
        if (assignment_module_measure(&self->modules[k], self->contexts[k], &error) != AM_OK)
            fail_msg("%s", error.text);
    }
}

static void close_modules(Modules *self) {
    for (int32_t k = 0; k < self->count; k++) plan_context_free(self->contexts[k]);
}

/* One module of a kind that no training had. */
static void open_unseen(Modules *self) {
    AmError error = {0};
    *self = (Modules){.count = 1, .contexts = {read_model("vgg_tiny")}};
    if (assignment_module_measure(&self->modules[0], self->contexts[0], &error) != AM_OK)
        fail_msg("%s", error.text);
}

#define PROBLEMS    sample_of(24, 2)
#define IS_COMPARED sample_of(true, false) /* few problems prove nothing */

/* Mean gain of the zero-shot plans of PROBLEMS problems. */
static double mean_gain(const Modules *modules, const AssignmentPolicy *policy) {
    static AssignmentEpisode episode;
    static AssignmentState state;
    double sum = 0;
    for (uint64_t index = 0; index < (uint64_t)PROBLEMS; index++) {
        AmError error = {0};
        GeneratedProblem problem;
        double gain;
        const AssignmentPlayer player = {
            .policy = policy, .problem = &problem.described, .state = &state, .choice.best = ESTIMATES};
        if (generated_problem_open(&problem, modules->modules, modules->count, SEED, index, &error) !=
                AM_OK ||
            assignment_zero_shot(&gain, NULL, &episode, &player, &error) != AM_OK)
            fail_msg("%s", error.text);
        sum += gain / PROBLEMS;
        generated_problem_close(&problem);
    }
    return sum;
}

/* The shipped network's first plans take at most 1 / `least` of the time of those of a network that has
 * learnt nothing. */
static void check_learnt(int64_t batch, double least) {
    Modules modules;
    AmError error = {0};
    AssignmentPolicy policies[2] = {0};
    double gains[2];
    AgentSettings settings = assignment_settings();
    settings.replay_capacity = settings.batch;
    open_modules(&modules, batch, 1);
    if (assignment_policy_built_in(&policies[0], &settings, &error) != AM_OK) fail_msg("%s", error.text);
    assert_int_equal(assignment_agent_untrained(&policies[1].actions, &settings, ASSIGNMENT_FEATURES, &error),
                     AM_OK);
    for (int32_t k = 0; k < 2; k++) {
        gains[k] = mean_gain(&modules, &policies[k]);
        assignment_policy_close(&policies[k]);
    }
    if (IS_COMPARED && gains[0] < gains[1] + log(least))
        fail_msg("trained %.3f, untrained %.3f: %.3f times the step", gains[0], gains[1],
                 exp(gains[0] - gains[1]));
    close_modules(&modules);
}

/* Large weights and a small batch: operators are to be partitioned. */
static void test_learnt_operator_partitioning(void **state) {
    (void)state;
    check_learnt(SMALL_BATCH, 1.1);
}

/* A large batch and small weights: data parallelism. */
static void test_learnt_data_parallelism(void **state) {
    (void)state;
    check_learnt(LARGE_BATCH, 1.1);
}

/* Mean logarithm of the step that bare searches with few evaluations find for the modules on clusters of all
 * link speeds. */
static double mean_search(const Modules *modules, Searcher searcher) {
    enum { CLUSTERS = 6, FEW = 6 };
    const SearchRequest request = {
        .method.no_seeds = true, .method.no_polish = true, .space.no_overrides = true};
    const SearchScope scope = {.request = &request,
                               .kind = SPACE_SINGLE_STAGE,
                               .searcher = searcher,
                               .limits.evaluations = FEW,
                               .limits.cap = FEW,
                               .limits.has_cap = true,
                               .skip_bound = true};
    double sum = 0;
    int32_t clusters = sample_of(CLUSTERS, 1);
    for (int32_t number = 0; number < clusters; number++) {
        Random random;
        Arena arena = {0};
        random_seed(&random, (uint64_t)number);
        Cluster *cluster = make_cluster(&random, &arena, LARGE_MEMORY);
        for (int32_t k = 0; k < modules->count; k++)
            sum += log(searched(modules->contexts[k], cluster, scope)) / (clusters * modules->count);
        cluster_free(cluster);
        arena_free(&arena);
    }
    return sum;
}

/* With a few priced plans deep Q-learning finds steps that are at most 1 / `least` as long as those of the
 * greedy search. In place of it the greedy search would be as good as itself. */
static void check_beats_greedy(int64_t batch, int64_t factor, double least) {
    Modules modules;
    open_modules(&modules, batch, factor);
    double dqn = mean_search(&modules, SEARCHER_DQN), greedy = mean_search(&modules, SEARCHER_GREEDY);
    if (IS_COMPARED && dqn > greedy - log(least))
        fail_msg("the step of greedy is %.3f times that of dqn", exp(greedy - dqn));
    close_modules(&modules);
}

static void test_dqn_beats_greedy_in_operator_partitioning(void **state) {
    (void)state;
    check_beats_greedy(SMALL_BATCH, 8, 1.2);
}

static void test_dqn_beats_greedy_in_data_parallelism(void **state) {
    (void)state;
    check_beats_greedy(LARGE_BATCH, 1, 1.2);
}

/* Returns whether bare deep Q-learning with a few evaluations finds a plan that fits. */
static bool dqn_fits(const GeneratedProblem *given) {
    enum { FEW = 50 };
    char mesh[64];
    const MeshAxis *axes = given->problem->mesh.axes;
    snprintf(mesh, sizeof mesh, "data=%d,model=%d", axes[0].size, axes[1].size);
    const SearchRequest request = {.method.no_seeds = true,
                                   .method.no_polish = true,
                                   .space = {.mesh = mesh, .no_overrides = true},
                                   .constraints.memory_fraction =
                                       given->problem->constraints.memory_fraction};
    const SearchScope scope = {.request = &request,
                               .kind = SPACE_SINGLE_STAGE,
                               .searcher = SEARCHER_DQN,
                               .limits.evaluations = FEW,
                               .skip_bound = true};
    Arena arena = {0};
    SearchResult result = {0};
    AmError error = {0};
    AmStatus status =
        single_stage_search(&result, &arena, given->problem->context, given->cluster, &scope, &error);
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE) fail_msg("%s", error.text);
    arena_free(&arena);
    return status == AM_OK;
}

/* Problems in which the plan that splits nothing misses the memory limit, and the quickest plan that fits
 * takes several times as long as plans that miss it by little. Deep Q-learning finds one without baselines.
 */
static void test_dqn_fits_scarce_memory(void **state) {
    static const struct { uint64_t seed, index; } scarce[] = {{8, 22}, {8, 20}, {9, 4}, {9, 13}};
    (void)state;
    AmError error = {0};
    Modules modules = {.count = 3,
                       .contexts = {read_model("vgg_tiny"), read_model("gpt2_tiny"), read_model("t5_tiny")}};
    for (int32_t k = 0; k < modules.count; k++)
        if (assignment_module_measure(&modules.modules[k], modules.contexts[k], &error) != AM_OK)
            fail_msg("%s", error.text);
    for (int32_t k = 0; k < sample_of(4, 1); k++) {
        GeneratedProblem problem;
        if (generated_problem_open(&problem, modules.modules, modules.count, scarce[k].seed, scarce[k].index,
                                   &error) != AM_OK)
            fail_msg("%s", error.text);
        assert_true(problem.described.unsplit.excess > 0);
        if (!dqn_fits(&problem)) fail_msg("no plan fits for problem %d", (int)scarce[k].index);
        generated_problem_close(&problem);
    }
    close_modules(&modules);
}

/* On an unseen kind the shipped network finds quicker plans than the same numbers in another order, in the
 * mean over ORDERS orders. One order alone can rank well by chance. */
static void test_trained_beats_shuffled(void **state) {
    (void)state;
    Modules modules;
    AmError error = {0};
    AssignmentPolicy policy;
    AgentSettings settings = assignment_settings();
    settings.replay_capacity = settings.batch;
    open_unseen(&modules);
    if (assignment_policy_built_in(&policy, &settings, &error) != AM_OK) fail_msg("%s", error.text);
    int64_t count = agent_parameter_count(policy.actions);
    float *parameters = malloc(sizeof(float) * (size_t)count);
    assert_non_null(parameters);
    assert_int_equal(agent_parameters(policy.actions, parameters, &error), AM_OK);
    enum { ORDERS = 8 };
    double trained = mean_gain(&modules, &policy), shuffled = 0;
    int32_t orders = sample_of(ORDERS, 1);
    for (uint64_t seed = 0; seed < (uint64_t)orders; seed++) {
        Random random;
        random_seed(&random, seed);
        for (int64_t k = count - 1; k > 0; k--) {
            int64_t other = random_below(&random, k + 1);
            float kept = parameters[k];
            parameters[k] = parameters[other];
            parameters[other] = kept;
        }
        assert_int_equal(agent_set_parameters(policy.actions, parameters, count, "", &error), AM_OK);
        shuffled += mean_gain(&modules, &policy) / orders;
    }
    if (IS_COMPARED && trained < shuffled + log(1.15))
        fail_msg("trained %.3f, shuffled %.3f: %.3f times the step", trained, shuffled,
                 exp(trained - shuffled));
    free(parameters);
    assignment_policy_close(&policy);
    close_modules(&modules);
}

/* On an unseen kind the errors that the shipped network expects of estimated seconds leave less of their
 * difference from prices. A network that has learnt nothing expects none. */
static void test_learnt_errors(void **state) {
    (void)state;
    static AssignmentState at;
    const AxisPlan nothing = {0};
    Modules modules;
    AmError error = {0};
    AssignmentPolicy policy;
    AgentSettings settings = assignment_settings();
    double estimated = 0, expected = 0; /* sums of differences */
    settings.replay_capacity = settings.batch;
    open_unseen(&modules);
    if (assignment_policy_built_in(&policy, &settings, &error) != AM_OK) fail_msg("%s", error.text);
    for (uint64_t index = 0; index < (uint64_t)PROBLEMS; index++) {
        GeneratedProblem problem;
        ActionEstimates estimates;
        Random random;
        const AssignmentPlayer player = {.policy = &policy,
                                         .problem = &problem.described,
                                         .state = &at,
                                         .choice.best = ASSIGNMENT_ESTIMATES,
                                         .random = &random};
        random_seed(&random, index);
        if (generated_problem_open(&problem, modules.modules, modules.count, SEED, index, &error) != AM_OK ||
            assignment_enter(&at, &problem.described, &nothing, &error) != AM_OK ||
            assignment_estimate_actions(&estimates, &player, NULL, &error) != AM_OK)
            fail_msg("%s", error.text);
        for (int32_t n = 0; n < estimates.count; n++) {
            const ActionEstimate *of_action = &estimates.of[n];
            PlanPrice price;
            if (problem_price(problem.problem, &at.actions[of_action->action].next, &price, &error) != AM_OK)
                fail_msg("%s", error.text);
            double gain = assignment_value(&problem.described, &price).seconds_gain;
            estimated += fabs(gain - of_action->estimate.seconds_gain);
            expected += fabs(gain - of_action->value.seconds_gain);
        }
        generated_problem_close(&problem);
    }
    if (IS_COMPARED && expected > 0.85 * estimated)
        fail_msg("errors of %.2f, of %.2f by estimates", expected, estimated);
    assignment_policy_close(&policy);
    close_modules(&modules);
}

typedef struct Curve {
    AssignmentProgress points[8];
    int32_t count;
} Curve;

static void note_progress(void *user, const AssignmentProgress *progress) {
    Curve *curve = user;
    assert_true(curve->count < 8);
    curve->points[curve->count++] = *progress;
}

/* A training of seconds: predictions for unseen problems become better. The gain of their plans depends on
 * the rounding of so short a training. */
static void test_learning_curve_rises(void **state) {
    (void)state;
    Modules modules;
    const int64_t problems = sample_of(60, 6);
    Curve curve = {0};
    AmError error = {0};
    AssignmentPolicy policy;
    int64_t done;
    open_modules(&modules, BATCH, 1);
    const AssignmentTraining training = {.modules = modules.modules,
                                         .module_count = MODULES,
                                         .seed = 3,
                                         .problems = problems,
                                         .report_every = problems,
                                         .validation_problems = PROBLEMS,
                                         .on_report = note_progress,
                                         .user = &curve};
    if (assignment_train(&policy, &done, &training, &error) != AM_OK) fail_msg("%s", error.text);
    assert_int_equal(done, problems);
    assert_int_equal(curve.count, 2);
    const AssignmentProgress *first = &curve.points[0], *last = &curve.points[1];
    if (IS_COMPARED && last->error > 0.8 * first->error)
        fail_msg("error %.3f, first %.3f", last->error, first->error);
    assignment_policy_close(&policy);
    close_modules(&modules);
}

static void check_equal(Agent *one, Agent *other) {
    AmError error = {0};
    int64_t count = agent_parameter_count(one);
    float *numbers = malloc(2 * sizeof(float) * (size_t)count);
    assert_non_null(numbers);
    assert_int_equal(agent_parameters(one, numbers, &error), AM_OK);
    assert_int_equal(agent_parameters(other, numbers + count, &error), AM_OK);
    assert_memory_equal(numbers, numbers + count, sizeof(float) * (size_t)count);
    free(numbers);
}

/* A training that was interrupted ends with the numbers of one that was not, in both networks. */
static void test_resume(void **state) {
    (void)state;
    Modules modules;
    AmError error = {0};
    char path[] = "/tmp/automap-assignment-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    fclose(fdopen(file, "w"));
    open_modules(&modules, BATCH, 1);
    volatile sig_atomic_t interrupted = 1;
    AssignmentTraining training = {
        .modules = modules.modules, .module_count = MODULES, .problems = 6, .checkpoint = path};
    AssignmentPolicy policies[2];
    int64_t done;
    assert_int_equal(assignment_train(&policies[0], &done, &training, &error), AM_OK);
    training.interrupted = &interrupted;
    assert_int_equal(assignment_train(&policies[1], &done, &training, &error), AM_OK);
    assert_int_equal(done, 0);
    assignment_policy_close(&policies[1]);
    interrupted = 0;
    training.resume = true;
    assert_int_equal(assignment_train(&policies[1], &done, &training, &error), AM_OK);
    assert_int_equal(done, 6);
    check_equal(policies[0].actions, policies[1].actions);
    check_equal(policies[0].errors, policies[1].errors);
    for (int32_t k = 0; k < 2; k++) assignment_policy_close(&policies[k]);
    training.problems = 7;
    assert_int_equal(assignment_train(&policies[0], &done, &training, &error), AM_ERROR_INPUT);
    assert_non_null(strstr(error.text, "7 problems"));
    remove(path);
    close_modules(&modules);
}

/* The shipped networks were trained with the present prices, actions and features. The first module of their
 * training is BERT. */
static void test_shipped_has_present_prices(void **state) {
    (void)state;
    AmError error = {0};
    ArrayFile file;
    char text[ASSIGNMENT_PRICES_BYTES];
    AssignmentModule module;
    const double near = 0.02;
    PlanContext *context = read_model("bert_tiny");
    if (assignment_module_measure(&module, context, &error) != AM_OK ||
        assignment_prices_text(text, &module, &error) != AM_OK ||
        array_file_open(&file, SOURCE_DIR "/datasets/agents/assignment.safetensors", &error) != AM_OK)
        fail_msg("%s", error.text);
    const char *trained = array_file_metadata(&file, "prices");
    assert_non_null(trained);
    double before[ASSIGNMENT_PRICES], now[ASSIGNMENT_PRICES];
    assert_int_equal(sscanf(trained, "%lf %lf %lf %lf", &before[0], &before[1], &before[2], &before[3]),
                     ASSIGNMENT_PRICES);
    assert_int_equal(sscanf(text, "%lf %lf %lf %lf", &now[0], &now[1], &now[2], &now[3]), ASSIGNMENT_PRICES);
    for (int32_t k = 0; k < ASSIGNMENT_PRICES; k++)
        if (fabs(now[k] - before[k]) > near)
            fail_msg("prices %s, in the training %s: train the policy again (docs/planning.md)", text,
                     trained);
    array_file_close(&file);
    plan_context_free(context);
}

/* A policy of other features or layers is refused by name. */
static void test_version(void **state) {
    (void)state;
    AmError error = {0};
    char path[] = "/tmp/automap-policy-XXXXXX.safetensors";
    int file = mkstemps(path, 12);
    assert_true(file >= 0);
    fclose(fdopen(file, "w"));
    const float numbers[4] = {0};
    const int32_t layers[2] = {64, 32};
    const int64_t count = 4, layer_count = 2;
    const ArrayToWrite arrays[] = {{"parameters", DTYPE_F32, 1, &count, numbers},
                                   {"hidden", DTYPE_S32, 1, &layer_count, layers}};
    const char *const old[] = {"format", "automap-assignment-0", NULL};
    const char *const present[] = {"format", ASSIGNMENT_VERSION, NULL};
    AgentSettings settings = assignment_settings();
    AssignmentPolicy policy;
    assert_int_equal(array_file_write(path, arrays, 1, old, &error), AM_OK);
    assert_int_equal(assignment_policy_read(&policy, &settings, path, &error), AM_ERROR_INPUT);
    assert_non_null(strstr(error.text, "got format automap-assignment-0; train it again"));
    error = (AmError){0};
    assert_int_equal(array_file_write(path, arrays, 1, present, &error), AM_OK);
    assert_int_equal(assignment_policy_read(&policy, &settings, path, &error), AM_ERROR_INPUT);
    assert_non_null(strstr(error.text, "hidden with 2 layers of 64 units"));
    error = (AmError){0};
    assert_int_equal(array_file_write(path, arrays, 2, present, &error), AM_OK);
    assert_int_equal(assignment_policy_read(&policy, &settings, path, &error), AM_ERROR_INPUT);
    assert_non_null(strstr(error.text, "hidden with 2 layers of 64 units"));
    remove(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learnt_operator_partitioning),
        cmocka_unit_test(test_learnt_data_parallelism),
        cmocka_unit_test(test_dqn_beats_greedy_in_operator_partitioning),
        cmocka_unit_test(test_dqn_beats_greedy_in_data_parallelism),
        cmocka_unit_test(test_dqn_fits_scarce_memory),
        cmocka_unit_test(test_trained_beats_shuffled),
        cmocka_unit_test(test_learnt_errors),
        cmocka_unit_test(test_learning_curve_rises),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_shipped_has_present_prices),
        cmocka_unit_test(test_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
