/* Seconds of a collective among the devices of a group, on the graph of the cluster.
 *
 * A mesh falls into groups along the axes of a collective; collective_partition() finds them and their loads
 * on links. collective_seconds() then gives the seconds for a kind and a size: measured (profile or cluster
 * file) where possible, else the fastest algorithm by latency and load of links (collective_algorithms.h),
 * or NCCL's own model (nccl_model.h).
 */
#ifndef COST_COLLECTIVE_COLLECTIVE_H
#define COST_COLLECTIVE_COLLECTIVE_H

#include "cost/cluster/cluster.h"
#include "lowering/program/program.h"

/* The position of a process group in the cluster. */
typedef struct CollectiveTopology {
    int32_t devices;    /* n */
    int32_t servers;    /* m: servers that it has devices on */
    int32_t per_server; /* g: its devices on the server that has most of them */
    /* Costs of its collectives when all groups of the partition run them (collective_algorithms.h). */
    const struct LinkLoads *loads;
} CollectiveTopology;

/* All groups that a mesh falls into along some of its axes: they run the same
 * collective at the same time. */
typedef struct CollectivePartition {
    int32_t group_count, group_size;
    const int32_t *members;               /* [group_count * group_size] mesh devices, group by group */
    const CollectiveTopology *topologies; /* [group_count] */
    int32_t distinct_count;
    const CollectiveTopology *distinct; /* the different ones among them */
} CollectivePartition;

/* Partitions the devices of groups. `devices`: mesh device -> cluster device, [mesh->device_count]. Arrays
 * live in the arena, topologies with the cluster. AM_ERROR_INTERNAL: no memory. */
AmStatus collective_partition(CollectivePartition *partition, Arena *arena, const Cluster *cluster,
                              const Mesh *mesh, const int32_t *devices, uint32_t axes, AmError *error);

/* The source of a collective's price. */
typedef enum CollectiveBasis {
    COLLECTIVE_BY_MODEL,   /* none was measured */
    COLLECTIVE_BY_RUN,     /* a profile's, of a run */
    COLLECTIVE_BY_CLUSTER, /* the curves of the cluster's link */
    COLLECTIVE_BY_PROBE    /* a profile's, of a probe */
} CollectiveBasis;

/* The measured numbers of devices and bytes that a price comes from: the nearest ones below and above, one
 * twice where it is that or beyond all. */
typedef struct CollectiveEvidence {
    double devices[2], bytes[2];
} CollectiveEvidence;

/* Finds the measured time of a collective among the devices of a topology. COLLECTIVE_BY_MODEL: it was not
 * measured, and `*seconds` is not set. `evidence`: NULL, or set where it was measured. */
CollectiveBasis collective_measured(double *seconds, CollectiveEvidence *evidence, ProgramCollectiveKind kind,
                                    double bytes, const CollectiveTopology *topology, const Cluster *cluster);
/* Returns the seconds of a collective: the measured time, else that of the fastest algorithm, or NCCL's model
 * if the cluster selects it (nccl_model.h). `bytes`: S of the formulas, from collective_tensor_bytes(). */
double collective_seconds(ProgramCollectiveKind kind, double bytes, const CollectiveTopology *topology,
                          const Cluster *cluster);
/* Adds lines on the choice and how it comes about: algorithm, messages, the busiest link of each step with
 * its load, rate and efficiency, seconds, and the other algorithms'. */
void collective_describe(Text *text, ProgramCollectiveKind kind, double bytes,
                         const CollectiveTopology *topology, const Cluster *cluster);
/* Returns the bytes that each of n devices sends (and receives) in a ring. */
double collective_sent_bytes(ProgramCollectiveKind kind, double bytes, int32_t devices);
/* Returns the seconds of a host copy (program_is_host_copy) on the slowest of the listed devices, which all
 * copy at once. */
double host_copy_seconds(double bytes, const Cluster *cluster, const int32_t *devices, int32_t count);
/* Returns the kind by which a collective instruction is priced. A halo_exchange in which a member receives
 * from others than its neighbours is priced as an all_to_all in which every device receives as much as the
 * largest receiver. */
ProgramCollectiveKind collective_priced_kind(const ProgramInstruction *instruction);
/* Returns S of a collective instruction: summed over its operands, each as large as if all shards had the
 * size of the largest. For a halo_exchange: the most that a member receives from others; if it is priced as
 * an all_to_all, the S of that. */
double collective_tensor_bytes(const Program *program, const ProgramInstruction *instruction);

#endif
