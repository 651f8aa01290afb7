/* Cluster: servers of devices, the links inside and between them, and their speeds for work of a
 * given size.
 *
 * A cluster is a JSON object ("automap-cluster-1"; key names contain the units) or the name of a
 * built-in cluster. Devices are numbered server by server. A link has a rate per direction: bytes
 * per second of each device inside a server, of the whole server between servers. Other networks
 * are described as a graph under the key `topology` (cost/cluster/topology.h). Efficiency curves give the
 * fraction of a peak that is reached at a size (bytes, FLOPs).
 */
#ifndef COST_CLUSTER_CLUSTER_H
#define COST_CLUSTER_CLUSTER_H

#include <jansson.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/suggest.h"
#include "base/text.h"

#define CLUSTER_DEFAULT_MEMORY_FRACTION 0.9

/* [size, fraction] points, interpolated in log size, clamped outside. No
 * points: the peak is reached at every size. */
typedef struct ClusterCurve {
    int32_t count;
    double least, most;      /* the first and the last size */
    const double *log_sizes; /* [count] log2 of the sizes, ascending */
    const double *fractions; /* [count] in (0, 1] */
} ClusterCurve;

typedef struct ClusterDeviceType {
    const char *name;
    int64_t memory_bytes;
    double memory_bytes_per_second;
    double flops_per_second[DTYPE_COUNT]; /* of every type, after fall-back */
    bool named[DTYPE_COUNT];              /* the types that the description names */
    double kernel_launch_seconds;
    double host_kernel_seconds;  /* of the host, to enqueue a kernel; 0: not counted */
    bool overlaps_communication; /* it computes while collectives are under way */
    ClusterCurve dot[DTYPE_COUNT], convolution[DTYPE_COUNT]; /* over FLOPs; of every type, after fall-back */
    ClusterCurve memory;                                     /* over bytes */
    const struct ProfileType *profile;                       /* measured events (profile.h); or NULL */
    const struct OperatorCurves *operators; /* measured classes (operator_curves.h); or NULL */
    const struct MeasuredDevice *measured;  /* products of 16-bit types (measured_device.h); or NULL */
    double measured_rate;         /* of this type over the measured one, at equal shares of the peak */
    double price_per_hour;        /* of a device, in any currency; NAN: unknown */
    double processors;            /* of the host, that a device has; 1, or less where ranks share them */
    double host_bytes_per_second; /* between the host's memory and one device, one way; 0: unknown */
    double host_latency_seconds;  /* of such a copy */
} ClusterDeviceType;

typedef struct ClusterLink {
    const char *name;
    double bytes_per_second, latency_seconds;
    ClusterCurve efficiency;                  /* over bytes of the global tensor that is moved */
    const struct OperatorCurves *collectives; /* measured ones among the devices of a server; or NULL */
} ClusterLink;

typedef struct ClusterServer {
    int32_t type, first_device, device_count;
    int32_t link; /* between its devices (the slowest, where `topology` says them); -1 where there is one
                     device */
    double width; /* parallel links that a device has by `topology`; else 1 */
    int64_t host_memory_bytes;    /* of the host, for the optimizer state of all its devices */
    double host_bytes_per_second; /* of one device while all copy; 0: unknown */
} ClusterServer;

typedef struct Cluster {
    const char *name;
    char sha256[65];     /* of the description in canonical form */
    json_t *description; /* the cluster's own reference */
    ClusterDeviceType *types;
    ClusterLink *links;
    ClusterServer *servers;
    int32_t type_count, link_count, server_count, device_count;
    int32_t between_servers;  /* link; -1 where there is one server */
    int32_t only_link;        /* between the devices where all is one server with nothing else; else -1 */
    int32_t inside_link;      /* of every server of several devices, where no `topology` says more; else -1 */
    const int32_t *server_of; /* [device_count] */
    /* Of a part (cluster_part()): the described cluster, and the numbers [device_count] of the devices
     * there. */
    const struct Cluster *parent; /* of which this is a part; NULL: this is no part */
    const int32_t *numbers;
    struct Topology *topology; /* the links as a graph, cost/cluster/topology.h */
    struct NcclModel *nccl;    /* "collective_model": "nccl", cost/cluster/nccl_options.h; NULL: alpha-beta */
    struct CollectiveCache
        *collectives; /* what groups of its devices cost, cost/collective/collective_cache.h */
} Cluster;

/* Returns the cache of its process groups (collective_cache.h). NULL without memory. */
struct CollectiveCache *collective_cache_create(void);
void collective_cache_free(struct CollectiveCache *cache); /* NULL is allowed */

/* Reads a built-in cluster ("C", "host:4") or a file ("-": stdin). A built-in
 * name wins over a file of that name. Arrays live in the arena; cluster_free()
 * releases the description. AM_ERROR_INPUT names the file and the JSON path;
 * AM_ERROR_USAGE is a name that is neither (a missing path is AM_ERROR_INPUT). */
