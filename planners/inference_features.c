/* Features of the rest of a chain (see inference_features.h). */
#include "planners/inference_features.h"

#include <assert.h>
#include <math.h>

#include "planners/inference_environment.h"

enum { BALANCED, NEAR, WIDE, CORRECTED, SPLITS };

/* The rest, and what its stages have beside their places. */
typedef struct Rest {
    const ChainProblem *problem;
    int32_t place, unit, left;
    int32_t units[CHAIN_MAX_STAGES + 1], places[CHAIN_MAX_STAGES + 1];
    double work, rate;                   /* of all of it */
    ChainStage stages[CHAIN_MAX_STAGES]; /* of the split priced last */
} Rest;

static double work_at(const ChainProblem *problem, int32_t place) {
    return problem->chain->forward[place] + problem->chain->backward[place];
}

double features_balanced_length(const ChainProblem *problem, int32_t place, int32_t unit, int32_t left) {
    const Chain *chain = problem->chain;
    int32_t units = (problem->unit_count - unit) / left;
    double work = work_at(problem, chain->count) - work_at(problem, place);
    double reduced = (chain->weight[chain->count] - chain->weight[place]) / left *
                     problem->groups[unit][unit + units].reduce_seconds_per_byte;
    return (problem->micro_batches + left - 1) * work / problem->groups[unit][problem->unit_count].rate +
           reduced;
}

/* The first place from `low` on whose work is at least `work`, or the one before it if that is nearer. */
static int32_t nearest_place(const ChainProblem *problem, int32_t low, int32_t high, double work) {
    int32_t least = low;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (work_at(problem, middle) < work) low = middle + 1;
        else high = middle;
    }
    bool before = low > least && work - work_at(problem, low - 1) < work_at(problem, low) - work;
    return before ? low - 1 : low;
}

/* The cheapest cut within `reach` of work around `place`, from low to high. */
static int32_t cheapest_place(const ChainProblem *problem, int32_t low, int32_t high, int32_t place,
                              double reach) {
    const double *activation = problem->chain->activation;
    double work = work_at(problem, place);
    int32_t best = place;
    for (int32_t k = place - 1; k >= low && work - work_at(problem, k) <= reach; k--)
        if (activation[k] < activation[best]) best = k;
    for (int32_t k = place + 1; k <= high && work_at(problem, k) - work <= reach; k++)
        if (activation[k] < activation[best]) best = k;
    return best;
}

/* Cuts where the stages have shares[left] of the work, or the cheapest within `reach` of it; returns the
 * length. */
static double split(Rest *rest, const double *shares, double reach) {
    const ChainProblem *problem = rest->problem;
    double work = work_at(problem, rest->place);
    rest->places[0] = rest->place;
    rest->places[rest->left] = problem->chain->count;
    for (int32_t s = 1; s < rest->left; s++) {
        int32_t low = rest->places[s - 1] + 1, high = problem->chain->count - (rest->left - s);
        work += shares[s - 1];
        int32_t place = nearest_place(problem, low, high, work);
        rest->places[s] = reach > 0 ? cheapest_place(problem, low, high, place, reach) : place;
    }
    double length = 0;
    for (int32_t s = rest->left - 1; s >= 0; s--) {
        rest->stages[s] =
            chain_stage(problem, rest->places[s], rest->places[s + 1], rest->units[s], rest->units[s + 1]);
        length = chain_length_with(problem, &rest->stages[s], length);
    }
    return length;
}

/* Work that each stage can do in the same time, given what it has to wait for in the split priced last. */
static void correct_shares(const Rest *rest, double *shares) {
    double micro_batches = rest->problem->micro_batches, waiting = 0, least = 0.05 * rest->work / rest->left;
    double waits[CHAIN_MAX_STAGES];
    for (int32_t s = 0; s < rest->left; s++) {
        waits[s] = 2 * rest->stages[s].transfer + rest->stages[s].reduce / micro_batches;
        waiting += waits[s] * rest->problem->groups[rest->units[s]][rest->units[s + 1]].rate;
    }
    double level = (rest->work + waiting) / rest->rate, sum = 0;
    for (int32_t s = 0; s < rest->left; s++) {
        double rate = rest->problem->groups[rest->units[s]][rest->units[s + 1]].rate;
        shares[s] = fmax(least, (level - waits[s]) * rate);
        sum += shares[s];
    }
    for (int32_t s = 0; s < rest->left; s++) shares[s] *= rest->work / sum;
}

static void put(float **features, double value) {
    *(*features)++ = (float)fmin(4, fmax(-4, value));
}

