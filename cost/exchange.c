/* Transfers by alpha-beta on the graph of the cluster, all pieces at once.
 *
 * A device sends, and receives, its messages one after another, each with the
 * latency of its way; the bytes of all pieces together load the links on the way:
 *     max over devices of [sum of latencies of its messages]
 *   + max over directed edges of load / (B efficiency).
 * What leaves a server over one link is added up there, and both ways of a link
 * work side by side. Ranks that are one device of the cluster exchange nothing over
 * a link. A link's efficiency is taken at the bytes of the whole value, as for
 * collectives (collective.c).
 */
#include "cost/exchange.h"

#include "cost/edge_load.h"
#include "propagation/transfer.h"

static double larger(double a, double b) {
    return a > b ? a : b;
}

AmStatus exchange_price(ExchangePrice *price, Arena *arena, const Cluster *cluster,
                        const ProgramTransfer *transfer, const int32_t *device_of, AmError *error) {
    ArenaMark mark = arena_mark(arena);
    int32_t count = 0, worst;
    double whole = larger((double)ir_shape_bytes(transfer->shape), 1), latency = 0;
    double width = (double)dtype_bytes(transfer->shape->type);
    *price = (ExchangePrice){0};
    TransferPair *pairs;
    EdgeLoads loads;
    TRY(transfer_pairs(&pairs, &count, arena, transfer->shape, transfer->route, error));
    TRY(edge_loads_open(&loads, arena, cluster, error));
    double *sending = ARENA_ARRAY(arena, double, cluster->device_count);
    double *receiving = ARENA_ARRAY(arena, double, cluster->device_count);
    if (arena->failed) return am_fail_memory(error, cluster->device_count);
    for (int32_t k = 0; k < count; k++) {
        int32_t from = device_of[pairs[k].giver], to = device_of[pairs[k].taker];
        double bytes = pairs[k].elements * width, way = edge_loads_add(&loads, from, to, bytes);
        price->bytes += bytes;
        sending[from] += way;
        receiving[to] += way;
        latency = larger(latency, larger(sending[from], receiving[to]));
    }
    for (int32_t k = 0; k < count; k++) edge_loads_follow(&loads);
    if (arena->failed) return am_fail_memory(error, count);
    price->seconds = latency + edge_terms_seconds(loads.terms, loads.term_count, 1, whole, cluster, &worst);
    arena_release(arena, mark);
    return AM_OK;
}