AmStatus cluster_read(Cluster **cluster, Arena *arena, const char *name_or_path, AmError *error);
/* Reads a cluster from an object, which the cluster shares ("cluster.description" of a plan). `source`
 * names it in messages. */
AmStatus cluster_from_json(Cluster **cluster, Arena *arena, json_t *description, const char *source,
                           AmError *error);
void cluster_free(Cluster *cluster);
/* Makes a cluster of some devices of a cluster, in an order: device k is devices[k] of `of`, whose types,
 * links and description it shares. The devices of a server follow one another. Messages take the routes of
 * `of`, also through devices that are left out. Arrays live in the arena; `of` must outlive the part.
 * cluster_free() releases it. */
AmStatus cluster_part(Cluster **part, Arena *arena, const Cluster *of, const int32_t *devices, int32_t count,
                      AmError *error);
/* Returns the seconds of a copy of `bytes` between a device and its host, while all devices of the server
 * copy. INFINITY: the cluster has no rate for it. */
double cluster_host_copy_seconds(const Cluster *cluster, int32_t device, double bytes);
/* Returns the number of a device in the cluster's description. */
static inline int32_t cluster_number(const Cluster *cluster, int32_t device) {
    return cluster->numbers ? cluster->numbers[device] : device;
}
/* Returns the description; the caller's reference. */
json_t *cluster_to_json(const Cluster *cluster);

/* Returns the fraction of the peak at a size > 0. */
double cluster_efficiency(const ClusterCurve *curve, double size);
const ClusterDeviceType *cluster_device_type(const Cluster *cluster, int32_t device);
/* Returns whether there are devices of several types; a part may list types without a device. */
bool cluster_is_mixed(const Cluster *cluster);
/* Returns the link that joins the devices of a group on `servers` servers. -1: not one link, because the
 * links of servers differ or the cluster file has a topology. */
int32_t cluster_group_link(const Cluster *cluster, int32_t servers);
/* Returns the link that joins two devices; -1 for a device and itself. */
int32_t cluster_link_between(const Cluster *cluster, int32_t a, int32_t b);
/* Returns the type with this name, in upper or lower case, or with this short name ("h100"); -1: there is
 * none. */
int32_t cluster_type_named(const Cluster *cluster, const char *name);
/* Returns "server1/V100-3" by the numbers of the description, in the arena. */
const char *cluster_device_name(const Cluster *cluster, Arena *arena, int32_t device);
/* Sets only_link and inside_link by the servers and the topology. */
void cluster_find_sole_links(Cluster *cluster);
/* Returns the memory of the smallest of the listed devices; of all devices where NULL. */
int64_t cluster_least_memory(const Cluster *cluster, const int32_t *devices, int32_t count);
/* Appends devices, memory, peaks and links as a table. */
void cluster_print(Text *text, const Cluster *cluster);

typedef struct ClusterBuiltin {
    const char *name, *summary;
} ClusterBuiltin;
/* Returns the built-in clusters in the order in which they are listed. */
const ClusterBuiltin *cluster_builtins(int32_t *count);
/* Finds the description of a built-in cluster (the caller's reference); NULL for an unknown name. The family
 * of FAMILY:N is recognised in upper and lower case. AM_ERROR_USAGE: FAMILY:N with an N that the family does
 * not have; the text states the range. */
AmStatus cluster_builtin(json_t **description, const char *name, AmError *error);

/* Returns the description of a device type ("A100-80GB") or link ("nvlink-a100") of the built-in clusters,
 * the caller's reference; NULL for an unknown name. */
json_t *cluster_builtin_device_type(const char *name);
json_t *cluster_builtin_link(const char *name);
/* Returns the name of the device type with this name or alias, in upper or lower case ("h100": "H100-80GB");
 * NULL for an unknown one. */
const char *cluster_builtin_device_named(const char *name);
/* Writes "; did you mean NAME?" for the device type nearest to a name, or "" (suggest.h). Returns `hint`. */
const char *cluster_builtin_device_hint(char hint[SUGGEST_HINT_BYTES], const char *name);
/* Returns the name of the link that usually joins devices of this type to a switch in their server; NULL for
 * an unknown one. */
const char *cluster_builtin_device_link(const char *name);
/* Adds to the edges of a topology a card for each device, on the rail of its number in its server, and as
 * many links from a rail to the spine. The link enters `link_list` by its name, with half its latency; its
 * reference is taken. */
void cluster_add_rails(json_t *edges, json_t *link_list, const char *name, json_t *link, int servers,
                       int devices);
/* Returns the name of the k-th link; NULL after the last. */
const char *cluster_builtin_link_name(int32_t k);

#endif
