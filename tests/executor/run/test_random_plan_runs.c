/* Random plans of whole programs: for every plan, training gives one device's losses. On every
 * small model of datasets/models with recorded losses, random plans are made: meshes of 2 to 16
 * ranks, also such that no size divides and with unequal shares, random classes in random axis priorities,
 * random storage entries, random overrides, 1, 2 or 4 micro-batches. Each runs for five steps.
 * Models that refuse micro-batches are listed with the reason. For further plans, which do not run,
 * all ranks meet in the same order.
 *
 * AUTOMAP_FULL: 50 plans of each model, 500 of the others; else a few. AUTOMAP_CASE=TEXT: only
 * models whose name contains the text; AUTOMAP_SEED=N: the plan of that seed alone, which
 * AUTOMAP_PLAN=FILE keeps. */
/* cost: 44 seconds */
#include "tests/support/runner_case.h"
#include "tests/support/sample.h"

#include <dirent.h>

#include "cost/simulate/simulate.h"
#include "lowering/micro_batch/micro_batches.h"
#include "lowering/spmd/lower.h"
#include "planners/single_stage/single_stage_search.h"

enum {
    RUN_STEPS = 5,
    FULL_PLANS = 50,
    FULL_LOWERED = 500,
    MOST_OVERRIDES = 24,
    MOST_MODELS = 64,
    MOST_COLLECTIVES = 4096
};

static const char *const meshes[] = {
    "data=2",
    "data=3",
    "data=4",
    "data=5",
    "data=7",
    "data=8",
    "data=2,model=2",
    "data=2,model=3",
    "data=3,model=2",
    "data=2,model=4",
    "data=3,model=4",
    "data=4,model=4",
    "data=2,model=2,z=2",
    "data=3,model=2,z=2",
    "data=16",
    "data=5,model=2",
};
enum { MESH_COUNT = sizeof meshes / sizeof *meshes };

/* Models that are exact in any order of additions have tolerance 0; bfloat16 keeps 8 bits. */
static double tolerance_of(const char *model) {
    if (strncmp(model, "exact_", 6) == 0) return 0;
    return strstr(model, "bf16") || strstr(model, "llama") ? 1e-2 : 5e-6;
}

/* Unequal shares of an axis, 64ths. */
static void choose_shares(Arena *arena, MeshAxis *axis, Random *random) {
    double *shares = ARENA_ARRAY(arena, double, axis->size);
    int64_t left = 64 - 2 * axis->size;
    for (int32_t k = 0; k < axis->size; k++) {
        int64_t more = k + 1 < axis->size ? random_below(random, left / 2 + 1) : left;
        shares[k] = (double)(2 + more) / 64;
        left -= more;
    }
    axis->shares = shares;
}

/* Some classes in any order, then perhaps where weights, gradients and the optimizer's state are kept. */
static void choose_axis_priority(PlanAxisPriority *priority, Arena *arena, const PlanContext *context,
                                 Random *random) {
    static const int32_t rates[] = {1, 2, 4, 8, 16, 64};
    int32_t rate = rates[random_below(random, 6)], classes = context->classes->count;
    priority->entries = ARENA_ARRAY(arena, PlanEntry, classes + PLAN_ENTRY_KINDS);
    for (int32_t c = 0; c < classes; c++) {
        if (random_below(random, rate) != 0) continue;
        int64_t at = random_below(random, priority->count + 1);
        priority->entries[priority->count++] = priority->entries[at];
        priority->entries[at] = (PlanEntry){.class_index = c};
    }
    for (PlanEntryKind kind = PLAN_WEIGHTS; kind <= PLAN_OPTIMIZER; kind++)
        if (random_below(random, 4) == 0)
            priority->entries[priority->count++] = (PlanEntry){.class_index = PLAN_ANY_CLASS, .kind = kind};
}

