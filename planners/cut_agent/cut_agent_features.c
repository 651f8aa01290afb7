/* Computes the agent's features of the rest of a chain: splits of the rest, priced, and their ratios.
 *
 * Each split allots units, then places cuts by work, each at the cheapest place near by. features_fill()
 * writes the lengths of the splits relative to the best one, then memory, waits, the chain and the devices.
 */
#include "planners/cut_agent/cut_agent_features.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "planners/cut_agent/cut_agent_environment.h"

enum { EQUAL, ALIGNED, FIRST, LAST, ALLOTMENTS };
enum { BALANCED = ALLOTMENTS, NEAR, WIDE, SPLITS };
#define CORRECTIONS 2

/* The rest, and further properties of its stages. */
typedef struct Rest {
    const ChainProblem *problem;
    int32_t place, unit, left;
    int32_t units[CHAIN_MAX_STAGES + 1], places[CHAIN_MAX_STAGES + 1];
    double work, rate;                   /* of all of it */
    double shares[CHAIN_MAX_STAGES];     /* of the work, by stage */
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
    double part = -expm1(left * log1p(-1.0 / problem->micro_batches)); /* 1 - (1 - 1 / M)^left */
    return left * work / problem->groups[unit][problem->unit_count].rate / part + reduced;
}

/* Returns the first place from `low` on whose work is at least `work`, or the one before it if that is
 * nearer. */
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

/* Returns the cheapest cut within `reach` of work around `place`, from low to high. */
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

/* A split as the estimate sees it. */
typedef struct Split {
    double length, fullest; /* bytes over memory of the fullest stage */
} Split;

/* Cuts where the stages have their shares of the work, or the cheapest within `reach` of it. */
static Split split_rest(Rest *rest, double reach) {
    const ChainProblem *problem = rest->problem;
    double work = work_at(problem, rest->place);
    Split result = {0};
    rest->places[0] = rest->place;
    rest->places[rest->left] = problem->chain->count;
    for (int32_t s = 1; s < rest->left; s++) {
        int32_t low = rest->places[s - 1] + 1, high = problem->chain->count - (rest->left - s);
        work += rest->shares[s - 1];
        int32_t place = nearest_place(problem, low, high, work);
        rest->places[s] = reach > 0 ? cheapest_place(problem, low, high, place, reach) : place;
    }
    for (int32_t s = rest->left - 1; s >= 0; s--) {
        int32_t first = rest->places[s], end = rest->places[s + 1], unit = rest->units[s],
                unit_end = rest->units[s + 1];
        rest->stages[s] = chain_stage(problem, first, end, unit, unit_end);
        result.length = chain_length_with(problem, &rest->stages[s], result.length);
        double bytes = chain_bytes(problem, first, end, unit, unit_end, rest->left - s);
        result.fullest = fmax(result.fullest, bytes / problem->groups[unit][unit_end].memory_bytes);
    }
    return result;
}

/* Fills the shares with which every stage is done at `level`, seconds from the start of the rest: the stages
 * before it hold it up once, its own work comes M times. Returns their sum, which is linear in the level. */
static double shares_at(Rest *rest, double level) {
    double micro_batches = rest->problem->micro_batches, before = 0, sum = 0;
    for (int32_t s = 0; s < rest->left; s++) {
        const ChainStage *stage = &rest->stages[s];
        double occupied = (level - stage->reduce - before) / micro_batches;
        rest->shares[s] =
            (occupied - 2 * stage->transfer) * rest->problem->groups[rest->units[s]][rest->units[s + 1]].rate;
        before += occupied;
        sum += rest->shares[s];
    }
    return sum;
}

/* Shares of the work with which all stages end together, given the transfers and reductions in
 * rest->stages. */
static void share_out(Rest *rest) {
    double none = shares_at(rest, 0), one = shares_at(rest, 1) - none;
    shares_at(rest, (rest->work - none) / one);
    double least = 0.05 * rest->work / rest->left, sum = 0;
    for (int32_t s = 0; s < rest->left; s++) sum += rest->shares[s] = fmax(least, rest->shares[s]);
    for (int32_t s = 0; s < rest->left; s++) rest->shares[s] *= rest->work / sum;
}

/* Divides the remaining work over stages that transfer and reduce nothing. */
static void share_out_work(Rest *rest) {
    for (int32_t s = 0; s < rest->left; s++) rest->stages[s] = (ChainStage){0};
    share_out(rest);
}

/* Returns the boundary of servers that is nearest to `unit`. A server ends where the slowest link of low ..
 * high - 1 is. */
static int32_t aligned(const ChainProblem *problem, int32_t low, int32_t high, int32_t unit) {
    double slowest = INFINITY;
    int32_t best = unit;
    for (int32_t k = low; k <= high; k++) slowest = fmin(slowest, problem->units[k - 1].outwards);
    for (int32_t k = low, nearest = INT32_MAX; k <= high; k++) {
        if (problem->units[k - 1].outwards > slowest || abs(k - unit) >= nearest) continue;
        nearest = abs(k - unit);
        best = k;
    }
    return best;
}

