/* Clusters of equal servers of a built-in device type, for machines that have no name of their own. */
#ifndef COST_CLUSTER_CLUSTER_SERVERS_H
#define COST_CLUSTER_CLUSTER_SERVERS_H

#include "cost/cluster/cluster.h"

typedef struct ClusterServers {
    const char *device_type; /* "A100-80GB" */
    int32_t devices, per_server;
    double gbit_per_device;     /* of the network between servers, per device; NAN: one server */
    bool waits_for_collectives; /* nothing is computed while a collective is under way */
} ClusterServers;

/* Describes the cluster, with the link inside a server that the built-in clusters have for the type, and one
 * card of that rate for each device, on rails. V100 in servers of at most eight have the NVLinks of a DGX-1.
 * A card reaches 0.96 of its rate, as the built-in ones. The reference is the caller's. AM_ERROR_INPUT: an
 * unknown type, over 16,384 devices, unfilled servers, or several servers without a network. */
AmStatus cluster_of_servers(json_t **description, const ClusterServers *servers, AmError *error);

#endif
