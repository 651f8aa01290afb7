/* The built-in clusters: those of the papers, and this host as N ranks.
 *
 * Devices: data-sheet peaks (dense, SXM unless noted). V100 and P100 stand for
 * their NVLink by the bus bandwidth that ring all-reduces reach on them (120
 * and 72 GB/s); a network is its one-way wire rate. Curves: a matrix product
 * fills a GPU only when it is large. On a V100, in f32, products of 256, 512,
 * 1024 and 4096 cubed (0.03, 0.3, 2 and 137 GFLOP) reach about 0.2, 0.6, 0.8
 * and 0.92 of the peak; the A10 and A40, with twice the rate, need about twice
 * the size and hold it less well. Memory runs at 0.3 to 0.6 of its rate around
 * 1 MB and near 0.9 at 100 MB. Figures of `host:N` are nominal, so that a plan
 * for it is the same wherever it is made.
 */
#include <stdlib.h>
#include <string.h>

#include "cost/cluster.h"

enum { MOST_POINTS = 6, MOST_ROWS = 2, MOST_HOST_RANKS = 1024 };

typedef struct Point {
    double size, fraction;
} Point;

typedef struct DeviceRow {
    const char *name;
    json_int_t memory_bytes;
    double memory_bytes_per_second, flops_f32, flops_f16, flops_bf16; /* 0: not named */
    double kernel_launch_seconds;
    Point dot[MOST_POINTS], convolution[MOST_POINTS], memory[MOST_POINTS];
} DeviceRow;

typedef struct LinkRow {
    const char *name;
    double bytes_per_second, latency_seconds;
    Point efficiency[MOST_POINTS];
} LinkRow;

typedef struct ServerRow {
    int count;
    const char *device_type;
    int devices;
    const char *link;
} ServerRow;

typedef struct BuiltinRow {
    const char *name;
    ServerRow servers[MOST_ROWS];
    const char *between;
} BuiltinRow;

#define GIB ((json_int_t)1 << 30)
#define VOLTA_DOT                                          \
    {                                                      \
        {1e6, 0.02}, {3e7, 0.2}, {3e8, 0.6}, {2e9, 0.8}, { \
            1e11, 0.92                                     \
        }                                                  \
    }
#define VOLTA_CONVOLUTION                      \
    {                                          \
        {1e6, 0.02}, {1e8, 0.3}, {1e9, 0.6}, { \
            2e10, 0.8                          \
        }                                      \
    }
#define AMPERE_DOT                                            \
    {                                                         \
        {1e6, 0.01}, {1e8, 0.25}, {1e9, 0.6}, {1e10, 0.75}, { \
            2e11, 0.85                                        \
        }                                                     \
    }
#define GPU_MEMORY                              \
    {                                           \
        {1e5, 0.15}, {1e6, 0.45}, {1e7, 0.7}, { \
            1e8, 0.88                           \
        }                                       \
    }

static const DeviceRow devices[] = {
    {"V100-32GB", 32 * GIB, 900e9, 15.7e12, 125e12, 0, 4e-6, VOLTA_DOT, VOLTA_CONVOLUTION, GPU_MEMORY},
    {"V100-16GB", 16 * GIB, 900e9, 15.7e12, 125e12, 0, 4e-6, VOLTA_DOT, VOLTA_CONVOLUTION, GPU_MEMORY},
    {"P100-16GB", 16 * GIB, 732e9, 10.6e12, 21.2e12, 0, 4e-6, VOLTA_DOT, VOLTA_CONVOLUTION, GPU_MEMORY},
    {"A40", 48 * GIB, 696e9, 37.4e12, 150e12, 150e12, 4e-6, AMPERE_DOT, {{0, 0}}, GPU_MEMORY},
    {"A10", 24 * GIB, 600e9, 31.2e12, 125e12, 125e12, 4e-6, AMPERE_DOT, {{0, 0}}, GPU_MEMORY},
    {"host", 4 * GIB, 8e9, 30e9, 0, 0, 2e-7, {{1e3, 0.1}, {1e6, 0.5}, {1e8, 0.9}}, {{0, 0}}, {{0, 0}}},
};

#define NVLINK_EFFICIENCY                      \
    {                                          \
        {1e5, 0.3}, {1e6, 0.5}, {1e7, 0.75}, { \
            1e8, 0.95                          \
        }                                      \
    }
#define NETWORK_EFFICIENCY        \
    {                             \
        {1e5, 0.4}, {1e6, 0.6}, { \
            1e7, 0.85             \
        }                         \
    }

static const LinkRow links[] = {
    {"nvlink-v100", 120e9, 4e-6, NVLINK_EFFICIENCY},
    {"nvlink-p100", 72e9, 4e-6, NVLINK_EFFICIENCY},
    {"pcie-4", 22e9, 6e-6, NVLINK_EFFICIENCY},
    {"ethernet-25", 3.1e9, 25e-6, NETWORK_EFFICIENCY},
    {"network-50", 6.2e9, 25e-6, NETWORK_EFFICIENCY},
    {"roce-100", 12e9, 15e-6, NETWORK_EFFICIENCY},
    {"memory", 4e9, 4e-6, {{0, 0}}},
};

