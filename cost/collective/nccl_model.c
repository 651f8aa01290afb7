/* NCCL's own estimate of a collective's time: latencies in seconds by transport of the hop, algorithm and
 * protocol, and bandwidths as fractions of the link. The constants are those of its tuning code.
 */
#include "cost/collective/nccl_model.h"

#include <math.h>

#include "cost/collective/collective_algorithms.h"

#define US 1e-6

static const double base_seconds[NCCL_ALGORITHMS][NCCL_PROTOCOLS] = {
    [NCCL_RING] = {6.6 * US, 14 * US, 8.4 * US},
    [NCCL_TREE] = {6.8 * US, 14 * US, 8.4 * US},
};

static const double hop_seconds[NCCL_ALGORITHMS][NCCL_TRANSPORTS][NCCL_PROTOCOLS] = {
    [NCCL_RING] = {[NCCL_NVLINK] = {0.6 * US, 1.9 * US, 3.4 * US},
                   [NCCL_PCI] = {1.0 * US, 2.5 * US, 5.7 * US},
                   [NCCL_NETWORK] = {2.7 * US, 4.0 * US, 14 * US}},
    [NCCL_TREE] = {[NCCL_NVLINK] = {0.6 * US, 1.25 * US, 4.0 * US},
                   [NCCL_PCI] = {1.0 * US, 1.9 * US, 4.0 * US},
                   [NCCL_NETWORK] = {5.0 * US, 8.5 * US, 14 * US}},
};

/* The fraction of the bus bandwidth that carries data. */
static const double protocol_share[NCCL_PROTOCOLS] = {0.5, 0.92, 1};
static const double tree_share = 0.92;

bool nccl_model_has(ProgramCollectiveKind kind) {
    return kind == PROGRAM_ALL_REDUCE || kind == PROGRAM_ALL_GATHER || kind == PROGRAM_REDUCE_SCATTER;
}

/* Returns the seconds that a pattern takes per byte of S, in large. */
static double seconds_per_byte(const CollectiveTopology *topology, CollectivePatternKind kind,
                               const Cluster *cluster) {
    const CollectiveMove *move = &topology->loads->moves[kind];
    double seconds = 0;
    int32_t worst;
    for (int32_t k = 0; k < move->step_count; k++)
        seconds +=
            edge_terms_seconds(move->steps[k].terms, move->steps[k].term_count, 1, INFINITY, cluster, &worst);
    return seconds;
}

/* Returns the largest rate at which each device of a ring could send if rings through all links of the
 * servers were joined. */
static double bus_bandwidth(const CollectiveTopology *topology, const Cluster *cluster) {
    double n = topology->devices, m = topology->servers, g = topology->per_server;
    if (m < 2 || !topology->loads->moves[PATTERN_ACROSS_RING].is_possible) {
        bool has_rings = topology->loads->moves[PATTERN_RINGS].is_possible;
        return (n - 1) / n / seconds_per_byte(topology, has_rings ? PATTERN_RINGS : PATTERN_RING, cluster);
    }
    double inside = (g - 1) / g / seconds_per_byte(topology, PATTERN_INSIDE_RING, cluster);
    double between = (m - 1) / m / seconds_per_byte(topology, PATTERN_ACROSS_RING, cluster);
    return inside < between ? inside : between;
}

bool nccl_model_price(NcclChoice *choice, NcclAlgorithm algorithm, NcclProtocol protocol,
                      ProgramCollectiveKind kind, double bytes, const CollectiveTopology *topology,
                      const Cluster *cluster) {
    const NcclModel *model = cluster->nccl;
    double n = topology->devices, m = topology->servers, g = topology->per_server;
    double rounds = kind == PROGRAM_ALL_REDUCE ? 2 : 1;
    if (!nccl_model_has(kind) || (algorithm == NCCL_TREE && kind != PROGRAM_ALL_REDUCE)) return false;
    if (protocol == NCCL_LL128 && model->inside != NCCL_NVLINK) return false;
    const double(*hop)[NCCL_PROTOCOLS] = hop_seconds[algorithm];
    double inside = hop[model->inside][protocol], network = hop[NCCL_NETWORK][protocol];
    double bandwidth = bus_bandwidth(topology, cluster) * protocol_share[protocol];
    if (protocol == NCCL_LL && m == 1 && model->most_ll > 0 && bandwidth > model->most_ll)
        bandwidth = model->most_ll;
    double latency = base_seconds[algorithm][protocol];
    if (algorithm == NCCL_RING) {
        double steps = rounds * (n - 1), crossing = rounds * (m - 1);
        latency += (steps - crossing) * inside + crossing * network;
        bandwidth *= n / steps;
    } else {
        latency += 2 * ((g - 1) * inside + log2(m) * network);
        bandwidth *= tree_share / 2;
    }
    *choice = (NcclChoice){algorithm, protocol, latency, bandwidth, latency + bytes / bandwidth};
    return true;
}

NcclChoice nccl_model_choose(ProgramCollectiveKind kind, double bytes, const CollectiveTopology *topology,
                             const Cluster *cluster) {
    NcclChoice best = {.seconds = INFINITY};
    for (int32_t a = 0; a < NCCL_ALGORITHMS; a++) {
        for (int32_t p = 0; p < NCCL_PROTOCOLS; p++) {
            NcclChoice one;
            if (nccl_model_price(&one, (NcclAlgorithm)a, (NcclProtocol)p, kind, bytes, topology, cluster) &&
                one.seconds < best.seconds)
                best = one;
        }
    }
    return best;
}

const char *nccl_algorithm_name(NcclAlgorithm algorithm) {
    return algorithm == NCCL_RING ? "ring" : "tree";
}

const char *nccl_protocol_name(NcclProtocol protocol) {
    static const char *const names[] = {"LL", "LL128", "Simple"};
    return names[protocol];
}
