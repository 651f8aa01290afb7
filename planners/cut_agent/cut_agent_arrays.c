/* Generates networks and clusters for training pipeline agents (Auto-MAP sections 3.5 and 4.5).
 *
 * Each set has its own random stream, seeded by (seed, index): first the arrays (noise, shape, lumps), then
 * the devices and links, then stages, micro-batches and the memory limit. cut_agent_coarsen() reduces a chain
 * to 128 layers at cheap cuts near even places.
 */
#include "planners/cut_agent/cut_agent_arrays.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "planners/cut_agent/cut_agent_environment.h"

#define MOST_LAYERS   1024
#define LEAST_LAYERS  12
#define MOST_STAGES   8
#define WEIGHT_FACTOR 4 /* Adam in the type of the weights */
#define ROOMY         1e30

static double between(Random *random, double least, double most) {
    return least + (most - least) * random_uniform(random);
}

static double log_between(Random *random, double least, double most) {
    return exp(between(random, log(least), log(most)));
}

enum { NOISE_UNIFORM, NOISE_NORMAL, NOISE_EXPONENTIAL, NOISE_BINOMIAL, NOISE_COUNT };

static double draw_noise(Random *random, int64_t noise) {
    int32_t ones = 0;
    switch (noise) {
    case NOISE_UNIFORM: return random_uniform(random);
    case NOISE_NORMAL: return fmax(0.02, 0.5 + 0.2 * random_normal(random));
    case NOISE_EXPONENTIAL: return -log(1 - random_uniform(random));
    default:
        for (uint64_t bits = random_bits(random) & 0xff; bits; bits &= bits - 1) ones++;
        return ones / 8.0;
    }
}

/* Draws numbers >= 0 of mean 1. */
static void draw_array(Random *random, double *values, int32_t count) {
    int64_t noise = random_below(random, NOISE_COUNT);
    int64_t shape = random_below(random, 3);
    int32_t block = 2 + (int32_t)random_below(random, 15);
    double ramp = shape == 1 ? between(random, -log(16), log(16)) : 0;
    for (int32_t i = 0; i < count; i++) {
        values[i] = shape == 2 && i >= block ? values[i - block] * (1 + 0.02 * random_normal(random))
                                             : draw_noise(random, noise);
        values[i] = fmax(0, values[i]);
    }
    for (int32_t i = 0; i < count; i++) values[i] *= exp(ramp * i / count);
    double sum = 0;
    for (int32_t i = 0; i < count; i++) sum += values[i];
    for (int64_t lumps = random_below(random, 3); lumps > 0; lumps--) {
        int32_t at = random_below(random, 2) ? (int32_t)random_below(random, count)
                                             : (random_below(random, 2) ? 0 : count - 1);
        double lump = between(random, 4, 24) * sum / count;
        values[at] += lump;
        sum += lump;
    }
    for (int32_t i = 0; i < count; i++) values[i] *= count / fmax(sum, 1e-9);
}

/* Writes places + 1 numbers: the prefix sums of values[layers] at even points, the last being their sum. */
static void coarsen_sum(double *row, int32_t places, const double *values, int32_t layers) {
    double sum = 0;
    int32_t done = 0;
    for (int32_t i = 0; i <= places; i++) {
        for (int32_t end = (int32_t)((int64_t)i * layers / places); done < end;) sum += values[done++];
        row[i] = sum;
    }
}

static void draw_chain(CutAgentSet *set, Random *random, int32_t places, int32_t layers) {
    double values[3][MOST_LAYERS];
    Chain *chain = &set->chain;
    for (int32_t k = 0; k < 3; k++) draw_array(random, values[k], layers);
    double transfer = log_between(random, 0.001, 0.3) / 8, weights = log_between(random, 0.01, 3);
    double kept = log_between(random, 1, 4);
    coarsen_sum(chain->forward, places, values[0], layers);
    coarsen_sum(chain->weight, places, values[2], layers);
    coarsen_sum(chain->stored, places, values[1], layers);
    double most = 0;
    for (int32_t i = 0; i <= places; i++) {
        int32_t cut = (int32_t)((int64_t)i * layers / places);
        chain->activation[i] = i == 0 || i == places ? 0 : transfer * values[1][cut];
        chain->forward[i] /= layers;
        chain->weight[i] *= weights / layers;
        chain->stored[i] *= kept * transfer * places / layers;
        most = fmax(most, fmax(chain->forward[i], fmax(chain->activation[i], chain->weight[i])));
    }
    for (int32_t i = 0; i <= places; i++) {
        double computation = chain->forward[i] / most;
        chain->forward[i] = computation * CUT_AGENT_FORWARD_PART;
        chain->backward[i] = computation - chain->forward[i];
        chain->activation[i] /= most;
        chain->weight[i] /= most;
        chain->stored[i] /= most;
    }
}

