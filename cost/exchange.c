/* Transfers by alpha-beta, all pieces at once: alpha seconds a message, beta a byte.
 *
 * Inside a server every device has a link of rate B of its own, both ways: the
 * device that sends or receives most decides,
 *   max over devices of  messages a + max(sent, received) / B.
 * Between servers all devices of a server share its link:
 *   max over servers of  messages a + max(sent, received) / B,
 * messages being the most that one device sends or receives. The two kinds of
 * link work side by side, so the slower one decides. Ranks that are one device
 * of the cluster exchange nothing over a link. A link's efficiency is taken at
 * the bytes of the whole value, as for collectives (collective.c).
 */
#include "cost/exchange.h"

#include "propagation/transfer.h"

/* What goes out of and into a device or a server. */
typedef struct Traffic {
    double sent, received;
    double messages_out, messages_in;
    int32_t link;
} Traffic;

static double larger(double a, double b) {
    return a > b ? a : b;
}

static void count_piece(Traffic *from, Traffic *to, double bytes) {
    from->sent += bytes;
    from->messages_out++;
    to->received += bytes;
    to->messages_in++;
}

static double link_seconds(const Cluster *cluster, int32_t link, double messages, double bytes,
                           double whole) {
    const ClusterLink *self = &cluster->links[link];
    return messages * self->latency_seconds +
           bytes / (self->bytes_per_second * cluster_efficiency(&self->efficiency, whole));
}

static double messages_of(const Traffic *traffic) {
    return larger(traffic->messages_out, traffic->messages_in);
}

/* Adds all pairs: `inside` and `outside` are the traffic of each device on the two kinds of link. */
static void add_pairs(ExchangePrice *price, const Cluster *cluster, const TransferPair *pairs, int32_t count,
                      double width, const int32_t *device_of, Traffic *inside, Traffic *outside) {
    for (int32_t k = 0; k < count; k++) {
        int32_t from = device_of[pairs[k].giver], to = device_of[pairs[k].taker];
        int32_t link = cluster_link_between(cluster, from, to);
        double bytes = pairs[k].elements * width;
        price->bytes += bytes;
        if (link < 0) continue;
        bool is_inside = cluster->server_of[from] == cluster->server_of[to];
        Traffic *traffic = is_inside ? inside : outside;
        traffic[from].link = traffic[to].link = link;
        count_piece(&traffic[from], &traffic[to], bytes);
    }
}

AmStatus exchange_price(ExchangePrice *price, Arena *arena, const Cluster *cluster,
                        const ProgramTransfer *transfer, const int32_t *device_of, AmError *error) {
    ArenaMark mark = arena_mark(arena);
    int32_t devices = cluster->device_count, count = 0;
    double whole = larger((double)ir_shape_bytes(transfer->shape), 1);
    *price = (ExchangePrice){0};
    TransferPair *pairs;
    TRY(transfer_pairs(&pairs, &count, arena, transfer->shape, transfer->route, error));
    Traffic *inside = ARENA_ARRAY(arena, Traffic, devices), *outside = ARENA_ARRAY(arena, Traffic, devices);
    Traffic *servers = ARENA_ARRAY(arena, Traffic, cluster->server_count);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof(Traffic) * devices);
    add_pairs(price, cluster, pairs, count, (double)dtype_bytes(transfer->shape->type), device_of, inside,
              outside);
    for (int32_t d = 0; d < devices; d++) {
        Traffic *server = &servers[cluster->server_of[d]];
        if (messages_of(&inside[d]) > 0)
            price->seconds =
                larger(price->seconds, link_seconds(cluster, inside[d].link, messages_of(&inside[d]),
                                                    larger(inside[d].sent, inside[d].received), whole));
        server->sent += outside[d].sent;
        server->received += outside[d].received;
        server->messages_out = larger(server->messages_out, messages_of(&outside[d]));
    }
    for (int32_t s = 0; s < cluster->server_count; s++)
        if (servers[s].messages_out > 0)
            price->seconds = larger(price->seconds,
                                    link_seconds(cluster, cluster->between_servers, servers[s].messages_out,
                                                 larger(servers[s].sent, servers[s].received), whole));
    arena_release(arena, mark);
    return AM_OK;
}
