/* The devices of a cluster as the units of a chain's problem (chain.h), and chains from files of arrays.
 *
 * Rates are peaks over that of the fastest device, so that a chain's seconds are those of the fastest one.
 * Units are servers, or equal parts of them; links are the slowest inside a server and the one between
 * servers.
 */
#ifndef PLANNERS_CUT_AGENT_CHAIN_CLUSTER_H
#define PLANNERS_CUT_AGENT_CHAIN_CLUSTER_H

#include "cost/cluster/cluster.h"
#include "planners/cut_agent/chain.h"

/* Fills units and unit_count, at most `most_units`. AM_ERROR_USAGE: there are more servers. */
AmStatus chain_cluster_units(ChainProblem *problem, const Cluster *cluster, int32_t most_units,
                             double memory_fraction, AmError *error);

/* Arrays of layers, "automap-arrays-1":
 *
 *   {"format": "automap-arrays-1", "computation": [...], "activation": [...], "weight": [...], "devices": 8
 *   or [1, 0.5, ...]}
 *
 * computation: of each layer, of a micro-batch on a device of rate 1, forward and backward;
 * activation: the transfer after each layer; weight: of each layer; in one unit of time,
 * activations and weights as they take on a link between servers. The reader computes sums,
 * coarsening and scaling. devices: their number, or their rates. Optional: "stages" (2),
 * "micro_batches" (8), "per_server" (all devices), "inside" (the ratio of the links inside and
 * between servers, 10). Fills all but the groups of the problem. AM_ERROR_INPUT names the position
 * in the file. */
AmStatus chain_arrays_parse(Chain *chain, ChainProblem *problem, Arena *arena, const char *source,
                            const char *text, int64_t length, AmError *error);

#endif
