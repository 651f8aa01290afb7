/* Collective costs by the alpha-beta model: alpha seconds per message, beta seconds per byte.
 *
 * Algorithms send along the links of the cluster's graph (collective_pattern.h), all groups of a
 * partition at once, and the fastest one is taken (collective_algorithms.h). If servers are trees of
 * equal links of rate B, the graph gives, with n devices, S bytes of global tensor, m servers of g:
 *   all_reduce      2(n-1) a + 2(n-1)/n S/B       ring
 *                   2 log2(n) a + 2(n-1)/n S/B    halving and doubling
 *                   2(g-1)/g S/B_in + 2(m-1)/m S/B_out,  2(g-1) a_in + 2(m-1) a_out
 *                                                 hierarchical: a server sends g x (m-1)/m S/g
 *                   2((g-1) a_in + log2(m) a_out) + 2 S/B    tree
 *   reduce_scatter,
 *   all_gather      half of the first three
 *   all_to_all      (g-1)/n^2 S/B_in + g(n-g)/n^2 S/B_out, (g-1) a_in + (n-g) a_out
 *   halo_exchange   min(n-1, 2) a + S/B
 * In halo_exchange, S is the most that a device receives from others; it sends about as much.
 * Ranges reach slightly beyond the own shard, so that a device has two neighbours. n times a
 * bandwidth term times B is the total number of bytes that resharding moves (OneFlow, table 2):
 * 2(n-1)S, (n-1)S, (n-1)/n S.
 *
 * A link's efficiency is taken at S.
 */
#include "cost/collective/collective.h"

#include <math.h>

#include "cost/cluster/operator_curves.h"
#include "cost/collective/collective_algorithms.h"
#include "cost/collective/collective_cache.h"
#include "cost/collective/nccl_model.h"
#include "cost/operator/measured_events.h"

double collective_sent_bytes(ProgramCollectiveKind kind, double bytes, int32_t devices) {
    double n = devices;
    switch (kind) {
    case PROGRAM_ALL_REDUCE: return 2 * (n - 1) / n * bytes;
    case PROGRAM_ALL_GATHER:
    case PROGRAM_REDUCE_SCATTER: return (n - 1) / n * bytes;
    case PROGRAM_ALL_TO_ALL: return (n - 1) / (n * n) * bytes;
    case PROGRAM_HALO_EXCHANGE: return bytes;
    default: return 0; /* a host copy sends nothing to other devices */
    }
}

double host_copy_seconds(double bytes, const Cluster *cluster, const int32_t *devices, int32_t count) {
    double slowest = 0;
    for (int32_t k = 0; k < count; k++)
        slowest = fmax(slowest, cluster_host_copy_seconds(cluster, devices[k], bytes));
    return slowest;
}

static const OperatorClass curve_classes[PROGRAM_DEVICE_COLLECTIVES] = {
    [PROGRAM_ALL_REDUCE] = OPERATOR_CLASS_ALL_REDUCE,
    [PROGRAM_ALL_GATHER] = OPERATOR_CLASS_ALL_GATHER,
    [PROGRAM_REDUCE_SCATTER] = OPERATOR_CLASS_REDUCE_SCATTER,
    [PROGRAM_ALL_TO_ALL] = OPERATOR_CLASS_ALL_TO_ALL,
    [PROGRAM_HALO_EXCHANGE] = OPERATOR_CLASS_ALL_GATHER,
};

/* Looks up the curves of a probe, for a group on one server; false if the cluster has no curves. */
static bool find_measured(double *seconds, ProgramCollectiveKind kind, double bytes,
                          const CollectiveTopology *topology, const Cluster *cluster) {
    int32_t link = cluster->only_link;
    if (link < 0 || !cluster->links[link].collectives || topology->devices < 2) return false;
    const double sizes[] = {topology->devices, bytes, 0, 0};
    *seconds = operator_curve_seconds(cluster->links[link].collectives, curve_classes[kind], sizes);
    return *seconds > 0;
}

/* A collective without its bytes. */
typedef struct Sized {
    ProgramCollectiveKind kind;
    const CollectiveTopology *topology;
    const Cluster *cluster;
} Sized;

static double modelled_seconds(const void *user, const double *bytes) {
    const Sized *of = user;
    double seconds;
    const LinkLoads *islands;
    if (of->cluster->nccl && nccl_model_has(of->kind) && of->topology->devices > 1)
        return nccl_model_choose(of->kind, *bytes < 1 ? 1 : *bytes, of->topology, of->cluster).seconds;
    collective_choose(&seconds, &islands, of->kind, *bytes, of->topology, of->cluster);
    return seconds;
}

static double unprofiled_seconds(const void *user, const double *bytes) {
    const Sized *of = user;
    double seconds;
    if (find_measured(&seconds, of->kind, *bytes, of->topology, of->cluster)) return seconds;
    return modelled_seconds(of, bytes);
}

/* Finds the event of a collective in a profile, with or without the group's link. Returns false if the group
 * has no link of its own. */
static bool event_of(StepEvent *event, const Sized *of, double bytes, bool with_link) {
    const Cluster *cluster = of->cluster;
    int32_t link = with_link ? cluster_group_link(cluster, of->topology->servers) : cluster->only_link;
    const MeasuredCollective measured = {.kind = of->kind,
                                         .devices = of->topology->devices,
                                         .bytes = bytes,
                                         .link = with_link && link >= 0 ? cluster->links[link].name : NULL,
                                         .servers = of->topology->servers};
    return link >= 0 && measured_collective(event, &measured);
}

/* Finds the time that a profile has for that link, or for no link where all devices are in one server.
 * Other sizes are scaled by the price without the profile. Runs had a processor for each rank. */
