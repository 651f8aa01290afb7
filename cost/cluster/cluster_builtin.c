/* The built-in clusters: those of the papers, this host as N ranks, and N servers or chips of a current kind.
 * builtin_devices.c has their device types and links. Figures of `nominal:N` are fixed, so that a plan for it
 * is the same everywhere.
 *
 * Families have one of these shapes:
 *
 *     switched   a switch in each server
 *     mesh       a link between any two devices of a server
 *     torus      one slice of N chips; each chip has a link to its neighbours on every axis
 *     grid4      servers of 4 x 4 chips, a torus each
 *
 * Between servers, each device has a network card: cards of equal number in their servers meet at a switch (a
 * rail), and the rails at a spine without contention. Families without rails have one card for each server.
 * A message between servers takes about 10 us.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cost/cluster/cluster.h"

enum { MOST_ROWS = 2, MOST_HOST_RANKS = 1024, MOST_AXES = 3 };

typedef struct ServerRow {
    int count;
    const char *device_type;
    int devices;
    const char *link; /* NULL: only edges of the topology */
} ServerRow;

typedef struct BuiltinRow {
    const char *name;
    ServerRow servers[MOST_ROWS];
    const char *between;
} BuiltinRow;

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

typedef enum Shape { SWITCHED, MESH, TORUS, GRID4 } Shape;

/* FAMILY:N, N equal servers; of a TORUS, N chips of one slice. */
typedef struct FamilyRow {
    const char *name, *device_type;
    Shape shape;
    int devices;         /* in a server; of a TORUS the axes */
    const char *link;    /* inside */
    const char *rail;    /* the card of each device, or NULL */
    const char *between; /* the card of each server, or NULL */
    int most;            /* N */
    int wraps;           /* of a TORUS: axes have a wrap-around link when every axis has this size or more */
} FamilyRow;

/* At most 16,384 devices and 2,048 servers: larger clusters are not searched in useful time. */
#define SERVERS(devices) ((devices) < 8 ? 2048 : 16384 / (devices))

