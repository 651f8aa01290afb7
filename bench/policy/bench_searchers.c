/* Runs of one-stage searchers on generated problems, for bench/searchers.py.
 *
 *   bench_searchers SEED FIRST COUNT BUDGETS SEARCHERS POLICY OTHER MODEL...      from the source folder
 *
 * Problems FIRST .. FIRST + COUNT - 1 are the given modules on random clusters with random meshes
 * (assignment_problems.h), under SEED, which no training may have. Each run is a line of JSON: searcher,
 * problem, budget, step in seconds (null: no plan fits), evaluations, processor seconds. All searchers have
 * equal evaluations, or with a budget such as 0.2s equal time and at most 500 evaluations a second, without
 * baselines, screening and polish unless the name has them. Those with stages search any number of stages on
 * all meshes, as the product does unless they are bare. SEARCHERS: "all", or names between semicolons.
 * POLICY: a file, or "built-in". OTHER: a policy of train-search without --supervised, or "none". "zero-shot"
 * prices ten plans of a beam without learning.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/policy/problem_set.h"
#include "planners/plan_search.h"
#include "planners/single_stage/assignment_search.h"
#include "planners/single_stage/single_stage_search.h"

enum { MOST_BUDGETS = 8, EVALUATIONS_PER_SECOND = 500 };
#define FULL "full default search"

typedef enum PolicyKind { TRAINED, UNTRAINED, BY_EPISODES, POLICY_KINDS } PolicyKind;
static const char *const zero_shots[POLICY_KINDS] = {"zero-shot, trained", "zero-shot, untrained",
                                                     "zero-shot, trained by episodes"};

typedef enum Start { BARE, AS_PRODUCT /* screening, baselines and polish */ } Start;
/* Of searches over any number of stages. */
typedef enum Stages { ONE_STAGE, BY_POLICY, BY_TABLES, CHANGED_BY_POLICY } Stages;

static const struct {
    const char *name;
    Searcher searcher;
    PolicyKind policy;
    Start start;
    Stages stages;
} contestants[] = {{"dqn, trained", SEARCHER_DQN, TRAINED, BARE, ONE_STAGE},
                   {"dqn, untrained", SEARCHER_DQN, UNTRAINED, BARE, ONE_STAGE},
                   {"dqn, trained by episodes", SEARCHER_DQN, BY_EPISODES, BARE, ONE_STAGE},
                   {"anneal", SEARCHER_ANNEAL, TRAINED, BARE, ONE_STAGE},
                   {"greedy", SEARCHER_GREEDY, TRAINED, BARE, ONE_STAGE},
                   {"random", SEARCHER_RANDOM, TRAINED, BARE, ONE_STAGE},
                   {"exact", SEARCHER_EXACT, TRAINED, BARE, ONE_STAGE},
                   {"anneal, screening and baselines first", SEARCHER_ANNEAL, TRAINED, AS_PRODUCT, ONE_STAGE},
                   {"auto, screening and baselines first", SEARCHER_AUTO, TRAINED, AS_PRODUCT, ONE_STAGE},
                   {"stages by the policy, bare", SEARCHER_DQN, TRAINED, BARE, BY_POLICY},
                   {"stages by the tables, bare", SEARCHER_DQN, TRAINED, BARE, BY_TABLES},
                   {"stages by the policy", SEARCHER_DQN, TRAINED, AS_PRODUCT, BY_POLICY},
                   {"stages by the tables", SEARCHER_DQN, TRAINED, AS_PRODUCT, BY_TABLES},
                   {"stages and changes by the policy", SEARCHER_DQN, TRAINED, AS_PRODUCT, CHANGED_BY_POLICY},
                   {"auto, any stages", SEARCHER_AUTO, TRAINED, AS_PRODUCT, BY_TABLES}};

typedef struct BenchBudget {
    const char *name;
    int64_t evaluations;
    double seconds; /* 0: no limit */
} BenchBudget;

typedef struct Bench {
    BenchBudget budgets[MOST_BUDGETS];
    int32_t budget_count;
    bool is_full;                       /* the default search, too */
    const char *searchers;              /* names between semicolons; NULL: all */
    const char *policies[POLICY_KINDS]; /* NULL: the built-in one; no other */
    bool has_policy[POLICY_KINDS];
} Bench;

static void print_run(const char *searcher, uint64_t problem, const char *budget, double step,
                      int64_t evaluations, clock_t start) {
    printf("{\"searcher\":\"%s\",\"problem\":%llu,\"budget\":\"%s\",\"step\":", searcher,
           (unsigned long long)problem, budget);
    if (isfinite(step)) printf("%.9g", step);
    else printf("null");
    printf(",\"evaluations\":%lld,\"seconds\":%.4g}\n", (long long)evaluations,
           (double)(clock() - start) / CLOCKS_PER_SEC);
    fflush(stdout);
}

static bool is_wanted(const Bench *self, const char *searcher) {
    size_t length = strlen(searcher);
    if (!self->searchers) return true;
    for (const char *at = self->searchers; at; at = strchr(at, ';')) {
        at += *at == ';';
        if (strncmp(at, searcher, length) == 0 && (at[length] == ';' || at[length] == '\0')) return true;
    }
    return false;
}

