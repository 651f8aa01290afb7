/* Simulated annealing over genomes (Kirkpatrick, Gelatt and Vecchi 1983): a random change of the lists is
 * taken where it shortens the step, and else with probability exp(-d / T), d being by what fraction the plan
 * is dearer than the one before. T falls geometrically while the evaluations are used up, from changes of
 * ten per cent to those of a thousandth. It begins with the best plan so far; of a plan that does not fit
 * the penalty counts (plan_price_score), so that the way back is downhill. */
#include <math.h>

#include "planners/searchers.h"

#define FIRST_TEMPERATURE 0.1
#define LAST_TEMPERATURE  1e-3
/* Familiar plans cost nothing: so many steps for each evaluation, and the chain ends. */
#define STEPS_PER_EVALUATION 20

static int32_t any(Random *random, int32_t count) {
    return (int32_t)random_below(random, count);
}

/* A random candidate that the axis can be split by; -1: none was drawn. */
static int32_t draw_candidate(const Problem *problem, Random *random, int32_t axis) {
    if (problem->candidate_count == 0) return -1;
    int32_t candidate = any(random, problem->candidate_count);
    return problem_usable(problem, candidate, axis) ? candidate : -1;
}

static bool insert_any(const Problem *problem, Random *random, Genome *genome, int32_t axis) {
    int32_t candidate = draw_candidate(problem, random, axis);
    int32_t place = any(random, genome->count[axis] + 1);
    return candidate >= 0 && genome_insert(genome, axis, place, candidate);
}

static bool remove_any(const Problem *problem, Random *random, Genome *genome, int32_t axis) {
    (void)problem;
    if (genome->count[axis] == 0) return false;
    genome_remove(genome, axis, any(random, genome->count[axis]));
    return true;
}

static bool replace_any(const Problem *problem, Random *random, Genome *genome, int32_t axis) {
    int32_t candidate = draw_candidate(problem, random, axis);
    if (genome->count[axis] == 0 || candidate < 0) return false;
    int32_t place = any(random, genome->count[axis]);
    genome_remove(genome, axis, place);
    return genome_insert(genome, axis, place, candidate);
}

/* To another place, of this axis or another one. */
static bool move_any(const Problem *problem, Random *random, Genome *genome, int32_t axis) {
    if (genome->count[axis] == 0) return false;
    int32_t place = any(random, genome->count[axis]), target = any(random, problem->mesh.axis_count);
    int32_t candidate = genome->entries[axis][place];
    if (!problem_usable(problem, candidate, target)) return false;
    genome_remove(genome, axis, place);
    return genome_insert(genome, target, any(random, genome->count[target] + 1), candidate);
}

static bool change_storage(const Problem *problem, Random *random, Genome *genome, int32_t axis) {
    int32_t kinds = problem_storage_kinds(problem, axis);
    if (kinds == 0) return false;
    uint8_t drawn = (uint8_t)any(random, kinds + 1);
    bool differs = drawn != genome->storage[axis];
    genome->storage[axis] = drawn;
    return differs;
}

typedef bool Change(const Problem *problem, Random *random, Genome *genome, int32_t axis);
static Change *const changes[] = {insert_any, remove_any, replace_any, move_any, change_storage};
#define CHANGE_COUNT ((int32_t)(sizeof changes / sizeof changes[0]))

AmStatus anneal_search(Problem *problem, uint64_t seed, AmError *error) {
    int64_t first = problem->budget.evaluations, share = problem->budget.limit - first;
    int64_t steps = share < INT64_MAX / STEPS_PER_EVALUATION ? share * STEPS_PER_EVALUATION : share;
    Genome genome = problem->best;
    double score = plan_price_score(&problem->best_price);
    Random random;
    random_seed(&random, seed);
    for (int64_t step = 0; step < steps && !problem_must_stop(problem); step++) {
        Genome changed = genome;
        PlanPrice price;
        Change *change = changes[any(&random, CHANGE_COUNT)];
        if (!change(problem, &random, &changed, any(&random, problem->mesh.axis_count))) continue;
        TRY(problem_price(problem, &changed, &price, error));
        double next = plan_price_score(&price), rise = next / score - 1;
        double used =
            fmax((double)(problem->budget.evaluations - first) / (double)share, (double)step / (double)steps);
        double temperature = FIRST_TEMPERATURE * pow(LAST_TEMPERATURE / FIRST_TEMPERATURE, used);
        if (rise > 0 && random_uniform(&random) >= exp(-rise / temperature)) continue;
        genome = changed;
        score = next;
    }
    return AM_OK;
}