static const FamilyRow families[] = {
    {"h100", "H100-80GB", SWITCHED, 8, "nvlink-h100", "infiniband-400", NULL, SERVERS(8), 0},
    {"h200", "H200", SWITCHED, 8, "nvlink-h100", "infiniband-400", NULL, SERVERS(8), 0},
    {"b200", "B200", SWITCHED, 8, "nvlink-b200", "infiniband-400", NULL, SERVERS(8), 0},
    {"gb200", "GB200", SWITCHED, 72, "nvlink-b200", "infiniband-400", NULL, SERVERS(72), 0},
    {"gb300", "GB300", SWITCHED, 72, "nvlink-b200", "infiniband-800", NULL, SERVERS(72), 0},
    {"a100", "A100-80GB", SWITCHED, 8, "nvlink-a100", "infiniband-200", NULL, SERVERS(8), 0},
    {"a100-40", "A100-40GB", SWITCHED, 8, "nvlink-a100", "infiniband-200", NULL, SERVERS(8), 0},
    {"a100-pcie", "A100-PCIe-80GB", SWITCHED, 8, "pcie-4", NULL, "infiniband-200", SERVERS(8), 0},
    {"mi300x", "MI300X", MESH, 8, "xgmi-mi300x", "infiniband-400", NULL, SERVERS(8), 0},
    {"mi355x", "MI355X", MESH, 8, "xgmi-mi355x", "infiniband-400", NULL, SERVERS(8), 0},
    {"l4", "L4", SWITCHED, 8, "pcie-4", NULL, "roce-100", SERVERS(8), 0},
    {"l40s", "L40S", SWITCHED, 8, "pcie-4", NULL, "infiniband-200", SERVERS(8), 0},
    {"t4", "T4", SWITCHED, 4, "pcie-3", NULL, "network-50", SERVERS(4), 0},
    {"rtx-3090", "RTX-3090", SWITCHED, 8, "pcie-4", NULL, "ethernet-25", SERVERS(8), 0},
    {"rtx-4090", "RTX-4090", SWITCHED, 8, "pcie-4", NULL, "ethernet-25", SERVERS(8), 0},
    {"tpu-v5e", "TPU-v5e", TORUS, 2, "ici-v5e", NULL, NULL, 256, 16},
    {"tpu-v5p", "TPU-v5p", TORUS, 3, "ici-v5p", NULL, NULL, 4096, 4},
    {"tpu-v6e", "TPU-v6e", TORUS, 2, "ici-v6e", NULL, NULL, 256, 16},
    {"trn2", "Trainium2", GRID4, 16, "neuronlink-3", "efa-200", NULL, SERVERS(16), 0},
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
    {"b200:N", "N servers x 8 B200, NVSwitch, a 400 Gb/s card per device on 8 rails"},
    {"gb200:N", "N racks x 72 GB200, NVSwitch, a 400 Gb/s card per device on 72 rails"},
    {"gb300:N", "N racks x 72 GB300, NVSwitch, an 800 Gb/s card per device on 72 rails"},
    {"a100:N", "N servers x 8 A100-80GB, NVSwitch, a 200 Gb/s card per device on 8 rails"},
    {"a100-40:N", "N servers x 8 A100-40GB, NVSwitch, a 200 Gb/s card per device on 8 rails"},
    {"a100-pcie:N", "N servers x 8 A100-PCIe-80GB, PCIe, 200 Gb/s"},
    {"mi300x:N", "N servers x 8 MI300X, Infinity Fabric mesh, a 400 Gb/s card per device on 8 rails"},
    {"mi355x:N", "N servers x 8 MI355X, Infinity Fabric mesh, a 400 Gb/s card per device on 8 rails"},
    {"l4:N", "N servers x 8 L4, PCIe, 100 Gb/s"},
    {"l40s:N", "N servers x 8 L40S, PCIe, 200 Gb/s"},
    {"t4:N", "N servers x 4 T4, PCIe, 50 Gb/s"},
    {"rtx-3090:N", "N servers x 8 RTX-3090, PCIe, 25 Gb/s Ethernet"},
    {"rtx-4090:N", "N servers x 8 RTX-4090, PCIe, 25 Gb/s Ethernet"},
    {"tpu-v5e:N", "a slice of N TPU-v5e, 2-D torus (N a power of two up to 256)"},
    {"tpu-v5p:N", "a slice of N TPU-v5p, 3-D torus (N a power of two up to 4096)"},
    {"tpu-v6e:N", "a slice of N TPU-v6e, 2-D torus (N a power of two up to 256)"},
    {"trn2:N", "N instances x 16 Trainium2, 4 x 4 torus, 200 Gb/s EFA per device"},
    {"host:N", "this machine as N ranks, measured at its first use"},
    {"nominal:N", "a machine of N ranks with fixed nominal figures, the same everywhere"},
};

const ClusterBuiltin *cluster_builtins(int32_t *count) {
    *count = (int32_t)(sizeof summaries / sizeof *summaries);
    return summaries;
}

static json_t *describe_cluster(const BuiltinRow *row) {
    json_t *types = json_object(), *link_list = json_object(), *servers = json_array();
    for (int k = 0; k < MOST_ROWS && row->servers[k].count > 0; k++) {
        const ServerRow *server = &row->servers[k];
        json_object_set_new(types, server->device_type, cluster_builtin_device_type(server->device_type));
        json_t *entry = json_pack("{s:i, s:s, s:i}", "count", server->count, "device_type",
                                  server->device_type, "devices", server->devices);
        if (server->link) {
            json_object_set_new(link_list, server->link, cluster_builtin_link(server->link));
            json_object_set_new(entry, "link", json_string(server->link));
        }
        json_array_append_new(servers, entry);
    }
    if (row->between) json_object_set_new(link_list, row->between, cluster_builtin_link(row->between));
    json_t *root = json_pack("{s:s, s:s, s:o, s:o, s:o}", "format", "automap-cluster-1", "name", row->name,
                             "device_types", types, "links", link_list, "servers", servers);
    if (root && row->between) json_object_set_new(root, "between_servers", json_string(row->between));
    return root;
}