/* Adds an override for a random instruction, if the plan can have it. */
static void add_override(PlanStage *stage, const PlanContext *context, Random *random) {
    const SplitOptions *split_options = context->split_options;
    int32_t i = split_options->decided[random_below(random, split_options->decided_count)];
    const FactorRule *rule = &context->rules->rules[i];
    const IrShape *shape = split_options_array_shape(&context->canonical->instructions[i]);
    for (int32_t k = 0; k < stage->override_count; k++)
        if (stage->overrides[k].instruction == i) return;
    PlanOverride override = {.instruction = i,
                             .has_factors = rule->operand_count > 0 && random_below(random, 3) > 0,
                             .has_states = random_below(random, 3) > 0};
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        override.factors[axis] =
            rule->factor_count ? (int32_t)random_below(random, rule->factor_count + 1) - 1 : -1;
        if (shape->type != DTYPE_TUPLE && shape->rank > 0)
            override.states.axis[axis] = (Sbp)random_below(random, shape->rank + 1);
    }
    stage->overrides[stage->override_count++] = override;
    Arena arena = {0};
    Assignment *assignment;
    if (plan_assign(&assignment, &arena, context, stage, NULL) != AM_OK) stage->override_count--;
    arena_free(&arena);
}

static Plan *random_plan(Arena *arena, const PlanContext *context, uint64_t seed, Text *summary) {
    Random random;
    random_seed(&random, seed);
    const char *mesh = meshes[random_below(&random, MESH_COUNT)];
    Plan *plan = ARENA_ARRAY(arena, Plan, 1);
    PlanStage *stage = ARENA_ARRAY(arena, PlanStage, 1);
    *plan = (Plan){.module_name = context->canonical->name,
                   .micro_batches = plan_context_micro_batches(context),
                   .schedule = "none",
                   .stages = stage,
                   .stage_count = 1,
                   .searcher = "random",
                   .space = "test"};
    stage->range_count = 1;
    stage->ranges = arena_alloc(arena, sizeof *stage->ranges);
    stage->ranges[0][1] = context->canonical->computations[0].count;
    assert_int_equal(mesh_parse(&stage->mesh, arena, mesh, NULL), AM_OK);
    text_append(summary, "seed %lld on %s", (long long)seed, mesh);
    stage->devices = ARENA_ARRAY(arena, int32_t, stage->mesh.device_count);
    for (int32_t d = 0; d < stage->mesh.device_count; d++) stage->devices[d] = d;
    stage->overrides = ARENA_ARRAY(arena, PlanOverride, MOST_OVERRIDES);
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        if (random_below(&random, 3) == 0) {
            choose_shares(arena, &stage->mesh.axes[axis], &random);
            text_append(summary, " %s unequal", stage->mesh.axes[axis].name);
        }
        choose_axis_priority(&stage->axis_priorities[axis], arena, context, &random);
    }
    int64_t overrides = random_below(&random, 2) ? random_below(&random, MOST_OVERRIDES) : 0;
    for (int64_t k = 0; k < overrides; k++) add_override(stage, context, &random);
    stage->offloads_optimizer = random_below(&random, 3) == 0;
    if (stage->offloads_optimizer) text_append_string(summary, ", offloaded");
    text_append(summary, ", %d exceptions, %d micro-batches", stage->override_count, plan->micro_batches);
    return plan;
}

/* Writes the plan to a file, for `automap lower` to show; NULL: nothing. */
static void keep_plan(const Plan *plan, const PlanContext *context, const char *path) {
    char name[32];
    Arena arena = {0};
    Cluster *cluster;
    AmError error = {0};
    if (!path) return;
    snprintf(name, sizeof name, "nominal:%d", (int)plan->stages[0].mesh.device_count);
    assert_int_equal(cluster_read(&cluster, &arena, name, &error), AM_OK);
    Plan kept = *plan;
    const SearchRequest request = {0};
    const SearchScope scope = {.request = &request};
    search_describe_plan(&kept, context, cluster, &scope);
    kept.micro_batches = plan->micro_batches;
    kept.stages = plan->stages;
    Simulation *simulation;
    assert_int_equal(simulate_plan(&simulation, &arena, context, &kept, cluster,
                                   &(SimulationOptions){.memory_fraction = 1}, &error),
                     AM_OK);
    assert_int_equal(simulation_predict(&kept, &arena, simulation, &error), AM_OK);
    if (plan_write(&kept, context, path, &error) != AM_OK) fail_msg("%s", error.text);
    cluster_free(cluster);
    arena_free(&arena);
}

