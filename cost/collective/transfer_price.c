/* Transfer costs by the alpha-beta model on the graph of the cluster, all pieces at once.
 *
 * A device sends, and receives, its messages one after another, each with the latency of its route;
 * the bytes of all pieces together load the links on the routes:
 *     max over devices of [sum of latencies of its messages]
 *   + max over directed edges of load / (B efficiency).
 * The bytes that leave a server over one link are added up, and both directions of a link are
 * independent. Ranks on one device of the cluster use no link between each other. A link's
 * efficiency is taken at the bytes of the global value, as for collectives (collective.c).
 */
#include "cost/collective/transfer_price.h"

#include "base/extremes.h"
#include "cost/collective/edge_load.h"
#include "lowering/spmd/transfer.h"

/* All pieces on their ways. */
typedef struct TransferLoads {
    EdgeLoads loads;
    double bytes, latency; /* of all pieces; of the device whose messages take longest */
    int32_t messages;      /* of the device that has most, one way */
} TransferLoads;

static AmStatus load_edges(TransferLoads *self, Arena *arena, const Cluster *cluster,
                           const ProgramTransfer *transfer, const int32_t *device_of, AmError *error) {
    int32_t count = 0, devices = cluster->device_count;
    double width = (double)dtype_bytes(transfer->shape->type);
    TransferPair *pairs;
    *self = (TransferLoads){0};
    TRY(transfer_pairs(&pairs, &count, arena, transfer->shape, transfer->route, error));
    TRY(edge_loads_open(&self->loads, arena, cluster, error));
    double *sending = ARENA_ARRAY(arena, double, devices), *receiving = ARENA_ARRAY(arena, double, devices);
    int32_t *sent = ARENA_ARRAY(arena, int32_t, devices), *received = ARENA_ARRAY(arena, int32_t, devices);
    if (arena->failed) return am_fail_memory(error, devices);
    for (int32_t k = 0; k < count; k++) {
        int32_t from = device_of[pairs[k].sender], to = device_of[pairs[k].receiver];
        double bytes = pairs[k].elements * width, way = edge_loads_add(&self->loads, from, to, bytes);
        self->bytes += bytes;
        sending[from] += way;
        receiving[to] += way;
        self->latency = larger(self->latency, larger(sending[from], receiving[to]));
        if (from == to) continue;
        int32_t most = ++sent[from] > ++received[to] ? sent[from] : received[to];
        if (most > self->messages) self->messages = most;
    }
    for (int32_t k = 0; k < count; k++) edge_loads_follow(&self->loads);
    return arena->failed ? am_fail_memory(error, count) : AM_OK;
}

static double global_bytes(const ProgramTransfer *transfer) {
    return larger((double)ir_shape_bytes(transfer->shape), 1);
}

AmStatus transfer_price(TransferPrice *price, Arena *arena, const Cluster *cluster,
                        const ProgramTransfer *transfer, const int32_t *device_of, AmError *error) {
    ArenaMark mark = arena_mark(arena);
    TransferLoads all;
    int32_t worst;
    *price = (TransferPrice){0};
    TRY(load_edges(&all, arena, cluster, transfer, device_of, error));
    price->bytes = all.bytes;
    price->seconds = all.latency + edge_terms_seconds(all.loads.terms, all.loads.term_count, 1,
                                                      global_bytes(transfer), cluster, &worst);
    arena_release(arena, mark);
    return AM_OK;
}

AmStatus transfer_describe(Text *text, Arena *arena, const Cluster *cluster, const ProgramTransfer *transfer,
                           const int32_t *device_of, AmError *error) {
    ArenaMark mark = arena_mark(arena);
    TransferLoads all;
    TRY(load_edges(&all, arena, cluster, transfer, device_of, error));
    text_append_string(text, "  point to point");
    edge_terms_describe(text, all.loads.terms, all.loads.term_count, all.messages, all.latency, 1,
                        global_bytes(transfer), cluster);
    arena_release(arena, mark);
    return AM_OK;
}
