/* Prices pipelines over a chain: lengths by the recursion of chain.h, and seconds by events of 1F1B.
 *
 * Arrays of layers are prefix sums, so that a stage costs two reads. chain_problem_prepare() finds the summed
 * rate and the slowest link of each range of units [first, end), once for all stages. chain_even_plan() and
 * chain_greedy_plan() are the two plans with which agents are compared.
 */
#include "planners/cut_agent/chain.h"

#include <math.h>
#include <string.h>

#include "base/extremes.h"
#include "cost/simulate/clock_1f1b.h"

AmStatus chain_create(Chain *chain, Arena *arena, int32_t count, AmError *error) {
    double *rows = ARENA_ARRAY(arena, double, 5 * ((int64_t)count + 1));
    if (!rows) return am_fail_memory(error, 5 * ((int64_t)count + 1) * (int64_t)sizeof(double));
    double **arrays[] = {&chain->forward, &chain->backward, &chain->stored, &chain->weight,
                         &chain->activation};
    *chain = (Chain){.count = count};
    for (int32_t k = 0; k < 5; k++) *arrays[k] = rows + (int64_t)k * (count + 1);
    return AM_OK;
}

AmStatus chain_problem_prepare(ChainProblem *problem, AmError *error) {
    if (problem->unit_count < 1 || problem->unit_count > CHAIN_MAX_UNITS || problem->stages < 1 ||
        problem->stages > problem->unit_count || problem->micro_batches < 1)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "%d stages of %d units of devices with %d micro-batches; expected 1 to %d units, no "
                       "more stages than units",
                       problem->stages, problem->unit_count, problem->micro_batches, CHAIN_MAX_UNITS);
    if (problem->chain->count < problem->stages)
        return am_fail(error, AM_ERROR_USAGE, "", "%d layers cannot make %d stages", problem->chain->count,
                       problem->stages);
    for (int32_t first = 0; first < problem->unit_count; first++) {
        double devices = 0, slowest = INFINITY, fastest = 0;
        ChainGroup group = {.memory_bytes = INFINITY};
        for (int32_t last = first; last < problem->unit_count; last++) {
            const ChainUnit *unit = &problem->units[last];
            if (last > first) slowest = smaller(slowest, problem->units[last - 1].outwards);
            if (unit->devices > 1) slowest = smaller(slowest, unit->inside);
            devices += unit->devices;
            fastest = larger(fastest, unit->fastest);
            group.rate += unit->rate;
            group.share = fastest / group.rate;
            group.memory_bytes = smaller(group.memory_bytes, unit->memory_bytes);
            group.reduce_seconds_per_byte = devices > 1 ? 2 * (devices - 1) / devices / slowest : 0;
            group.outwards = unit->outwards;
            problem->groups[first][last + 1] = group;
        }
    }
    return AM_OK;
}

int32_t chain_units(ChainUnit *units, int32_t most_units, const double *rates, const double *memory_bytes,
                    int32_t count, int32_t per_server, double inside, double between) {
    int32_t size = (count + most_units - 1) / most_units;
    while (per_server % size && size % per_server && per_server < count) size++;
    for (int32_t device = 0; device < count; device++) {
        ChainUnit *unit = &units[device / size];
        if (device % size == 0)
            *unit = (ChainUnit){.memory_bytes = INFINITY,
                                .inside = size > per_server ? between : inside,
                                .outwards = (device + size) % per_server == 0 ? between : inside};
        unit->devices++;
        unit->rate += rates[device];
        unit->fastest = larger(unit->fastest, rates[device]);
        unit->memory_bytes = smaller(unit->memory_bytes, memory_bytes[device]);
    }
    return (count + size - 1) / size;
}

ChainStage chain_stage(const ChainProblem *problem, int32_t first, int32_t end, int32_t unit,
                       int32_t unit_end) {
    const Chain *chain = problem->chain;
    const ChainGroup *group = &problem->groups[unit][unit_end];
    double forward = chain->forward[end] - chain->forward[first];
    double backward = chain->backward[end] - chain->backward[first];
    return (ChainStage){
        .seconds = (forward + backward) / group->rate,
        .forward = forward / group->rate,
        .transfer = unit_end < problem->unit_count ? chain->activation[end] / group->outwards : 0,
        .reduce = (chain->weight[end] - chain->weight[first]) * group->reduce_seconds_per_byte};
}

double chain_length_with(const ChainProblem *problem, const ChainStage *stage, double rest) {
    double occupied = stage->seconds + 2 * stage->transfer;
    return larger(problem->micro_batches * occupied + stage->reduce, occupied + rest);
}