/* Runs a plan; false and a line on stdout where it is not as on one device. */
static bool run_random_plan(const PlanContext *context, const char *model, uint64_t seed,
                            const double *expected) {
    char state[512], data[512];
    Arena arena = {0};
    AmError error = {0};
    RunReport report;
    Losses losses = {0};
    Text summary = {0};
    join(state, sizeof state, model, "state.npz");
    join(data, sizeof data, model, "data.npz");
    Plan *plan = random_plan(&arena, context, seed, &summary);
    keep_plan(plan, context, getenv("AUTOMAP_PLAN"));
    RunOptions options = {.steps = RUN_STEPS,
                          .plan = plan,
                          .device = "cpu",
                          .state_path = state,
                          .data_path = data,
                          .on_step = note_loss,
                          .user = &losses};
    AmStatus status = run_module(context, &options, &arena, &report, &error);
    bool right = status == AM_OK && losses.count == RUN_STEPS;
    if (status != AM_OK) printf("WRONG %s, %s: %s\n", model, summary.data, error.text);
    for (int32_t k = 0; right && k < RUN_STEPS; k++) {
        right = fabs(losses.values[k] - expected[k]) <= tolerance_of(model) * fabs(expected[k]);
        if (!right)
            printf("WRONG %s, %s: loss of step %d is %.9g, expected %.9g\n", model, summary.data, k,
                   losses.values[k], expected[k]);
    }
    text_free(&summary);
    arena_free(&arena);
    return right;
}

/* The context of 1, 2 or 4 micro-batches; that of one, and a line, where the model refuses more. Every other
 * three seeds fuse attention. */
static const PlanContext *context_of(PlanContext *primary, const char *model, uint64_t seed, bool tells) {
    MicroBatchSettings settings = {.micro_batches = 1 << seed % 3};
    const PlanContext *context;
    AmError error = {0};
    if (seed / 3 % 2 == 1 && plan_context_fuse(&primary, primary, &error) != AM_OK)
        fail_msg("%s", error.text);
    if (plan_context_for(&context, primary, &settings, &error) == AM_OK) return context;
    if (error.code != AM_ERROR_INFEASIBLE) fail_msg("%s: %s", model, error.text);
    if (tells) printf("%s refuses %d micro-batches: %s\n", model, settings.micro_batches, error.text);
    return primary;
}

