/* Arrays for training pipeline agents (Auto-MAP sections 3.5 and 4.5).
 *
 * A set is computation C, activation A and weight W of a generated network, and its devices. C and W are
 * prefix sums, A is the cost of a cut; all three are taken at 128 even points and scaled together, so that
 * the largest number is 1. C is in seconds of a micro-batch on a device of rate 1. A is in seconds of its
 * transfer on the link between servers, W in seconds on that link.
 *
 * Every number is a function of (seed, index). Of each array is drawn, independently:
 *   noise     uniform [0, 1], normal (0.5, 0.2) cut to [0.02, inf), exponential, or binomial (8, 0.5) / 8
 *   shape     flat; a ramp by a factor of up to 16 or 1/16 from end to end (convolutions: activations shrink,
 *             weights grow); repeated blocks of 2 to 16 layers, each like the first up to 2 % noise
 *   lumps     0 to 2 layers that weigh 4 to 24 times the mean (embeddings, classifiers)
 *   length    128 to 1024 layers before they are coarsened
 * The mean transfer is exp(U(log 0.001, log 0.3)) / 8 of all computation, all weights exp(U(log
 * 0.01, log 3)). Devices: 1 to 64 servers of 1, 2, 4 or 8, 2 to 64 in all; links inside 1, 4, 10 or
 * 40 times as fast as between; in half of the sets all rates are 1, else each server's is one of
 * two or three of U(0.3, 1). At most 16 units of equal size. Stages: 2 to 8, in two of five sets
 * one for each server if there are that many; micro-batches 2 to 64, powers of 2. In half of the
 * sets memory is short: 1 to 1.6 times the need of the fullest device when layers are shared by
 * work, or more if no plan would fit.
 */
#ifndef PLANNERS_CUT_AGENT_CUT_AGENT_ARRAYS_H
#define PLANNERS_CUT_AGENT_CUT_AGENT_ARRAYS_H

#include "planners/cut_agent/chain.h"

#define CUT_AGENT_POINTS     128
#define CUT_AGENT_MOST_UNITS 16
#define CUT_AGENT_DEVICES    64

#define CUT_AGENT_FORWARD_PART (1.0 / 3) /* of a micro-batch: a backward pass is twice the forward one */

/* The chain points into the set: a set is not copied. */
typedef struct CutAgentSet {
    double rows[5][CUT_AGENT_POINTS + 1];
    Chain chain;
    ChainProblem problem;
    int32_t device_count, per_server;
    double rates[CUT_AGENT_DEVICES];
    double inside, memory; /* link inside a server, the one between is 1; of each device */
} CutAgentSet;

/* Generates set `index` under `seed`. With `any_length` in three of ten sets the chain has 12 to 127 layers
 * that are not coarsened, as small models have. */
void cut_agent_generate(CutAgentSet *set, uint64_t seed, uint64_t index, bool any_length);

/* Makes a set of `places` layers whose rows are 0, without devices. */
void cut_agent_empty_set(CutAgentSet *set, int32_t places);
/* Makes the units of the problem and its groups from the set's devices; stages and micro-batches are set.
 * AM_ERROR_USAGE: counts that do not go together. */
AmStatus cut_agent_make_units(CutAgentSet *set, AmError *error);

/* Coarsens the chain to CUT_AGENT_POINTS places, one of each even part: the one with the least
 * transfer, since a cut there is as good as any nearby. A shorter chain is unchanged. places[k] is
 * the place of `chain` for place k of the result. */
AmStatus cut_agent_coarsen(Chain *coarse, int32_t places[CUT_AGENT_POINTS + 1], const Chain *chain,
                           Arena *arena, AmError *error);

#endif
