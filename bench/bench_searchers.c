/* Runs of one-stage searchers on generated problems, for bench/searchers.py.
 *
 *   bench_searchers FIRST COUNT BUDGETS POLICY MODEL...      from the source folder
 *
 * Problems FIRST .. FIRST + COUNT - 1 are the given modules on random clusters with random meshes
 * (assignment_problems.h), under a seed that no training has. Each run is a line of JSON: searcher, problem,
 * budget, step in seconds (null: no plan fits), evaluations, processor seconds. All searchers have equal
 * evaluations, without baselines, screening and polish but where the name says so. POLICY: a file, or
 * "built-in". "zero-shot" prices the first ten plans of one episode.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "planners/plan_search.h"
#include "planners/single_stage/assignment_problems.h"
#include "planners/single_stage/search.h"

enum { SEED = 424242, MOST_MODELS = 16, MOST_BUDGETS = 8 };
#define FULL "full default search"

static const struct {
    const char *name;
    Searcher searcher;
    bool is_untrained, starts_as_product;
} contestants[] = {{"dqn, trained", SEARCHER_DQN, false, false},
                   {"dqn, untrained", SEARCHER_DQN, true, false},
                   {"anneal", SEARCHER_ANNEAL, false, false},
                   {"greedy", SEARCHER_GREEDY, false, false},
                   {"random", SEARCHER_RANDOM, false, false},
                   {"anneal, screening and baselines first", SEARCHER_ANNEAL, false, true}};

typedef struct Bench {
    AssignmentModule modules[MOST_MODELS];
    PlanContext *contexts[MOST_MODELS];
    int32_t module_count;
    int64_t budgets[MOST_BUDGETS];
    int32_t budget_count;
    bool is_full; /* the default search, too */
    const char *policy;
    Agent *agents[2]; /* trained, untrained */
    AssignmentEpisode episode;
    AssignmentState state;
} Bench;

static void fail(const AmError *error) {
    fprintf(stderr, "bench_searchers: %s\n", error->text);
    exit(1);
}

static void print_run(const char *searcher, uint64_t problem, int64_t budget, double step,
                      int64_t evaluations, clock_t start) {
    printf("{\"searcher\":\"%s\",\"problem\":%llu,\"budget\":%lld,\"step\":", searcher,
           (unsigned long long)problem, (long long)budget);
    if (isfinite(step)) printf("%.9g", step);
    else printf("null");
    printf(",\"evaluations\":%lld,\"seconds\":%.4g}\n", (long long)evaluations,
           (double)(clock() - start) / CLOCKS_PER_SEC);
    fflush(stdout);
}

/* A search with its options; one that finds no plan that fits is a result, too. */
static void run(const char *name, const AssignmentProblem *given, uint64_t problem,
                const SearchOptions *options, bool is_full) {
    const MicroBatching settings = {.micro_batches = 1};
    Arena arena = {0};
    SearchResult result = {0};
    AmError error = {0};
    clock_t start = clock();
    PlanContext *context = (PlanContext *)given->problem->context;
    AmStatus status = is_full
                          ? plan_search(&result, &arena, context, given->cluster, options, &settings, &error)
                          : search(&result, &arena, context, given->cluster, options, &error);
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE) fail(&error);
    double step = status == AM_OK ? result.plan->predicted_step_seconds : INFINITY;
    print_run(name, problem, options->evaluations, step, result.evaluations, start);
    arena_free(&arena);
}

static void run_zero_shot(Bench *self, const char *name, Agent *agent, const AssignmentProblem *given,
                          uint64_t problem) {
    AmError error = {0};
    clock_t start = clock();
    double gain;
    int64_t before = given->problem->budget.evaluations;
    if (assignment_zero_shot(&gain, NULL, agent, &given->assignments, ASSIGNMENT_LOOKS, &self->episode,
                             &self->state, &error) != AM_OK)
        fail(&error);
    double step = INFINITY;
    for (int32_t k = 0; k <= self->episode.count && k < ASSIGNMENT_ZERO_SHOT; k++) {
        PlanPrice price;
        if (problem_known(given->problem, &self->episode.plans[k], &price) && price.excess <= 0)
            step = fmin(step, price.seconds);
    }
    print_run(name, problem, ASSIGNMENT_ZERO_SHOT, step, given->problem->budget.evaluations - before, start);
}

