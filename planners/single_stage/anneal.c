/* Simulated annealing over axis plans (Kirkpatrick, Gelatt and Vecchi 1983): a random change of the lists is
 * taken where it shortens the step, and else with probability exp(-d / T), d being by what fraction the plan
 * is dearer than the one before. T falls geometrically while the evaluations are used up, from changes of
 * ten per cent to those of a thousandth. It begins with the best plan so far; of a plan that does not fit
 * the penalty counts (plan_price_score), so that the way back is downhill. */
#include <math.h>

#include "planners/problem/axis_plan_changes.h"
#include "planners/single_stage/searchers.h"

#define FIRST_TEMPERATURE 0.1
#define LAST_TEMPERATURE  1e-3
/* Familiar plans cost nothing: so many steps for each evaluation, and the chain ends. */
#define STEPS_PER_EVALUATION 20

bool annealing_takes(Random *random, double rise, double used) {
    double temperature = FIRST_TEMPERATURE * pow(LAST_TEMPERATURE / FIRST_TEMPERATURE, used);
    return rise <= 0 || random_uniform(random) < exp(-rise / temperature);
}

AmStatus anneal_search(Problem *problem, uint64_t seed, AmError *error) {
    int64_t first = problem->budget.evaluations, share = problem->budget.limit - first;
    int64_t steps = share < INT64_MAX / STEPS_PER_EVALUATION ? share * STEPS_PER_EVALUATION : share;
    AxisPlan axis_plan = problem->best;
    double score = plan_price_score(&problem->best_price);
    Random random;
    random_seed(&random, seed);
    for (int64_t step = 0; step < steps && !problem_must_stop(problem); step++) {
        AxisPlan changed = axis_plan;
        PlanPrice price;
        if (!axis_plan_change(problem, &random, &changed)) continue;
        TRY(problem_price(problem, &changed, &price, error));
        double next = plan_price_score(&price), rise = next / score - 1;
        double used =
            fmax((double)(problem->budget.evaluations - first) / (double)share, (double)step / (double)steps);
        if (!annealing_takes(&random, rise, used)) continue;
        axis_plan = changed;
        score = next;
    }
    return AM_OK;
}
