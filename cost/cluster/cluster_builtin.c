/* The built-in clusters: those of the papers, this host as N ranks, and N servers
 * of a present kind.
 *
 * Devices: data-sheet peaks (dense, SXM unless noted). V100 and P100 stand for
 * their NVLink by the bus bandwidth that ring all-reduces reach on them (120
 * and 72 GB/s); a network is its one-way wire rate, but for 100 Gb/s TCP, which is measured
 * to reach 4 to 5 GB/s with 8 to 16 MB. Curves: a matrix product
 * fills a GPU only when it is large. On a V100, in f32, products of 256, 512,
 * 1024 and 4096 cubed (0.03, 0.3, 2 and 137 GFLOP) reach about 0.2, 0.6, 0.8
 * and 0.92 of the peak; the A10 and A40, with twice the rate, need about twice
 * the size and hold it less well. Memory runs at 0.3 to 0.6 of its rate around
 * 1 MB and near 0.9 at 100 MB. The H200 multiplies at 0.79 of its bf16 peak at
 * most, so the H100 is taken to. Figures of `nominal:N` are fixed, so that a plan
 * for it is the same wherever it is made.
 *
 * A family such as `h100:N` has a switch inside each server and a network card for
 * each device: cards of equal rank meet on a rail, and rails at a spine that holds
 * up all of them. A message between servers takes about 10 us.
 */
#include <stdlib.h>
#include <string.h>

#include "cost/cluster/cluster.h"

enum { MOST_POINTS = 6, MOST_ROWS = 2, MOST_HOST_RANKS = 1024, MOST_SERVERS = 1024 };

typedef struct Point {
    double size, fraction;
} Point;