/* A search with its options; one that finds no plan that fits is a result, too. */
static void run(const char *name, const GeneratedProblem *given, uint64_t problem, const char *budget,
                const SearchScope *scope, bool is_full) {
    Arena arena = {0};
    SearchResult result = {0};
    AmError error = {0};
    clock_t start = clock();
    PlanContext *context = (PlanContext *)given->problem->context;
    AmStatus status = is_full ? plan_search(&result, &arena, context, given->cluster, scope, &error)
                              : single_stage_search(&result, &arena, context, given->cluster, scope, &error);
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE) bench_fail("bench_searchers", &error);
    double step = status == AM_OK ? result.plan->predicted_step_seconds : INFINITY;
    print_run(name, problem, budget, step, result.evaluations, start);
    arena_free(&arena);
}

/* The first ten plans of each policy, which learns nothing from them. */
static void run_zero_shots(const Bench *self, const GeneratedProblem *given, uint64_t problem,
                           SearchRequest *request, SearchScope scope) {
    scope.searcher = SEARCHER_DQN;
    scope.limits.evaluations = ASSIGNMENT_ZERO_SHOT;
    request->method.no_seeds = request->method.no_polish = request->space.no_overrides = true;
    request->method.no_learning = true;
    for (int32_t k = 0; k < POLICY_KINDS; k++) {
        request->method.policy = self->policies[k];
        if (self->has_policy[k] && is_wanted(self, zero_shots[k]))
            run(zero_shots[k], given, problem, "zero-shot", &scope, false);
    }
    request->method.no_learning = false;
}

static void run_problem(void *user, const GeneratedProblem *given, uint64_t problem) {
    const Bench *self = user;
    char mesh[64];
    const MeshAxis *axes = given->problem->mesh.axes;
    snprintf(mesh, sizeof mesh, "data=%d,model=%d", axes[0].size, axes[1].size);
    SearchRequest request = {.space.mesh = mesh,
                             .constraints.memory_fraction = given->problem->constraints.memory_fraction};
    SearchScope scope = {
        .request = &request, .kind = SPACE_SINGLE_STAGE, .micro_batches = 1, .skip_bound = true};
    run_zero_shots(self, given, problem, &request, scope);
    for (size_t c = 0; c < sizeof contestants / sizeof *contestants; c++)
        for (int32_t b = 0; b < self->budget_count; b++) {
            const BenchBudget *budget = &self->budgets[b];
            if (!self->has_policy[contestants[c].policy] || !is_wanted(self, contestants[c].name)) continue;
            scope.searcher = contestants[c].searcher;
            request.method.policy = self->policies[contestants[c].policy];
            bool has_stages = contestants[c].stages != ONE_STAGE, is_bare = contestants[c].start == BARE;
            request.method.no_seeds = is_bare;
            request.method.no_polish = request.space.no_overrides = is_bare || !has_stages;
            request.method.no_stage_choice = contestants[c].stages == BY_TABLES;
            request.method.changes_stages = contestants[c].stages == CHANGED_BY_POLICY;
            request.space.mesh = has_stages ? NULL : mesh;
            scope.kind = has_stages ? SPACE_AUTO : SPACE_SINGLE_STAGE;
            scope.micro_batches = !has_stages;
            scope.limits.evaluations = budget->evaluations;
            scope.limits.seconds = budget->seconds;
            run(contestants[c].name, given, problem, budget->name, &scope, has_stages);
        }
    request.method = (MethodRequest){0};
    request.space.no_overrides = false;
    scope = (SearchScope){.request = &request,
                          .kind = SPACE_SINGLE_STAGE,
                          .micro_batches = 1,
                          .searcher = SEARCHER_AUTO,
                          .skip_bound = true};
    request.space.mesh = mesh;
    if (self->is_full) run(FULL, given, problem, "full", &scope, true);
}

/* Fails where a file of a policy cannot be read. */
static void check_policies(Bench *self) {
    SearchRequest request = {0};
    const SearchScope scope = {.request = &request};
    AmError error = {0};
    for (int32_t k = 0; k < POLICY_KINDS; k++) {
        request.method.policy = self->policies[k];
        if (assignment_search_check(&scope, &error) != AM_OK) bench_fail("bench_searchers", &error);
        self->has_policy[k] = k != BY_EPISODES || self->policies[k];
    }
}

/* Reads budgets such as 20,150,0.5s,full; `text` is changed and kept. */
static void read_budgets(Bench *self, char *text) {
    for (char *word = strtok(text, ","); word && self->budget_count < MOST_BUDGETS;
         word = strtok(NULL, ",")) {
        char *end;
        double value = strtod(word, &end);
        BenchBudget budget = {word, (int64_t)value, 0};
        if (*end == 's') budget = (BenchBudget){word, (int64_t)(value * EVALUATIONS_PER_SECOND), value};
        if (strcmp(word, "full") == 0) self->is_full = true;
        else if (budget.evaluations > 0) self->budgets[self->budget_count++] = budget;
    }
}

int main(int count, char **words) {
    enum { FIRST_MODEL = 8 };
    static ProblemSet problems;
    static Bench self;
    if (!problem_set_open(&problems, words, FIRST_MODEL, count)) {
        fprintf(stderr, "usage: bench_searchers SEED FIRST COUNT BUDGETS SEARCHERS POLICY OTHER MODEL...\n");
        return 2;
    }
    read_budgets(&self, words[4]);
    self.searchers = strcmp(words[5], "all") == 0 ? NULL : words[5];
    self.policies[TRAINED] = strcmp(words[6], "built-in") == 0 ? NULL : words[6];
    self.policies[UNTRAINED] = "untrained";
    self.policies[BY_EPISODES] = strcmp(words[7], "none") == 0 ? NULL : words[7];
    check_policies(&self);
    problem_set_run(&problems, run_problem, &self);
    problem_set_close(&problems);
    return 0;
}
