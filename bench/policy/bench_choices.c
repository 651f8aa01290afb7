/* Best steps with each kind of choice that the policy of the search does not have, for bench/choices.py.
 *
 *   bench_choices SEED FIRST COUNT EVALUATIONS PLAYER MODEL...      from the source folder
 *
 * The problems are those of bench_searchers.c. PLAYER, which is random, anneal or dqn, searches each
 * space with EVALUATIONS plans, without baselines. The first space is that of the policy on a problem: axis
 * priorities and storage on one mesh. Each of the others differs by one choice. Overrides belong to the
 * polish of annealing, so their row has a reference of its own. Each run is a line of JSON: searcher, space,
 * problem, evaluations, step in seconds (null: no plan fits).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/policy/problem_set.h"
#include "planners/plan_search.h"
#include "planners/strategy.h"

enum { RANDOM = 1 << SEARCHER_RANDOM, ANNEAL = 1 << SEARCHER_ANNEAL, DQN = 1 << SEARCHER_DQN };

typedef struct Bench {
    Searcher player;
    int64_t evaluations;
} Bench;

/* A space beside that of the policy. */
typedef struct Space {
    const char *name;
    bool has_all_meshes, is_polished, has_overrides, has_stages, recomputes, chooses_number;
    int32_t micro_batches; /* 0: any */
    int32_t times;         /* of the evaluations */
    uint32_t players;      /* bits by Searcher */
} Space;

static const Space spaces[] = {
    {.name = "policy", .micro_batches = 1, .times = 1, .players = RANDOM | ANNEAL | DQN},
    {.name = "policy, twice", .micro_batches = 1, .times = 2, .players = RANDOM | ANNEAL},
    {.name = "meshes",
     .has_all_meshes = true,
     .micro_batches = 1,
     .times = 1,
     .players = RANDOM | ANNEAL | DQN},
    {.name = "2 micro-batches", .micro_batches = 2, .times = 1, .players = RANDOM | ANNEAL},
    {.name = "4 micro-batches", .micro_batches = 4, .times = 1, .players = RANDOM | ANNEAL},
    {.name = "8 micro-batches", .micro_batches = 8, .times = 1, .players = RANDOM | ANNEAL},
    {.name = "micro-batches, by the policy", .chooses_number = true, .times = 1, .players = DQN},
    {.name = "micro-batches on all meshes, by the policy",
     .has_all_meshes = true,
     .chooses_number = true,
     .times = 1,
     .players = DQN},
    {.name = "recomputation", .recomputes = true, .micro_batches = 1, .times = 1, .players = RANDOM | ANNEAL},
    {.name = "policy, polished", .is_polished = true, .micro_batches = 1, .times = 2, .players = ANNEAL},
    {.name = "overrides",
     .is_polished = true,
     .has_overrides = true,
     .micro_batches = 1,
     .times = 2,
     .players = ANNEAL},
    {.name = "stages", .has_stages = true, .times = 1, .players = ANNEAL}};

/* Makes the context of a space's module. `*context` is NULL where the module cannot be rewritten so. */
static void make_context(const PlanContext **context, PlanContext *primary, Arena *arena,
                         const Space *space) {
    const Strategy strategy = {.stages = 1, .chunks = 1, .recomputed_layers = STRATEGY_ALL_LAYERS};
    MicroBatchSettings settings = {.micro_batches = space->micro_batches > 0 ? space->micro_batches : 1};
    AmError error = {0};
    AmStatus status = AM_OK;
    if (space->recomputes)
        status = strategy_recomputation(&settings.recomputed, arena, primary, &strategy, &error);
    if (status == AM_OK) status = plan_context_for(context, primary, &settings, &error);
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE) bench_fail("bench_choices", &error);
    bool has_none = space->recomputes && settings.recomputed.range_count == 0;
    if (status != AM_OK || has_none) *context = NULL;
}

static void run_space(const Bench *self, const GeneratedProblem *given, uint64_t problem,
                      const Space *space) {
    Arena arena = {0};
    AmError error = {0};
    SearchResult result = {0};
    const PlanContext *context;
    PlanContext *primary = (PlanContext *)given->problem->context;
    const MeshAxis *axes = given->problem->mesh.axes;
    char mesh[64];
    snprintf(mesh, sizeof mesh, "data=%d,model=%d", axes[0].size, axes[1].size);
    SearchRequest request = {.space.mesh = space->has_all_meshes || space->has_stages ? NULL : mesh,
                             .space.no_overrides = !space->has_overrides,
                             .method.no_seeds = true,
                             .method.no_polish = !space->is_polished,
                             .constraints.memory_fraction = given->problem->constraints.memory_fraction};
    int64_t evaluations = space->times * self->evaluations;
    SearchScope scope = {.request = &request,
                         .kind = space->has_stages ? SPACE_AUTO : SPACE_SINGLE_STAGE,
                         .searcher = self->player,
                         .micro_batches = space->micro_batches > 0,
                         .splits = space->chooses_number ? primary : NULL,
                         .skip_bound = true,
                         .limits.evaluations = evaluations};
    make_context(&context, primary, &arena, space);
    AmStatus status = AM_ERROR_INFEASIBLE;
    if (space->has_stages) status = plan_search(&result, &arena, primary, given->cluster, &scope, &error);
    else if (context) status = single_stage_search(&result, &arena, context, given->cluster, &scope, &error);
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE) bench_fail("bench_choices", &error);
    printf("{\"searcher\":\"%s\",\"space\":\"%s\",\"problem\":%llu,\"evaluations\":%lld,\"step\":",
           searcher_name(self->player), space->name, (unsigned long long)problem,
           (long long)result.evaluations);
    if (status == AM_OK) printf("%.9g}\n", result.plan->predicted_step_seconds);
    else printf("null}\n");
    fflush(stdout);
    arena_free(&arena);
}

static void run_problem(void *user, const GeneratedProblem *given, uint64_t problem) {
    const Bench *self = user;
    for (size_t s = 0; s < sizeof spaces / sizeof *spaces; s++)
        if (spaces[s].players & 1u << self->player) run_space(self, given, problem, &spaces[s]);
}

static Searcher find_player(const char *name) {
    for (int32_t k = 0; k < SEARCHER_COUNT; k++)
        if (strcmp(searcher_name((Searcher)k), name) == 0) return (Searcher)k;
    return SEARCHER_COUNT;
}

int main(int count, char **words) {
    enum { FIRST_MODEL = 6 };
    static ProblemSet problems;
    Bench self = {.player = count > FIRST_MODEL ? find_player(words[5]) : SEARCHER_COUNT};
    if (self.player == SEARCHER_COUNT || !problem_set_open(&problems, words, FIRST_MODEL, count)) {
        fprintf(stderr, "usage: bench_choices SEED FIRST COUNT EVALUATIONS PLAYER MODEL...\n");
        return 2;
    }
    self.evaluations = strtoll(words[4], NULL, 10);
    problem_set_run(&problems, run_problem, &self);
    problem_set_close(&problems);
    return 0;
}
