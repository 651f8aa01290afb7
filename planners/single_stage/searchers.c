/* The table of the searchers, by Searcher: whether one explores by successive halving over the meshes
 * (exploration.h) or has a procedure of its own, takes baselines, and repeats in rounds. Random plans, a
 * named baseline and the cut agent have their procedures here.
 */
#include "planners/single_stage/searchers.h"
#include "planners/single_stage/exploration.h"

void random_axis_plan(const StageProblem *problem, Random *random, AxisPlan *axis_plan) {
    *axis_plan = (AxisPlan){0};
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) {
        double density = random_uniform(random);
        for (int32_t k = 0; k < problem->class_set_count; k++) {
            if (!problem_can_split(problem, k, axis) || random_uniform(random) > density) continue;
            axis_plan_insert(axis_plan, axis, (int32_t)random_below(random, axis_plan->count[axis] + 1), k);
        }
        int32_t kinds = problem_storage_kinds(problem, axis);
        if (kinds > 0) axis_plan->storage[axis] = (uint8_t)random_below(random, kinds + 1);
    }
}

/* Takes the first random plan that fits, or the best of a number given by the user. */
static AmStatus search_random(SingleStageSearch *self, AmError *error) {
    Random random;
    random_seed(&random, self->rounds.seed);
    bool is_one = self->scope->limits.evaluations == 0;
    for (int64_t tries = 0; tries < BUDGET_REPEATS * self->budget.limit && !single_stage_must_end(self);
         tries++) {
        StageProblem *problem = self->problems[random_below(&random, self->problem_count)];
        AxisPlan axis_plan;
        PlanPrice price;
        random_axis_plan(problem, &random, &axis_plan);
        TRY(problem_price(problem, &axis_plan, &price, error));
        self->budget.is_cut = single_stage_left(self) <= 0;
        bool is_done = self->budget.is_cut || single_stage_evaluations(self) >= self->budget.limit;
        if (is_done || (is_one && price.excess <= 0)) break;
    }
    return AM_OK;
}

static AmStatus search_baseline(SingleStageSearch *self, AmError *error) {
    const SearchScope *scope = self->scope;
    AxisPlan axis_plan;
    PlanPrice price;
    const char *reason;
    TRY(baseline_price(self, scope->baseline, error));
    StageProblem *problem = self->baselines[scope->baseline].problem;
    if (!problem)
        return am_fail(error, AM_ERROR_INFEASIBLE, self->context->module->source, "--baseline %s: %s",
                       scope->request->method.called ? scope->request->method.called
                                                     : baseline_name(scope->baseline),
                       self->result->baselines[scope->baseline].reason);
    TRY(baseline_axis_plan(problem, scope->baseline, &axis_plan, &reason, error));
    axis_plan.gathers_again = true;
    return problem_price(problem, &axis_plan, &price, error);
}

static AmStatus search_agent(SingleStageSearch *self, AmError *error) {
    (void)self;
    return am_fail(error, AM_ERROR_USAGE, "", "--searcher agent cuts pipelines: it goes with --space hybrid");
}

static AmStatus explore_greedy(StageProblem *problem, uint64_t seed, AmError *error) {
    (void)seed;
    return greedy_search(problem, error);
}

/* A searcher is one that explores, by successive halving over the meshes, or has a procedure of its own. */
typedef struct SearchMethod {
    AmStatus (*explore_all)(SingleStageSearch *self, ExploreFunction *explore, AmError *error);
    ExploreFunction *explore; /* of one mesh; NULL: the policy and the baselines suffice */
    AmStatus (*search)(SingleStageSearch *self, AmError *error);
    bool takes_baselines; /* a baseline's plan is handed out where rounding made that the faster one */
    bool has_rounds;      /* more evaluations are spent in rounds; an exact search has passes of its own */
} SearchMethod;

static const SearchMethod methods[SEARCHER_COUNT] = {
    [SEARCHER_AUTO] = {exploration_search, anneal_search, NULL, true, true},
    [SEARCHER_DQN] = {exploration_by_policy, NULL, NULL, true, true},
    [SEARCHER_ANNEAL] = {exploration_search, anneal_search, NULL, true, true},
    [SEARCHER_GREEDY] = {exploration_search, explore_greedy, NULL, true, true},
    [SEARCHER_EXACT] = {NULL, NULL, exact_search, true, false},
    [SEARCHER_EXHAUSTIVE] = {NULL, NULL, exhaustive_search, true, false},
    [SEARCHER_RANDOM] = {NULL, NULL, search_random, false, true},
    [SEARCHER_BASELINE] = {NULL, NULL, search_baseline, false, false},
    [SEARCHER_AGENT] = {NULL, NULL, search_agent, false, false},
};

AmStatus search_method_run(SingleStageSearch *self, AmError *error) {
    const SearchMethod *method = &methods[self->scope->searcher];
    return method->search ? method->search(self, error) : method->explore_all(self, method->explore, error);
}

int64_t search_default_evaluations(Searcher searcher) {
    return searcher == SEARCHER_EXACT ? SEARCH_EXACT_EVALUATIONS : SEARCH_DEFAULT_EVALUATIONS;
}

int64_t search_evaluations_for(Searcher searcher, int32_t instructions) {
    int64_t most = search_default_evaluations(searcher);
    int64_t evaluations = SEARCH_DEFAULT_WORK / (instructions > 0 ? instructions : 1);
    if (evaluations > most) return most;
    return evaluations > SEARCH_LEAST_EVALUATIONS ? evaluations : SEARCH_LEAST_EVALUATIONS;
}

bool search_method_takes_baselines(Searcher searcher) {
    return methods[searcher].takes_baselines;
}

bool search_method_explores(Searcher searcher) {
    return methods[searcher].explore_all != NULL;
}

bool search_method_has_rounds(Searcher searcher) {
    return methods[searcher].has_rounds;
}
