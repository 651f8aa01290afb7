/* NCCL's own tuning model of ring and tree collectives, as an option of a cluster
 * ("collective_model": "nccl").
 *
 * For every algorithm (ring, tree) and protocol (LL, LL128, Simple)
 *     seconds = latency + S / bandwidth
 * The least counts. There are n devices in m servers of g, and the global tensor has S bytes:
 *   ring latency    base + (steps - crossing) hop_inside + crossing hop_network,
 *                   steps 2(n-1), of which 2(m-1) cross; half of both for reduce_scatter and all_gather
 *   tree latency    base + 2 ((g-1) hop_inside + log2(m) hop_network)      (all_reduce only)
 *   bandwidth       bus x n / steps (ring), bus x 0.92 / 2 (tree); x 0.5 under LL, x 0.92 under LL128
 * Bus is the rate of rings through all links of a server at once: the minimum over rings inside
 * servers and rings of equal positions between them on the cluster's graph, with contention, at the
 * links' efficiency for large sizes. LL on one server is limited to a rate of its generation of
 * GPUs. LL128 needs NVLink. Other kinds of collectives are priced as without this model.
 */
#ifndef COST_COLLECTIVE_NCCL_MODEL_H
#define COST_COLLECTIVE_NCCL_MODEL_H

#include "cost/cluster/nccl_options.h"
#include "cost/collective/collective.h"

typedef enum NcclAlgorithm { NCCL_RING, NCCL_TREE, NCCL_ALGORITHMS } NcclAlgorithm;
typedef enum NcclProtocol { NCCL_LL, NCCL_LL128, NCCL_SIMPLE, NCCL_PROTOCOLS } NcclProtocol;

typedef struct NcclChoice {
    NcclAlgorithm algorithm;
    NcclProtocol protocol;
    double latency, bytes_per_second, seconds; /* bytes_per_second: of S */
} NcclChoice;

/* Returns whether the model covers this kind. */
bool nccl_model_has(ProgramCollectiveKind kind);
/* Prices one algorithm under one protocol; false where that is not used. */
bool nccl_model_price(NcclChoice *choice, NcclAlgorithm algorithm, NcclProtocol protocol,
                      ProgramCollectiveKind kind, double bytes, const CollectiveTopology *topology,
                      const Cluster *cluster);
/* Returns the quickest. */
NcclChoice nccl_model_choose(ProgramCollectiveKind kind, double bytes, const CollectiveTopology *topology,
                             const Cluster *cluster);
const char *nccl_algorithm_name(NcclAlgorithm algorithm);
const char *nccl_protocol_name(NcclProtocol protocol);

#endif