static void allot(Rest *rest, int32_t allotment) {
    int32_t end = rest->problem->unit_count;
    rest->units[0] = rest->unit;
    rest->units[rest->left] = end;
    for (int32_t s = 1; s < rest->left; s++) {
        int32_t low = rest->units[s - 1] + 1, high = end - (rest->left - s);
        int32_t equal = rest->unit + s * (end - rest->unit) / rest->left;
        rest->units[s] = allotment == FIRST   ? high
                         : allotment == LAST  ? low
                         : allotment == EQUAL ? equal
                                              : aligned(rest->problem, low, high, equal < low ? low : equal);
    }
}

static void put_feature(float **features, double value) {
    *(*features)++ = (float)fmin(4, fmax(-4, value));
}

/* Transfers and reductions of the split priced last, over the available time of a stage. */
static void put_waits(float **features, const Rest *rest, double level) {
    double micro_batches = rest->problem->micro_batches, transfers = 0, worst = 0, reductions = 0,
           largest = 0;
    double longest = 0, shortest = INFINITY;
    for (int32_t s = 0; s < rest->left; s++) {
        const ChainStage *stage = &rest->stages[s];
        double busy = micro_batches * (stage->seconds + 2 * stage->transfer) + stage->reduce;
        transfers += 2 * micro_batches * stage->transfer;
        worst = fmax(worst, 2 * micro_batches * stage->transfer);
        reductions += stage->reduce;
        largest = fmax(largest, stage->reduce);
        longest = fmax(longest, busy);
        shortest = fmin(shortest, busy);
    }
    const ChainStage *first = &rest->stages[0], *last = &rest->stages[rest->left - 1];
    put_feature(features, transfers / rest->left / level);
    put_feature(features, worst / level);
    put_feature(features, reductions / rest->left / level);
    put_feature(features, largest / level);
    put_feature(features, 4 * (longest / level - 1));
    put_feature(features, 4 * (shortest / level - 1));
    put_feature(features, micro_batches * first->seconds / level - 1);
    put_feature(features, first->reduce / level);
    put_feature(features, last->reduce / level);
}

/* Features of the chain after the place, independent of a split. */
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
    put_feature(features, cuts > 0 ? sum / cuts * seconds / level : 0);
    put_feature(features, cuts > 0 ? least * seconds / level : 0);
    put_feature(features, lump * rest->left / rest->work);
    put_feature(features, second * rest->left / rest->work);
    put_feature(features, (double)cuts / CUT_AGENT_POINTS);
    put_feature(features, (double)rest->left / (cuts + 1));
}

/* Writes the features of the devices of the rest and of the form of the pipeline. */
static void put_devices(float **features, const Rest *rest) {
    const ChainProblem *problem = rest->problem;
    double fastest = 0, slowest = INFINITY;
    for (int32_t s = 0; s < rest->left; s++) {
        double rate = problem->groups[rest->units[s]][rest->units[s + 1]].rate;
        fastest = fmax(fastest, rate);
        slowest = fmin(slowest, rate);
    }
    int32_t units = problem->unit_count - rest->unit;
    put_feature(features, (double)rest->left / 8);
    put_feature(features, 1.0 / rest->left);
    put_feature(features, (double)(rest->left - 1) / (problem->micro_batches + rest->left - 1));
    put_feature(features, (double)units / rest->left / 4);
    put_feature(features, (double)(units % rest->left) / rest->left);
    put_feature(features, slowest / fastest);
    put_feature(features, problem->groups[rest->unit][rest->units[1]].rate * rest->left / rest->rate - 1);
}

double features_fill(const ChainProblem *problem, int32_t place, int32_t unit, int32_t left,
                     float *features) {
    Rest rest = {.problem = problem,
                 .place = place,
                 .unit = unit,
                 .left = left,
                 .work = work_at(problem, problem->chain->count) - work_at(problem, place),
                 .rate = problem->groups[unit][problem->unit_count].rate};
    Split splits[SPLITS];
    double stage_work = rest.work / left, level = problem->micro_batches * rest.work / rest.rate;
    float *next = features;
    for (int32_t k = ALLOTMENTS - 1; k >= EQUAL; k--) {
        allot(&rest, k);
        share_out_work(&rest);
        split_rest(&rest, stage_work / 8);
        for (int32_t iteration = 0; iteration < CORRECTIONS; iteration++) {
            share_out(&rest);
            splits[k] = split_rest(&rest, stage_work / 8);
        }
    }
    share_out_work(&rest);
    splits[WIDE] = split_rest(&rest, stage_work / 4);
    splits[NEAR] = split_rest(&rest, stage_work / 8);
    splits[BALANCED] = split_rest(&rest, 0);
    double best = INFINITY, shortest = INFINITY, fullest = INFINITY;
    for (int32_t k = 0; k < SPLITS; k++) {
        shortest = fmin(shortest, splits[k].length);
        fullest = fmin(fullest, splits[k].fullest);
        if (splits[k].fullest <= 1) best = fmin(best, splits[k].length);
    }
    if (isinf(best)) best = shortest;
    for (int32_t k = 0; k < SPLITS; k++) put_feature(&next, 4 * (splits[k].length / best - 1));
    put_feature(&next, 4 * (1 - features_balanced_length(problem, place, unit, left) / best));
    put_feature(&next, fullest);
    put_feature(&next, splits[BALANCED].fullest);
    put_waits(&next, &rest, level);
    put_chain(&next, &rest, level);
    put_devices(&next, &rest);
    assert(next == features + CUT_AGENT_FEATURES);
    return best;
}