static const BuiltinRow builtins[] = {
    {"A", {{2, "V100-32GB", 8, "nvlink-v100"}}, "ethernet-25"},
    {"B", {{3, "V100-32GB", 8, "nvlink-v100"}}, "ethernet-25"},
    {"C", {{4, "V100-32GB", 8, "nvlink-v100"}}, "ethernet-25"},
    {"whale-dp", {{1, "V100-32GB", 8, "nvlink-v100"}, {1, "P100-16GB", 8, "nvlink-p100"}}, "network-50"},
    {"whale-pp", {{1, "V100-32GB", 4, "nvlink-v100"}, {1, "P100-16GB", 4, "nvlink-p100"}}, "network-50"},
    {"oneflow", {{4, "V100-16GB", 8, "nvlink-v100"}}, "roce-100"},
    {"distsim", {{4, "A40", 4, "pcie-4"}}, "roce-100"},
    {"distsim-search", {{4, "A10", 4, "pcie-4"}}, "roce-100"},
};

static const ClusterBuiltin summaries[] = {
    {"A", "2 servers x 8 V100-32GB, NVLink, 25 Gb/s Ethernet (Auto-MAP, table 2)"},
    {"B", "3 servers x 8 V100-32GB, NVLink, 25 Gb/s Ethernet (Auto-MAP, table 2)"},
    {"C", "4 servers x 8 V100-32GB, NVLink, 25 Gb/s Ethernet (Auto-MAP, table 2)"},
    {"whale-dp", "8 V100-32GB and 8 P100-16GB, NVLink, 50 Gb/s (Whale, figure 17)"},
    {"whale-pp", "4 V100-32GB and 4 P100-16GB, NVLink, 50 Gb/s (Whale, figure 18)"},
    {"oneflow", "4 servers x 8 V100-16GB, NVLink, 100 Gb/s RoCE (OneFlow, section 6)"},
    {"distsim", "4 servers x 4 A40, PCIe, 100 Gb/s (DistSim, section 5)"},
    {"distsim-search", "4 servers x 4 A10, PCIe, 100 Gb/s (DistSim, table 2)"},
    {"host:N", "this machine as N ranks, with nominal figures"},
};

const ClusterBuiltin *cluster_builtins(int32_t *count) {
    *count = (int32_t)(sizeof summaries / sizeof *summaries);
    return summaries;
}

/* Adds the curve unless it has no points. */
static void add_curve(json_t *holder, const char *key, const Point *points) {
    if (points[0].size == 0) return;
    json_t *curve = json_array();
    for (int k = 0; k < MOST_POINTS && points[k].size > 0; k++)
        json_array_append_new(curve, json_pack("[f, f]", points[k].size, points[k].fraction));
    json_object_set_new(holder, key, curve);
}

static void add_device_type(json_t *types, const char *name) {
    const DeviceRow *row = devices;
    while (strcmp(row->name, name) != 0) row++;
    json_t *flops = json_pack("{s:f}", "f32", row->flops_f32), *efficiency = json_object();
    if (row->flops_f16 > 0) json_object_set_new(flops, "f16", json_real(row->flops_f16));
    if (row->flops_bf16 > 0) json_object_set_new(flops, "bf16", json_real(row->flops_bf16));
    add_curve(efficiency, "dot", row->dot);
    add_curve(efficiency, "convolution", row->convolution);
    add_curve(efficiency, "memory", row->memory);
    json_object_set_new(types, name,
                        json_pack("{s:I, s:f, s:o, s:f, s:o}", "memory_bytes", row->memory_bytes,
                                  "memory_bytes_per_second", row->memory_bytes_per_second, "flops_per_second",
                                  flops, "kernel_launch_seconds", row->kernel_launch_seconds, "efficiency",
                                  efficiency));
}

static void add_link(json_t *object, const char *name) {
    const LinkRow *row = links;
    while (strcmp(row->name, name) != 0) row++;
    json_t *link = json_pack("{s:f, s:f}", "bytes_per_second", row->bytes_per_second, "latency_seconds",
                             row->latency_seconds);
    add_curve(link, "efficiency", row->efficiency);
    json_object_set_new(object, name, link);
}

static json_t *describe(const BuiltinRow *row) {
    json_t *types = json_object(), *link_list = json_object(), *servers = json_array();
    for (int k = 0; k < MOST_ROWS && row->servers[k].count > 0; k++) {
        const ServerRow *server = &row->servers[k];
        add_device_type(types, server->device_type);
        add_link(link_list, server->link);
        json_array_append_new(servers, json_pack("{s:i, s:s, s:i, s:s}", "count", server->count,
                                                 "device_type", server->device_type, "devices",
                                                 server->devices, "link", server->link));
    }
    if (row->between) add_link(link_list, row->between);
    json_t *root = json_pack("{s:s, s:s, s:o, s:o, s:o}", "format", "automap-cluster-1", "name", row->name,
                             "device_types", types, "links", link_list, "servers", servers);
    if (root && row->between) json_object_set_new(root, "between_servers", json_string(row->between));
    return root;
}

AmStatus cluster_builtin(json_t **description, const char *name, AmError *error) {
    *description = NULL;
    BuiltinRow host = {.name = name, .servers = {{1, "host", 0, "memory"}}};
    const BuiltinRow *row = NULL;
    for (size_t k = 0; k < sizeof builtins / sizeof *builtins; k++)
        if (strcmp(builtins[k].name, name) == 0) row = &builtins[k];
    if (strncmp(name, "host:", 5) == 0) {
        char *end;
        long ranks = name[5] >= '0' && name[5] <= '9' ? strtol(name + 5, &end, 10) : 0;
        if (ranks < 1 || ranks > MOST_HOST_RANKS || *end != '\0')
            return am_fail(error, AM_ERROR_USAGE, "", "cluster \"%s\": expected host:N with N from 1 to %d",
                           name, MOST_HOST_RANKS);
        host.servers[0].devices = (int)ranks;
        row = &host;
    }
    if (!row) return AM_OK;
    *description = describe(row);
    return *description ? AM_OK : am_fail_memory(error, 0);
}
