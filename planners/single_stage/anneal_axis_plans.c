/* Simulated annealing over axis plans: the changes are those of axis_plan_change(), the score is a price, or
 * an estimate (screen.c). The temperature falls from changes of ten per cent to those of a thousandth. A plan
 * that does not fit has a penalty (plan_price_score).
 */
#include <math.h>

#include "planners/local_search/anneal.h"
#include "planners/problem/axis_plan_changes.h"
#include "planners/single_stage/searchers.h"

#define FIRST_TEMPERATURE 0.1
#define LAST_TEMPERATURE  1e-3
/* Familiar plans cost nothing: so many steps for each evaluation, and the chain ends. */
#define STEPS_PER_EVALUATION 20

typedef struct AxisPlanWalk {
    const AnnealWalk *walk;
    AxisPlan axis_plan, changed;
    int64_t drawn;     /* changes */
    int64_t first;     /* evaluations of the problem before the walk */
    int32_t unchanged; /* last draws in a row that changed nothing */
} AxisPlanWalk;

/* A walk ends after so many draws in a row that change nothing: its space has one plan, as on one device. */
enum { MOST_UNCHANGED = 10000 };

static bool is_over(void *user) {
    const AxisPlanWalk *self = user;
    return self->drawn >= self->walk->steps || self->unchanged >= MOST_UNCHANGED ||
           problem_must_stop(self->walk->problem);
}

static bool change(void *user, Random *random) {
    AxisPlanWalk *self = user;
    self->changed = self->axis_plan;
    self->drawn++;
    bool is_changed = axis_plan_change(self->walk->problem, random, &self->changed);
    self->unchanged = is_changed ? 0 : self->unchanged + 1;
    return is_changed;
}

static double progress(void *user) {
    const AxisPlanWalk *self = user;
    const AnnealWalk *walk = self->walk;
    double drawn = (double)(self->drawn - 1) / (double)walk->steps;
    if (walk->evaluations == 0) return drawn;
    int64_t evaluations = walk->problem->budget.used - self->first;
    return fmax(drawn, (double)evaluations / (double)walk->evaluations);
}

static AmStatus score(void *user, double *score, AmError *error) {
    const AxisPlanWalk *self = user;
    return self->walk->score(self->walk->user, &self->changed, score, error);
}

static void take(void *user) {
    AxisPlanWalk *self = user;
    self->axis_plan = self->changed;
}

AmStatus anneal_walk(const AnnealWalk *walk, const AxisPlan *start, double start_score, AmError *error) {
    AxisPlanWalk self = {.walk = walk, .axis_plan = *start, .first = walk->problem->budget.used};
    const Anneal anneal = {.hot = FIRST_TEMPERATURE,
                           .cold = LAST_TEMPERATURE,
                           .is_climb = walk->is_climb,
                           .random = walk->random,
                           .user = &self,
                           .is_over = is_over,
                           .progress = progress,
                           .change = change,
                           .score = score,
                           .take = take};
    return anneal_run(&anneal, start_score, error);
}

static AmStatus score_by_price(void *user, const AxisPlan *axis_plan, double *score, AmError *error) {
    PlanPrice price;
    TRY(problem_price(user, axis_plan, &price, error));
    *score = plan_price_score(&price);
    return AM_OK;
}

AmStatus anneal_search(StageProblem *problem, uint64_t seed, AmError *error) {
    int64_t share = problem->budget.limit - problem->budget.used;
    AxisPlan start = problem->best.axis_plan;
    Random random;
    random_seed(&random, seed);
    const AnnealWalk walk = {.problem = problem,
                             .random = &random,
                             .score = score_by_price,
                             .user = problem,
                             .steps = share < INT64_MAX / STEPS_PER_EVALUATION ? share * STEPS_PER_EVALUATION
                                                                               : share,
                             .evaluations = share};
    return anneal_walk(&walk, &start, plan_price_score(&problem->best.price), error);
}
