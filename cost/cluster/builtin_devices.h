/* The links that devices of the built-in types usually have, for clusters that other tools' files describe.
 *
 * An A100-80GB: "nvlink-a100" inside servers, or 12 NVLinks of 20 GB/s each, "pcie-4" to its host, and
 * "infiniband-200" between servers.
 */
#ifndef COST_CLUSTER_BUILTIN_DEVICES_H
#define COST_CLUSTER_BUILTIN_DEVICES_H

#include "cost/cluster/cluster.h"

/* Names of built-in links, and the NVLinks of a device. */
typedef struct ClusterDeviceLinks {
    const char *inside; /* to a switch in its server */
    const char *pcie, *between;
    double nvlink_bytes_per_second; /* of one NVLink, one way */
    int32_t nvlinks;
} ClusterDeviceLinks;

/* Returns the links of the device type of this name, no alias; NULL for an unknown one. */
const ClusterDeviceLinks *cluster_builtin_device_links(const char *name);
/* Finds the usual share of a host for a device of the type of this name or alias: the rate and latency of
 * copies one way, and its part of the host's memory (0: none, since devices have it; -1: unknown). Returns
 * false for an unknown name. */
bool cluster_builtin_device_host(const char *name, double *bytes_per_second, double *latency_seconds,
                                 int64_t *memory_bytes);
/* Returns the name of the k-th device type; NULL after the last. */
const char *cluster_builtin_device_name(int32_t k);

#endif
