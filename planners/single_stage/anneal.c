/* Simulated annealing over axis plans (Kirkpatrick, Gelatt and Vecchi 1983).
 *
 * A random change of the lists is taken if it lowers the score, and else with probability exp(-d / T), where
 * d is the rise as a fraction of the score. T falls geometrically over the steps, from changes of ten per
 * cent to those of a thousandth. The score is a price, or an estimate (screen.c). A plan that does not fit
 * has a penalty (plan_price_score).
 */
#include <math.h>

#include "planners/problem/axis_plan_changes.h"
#include "planners/single_stage/searchers.h"

#define FIRST_TEMPERATURE 0.1
#define LAST_TEMPERATURE  1e-3
/* Familiar plans cost nothing: so many steps for each evaluation, and the chain ends. */
#define STEPS_PER_EVALUATION 20

AmStatus anneal_walk(const AnnealWalk *walk, const AxisPlan *start, double score, AmError *error) {
    Problem *problem = walk->problem;
    int64_t first = problem->budget.evaluations;
    AxisPlan axis_plan = *start;
    for (int64_t step = 0; step < walk->steps && !problem_must_stop(problem); step++) {
        AxisPlan changed = axis_plan;
        double next, used = (double)step / (double)walk->steps;
        if (!axis_plan_change(problem, walk->random, &changed)) continue;
        TRY(walk->score(walk->user, &changed, &next, error));
        if (walk->evaluations > 0)
            used = fmax(used, (double)(problem->budget.evaluations - first) / (double)walk->evaluations);
        double rise = next / score - 1;
        double temperature = FIRST_TEMPERATURE * pow(LAST_TEMPERATURE / FIRST_TEMPERATURE, used);
        bool is_taken = walk->is_climb ? next < score
                                       : rise <= 0 || random_uniform(walk->random) < exp(-rise / temperature);
        if (!is_taken) continue;
        axis_plan = changed;
        score = next;
    }
    return AM_OK;
}

static AmStatus score_by_price(void *user, const AxisPlan *axis_plan, double *score, AmError *error) {
    PlanPrice price;
    TRY(problem_price(user, axis_plan, &price, error));
    *score = plan_price_score(&price);
    return AM_OK;
}

AmStatus anneal_search(Problem *problem, uint64_t seed, AmError *error) {
    int64_t share = problem->budget.limit - problem->budget.evaluations;
    AxisPlan start = problem->best;
    Random random;
    random_seed(&random, seed);
    const AnnealWalk walk = {.problem = problem,
                             .random = &random,
                             .score = score_by_price,
                             .user = problem,
                             .steps = share < INT64_MAX / STEPS_PER_EVALUATION ? share * STEPS_PER_EVALUATION
                                                                               : share,
                             .evaluations = share};
    return anneal_walk(&walk, &start, plan_price_score(&problem->best_price), error);
}