/* Appends to `edges` one edge with this link for all values of the variables; the caller adds ranges. */
static json_t *add_edges(json_t *edges, const char *from, const char *to, const char *link) {
    json_t *edge = json_pack("{s:{}, s:s, s:s, s:s}", "for", "from", from, "to", to, "link", link);
    json_array_append_new(edges, edge);
    return edge;
}

static void add_range(json_t *edge, const char *variable, int end) {
    json_object_set_new(json_object_get(edge, "for"), variable, json_pack("[i, i]", 0, end));
}

void cluster_add_rails(json_t *edges, json_t *link_list, const char *name, json_t *link, int servers,
                       int devices) {
    double latency = json_number_value(json_object_get(link, "latency_seconds"));
    json_object_set_new(link, "latency_seconds", json_real(latency / 2)); /* a message crosses two edges */
    json_object_set_new(link_list, name, link);
    json_t *edge = add_edges(edges, "server{s}/device{d}", "rail{d}", name);
    add_range(edge, "s", servers);
    add_range(edge, "d", devices);
    edge = add_edges(edges, "rail{r}", "spine", name);
    add_range(edge, "r", devices);
    json_object_set_new(edge, "width", json_integer(servers));
}

/* Sizes of the axes of a slice of 2^k chips: as equal as possible, the last axis the longest, axes that the
 * slice does not have 1. Returns the smallest. */
static int slice_axes(int sizes[MOST_AXES], int axes, int chips) {
    int first = MOST_AXES - axes, axis = MOST_AXES - 1;
    for (int k = 0; k < MOST_AXES; k++) sizes[k] = 1;
    for (; chips > 1; chips /= 2) {
        sizes[axis] *= 2;
        axis = axis > first ? axis - 1 : MOST_AXES - 1;
    }
    return sizes[first];
}

/* Adds the links of a grid of chips. Chip (x, y, z) is device (x Y + y) Z + z of its server. Every chip has
 * a link to the next on each axis; with `wraps`, the last one has a link to the first on axes of more than
 * two chips. */
static void add_grid(json_t *edges, const char *link, int servers, const int sizes[MOST_AXES],
                     const bool wraps[MOST_AXES]) {
    static const char *const variables[MOST_AXES] = {"x", "y", "z"};
    for (int axis = 0; axis < MOST_AXES; axis++) {
        if (sizes[axis] < 2) continue;
        char from[96], to[96], next[16];
        bool ring = wraps[axis] && sizes[axis] > 2;
        const char *at[MOST_AXES] = {"x", "y", "z"};
        snprintf(from, sizeof from, "server{s}/device{(x*%d+y)*%d+z}", sizes[1], sizes[2]);
        snprintf(next, sizeof next, "((%s+1)%%%d)", variables[axis], sizes[axis]);
        at[axis] = next;
        snprintf(to, sizeof to, "server{s}/device{(%s*%d+%s)*%d+%s}", at[0], sizes[1], at[1], sizes[2],
                 at[2]);
        json_t *edge = add_edges(edges, from, to, link);
        add_range(edge, "s", servers);
        for (int a = 0; a < MOST_AXES; a++)
            add_range(edge, variables[a], a == axis && !ring ? sizes[a] - 1 : sizes[a]);
    }
}

/* Adds the links that are no switch: inside servers, and rails between them. */
static void add_topology(json_t *root, const FamilyRow *family, int count) {
    json_t *edges = json_array(), *link_list = json_object_get(root, "links");
    if (family->shape != SWITCHED)
        json_object_set_new(link_list, family->link, cluster_builtin_link(family->link));
    if (family->shape == MESH) {
        /* A link between any two devices of a server. */
        json_t *edge = add_edges(edges, "server{s}/device{a}", "server{s}/device{b}", family->link);
        add_range(edge, "s", count);
        add_range(edge, "a", family->devices);
        add_range(edge, "b", family->devices);
        json_object_set_new(edge, "where", json_string("a < b"));
    }
    if (family->shape == GRID4)
        add_grid(edges, family->link, count, (int[]){1, 4, 4}, (bool[]){true, true, true});
    if (family->shape == TORUS) {
        int sizes[MOST_AXES];
        bool wraps[MOST_AXES], all = slice_axes(sizes, family->devices, count) >= family->wraps;
        /* A 2-D slice has wrap-around links on each axis that is as long as the pod's. */
        for (int axis = 0; axis < MOST_AXES; axis++)
            wraps[axis] = family->devices == 2 ? sizes[axis] >= family->wraps : all;
        add_grid(edges, family->link, 1, sizes, wraps);
    }
    if (family->rail && count > 1)
        cluster_add_rails(edges, link_list, family->rail, cluster_builtin_link(family->rail), count,
                          family->devices);
    if (json_array_size(edges) > 0) json_object_set_new(root, "topology", json_pack("{s:o}", "edges", edges));
    else json_decref(edges);
}