static void draw_devices(CutAgentSet *set, Random *random) {
    static const double insides[] = {1, 4, 10, 40};
    int32_t servers;
    do {
        set->per_server = 1 << random_below(random, 4);
        servers = 1 + (int32_t)random_below(random, random_below(random, 4) ? 8 : CUT_AGENT_DEVICES);
        set->device_count = servers * set->per_server;
    } while (set->device_count < 2 || set->device_count > CUT_AGENT_DEVICES);
    set->inside = insides[random_below(random, 4)];
    double rates[3] = {1, 1, 1};
    if (random_below(random, 2))
        for (int32_t k = 1 + (int32_t)random_below(random, 2); k > 0; k--) rates[k] = between(random, 0.3, 1);
    for (int32_t server = 0; server < servers; server++) {
        double rate = rates[random_below(random, 3)];
        for (int32_t k = 0; k < set->per_server; k++) set->rates[server * set->per_server + k] = rate;
    }
}

AmStatus cut_agent_make_units(CutAgentSet *set, AmError *error) {
    double memory[CUT_AGENT_DEVICES];
    for (int32_t k = 0; k < set->device_count; k++) memory[k] = set->memory;
    set->problem.unit_count = chain_units(set->problem.units, CUT_AGENT_MOST_UNITS, set->rates, memory,
                                          set->device_count, set->per_server, set->inside, 1);
    return chain_problem_prepare(&set->problem, error);
}

/* Returns the bytes of the fullest device when layers are shared out by work. */
static double usual_bytes(const ChainProblem *problem) {
    ChainPlan plan;
    double most = 0;
    chain_greedy_plan(problem, &plan);
    for (int32_t s = 0; s < plan.stages; s++)
        most = fmax(most, chain_bytes(problem, plan.places[s], plan.places[s + 1], plan.units[s],
                                      plan.units[s + 1], plan.stages - s));
    return most;
}

void cut_agent_empty_set(CutAgentSet *set, int32_t places) {
    memset(set->rows, 0, sizeof(set->rows));
    set->chain = (Chain){.count = places,
                         .forward = set->rows[0],
                         .backward = set->rows[1],
                         .stored = set->rows[2],
                         .weight = set->rows[3],
                         .activation = set->rows[4]};
    set->problem.chain = &set->chain;
    set->problem.weight_factor = WEIGHT_FACTOR;
}

void cut_agent_generate(CutAgentSet *set, uint64_t seed, uint64_t index, bool any_length) {
    Random random;
    random_seed(&random, random_at(seed, 0, index));
    int32_t places = CUT_AGENT_POINTS, layers = CUT_AGENT_POINTS << random_below(&random, 4);
    if (any_length && random_below(&random, 10) < 3)
        layers = places = LEAST_LAYERS + (int32_t)random_below(&random, CUT_AGENT_POINTS - LEAST_LAYERS);
    cut_agent_empty_set(set, places);
    draw_chain(set, &random, places, layers);
    draw_devices(set, &random);
    set->memory = ROOMY;
    set->problem.micro_batches = 2 << random_below(&random, 6);
    set->problem.stages = 1;
    cut_agent_make_units(set, NULL);
    int32_t servers = set->device_count / set->per_server, units = set->problem.unit_count;
    int32_t most = units < MOST_STAGES ? units : MOST_STAGES;
    set->problem.stages = 2 + (int32_t)random_below(&random, most - 1);
    if (random_below(&random, 5) < 2 && servers >= 2 && servers <= most) set->problem.stages = servers;
    cut_agent_make_units(set, NULL);
    if (random_below(&random, 2)) return;
    set->memory = between(&random, 1, 1.6) * usual_bytes(&set->problem);
    cut_agent_make_units(set, NULL);
    while (!cut_agent_is_feasible(&set->problem)) {
        set->memory *= 1.25;
        cut_agent_make_units(set, NULL);
    }
}

/* Returns the cheapest cut in the part around an even place; at a tie, the one nearest to that place. */
static int32_t cheapest_near(const Chain *chain, int32_t i, int32_t count) {
    int32_t even = (int32_t)((int64_t)i * chain->count / count), best = even;
    int32_t low = (int32_t)(((int64_t)2 * i - 1) * chain->count / (2 * count)) + 1;
    int32_t high = (int32_t)(((int64_t)2 * i + 1) * chain->count / (2 * count));
    if (i == 0 || i == count) return even;
    for (int32_t k = low; k <= high; k++) {
        double sent = chain->activation[k], least = chain->activation[best];
        if (sent < least || (sent == least && abs(k - even) < abs(best - even))) best = k;
    }
    return best;
}

AmStatus cut_agent_coarsen(Chain *coarse, int32_t places[CUT_AGENT_POINTS + 1], const Chain *chain,
                           Arena *arena, AmError *error) {
    int32_t count = chain->count < CUT_AGENT_POINTS ? chain->count : CUT_AGENT_POINTS;
    TRY(chain_create(coarse, arena, count, error));
    for (int32_t i = 0; i <= count; i++) {
        int32_t place = cheapest_near(chain, i, count);
        places[i] = place;
        coarse->forward[i] = chain->forward[place];
        coarse->backward[i] = chain->backward[place];
        coarse->stored[i] = chain->stored[place];
        coarse->weight[i] = chain->weight[place];
        coarse->activation[i] = chain->activation[place];
    }
    return AM_OK;
}