typedef struct DeviceRow {
    const char *name;
    json_int_t memory_bytes;
    double memory_bytes_per_second, flops_f32, flops_f16, flops_bf16, flops_f8; /* 0: not named */
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
#define HOPPER_DOT                                                          \
    {                                                                       \
        {1e6, 0.005}, {1e8, 0.1}, {1e9, 0.3}, {1e10, 0.55}, {1e11, 0.72}, { \
            1e12, 0.79                                                      \
        }                                                                   \
    }
#define GPU_MEMORY                              \
    {                                           \
        {1e5, 0.15}, {1e6, 0.45}, {1e7, 0.7}, { \
            1e8, 0.88                           \
        }                                       \
    }

static const DeviceRow devices[] = {
    {"V100-32GB", 32 * GIB, 900e9, 15.7e12, 125e12, 0, 0, 4e-6, VOLTA_DOT, VOLTA_CONVOLUTION, GPU_MEMORY},
    {"V100-16GB", 16 * GIB, 900e9, 15.7e12, 125e12, 0, 0, 4e-6, VOLTA_DOT, VOLTA_CONVOLUTION, GPU_MEMORY},
    {"P100-16GB", 16 * GIB, 732e9, 10.6e12, 21.2e12, 0, 0, 4e-6, VOLTA_DOT, VOLTA_CONVOLUTION, GPU_MEMORY},
    {"A40", 48 * GIB, 696e9, 37.4e12, 150e12, 150e12, 0, 4e-6, AMPERE_DOT, {{0, 0}}, GPU_MEMORY},
    {"A10", 24 * GIB, 600e9, 31.2e12, 125e12, 125e12, 0, 4e-6, AMPERE_DOT, {{0, 0}}, GPU_MEMORY},
    {"T4", 16 * GIB, 320e9, 8.1e12, 65e12, 0, 0, 4e-6, VOLTA_DOT, VOLTA_CONVOLUTION, GPU_MEMORY},
    {"A100-40GB", 40 * GIB, 1555e9, 19.5e12, 312e12, 312e12, 0, 4e-6, AMPERE_DOT, {{0, 0}}, GPU_MEMORY},
    {"A100-80GB", 80 * GIB, 2039e9, 19.5e12, 312e12, 312e12, 0, 4e-6, AMPERE_DOT, {{0, 0}}, GPU_MEMORY},
    {"H100-80GB", 80 * GIB, 3350e9, 67e12, 990e12, 990e12, 1979e12, 4e-6, HOPPER_DOT, {{0, 0}}, GPU_MEMORY},
    {"H200", 141000000000, 4800e9, 67e12, 990e12, 990e12, 1979e12, 4e-6, HOPPER_DOT, {{0, 0}}, GPU_MEMORY},
    {"host", 4 * GIB, 8e9, 30e9, 0, 0, 0, 2e-7, {{1e3, 0.1}, {1e6, 0.5}, {1e8, 0.9}}, {{0, 0}}, {{0, 0}}},
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

/* Measured are 4 GB/s at 8 MB and 5 at 16 MB: the line through both, 0.8 ms and 6.67 GB/s. */
#define TCP_EFFICIENCY                           \
    {                                            \
        {1e6, 0.4}, {8e6, 0.6}, {1.6e7, 0.75}, { \
            6.4e7, 0.92                          \
        }                                        \
    }

static const LinkRow links[] = {
    {"nvlink-v100", 120e9, 4e-6, NVLINK_EFFICIENCY},     {"nvlink-p100", 72e9, 4e-6, NVLINK_EFFICIENCY},
    {"nvlink-a100", 240e9, 4e-6, NVLINK_EFFICIENCY},     {"nvlink-h100", 371e9, 4e-6, NVLINK_EFFICIENCY},
    {"pcie-3", 12e9, 6e-6, NVLINK_EFFICIENCY},           {"pcie-4", 22e9, 6e-6, NVLINK_EFFICIENCY},
    {"pcie-5", 44e9, 6e-6, NVLINK_EFFICIENCY},           {"ethernet-25", 3.1e9, 25e-6, NETWORK_EFFICIENCY},
    {"network-50", 6.2e9, 25e-6, NETWORK_EFFICIENCY},    {"roce-100", 12e9, 15e-6, NETWORK_EFFICIENCY},
    {"infiniband-200", 24e9, 10e-6, NETWORK_EFFICIENCY}, {"infiniband-400", 48e9, 10e-6, NETWORK_EFFICIENCY},
    {"tcp-100", 6.67e9, 25e-6, TCP_EFFICIENCY},          {"memory", 4e9, 4e-6, {{0, 0}}},
};

static const BuiltinRow builtins[] = {
    {"A", {{2, "V100-32GB", 8, "nvlink-v100"}}, "ethernet-25"},
    {"B", {{3, "V100-32GB", 8, "nvlink-v100"}}, "ethernet-25"},
    {"C", {{4, "V100-32GB", 8, "nvlink-v100"}}, "ethernet-25"},
    {"whale-dp", {{1, "V100-32GB", 8, "nvlink-v100"}, {1, "P100-16GB", 8, "nvlink-p100"}}, "network-50"},
    {"whale-pp", {{1, "V100-32GB", 4, "nvlink-v100"}, {1, "P100-16GB", 4, "nvlink-p100"}}, "network-50"},
    {"oneflow", {{4, "V100-16GB", 8, "nvlink-v100"}}, "roce-100"},
    {"distsim", {{4, "A40", 4, "pcie-4"}}, "tcp-100"},
    {"distsim-search", {{4, "A10", 4, "pcie-4"}}, "tcp-100"},
};

/* FAMILY:N, N equal servers. */
typedef struct FamilyRow {
    const char *name, *device_type;
    int devices;
    const char *link;
    const char *rail;    /* the card of each device, or NULL */
    const char *between; /* the card of each server, or NULL */
    int most;            /* servers */
} FamilyRow;

static const FamilyRow families[] = {
    {"h100", "H100-80GB", 8, "nvlink-h100", "infiniband-400", NULL, MOST_SERVERS},
    {"h200", "H200", 8, "nvlink-h100", "infiniband-400", NULL, MOST_SERVERS},
    {"a100", "A100-80GB", 8, "nvlink-a100", "infiniband-200", NULL, MOST_SERVERS},
    {"a100-40", "A100-40GB", 8, "nvlink-a100", "infiniband-200", NULL, MOST_SERVERS},
    {"t4", "T4", 4, "pcie-3", NULL, "network-50", MOST_SERVERS},
};

static const ClusterBuiltin summaries[] = {
    {"A", "2 servers x 8 V100-32GB, NVLink, 25 Gb/s Ethernet (Auto-MAP, table 2)"},
    {"B", "3 servers x 8 V100-32GB, NVLink, 25 Gb/s Ethernet (Auto-MAP, table 2)"},
    {"C", "4 servers x 8 V100-32GB, NVLink, 25 Gb/s Ethernet (Auto-MAP, table 2)"},
    {"whale-dp", "8 V100-32GB and 8 P100-16GB, NVLink, 50 Gb/s (Whale, figure 17)"},
    {"whale-pp", "4 V100-32GB and 4 P100-16GB, NVLink, 50 Gb/s (Whale, figure 18)"},
    {"oneflow", "4 servers x 8 V100-16GB, NVLink, 100 Gb/s RoCE (OneFlow, section 6)"},
    {"distsim", "4 servers x 4 A40, PCIe, 100 Gb/s by TCP (DistSim, section 5)"},
    {"distsim-search", "4 servers x 4 A10, PCIe, 100 Gb/s by TCP (DistSim, table 2)"},
    {"h100:N", "N servers x 8 H100-80GB, NVSwitch, a 400 Gb/s card per device on 8 rails"},
    {"h200:N", "N servers x 8 H200, NVSwitch, a 400 Gb/s card per device on 8 rails"},
    {"a100:N", "N servers x 8 A100-80GB, NVSwitch, a 200 Gb/s card per device on 8 rails"},
    {"a100-40:N", "N servers x 8 A100-40GB, NVSwitch, a 200 Gb/s card per device on 8 rails"},
    {"t4:N", "N servers x 4 T4, PCIe, 50 Gb/s"},
    {"host:N", "this machine as N ranks, measured at its first use"},
    {"nominal:N", "a machine of N ranks with fixed nominal figures, the same everywhere"},
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

json_t *cluster_builtin_device_type(const char *name) {
    const DeviceRow *row = NULL;
    for (size_t k = 0; k < sizeof devices / sizeof *devices; k++)
        if (strcmp(devices[k].name, name) == 0) row = &devices[k];
    if (!row) return NULL;
    json_t *flops = json_pack("{s:f}", "f32", row->flops_f32), *efficiency = json_object();
    if (row->flops_f16 > 0) json_object_set_new(flops, "f16", json_real(row->flops_f16));
    if (row->flops_bf16 > 0) json_object_set_new(flops, "bf16", json_real(row->flops_bf16));
    if (row->flops_f8 > 0) {
        json_object_set_new(flops, "f8e4m3fn", json_real(row->flops_f8));
        json_object_set_new(flops, "f8e5m2", json_real(row->flops_f8));
    }
    add_curve(efficiency, "dot", row->dot);
    add_curve(efficiency, "convolution", row->convolution);
    add_curve(efficiency, "memory", row->memory);
    json_t *type =
        json_pack("{s:I, s:f, s:o, s:f, s:o}", "memory_bytes", row->memory_bytes, "memory_bytes_per_second",
                  row->memory_bytes_per_second, "flops_per_second", flops, "kernel_launch_seconds",
                  row->kernel_launch_seconds, "efficiency", efficiency);
    if (strcmp(name, "host") == 0) /* it computes or communicates */
        json_object_set_new(type, "overlaps_communication", json_false());
    return type;
}

const char *cluster_builtin_device_name(int32_t k) {
    return k >= 0 && (size_t)k < sizeof devices / sizeof *devices ? devices[k].name : NULL;
}

const char *cluster_builtin_link_name(int32_t k) {
    return k >= 0 && (size_t)k < sizeof links / sizeof *links ? links[k].name : NULL;
}

json_t *cluster_builtin_link(const char *name) {
    const LinkRow *row = NULL;
    for (size_t k = 0; k < sizeof links / sizeof *links; k++)
        if (strcmp(links[k].name, name) == 0) row = &links[k];
    if (!row) return NULL;
    json_t *link = json_pack("{s:f, s:f}", "bytes_per_second", row->bytes_per_second, "latency_seconds",
                             row->latency_seconds);
    add_curve(link, "efficiency", row->efficiency);
    return link;
}

static json_t *describe(const BuiltinRow *row) {
    json_t *types = json_object(), *link_list = json_object(), *servers = json_array();
    for (int k = 0; k < MOST_ROWS && row->servers[k].count > 0; k++) {
        const ServerRow *server = &row->servers[k];
        json_object_set_new(types, server->device_type, cluster_builtin_device_type(server->device_type));
        json_object_set_new(link_list, server->link, cluster_builtin_link(server->link));
        json_array_append_new(servers, json_pack("{s:i, s:s, s:i, s:s}", "count", server->count,
                                                 "device_type", server->device_type, "devices",
                                                 server->devices, "link", server->link));
    }
    if (row->between) json_object_set_new(link_list, row->between, cluster_builtin_link(row->between));
    json_t *root = json_pack("{s:s, s:s, s:o, s:o, s:o}", "format", "automap-cluster-1", "name", row->name,
                             "device_types", types, "links", link_list, "servers", servers);
    if (root && row->between) json_object_set_new(root, "between_servers", json_string(row->between));
    return root;
}

/* A card of each device on the rail of its rank, and as many links from a rail to the spine. */
static void add_rails(json_t *root, const FamilyRow *family, int servers) {
    json_t *link = cluster_builtin_link(family->rail);
    double latency = json_number_value(json_object_get(link, "latency_seconds"));
    json_object_set_new(link, "latency_seconds", json_real(latency / 2)); /* a message crosses two edges */
    json_object_set_new(json_object_get(root, "links"), family->rail, link);
    json_object_set_new(
        root, "topology",
        json_pack("{s:[{s:{s:[i,i], s:[i,i]}, s:s, s:s, s:s}, {s:{s:[i,i]}, s:s, s:s, s:s, s:i}]}", "edges",
                  "for", "s", 0, servers, "d", 0, family->devices, "from", "server{s}/device{d}", "to",
                  "rail{d}", "link", family->rail, "for", "r", 0, family->devices, "from", "rail{r}", "to",
                  "spine", "link", family->rail, "width", servers));
}

/* Reads the N of FAMILY:N; AM_ERROR_USAGE unless it is from 1 to `most`. */
static AmStatus read_count(int *count, const char *name, const char *family, int most, AmError *error) {
    const char *digits = name + strlen(family) + 1;
    char *end;
    long value = *digits >= '0' && *digits <= '9' ? strtol(digits, &end, 10) : 0;
    if (value < 1 || value > most || *end != '\0')
        return am_fail(error, AM_ERROR_USAGE, "", "cluster \"%s\": expected %s:N with N from 1 to %d", name,
                       family, most);
    *count = (int)value;
    return AM_OK;
}

static bool is_of(const char *name, const char *family) {
    size_t length = strlen(family);
    return strncmp(name, family, length) == 0 && name[length] == ':';
}

AmStatus cluster_builtin(json_t **description, const char *name, AmError *error) {
    static const FamilyRow one_server[] = {{"host", "host", 1, "memory", NULL, NULL, MOST_HOST_RANKS},
                                           {"nominal", "host", 1, "memory", NULL, NULL, MOST_HOST_RANKS}};
    const FamilyRow *family = NULL, *host = NULL;
    const BuiltinRow *row = NULL;
    BuiltinRow made = {.name = name};
    int count = 0;
    *description = NULL;
    for (size_t k = 0; k < sizeof builtins / sizeof *builtins; k++)
        if (strcmp(builtins[k].name, name) == 0) row = &builtins[k];
    for (size_t k = 0; k < sizeof families / sizeof *families; k++)
        if (is_of(name, families[k].name)) family = &families[k];
    for (size_t k = 0; k < sizeof one_server / sizeof *one_server; k++)
        if (is_of(name, one_server[k].name)) family = host = &one_server[k];
    if (family) {
        TRY(read_count(&count, name, family->name, family->most, error));
        made.servers[0] = host ? (ServerRow){1, host->device_type, count, host->link}
                               : (ServerRow){count, family->device_type, family->devices, family->link};
        if (count > 1) made.between = family->between;
        row = &made;
    }
    if (!row) return AM_OK;
    *description = describe(row);
    if (!*description) return am_fail_memory(error, 0);
    if (family && family->rail && count > 1) add_rails(*description, family, count);
    return AM_OK;
}