static void run_problem(Bench *self, uint64_t problem) {
    AssignmentProblem given;
    AmError error = {0};
    char mesh[64];
    if (assignment_problem_open(&given, self->modules, self->module_count, SEED, problem, &error) != AM_OK)
        fail(&error);
    const MeshAxis *axes = given.problem->mesh.axes;
    snprintf(mesh, sizeof mesh, "data=%d,model=%d", axes[0].size, axes[1].size);
    run_zero_shot(self, "zero-shot, trained", self->agents[0], &given, problem);
    run_zero_shot(self, "zero-shot, untrained", self->agents[1], &given, problem);
    SearchOptions options = {.space = SPACE_SINGLE_STAGE,
                             .mesh = mesh,
                             .memory_fraction = given.problem->memory_fraction,
                             .skip_bound = true};
    for (size_t c = 0; c < sizeof contestants / sizeof *contestants; c++)
        for (int32_t b = 0; b < self->budget_count; b++) {
            options.searcher = contestants[c].searcher;
            options.policy = contestants[c].is_untrained ? "untrained" : self->policy;
            options.no_seeds = !contestants[c].starts_as_product;
            options.no_polish = options.no_overrides = true;
            options.evaluations = self->budgets[b];
            run(contestants[c].name, &given, problem, &options, false);
        }
    options = (SearchOptions){.space = SPACE_SINGLE_STAGE,
                              .searcher = SEARCHER_ANNEAL,
                              .mesh = mesh,
                              .memory_fraction = given.problem->memory_fraction,
                              .skip_bound = true};
    if (self->is_full) run(FULL, &given, problem, &options, true);
    assignment_problem_close(&given);
}

static void open_agents(Bench *self) {
    AmError error = {0};
    AgentSettings settings = assignment_settings();
    settings.replay_capacity = settings.batch;
    AmStatus status = self->policy ? assignment_agent_read(&self->agents[0], &settings, self->policy, &error)
                                   : assignment_agent_built_in(&self->agents[0], &settings, &error);
    if (status == AM_OK) status = assignment_agent_untrained(&self->agents[1], &settings, &error);
    if (status != AM_OK) fail(&error);
}

int main(int count, char **words) {
    static Bench self;
    AmError error = {0};
    if (count < 6 || count - 5 > MOST_MODELS) {
        fprintf(stderr, "usage: bench_searchers FIRST COUNT BUDGETS POLICY MODEL...\n");
        return 2;
    }
    uint64_t first = strtoull(words[1], NULL, 10), problems = strtoull(words[2], NULL, 10);
    for (char *word = strtok(words[3], ","); word && self.budget_count < MOST_BUDGETS;
         word = strtok(NULL, ",")) {
        if (strcmp(word, "full") == 0) self.is_full = true;
        else self.budgets[self.budget_count++] = strtoll(word, NULL, 10);
    }
    self.policy = strcmp(words[4], "built-in") == 0 ? NULL : words[4];
    for (int32_t k = 5; k < count; k++, self.module_count++) {
        PlanContext **context = &self.contexts[self.module_count];
        if (plan_context_read(context, words[k], NULL, &error) != AM_OK ||
            assignment_module_measure(&self.modules[self.module_count], *context, &error) != AM_OK)
            fail(&error);
    }
    open_agents(&self);
    for (uint64_t problem = first; problem < first + problems; problem++) run_problem(&self, problem);
    for (int32_t k = 0; k < 2; k++) agent_free(self.agents[k]);
    for (int32_t k = 0; k < self.module_count; k++) plan_context_free(self.contexts[k]);
    return 0;
}