static bool find_profiled(double *seconds, CollectiveEvidence *evidence, ProfileSource source,
                          const Sized *of, double bytes) {
    const ClusterDeviceType *type = &of->cluster->types[of->cluster->servers[0].type];
    bool shares = type->processors > 0 && type->processors < 1, is_known = false;
    StepEvent event = {0};
    if (!type->profile || of->topology->devices < 2) return false;
    if (source == PROFILE_RUN && shares) return false;
    for (int32_t pass = 0; pass < 2 && !is_known; pass++)
        is_known = event_of(&event, of, bytes, pass == 0) &&
                   profile_seconds_by(type->profile, source, &event, unprofiled_seconds, of, seconds);
    if (is_known && evidence) {
        evidence->devices[0] = evidence->devices[1] = of->topology->devices;
        profile_around(type->profile, source, &event, &evidence->bytes[0], &evidence->bytes[1]);
    }
    text_free(&event.key);
    return is_known;
}

CollectiveBasis collective_measured(double *seconds, CollectiveEvidence *evidence, ProgramCollectiveKind kind,
                                    double bytes, const CollectiveTopology *topology,
                                    const Cluster *cluster) {
    const Sized of = {kind, topology, cluster};
    if (find_profiled(seconds, evidence, PROFILE_RUN, &of, bytes)) return COLLECTIVE_BY_RUN;
    if (find_measured(seconds, kind, bytes, topology, cluster)) {
        if (evidence) {
            const OperatorCurves *curves = cluster->links[cluster->only_link].collectives;
            operator_curve_around(curves, curve_classes[kind], 0, topology->devices, &evidence->devices[0],
                                  &evidence->devices[1]);
            operator_curve_around(curves, curve_classes[kind], 1, bytes, &evidence->bytes[0],
                                  &evidence->bytes[1]);
        }
        return COLLECTIVE_BY_CLUSTER;
    }
    if (find_profiled(seconds, evidence, PROFILE_PROBE, &of, bytes)) return COLLECTIVE_BY_PROBE;
    return COLLECTIVE_BY_MODEL;
}

double collective_seconds(ProgramCollectiveKind kind, double bytes, const CollectiveTopology *topology,
                          const Cluster *cluster) {
    double seconds;
    if (collective_measured(&seconds, NULL, kind, bytes, topology, cluster) != COLLECTIVE_BY_MODEL)
        return seconds;
    return modelled_seconds(&(const Sized){kind, topology, cluster}, &bytes);
}

/* Returns the most elements along the dimension that a member receives from others. */
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

/* Returns whether a member receives from others than its neighbours in the group. */
static bool is_far(const ProgramMovement *movement, int32_t count) {
    int64_t before = 0, start = 0, end = 0; /* of the part before k, and of part k */
    for (int32_t k = 0; k < count; k++) {
        end = start + movement->parts[k];
        int64_t from = movement->range_start[k], to = from + movement->range_extent[k];
        int64_t next = k + 1 < count ? end + movement->parts[k + 1] : end;
        if (to > from && (from < before || to > next)) return true;
        before = start;
        start = end;
    }
    return false;
}

ProgramCollectiveKind collective_priced_kind(const ProgramInstruction *instruction) {
    const ProgramCollective *collective = instruction->collective;
    if (collective->kind != PROGRAM_HALO_EXCHANGE) return collective->kind;
    for (int32_t k = 0; k < instruction->operand_count; k++)
        if (is_far(&collective->movements[k], collective->group_count)) return PROGRAM_ALL_TO_ALL;
    return PROGRAM_HALO_EXCHANGE;
}

double collective_tensor_bytes(const Program *program, const ProgramInstruction *instruction) {
    const ProgramCollective *collective = instruction->collective;
    double total = 0;
    int32_t count = instruction->operand_count;
    if (collective->kind == PROGRAM_HOST_STORE) count /= 2; /* the others are the places in the host */
    for (int32_t k = 0; k < count; k++) {
        const IrShape *operand = &program->values[instruction->operands[k]].shape;
        if (collective->kind == PROGRAM_ALL_REDUCE || program_is_host_copy(collective)) {
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
    bool is_scattered = collective->kind == PROGRAM_HALO_EXCHANGE &&
                        collective_priced_kind(instruction) == PROGRAM_ALL_TO_ALL;
    if (!is_scattered) return total;
    int32_t devices = collective->group_count; /* each of which receives `total` */
    return devices > 1 ? total * devices * devices / (devices - 1) : 0;
}

AmStatus collective_partition(CollectivePartition *partition, Arena *arena, const Cluster *cluster,
                              const Mesh *mesh, const int32_t *devices, uint32_t axes, AmError *error) {
    int32_t size = 1, total = mesh->device_count;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (axes >> axis & 1) size *= mesh->axes[axis].size;
    int32_t *members = ARENA_ARRAY(arena, int32_t, total);
    int32_t *on_cluster = ARENA_ARRAY(arena, int32_t, total);
    bool *taken = ARENA_ARRAY(arena, bool, total);
    if (arena->failed) return am_fail_memory(error, total);
    *partition = (CollectivePartition){.group_count = total / size, .group_size = size, .members = members};
    for (int32_t device = 0, made = 0; device < total; device++) {
        if (taken[device]) continue;
        int32_t *group = &members[made++ * size];
        mesh_group(mesh, device, axes, group);
        for (int32_t k = 0; k < size; k++) taken[group[k]] = true;
    }
    for (int32_t k = 0; k < total; k++) on_cluster[k] = devices[members[k]];
    return collective_cache_find(partition, arena, cluster, on_cluster, error);
}