double chain_bytes(const ChainProblem *problem, int32_t first, int32_t end, int32_t unit, int32_t unit_end,
                   int32_t left) {
    const Chain *chain = problem->chain;
    double in_flight = smaller(problem->micro_batches, left);
    return problem->weight_factor * (chain->weight[end] - chain->weight[first]) +
           in_flight * (chain->stored[end] - chain->stored[first]) * problem->groups[unit][unit_end].share;
}

bool chain_fits(const ChainProblem *problem, int32_t first, int32_t end, int32_t unit, int32_t unit_end,
                int32_t left) {
    return chain_bytes(problem, first, end, unit, unit_end, left) <=
           problem->groups[unit][unit_end].memory_bytes;
}

bool chain_follows(const Chain *chain, int32_t first, int32_t end) {
    if (!chain->sets || first >= end) return first < end;
    const uint64_t *inner = chain->sets + (int64_t)first * chain->words;
    const uint64_t *outer = chain->sets + (int64_t)end * chain->words;
    for (int32_t word = 0; word < chain->words; word++)
        if (inner[word] & ~outer[word]) return false;
    return true;
}

bool chain_plan_is_valid(const ChainProblem *problem, const ChainPlan *plan) {
    int32_t stages = plan->stages;
    if (stages < 1 || stages > problem->unit_count) return false;
    if (plan->places[0] != 0 || plan->units[0] != 0 || plan->places[stages] != problem->chain->count ||
        plan->units[stages] != problem->unit_count)
        return false;
    for (int32_t s = 0; s < stages; s++) {
        if (plan->units[s + 1] <= plan->units[s] || plan->places[s + 1] <= plan->places[s]) return false;
        if (plan->units[s + 1] > problem->unit_count || plan->places[s + 1] > problem->chain->count)
            return false;
        if (!chain_follows(problem->chain, plan->places[s], plan->places[s + 1])) return false;
        if (!chain_fits(problem, plan->places[s], plan->places[s + 1], plan->units[s], plan->units[s + 1],
                        stages - s))
            return false;
    }
    return true;
}

static ChainStage stage_of(const ChainProblem *problem, const ChainPlan *plan, int32_t s) {
    return chain_stage(problem, plan->places[s], plan->places[s + 1], plan->units[s], plan->units[s + 1]);
}

double chain_plan_length(const ChainProblem *problem, const ChainPlan *plan) {
    double rest = 0;
    for (int32_t s = plan->stages - 1; s >= 0; s--) {
        ChainStage stage = stage_of(problem, plan, s);
        rest = chain_length_with(problem, &stage, rest);
    }
    return rest;
}

double chain_simulate(const ChainProblem *problem, const ChainPlan *plan) {
    ClockStage clock[CHAIN_MAX_STAGES];
    ChainStage stages[CHAIN_MAX_STAGES];
    double end = 0;
    for (int32_t s = 0; s < plan->stages; s++) {
        stages[s] = stage_of(problem, plan, s);
        clock[s] = (ClockStage){.forward = stages[s].forward,
                                .backward = stages[s].seconds - stages[s].forward,
                                .to_next = stages[s].transfer,
                                .to_previous = s > 0 ? stages[s - 1].transfer : 0};
    }
    if (!clock_1f1b(clock, plan->stages, problem->micro_batches, true)) return NAN;
    for (int32_t s = 0; s < plan->stages; s++) end = larger(end, clock[s].end + stages[s].reduce);
    return end;
}

static void even_units(const ChainProblem *problem, ChainPlan *plan) {
    plan->stages = problem->stages;
    for (int32_t s = 0; s <= plan->stages; s++) plan->units[s] = s * problem->unit_count / plan->stages;
}

void chain_even_plan(const ChainProblem *problem, ChainPlan *plan) {
    even_units(problem, plan);
    for (int32_t s = 0; s <= plan->stages; s++)
        plan->places[s] = (int32_t)((int64_t)s * problem->chain->count / plan->stages);
}

void chain_greedy_plan(const ChainProblem *problem, ChainPlan *plan) {
    const Chain *chain = problem->chain;
    even_units(problem, plan);
    plan->places[0] = 0;
    for (int32_t s = 0; s + 1 < plan->stages; s++) {
        int32_t first = plan->places[s], most = chain->count - (plan->stages - s - 1);
        double done = chain->forward[first] + chain->backward[first];
        double left = chain->forward[chain->count] + chain->backward[chain->count] - done;
        double share = problem->groups[plan->units[s]][plan->units[s + 1]].rate /
                       problem->groups[plan->units[s]][problem->unit_count].rate;
        int32_t place = first + 1;
        while (place < most &&
               fabs(chain->forward[place + 1] + chain->backward[place + 1] - done - share * left) <
                   fabs(chain->forward[place] + chain->backward[place] - done - share * left))
            place++;
        plan->places[s + 1] = place;
    }
    plan->places[plan->stages] = chain->count;
}