static bool is_small_model(const char *name) {
    const char *only = getenv("AUTOMAP_CASE");
    bool is_small =
        strstr(name, "_tiny") || strncmp(name, "exact_", 6) == 0 || strcmp(name, "two_swapped") == 0;
    return is_small && (!only || strstr(name, only));
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

typedef struct Cases {
    char *models[MOST_MODELS];
    int32_t model_count;
    bool is_full;
    const char *seed; /* the only one, or NULL */
} Cases;

static void find_cases(Cases *cases) {
    const char *full = getenv("AUTOMAP_FULL");
    DIR *directory = opendir(MODELS);
    assert_non_null(directory);
    *cases = (Cases){.is_full = full && strcmp(full, "1") == 0, .seed = getenv("AUTOMAP_SEED")};
    for (struct dirent *entry; (entry = readdir(directory)) && cases->model_count < MOST_MODELS;)
        if (is_small_model(entry->d_name)) cases->models[cases->model_count++] = strdup(entry->d_name);
    closedir(directory);
    qsort(cases->models, (size_t)cases->model_count, sizeof *cases->models, compare_names);
}

static void free_cases(Cases *cases) {
    for (int32_t m = 0; m < cases->model_count; m++) free(cases->models[m]);
}

static PlanContext *read_model(const char *model) {
    char path[512];
    AmError error = {0};
    PlanContext *context;
    join(path, sizeof path, model, "model.hlo.pb");
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    return context;
}

static uint64_t seed_of(const Cases *cases, int32_t m, int32_t k) {
    return cases->seed ? strtoull(cases->seed, NULL, 10) : (uint64_t)(m * 1000 + k);
}

static void test_losses(void **state) {
    (void)state;
    Cases cases;
    int32_t plans = 0, wrong = 0;
    find_cases(&cases);
    for (int32_t m = 0; m < cases.model_count; m++) {
        const char *model = cases.models[m];
        char losses[512];
        double expected[STEPS];
        PlanContext *context = read_model(model);
        join(losses, sizeof losses, model, "losses.json");
        read_losses(expected, losses);
        bool is_large = context->canonical->instruction_count > 700;
        int32_t count = cases.is_full ? FULL_PLANS : is_large ? 1 : sample_of(2, 1);
        for (int32_t k = 0; k < (cases.seed ? 1 : count); k++) {
            uint64_t seed = seed_of(&cases, m, k);
            wrong += !run_random_plan(context_of(context, model, seed, k < 3), model, seed, expected);
            plans++;
        }
        plan_context_free(context);
    }
    printf("%d plans of %d models, %d wrong\n", plans, cases.model_count, wrong);
    free_cases(&cases);
    assert_int_equal(wrong, 0);
}

/* Lists the instructions in which a rank meets others, in the order of its steps, including those
 * in loops and conditionals. Returns their number; at most MOST_COLLECTIVES are listed. */
static int32_t list_collectives(int32_t *listed, int32_t count, const Program *program) {
    for (int32_t k = 0; k < program->execution.step_count; k++) {
        int32_t i = program->execution.steps[k].instruction;
        if (i < 0 || !program_instruction_communicates(&program->instructions[i], true)) continue;
        if (count < MOST_COLLECTIVES) listed[count] = i;
        count++;
        for (int32_t r = 0; r < program->instructions[i].regions.count; r++)
            count = list_collectives(listed, count, program->instructions[i].regions.programs[r]);
    }
    return count;
}

static int32_t collectives_of(int32_t *listed, Arena *arena, const PlanRanks *ranks, int32_t rank) {
    Program *program;
    AmError error = {0};
    if (plan_ranks_lower(&program, arena, ranks, rank, &error) != AM_OK) fail_msg("%s", error.text);
    int32_t count = list_collectives(listed, 0, program);
    assert_true(count <= MOST_COLLECTIVES);
    return count;
}

/* Returns whether all ranks meet in one order, or they would wait for ever; a line on stdout where they do
 * not. */
static bool has_one_order(const PlanContext *context, const char *model, uint64_t seed) {
    Arena arena = {0};
    AmError error = {0};
    PlanRanks ranks;
    Text summary = {0};
    const Plan *plan = random_plan(&arena, context, seed, &summary);
    static int32_t first[MOST_COLLECTIVES], other[MOST_COLLECTIVES];
    bool right = true;
    if (plan_ranks(&ranks, &arena, context, plan, &error) != AM_OK) fail_msg("%s", error.text);
    int32_t count = collectives_of(first, &arena, &ranks, 0);
    for (int32_t rank = 1; right && rank < ranks.rank_count; rank++) {
        ArenaMark mark = arena_mark(&arena);
        right = collectives_of(other, &arena, &ranks, rank) == count &&
                memcmp(other, first, sizeof *first * (size_t)count) == 0;
        if (!right) printf("WRONG %s, %s: rank %d meets in another order\n", model, summary.data, rank);
        arena_release(&arena, mark);
    }
    text_free(&summary);
    arena_free(&arena);
    return right;
}

static void test_collective_order(void **state) {
    (void)state;
    Cases cases;
    int32_t plans = 0, wrong = 0;
    find_cases(&cases);
    for (int32_t m = 0; m < cases.model_count; m++) {
        PlanContext *context = read_model(cases.models[m]);
        bool is_large = context->canonical->instruction_count > 700;
        int32_t count = cases.is_full ? FULL_LOWERED : is_large ? sample_of(5, 1) : sample_of(15, 2);
        for (int32_t k = 0; k < (cases.seed ? 1 : count); k++, plans++) {
            uint64_t seed = seed_of(&cases, m, k);
            wrong += !has_one_order(context_of(context, cases.models[m], seed, false), cases.models[m], seed);
        }
        plan_context_free(context);
    }
    printf("%d plans of %d models are lowered, %d wrong\n", plans, cases.model_count, wrong);
    free_cases(&cases);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_collective_order),
                                       cmocka_unit_test(test_losses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
