/* Clusters of equal servers of a built-in device type, for machines that have no name of their own.
 *
 * cluster_of_servers() writes the description as JSON, like a cluster file. Servers of V100 have the hybrid
 * cube of a DGX-1 inside, others the links of the type. Devices have the time of a host that starts kernels
 * one by one.
 */
#include "cost/cluster/cluster_servers.h"

#include <string.h>

#define CARD_SHARE   0.96 /* of a card's rate that messages reach, as in "infiniband-200" */
#define BITS_OF_BYTE 8
#define MOST_DEVICES 16384

/* Time of a host that runs a framework operator by operator. The operators of a GPT layer on a V100 take at
 * least 0.93 ms forward and 1.43 ms backward, however small they are. Forward pass, recomputation and
 * backward pass are 58 kernels of models/transformer.h. */
#define HOST_KERNEL_SECONDS 57e-6

/* Links of NVLink between pairs of V100 in a DGX-1. */
static const struct {
    int8_t a, b, width;
} cube[] = {{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1}, {1, 5, 2}, {2, 3, 2},
            {2, 6, 1}, {3, 7, 1}, {4, 5, 1}, {4, 6, 1}, {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2}};

/* Adds the hybrid cube of each server, or its part among the server's first devices. */
static void add_cube(json_t *edges, const char *link, int servers, int devices) {
    for (size_t k = 0; k < sizeof cube / sizeof *cube; k++) {
        char from[40], to[40];
        if (cube[k].a >= devices || cube[k].b >= devices) continue;
        snprintf(from, sizeof from, "server{s}/device%d", cube[k].a);
        snprintf(to, sizeof to, "server{s}/device%d", cube[k].b);
        json_array_append_new(edges, json_pack("{s:{s:[i, i]}, s:s, s:s, s:s, s:i}", "for", "s", 0, servers,
                                               "from", from, "to", to, "link", link, "width", cube[k].width));
    }
}

AmStatus cluster_of_servers(json_t **description, const ClusterServers *servers, AmError *error) {
    const char *type = cluster_builtin_device_named(servers->device_type);
    if (!type) {
        char hint[SUGGEST_HINT_BYTES];
        return am_fail(error, AM_ERROR_INPUT, "", "unknown device %.60s%s", servers->device_type,
                       cluster_builtin_device_hint(hint, servers->device_type));
    }
    const char *inside = cluster_builtin_device_link(type);
    json_t *device = cluster_builtin_device_type(type);
    int32_t per_server = servers->per_server < servers->devices ? servers->per_server : servers->devices;
    char name[160];
    if (!device) return am_fail_memory(error, 0);
    json_object_set_new(device, "host_kernel_seconds", json_real(HOST_KERNEL_SECONDS));
    if (servers->waits_for_collectives) json_object_set_new(device, "overlaps_communication", json_false());
    AmStatus status = AM_OK;
    if (servers->devices > MOST_DEVICES)
        status = am_fail(error, AM_ERROR_INPUT, "", "%d devices: expected at most %d", (int)servers->devices,
                         MOST_DEVICES);
    else if (servers->devices % per_server != 0)
        status = am_fail(error, AM_ERROR_INPUT, "", "%d devices do not fill servers of %d",
                         (int)servers->devices, (int)per_server);
    else if (servers->devices > per_server && !(servers->gbit_per_device > 0))
        status = am_fail(error, AM_ERROR_INPUT, "", "%d devices in servers of %d without a network rate",
                         (int)servers->devices, (int)per_server);
    if (status != AM_OK) {
        json_decref(device);
        return status;
    }
    int count = servers->devices / per_server;
    bool is_cube = strcmp(inside, "nvlink-v100") == 0 && per_server > 1 && per_server <= 8;
    if (is_cube) inside = "nvlink-v100-pair";
    snprintf(name, sizeof name, "%d x %.60s", (int)servers->devices, type);
    json_t *root =
        json_pack("{s:s, s:s, s:{s:o}, s:{s:o}, s:[{s:i, s:s, s:i, s:s}]}", "format", "automap-cluster-1",
                  "name", name, "device_types", type, device, "links", inside, cluster_builtin_link(inside),
                  "servers", "count", count, "device_type", type, "devices", (int)per_server, "link", inside);
    if (!root) return am_fail_memory(error, 0);
    json_t *edges = json_array();
    if (is_cube) json_object_del(json_array_get(json_object_get(root, "servers"), 0), "link");
    if (is_cube) add_cube(edges, inside, count, per_server);
    if (count > 1) {
        json_t *link = cluster_builtin_link("infiniband-200");
        double rate = servers->gbit_per_device * 1e9 / BITS_OF_BYTE * CARD_SHARE;
        json_object_set_new(link, "bytes_per_second", json_real(rate));
        cluster_add_rails(edges, json_object_get(root, "links"), "network", link, count, per_server);
    }
    if (json_array_size(edges) > 0) json_object_set_new(root, "topology", json_pack("{s:O}", "edges", edges));
    json_decref(edges);
    *description = root;
    return AM_OK;
}