/* Transfers, reductions and memory of the split priced last, over what a stage has time and room for. */
static void put_waits(float **features, const Rest *rest, double level) {
    double micro_batches = rest->problem->micro_batches, transfers = 0, worst = 0, reductions = 0,
           largest = 0;
    double longest = 0, shortest = INFINITY, fullest = 0;
    for (int32_t s = 0; s < rest->left; s++) {
        const ChainStage *stage = &rest->stages[s];
        int32_t unit = rest->units[s], end = rest->units[s + 1];
        double bytes =
            chain_bytes(rest->problem, rest->places[s], rest->places[s + 1], unit, end, rest->left - s);
        fullest = fmax(fullest, bytes / rest->problem->groups[unit][end].memory_bytes);
        double busy = micro_batches * (stage->seconds + 2 * stage->transfer) + stage->reduce;
        transfers += 2 * micro_batches * stage->transfer;
        worst = fmax(worst, 2 * micro_batches * stage->transfer);
        reductions += stage->reduce;
        largest = fmax(largest, stage->reduce);
        longest = fmax(longest, busy);
        shortest = fmin(shortest, busy);
    }
    const ChainStage *first = &rest->stages[0], *last = &rest->stages[rest->left - 1];
    put(features, transfers / rest->left / level);
    put(features, worst / level);
    put(features, reductions / rest->left / level);
    put(features, largest / level);
    put(features, 4 * (longest / level - 1));
    put(features, 4 * (shortest / level - 1));
    put(features, micro_batches * first->seconds / level - 1);
    put(features, first->reduce / level);
    put(features, last->reduce / level);
    put(features, fullest);
}

/* What the chain behind the place is like, apart from any split. */
static void put_chain(float **features, const Rest *rest, double level) {
    const ChainProblem *problem = rest->problem;
    const Chain *chain = problem->chain;
    int32_t cuts = chain->count - rest->place - 1;
    double sum = 0, least = INFINITY, lump = 0, second = 0;
    for (int32_t k = rest->place + 1; k <= chain->count; k++) {
        double work = work_at(problem, k) - work_at(problem, k - 1);
        if (work > lump) second = lump, lump = work;
        else second = fmax(second, work);
        if (k == chain->count) break;
        sum += chain->activation[k];
        least = fmin(least, chain->activation[k]);
    }
    double seconds = 2 * problem->micro_batches / problem->units[rest->units[1] - 1].outwards;
    put(features, cuts > 0 ? sum / cuts * seconds / level : 0);
    put(features, cuts > 0 ? least * seconds / level : 0);
    put(features, lump * rest->left / rest->work);
    put(features, second * rest->left / rest->work);
    put(features, (double)cuts / INFERENCE_POINTS);
    put(features, (double)rest->left / (cuts + 1));
}

/* The devices of the rest and the form of the pipeline. */
static void put_devices(float **features, const Rest *rest) {
    const ChainProblem *problem = rest->problem;
    double fastest = 0, slowest = INFINITY;
    for (int32_t s = 0; s < rest->left; s++) {
        double rate = problem->groups[rest->units[s]][rest->units[s + 1]].rate;
        fastest = fmax(fastest, rate);
        slowest = fmin(slowest, rate);
    }
    int32_t units = problem->unit_count - rest->unit;
    put(features, (double)rest->left / 8);
    put(features, 1.0 / rest->left);
    put(features, (double)(rest->left - 1) / (problem->micro_batches + rest->left - 1));
    put(features, (double)units / rest->left / 4);
    put(features, (double)(units % rest->left) / rest->left);
    put(features, slowest / fastest);
    put(features, problem->groups[rest->unit][rest->units[1]].rate * rest->left / rest->rate - 1);
}

double features_fill(const ChainProblem *problem, int32_t place, int32_t unit, int32_t left,
                     float *features) {
    Rest rest = {.problem = problem,
                 .place = place,
                 .unit = unit,
                 .left = left,
                 .work = work_at(problem, problem->chain->count) - work_at(problem, place),
                 .rate = problem->groups[unit][problem->unit_count].rate};
    double shares[CHAIN_MAX_STAGES], lengths[SPLITS], best = INFINITY;
    for (int32_t s = 0; s <= left; s++) rest.units[s] = unit + s * (problem->unit_count - unit) / left;
    for (int32_t s = 0; s < left; s++)
        shares[s] = rest.work * problem->groups[rest.units[s]][rest.units[s + 1]].rate / rest.rate;
    double stage_work = rest.work / left, level = problem->micro_batches * rest.work / rest.rate;
    float *next = features;
    lengths[WIDE] = split(&rest, shares, stage_work / 4);
    lengths[NEAR] = split(&rest, shares, stage_work / 8);
    lengths[BALANCED] = split(&rest, shares, 0);
    put_waits(&next, &rest, level);
    correct_shares(&rest, shares);
    lengths[CORRECTED] = split(&rest, shares, stage_work / 8);
    for (int32_t k = 0; k < SPLITS; k++) best = fmin(best, lengths[k]);
    for (int32_t k = 0; k < SPLITS; k++) put(&next, 4 * (lengths[k] / best - 1));
    put(&next, 4 * (1 - features_balanced_length(problem, place, unit, left) / best));
    put_chain(&next, &rest, level);
    put_devices(&next, &rest);
    assert(next == features + INFERENCE_FEATURES);
    return best;
}
