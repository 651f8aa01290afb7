/* Collectives by alpha-beta: alpha seconds per message, beta per byte.
 *
 * One server, n devices in a ring, S bytes of whole tensor, link of rate B:
 *   all_reduce      2(n-1) a + 2(n-1)/n S/B   (a reduce_scatter, then an all_gather)
 *   reduce_scatter,
 *   all_gather       (n-1) a +  (n-1)/n S/B   (n-1 messages of S/n each)
 *   all_to_all       (n-1) a + (n-1)/n^2 S/B  (each sends S/n^2 to each other)
 *   halo_exchange   min(n-1, 2) a + S/B
 * where S is the most that one of them receives from others (and it sends about
 * as much): ranges reach a little beyond the own part, so there are two neighbours.
 * n times a bandwidth term times B is what boxing moves in total (OneFlow,
 * table 2): 2(n-1)S, (n-1)S, (n-1)/n S.
 *
 * Several servers, g devices of the group on each of m: first inside, then
 * between equal ranks of the servers, each on its 1/g of the tensor. The g
 * rings of the second part share their server's link, so a server sends
 * g x (m-1)/m S/g = (m-1)/m S:
 *   all_reduce      2(g-1)/g S/B_in + 2(m-1)/m S/B_out,  2(g-1) a_in + 2(m-1) a_out
 *   reduce_scatter,
 *   all_gather      half of that
 *   all_to_all      (g-1)/n^2 S/B_in + g(n-g)/n^2 S/B_out, (g-1) a_in + (n-g) a_out
 *   halo_exchange   S/B_in + S/B_out, as many messages each: one member of a
 *                   server is at its edge
 * Contention: the groups of one partition of the mesh run the collective
 * together. Where c of them cross one server's link, each gets B_out / c. Links
 * inside a server belong to one device each and are not shared.
 *
 * A link's efficiency is taken at S.
 */
#include "cost/collective.h"

#include <string.h>

enum { LEAST_BYTES = 1 };

double collective_sent_bytes(ProgramCollectiveKind kind, double bytes, int32_t devices) {
    double n = devices;
    switch (kind) {
    case PROGRAM_ALL_REDUCE: return 2 * (n - 1) / n * bytes;
    case PROGRAM_ALL_GATHER:
    case PROGRAM_REDUCE_SCATTER: return (n - 1) / n * bytes;
    case PROGRAM_ALL_TO_ALL: return (n - 1) / (n * n) * bytes;
    case PROGRAM_HALO_EXCHANGE: return bytes;
    default: return 0;
    }
}

static double link_seconds(const Cluster *cluster, int32_t link, double messages, double sent, double bytes) {
    const ClusterLink *self = &cluster->links[link];
    return messages * self->latency_seconds +
           sent / (self->bytes_per_second * cluster_efficiency(&self->efficiency, bytes));
}

double collective_seconds(ProgramCollectiveKind kind, double bytes, const CollectiveTopology *topology,
                          const Cluster *cluster) {
    double n = topology->devices, m = topology->servers, g = topology->per_server;
    if (topology->devices < 2) return 0;
    if (bytes < LEAST_BYTES) bytes = LEAST_BYTES;
    double inside, outside, inside_messages, outside_messages;
    if (kind == PROGRAM_HALO_EXCHANGE) {
        inside = g > 1 ? bytes : 0;
        outside = m > 1 ? bytes : 0;
        inside_messages = g < 3 ? g - 1 : 2;
        outside_messages = m < 3 ? m - 1 : 2;
    } else if (kind == PROGRAM_ALL_TO_ALL) {
        inside = (g - 1) / (n * n) * bytes;
        outside = g * (n - g) / (n * n) * bytes;
        inside_messages = g - 1;
        outside_messages = n - g;
    } else {
        double rounds = kind == PROGRAM_ALL_REDUCE ? 2 : 1;
        inside = rounds * (g - 1) / g * bytes;
        outside = rounds * (m - 1) / m * bytes;
        inside_messages = rounds * (g - 1);
        outside_messages = rounds * (m - 1);
    }
    double seconds = 0;
    if (topology->local >= 0)
        seconds += link_seconds(cluster, topology->local, inside_messages, inside, bytes);
    if (topology->between >= 0)
        seconds +=
            link_seconds(cluster, topology->between, outside_messages, outside * topology->sharing, bytes);
    return seconds;
}

/* The most elements along the dimension that a member receives from others. */
static int64_t most_received(const ProgramMovement *movement, int32_t count) {
    int64_t most = 0, part = 0;
    for (int32_t k = 0; k < count; part += movement->parts[k++]) {
        int64_t start = movement->range_start[k], end = start + movement->range_extent[k];
        int64_t own_start = start > part ? start : part;
        int64_t own_end = end < part + movement->parts[k] ? end : part + movement->parts[k];
        int64_t received = end - start - (own_end > own_start ? own_end - own_start : 0);
        if (received > most) most = received;
    }
    return most;
}