/* Reads the N of FAMILY:N. AM_ERROR_USAGE unless it is from 1 to the family's most; for a torus also unless
 * it is a power of two. */
static AmStatus read_count(int *count, const char *name, const FamilyRow *family, AmError *error) {
    const char *digits = strchr(name, ':') + 1;
    char *end;
    long value = *digits >= '0' && *digits <= '9' ? strtol(digits, &end, 10) : 0;
    bool is_slice = family->shape == TORUS, is_power = (value & (value - 1)) == 0;
    if (value < 1 || value > family->most || *end != '\0' || (is_slice && !is_power))
        return am_fail(error, AM_ERROR_USAGE, "", "cluster \"%s\": expected %s:N with N %sfrom 1 to %d", name,
                       family->name, is_slice ? "a power of two " : "", family->most);
    *count = (int)value;
    return AM_OK;
}

static bool is_named(const char *name, const char *family) {
    size_t length = strlen(family);
    return strncasecmp(name, family, length) == 0 && name[length] == ':';
}

/* Returns whether a name is TYPE:N, with a name of the family's device type. */
static bool has_type(const char *name, const FamilyRow *family) {
    size_t length = strcspn(name, ":");
    char part[48];
    if (name[length] != ':' || length >= sizeof part) return false;
    memcpy(part, name, length);
    part[length] = '\0';
    const char *type = cluster_builtin_device_named(part);
    return type && strcmp(type, family->device_type) == 0;
}

AmStatus cluster_builtin(json_t **description, const char *name, AmError *error) {
    static const FamilyRow hosts[] = {
        {"host", "host", SWITCHED, 1, "memory", NULL, NULL, MOST_HOST_RANKS, 0},
        {"nominal", "host", SWITCHED, 1, "memory", NULL, NULL, MOST_HOST_RANKS, 0}};
    const FamilyRow *family = NULL, *host = NULL;
    const BuiltinRow *row = NULL;
    BuiltinRow made = {.name = name};
    char canonical[48]; /* in lower case */
    int count = 0;
    *description = NULL;
    for (size_t k = 0; k < sizeof builtins / sizeof *builtins; k++)
        if (strcasecmp(builtins[k].name, name) == 0) row = &builtins[k];
    for (size_t k = 0; k < sizeof families / sizeof *families; k++)
        if (is_named(name, families[k].name) || has_type(name, &families[k])) family = &families[k];
    for (size_t k = 0; k < sizeof hosts / sizeof *hosts; k++)
        if (is_named(name, hosts[k].name)) family = host = &hosts[k];
    if (family) {
        TRY(read_count(&count, name, family, error));
        snprintf(canonical, sizeof canonical, "%s:%d", family->name, count);
        made.name = canonical;
        const char *link = family->shape == SWITCHED ? family->link : NULL;
        if (host || family->shape == TORUS)
            made.servers[0] = (ServerRow){1, family->device_type, count, link};
        else made.servers[0] = (ServerRow){count, family->device_type, family->devices, link};
        if (count > 1) made.between = family->between;
        row = &made;
    }
    if (!row) return AM_OK;
    *description = describe_cluster(row);
    if (!*description) return am_fail_memory(error, 0);
    if (family) add_topology(*description, family, count);
    return AM_OK;
}
