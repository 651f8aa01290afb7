/* Chain: a network as a sequence of layers, and the time of a pipeline over it.
 *
 * A stage is the layers between two places of the chain on consecutive units of devices; the
 * micro-batch is divided by their rates (data parallel replicas inside a stage, as in PipeDream and
 * DAPPLE). For a stage with work w, weights W and activations A to its successor:
 *
 *   t = w / sum of rates,  c = A / link to the next stage,  r = 2 (n - 1) / n W / slowest link inside
 *
 * Its length is the recursion, from the last stage to the first, over M micro-batches
 *
 *   E_s = max(M (t_s + 2 c_s) + r_s,  t_s + 2 c_s + E_{s+1})
 *
 * Since 1F1B keeps S - s micro-batches in flight, a stage waits for its transfer and for the
 * returning gradient: with equal stages the period is t + 2 c (S - 1) / S. The length is a model;
 * chain_simulate() is the exact recursion of 1F1B by events.
 *
 * Places need not be in sequence: those of a graph are its downsets (profile_graph.h), and the
 * stage between two of them is their difference. All sums are over a place, so that a stage is a
 * difference of two rows.
 */
#ifndef PLANNERS_CUT_AGENT_CHAIN_H
#define PLANNERS_CUT_AGENT_CHAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

#define CHAIN_MAX_UNITS  32
#define CHAIN_MAX_STAGES CHAIN_MAX_UNITS

/* Arrays of count + 1 places; place i is before layer i, the last one after all. */
typedef struct Chain {
    int32_t count;
    double *forward, *backward; /* seconds of a micro-batch up to there, on a device of rate 1 */
    double *stored;             /* bytes kept of a micro-batch until its backward pass, up to there */
    double *weight;             /* bytes of weights up to there */
    double *activation;         /* bytes of a micro-batch over a cut there; 0 at both ends */
    /* For a graph: the nodes before each place, `words` of 64 bits each; NULL: every place follows
     * those before it. Places are sorted by work. */
    const uint64_t *sets;
    int32_t words;
} Chain;

/* Creates an empty chain of `count` layers; the arena owns it. */
AmStatus chain_create(Chain *chain, Arena *arena, int32_t count, AmError *error);

/* Devices that no stage divides. */
typedef struct ChainUnit {
    int32_t devices;
    double rate;         /* of all its devices together */
    double fastest;      /* of one device */
    double memory_bytes; /* of its smallest device */
    double inside;       /* bytes per second among its devices */
    double outwards;     /* bytes per second to the next unit */
} ChainUnit;

/* Consecutive units as one. */
typedef struct ChainGroup {
    double rate, share; /* of all devices; the largest part of a micro-batch that one of them takes */
    double reduce_seconds_per_byte, memory_bytes, outwards;
} ChainGroup;

typedef struct ChainProblem {
    const Chain *chain;
    int32_t unit_count, stages, micro_batches;
    double weight_factor; /* bytes kept per byte of weights: gradients and optimizer state with it */
    ChainUnit units[CHAIN_MAX_UNITS];
    ChainGroup groups[CHAIN_MAX_UNITS][CHAIN_MAX_UNITS + 1]; /* [first][end] */
} ChainProblem;

/* Derives the groups. AM_ERROR_USAGE: counts that do not go together. */
AmStatus chain_problem_prepare(ChainProblem *problem, AmError *error);

/* Makes units of devices[count] in a row, `per_server` on each server: at most `most_units`, each with the
 * same number of devices (the last one may have fewer), parts of a server or whole ones. Links in bytes per
 * second. Returns the number of units. */
int32_t chain_units(ChainUnit *units, int32_t most_units, const double *rates, const double *memory_bytes,
                    int32_t count, int32_t per_server, double inside, double between);

/* Stage s has the layers between places[s] and places[s + 1] and units[s] .. units[s + 1]. */
typedef struct ChainPlan {
    int32_t stages;
    int32_t places[CHAIN_MAX_STAGES + 1], units[CHAIN_MAX_STAGES + 1];
} ChainPlan;

typedef struct ChainStage {
    double seconds, transfer, reduce; /* t, c, r */
    double forward;                   /* of the seconds */
} ChainStage;

/* Returns the stage of layers first .. end - 1 on units unit .. unit_end - 1. */
ChainStage chain_stage(const ChainProblem *problem, int32_t first, int32_t end, int32_t unit,
                       int32_t unit_end);
/* Returns E_s of a stage whose successors take `rest` seconds (0: it is the last one). */
double chain_length_with(const ChainProblem *problem, const ChainStage *stage, double rest);
/* Returns the bytes of the stage's fullest device when `left` stages, it among them, are still to come. */
double chain_bytes(const ChainProblem *problem, int32_t first, int32_t end, int32_t unit, int32_t unit_end,
                   int32_t left);
bool chain_fits(const ChainProblem *problem, int32_t first, int32_t end, int32_t unit, int32_t unit_end,
                int32_t left);
/* Returns whether the layers before `first` are among those before `end`, and fewer. */
bool chain_follows(const Chain *chain, int32_t first, int32_t end);

/* Returns whether the plan is one: places and units in order, nothing left out, everything in memory. */
bool chain_plan_is_valid(const ChainProblem *problem, const ChainPlan *plan);
double chain_plan_length(const ChainProblem *problem, const ChainPlan *plan);

/* Returns the seconds of a step by events: f[i][s] = max(f[i-1][s], arrival, b[i - w][s]) + F_s with
 * w = min(M, S - s) in flight; b[i][s] likewise from above. Each direction of a link is busy with one
 * transfer at a time. The all-reduce of every stage comes last. */
double chain_simulate(const ChainProblem *problem, const ChainPlan *plan);

/* Divides the chain into equal numbers of layers and units. */
void chain_even_plan(const ChainProblem *problem, ChainPlan *plan);
/* Divides the chain into equal numbers of units. Each stage from the left has layers with work closest to
 * its share of the rest. */
void chain_greedy_plan(const ChainProblem *problem, ChainPlan *plan);

#endif