double collective_tensor_bytes(const Program *program, const ProgramInstruction *instruction) {
    const ProgramCollective *collective = instruction->collective;
    double total = 0;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        const IrShape *operand = &program->values[instruction->operands[k]].shape;
        if (collective->kind == PROGRAM_ALL_REDUCE) {
            total += (double)ir_shape_bytes(operand);
            continue;
        }
        const ProgramMovement *movement = &collective->movements[k];
        bool is_halo = collective->kind == PROGRAM_HALO_EXCHANGE;
        int64_t largest = is_halo ? most_received(movement, collective->group_count) : 0;
        for (int32_t p = 0; !is_halo && p < collective->group_count; p++)
            if (movement->parts[p] > largest) largest = movement->parts[p];
        /* The largest part times n: the ring waits for it in every round. */
        double bytes =
            (double)(largest * dtype_bytes(operand->type)) * (is_halo ? 1 : collective->group_count);
        for (int32_t d = 0; d < operand->rank; d++)
            if (d != movement->dimension) bytes *= (double)operand->dimensions[d];
        total += bytes;
    }
    return total;
}

typedef struct ServerCount {
    int32_t members;  /* of the group that is being looked at */
    int32_t crossing; /* groups that have members here and elsewhere */
} ServerCount;

/* Devices of one group per server; returns the number of servers. */
static int32_t count_servers(ServerCount *counts, const Cluster *cluster, const int32_t *devices,
                             const int32_t *group, int32_t size) {
    int32_t servers = 0;
    for (int32_t k = 0; k < size; k++) counts[cluster->server_of[devices[group[k]]]].members = 0;
    for (int32_t k = 0; k < size; k++)
        if (counts[cluster->server_of[devices[group[k]]]].members++ == 0) servers++;
    return servers;
}

static CollectiveTopology group_topology(ServerCount *counts, const Cluster *cluster, const int32_t *devices,
                                         const int32_t *group, int32_t size) {
    CollectiveTopology topology = {.devices = size, .local = -1, .between = -1, .sharing = 1};
    topology.servers = count_servers(counts, cluster, devices, group, size);
    if (topology.servers > 1) topology.between = cluster->between_servers;
    for (int32_t k = 0; k < size; k++) {
        int32_t s = cluster->server_of[devices[group[k]]], link = cluster->servers[s].link;
        int32_t here = counts[s].members;
        if (here > topology.per_server) topology.per_server = here;
        if (topology.servers > 1 && counts[s].crossing > topology.sharing)
            topology.sharing = counts[s].crossing;
        if (here < 2) continue;
        if (topology.local < 0 ||
            cluster->links[link].bytes_per_second < cluster->links[topology.local].bytes_per_second)
            topology.local = link;
    }
    return topology;
}

static bool is_among(const CollectiveTopology *list, int32_t count, const CollectiveTopology *topology) {
    for (int32_t k = 0; k < count; k++)
        if (memcmp(&list[k], topology, sizeof *topology) == 0) return true;
    return false;
}

AmStatus collective_partition(CollectivePartition *partition, Arena *arena, const Cluster *cluster,
                              const Mesh *mesh, const int32_t *devices, uint32_t axes, AmError *error) {
    int32_t size = 1, total = mesh->device_count;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (axes >> axis & 1) size *= mesh->axes[axis].size;
    int32_t groups = total / size;
    int32_t *members = ARENA_ARRAY(arena, int32_t, total);
    bool *taken = ARENA_ARRAY(arena, bool, total);
    CollectiveTopology *topologies = ARENA_ARRAY(arena, CollectiveTopology, groups);
    CollectiveTopology *distinct = ARENA_ARRAY(arena, CollectiveTopology, groups);
    ServerCount *counts = ARENA_ARRAY(arena, ServerCount, cluster->server_count);
    if (arena->failed) return am_fail_memory(error, total);
    *partition = (CollectivePartition){.group_count = groups,
                                       .group_size = size,
                                       .members = members,
                                       .topologies = topologies,
                                       .distinct = distinct};
    for (int32_t device = 0, made = 0; device < total; device++) {
        if (taken[device]) continue;
        int32_t *group = &members[made++ * size];
        mesh_group(mesh, device, axes, group);
        bool crosses = count_servers(counts, cluster, devices, group, size) > 1;
        for (int32_t k = 0; k < size; k++) {
            ServerCount *count = &counts[cluster->server_of[devices[group[k]]]];
            taken[group[k]] = true;
            if (crosses && count->members > 0) count->crossing++;
            count->members = 0;
        }
    }
    for (int32_t k = 0; k < groups; k++) {
        topologies[k] = group_topology(counts, cluster, devices, &members[k * size], size);
        if (!is_among(distinct, partition->distinct_count, &topologies[k]))
            distinct[partition->distinct_count++] = topologies[k];
    }
    return AM_OK;
}
