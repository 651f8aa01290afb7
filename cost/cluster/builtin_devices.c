/* Device types and links of the built-in clusters.
 *
 * Devices: peaks of the vendors' data sheets (dense, without sparsity; SXM modules unless the name says
 * PCIe). Memory is what a program can allocate where the data sheet gives less than the chips hold.
 *
 *     B200, GB200, GB300       NVIDIA DGX B200, GB200 NVL72 and GB300 NVL72 data sheets
 *     MI300X, MI355X           AMD Instinct data sheets
 *     TPU-v5e, -v5p, -v6e      Google Cloud TPU documentation
 *     Trainium2                AWS Neuron documentation
 *     A800, H800, H20          as A100, H100 and H200 with slower links or products
 *     all others               NVIDIA data sheets of the same name
 *
 * A TPU computes f32 products in six bf16 passes at the highest precision, which is the rate f32 here.
 *
 * Links: a switch of NVLink has the bus bandwidth that ring all-reduces reach (120, 72, 240 and 371 GB/s for
 * V100, P100, A100 and H100; the Blackwell link has the share 0.825 of its wire rate that the H100's
 * reaches). Links of a mesh or a torus join two devices. A network has its one-way wire rate, except 100 Gb/s
 * TCP, which was measured at 4 to 5 GB/s with 8 to 16 MB. Between servers of TPUs 100 Gb/s are assumed.
 *
 * Hosts: copies between the host's memory and a device have the rate of its PCIe link, or of NVLink-C2C (450
 * GB/s one way, which the two devices of a GB200 or GB300 share). A device's part of the host's memory is an
 * eighth of that of a DGX-1 (512 GB), DGX A100 (1 TB with 40 GB devices, 2 TB with 80 GB), or DGX H100, H200
 * and B200 (2 TB). With a Grace it is 480 GB. Sources: NVIDIA data sheets and user guides of these systems.
 *
 * Curves: fraction of the peak against the FLOPs of a product or the bytes of an access. Measured: V100 in
 * f32 (256, 512, 1024 and 4096 cubed reach 0.2, 0.6, 0.8 and 0.92), the H200 at large sizes, and the B200
 * from 1e10 FLOPs (medians of 514 products; below, the absolute rate of the H100). The other devices take the
 * curve of the nearest: Turing that of Volta; Ada that of Ampere; MI300X, MI355X and Trainium2 that of the
 * B200; TPUs that of the H100. 16-bit products of Volta, Ampere, Ada and Blackwell have measured shapes
 * instead: those of the V100, the A100 (Ampere and Ada) and the B200, each at its own peak. Memory runs at
 * 0.3 to 0.6 of its rate around 1 MB and near 0.9 at 100 MB.
 */
#include "cost/cluster/builtin_devices.h"

#include <string.h>
#include <strings.h>

typedef struct Point {
    double size, fraction;
} Point;

enum { MOST_POINTS = 7 };

typedef struct Curve {
    Point points[MOST_POINTS]; /* in ascending order of size; the first without a size ends them */
} Curve;

typedef struct DeviceRow {
    const char *name;
    const ClusterDeviceLinks *links;
    json_int_t memory_bytes;
    double memory_bytes_per_second, flops_f32, flops_f16, flops_bf16, flops_f8; /* 0: like the next wider */
    double kernel_launch_seconds;
    const Curve *dot, *convolution, *memory; /* NULL: constant; convolution: like dot */
} DeviceRow;

typedef struct LinkRow {
    const char *name;
    double bytes_per_second, latency_seconds;
    const Curve *efficiency;
} LinkRow;

typedef struct DeviceAlias {
    const char *alias, *name;
} DeviceAlias;

#define GIB ((json_int_t)1 << 30)
#define GB  ((json_int_t)1000000000)

static const Curve volta_dot = {{{1e6, 0.02}, {3e7, 0.2}, {3e8, 0.6}, {2e9, 0.8}, {1e11, 0.92}}};
static const Curve volta_convolution = {{{1e6, 0.02}, {1e8, 0.3}, {1e9, 0.6}, {2e10, 0.8}}};
static const Curve ampere_dot = {{{1e6, 0.01}, {1e8, 0.25}, {1e9, 0.6}, {1e10, 0.75}, {2e11, 0.85}}};
static const Curve hopper_dot = {
    {{1e6, 0.005}, {1e8, 0.1}, {1e9, 0.3}, {1e10, 0.55}, {1e11, 0.72}, {1e12, 0.79}}};
static const Curve blackwell_dot = {
    {{1e6, 0.0022}, {1e8, 0.044}, {1e9, 0.13}, {1e10, 0.26}, {3e10, 0.48}, {1e11, 0.5}}};
static const Curve gpu_memory = {{{1e5, 0.15}, {1e6, 0.45}, {1e7, 0.7}, {1e8, 0.88}}};
static const Curve host_dot = {{{1e3, 0.1}, {1e6, 0.5}, {1e8, 0.9}}};

/* The links between the devices of a type in a server, and between its servers. */
static const ClusterDeviceLinks v100_links = {"nvlink-v100", "pcie-3", "roce-100", 20e9, 6};
static const ClusterDeviceLinks p100_links = {"nvlink-p100", "pcie-3", "roce-100", 18e9, 4};
static const ClusterDeviceLinks t4_links = {"pcie-3", "pcie-3", "network-50", 20e9, 0};
static const ClusterDeviceLinks a10_links = {"pcie-4", "pcie-4", "roce-100", 20e9, 0};
static const ClusterDeviceLinks a40_links = {"pcie-4", "pcie-4", "roce-100", 12e9, 4};
static const ClusterDeviceLinks rtx_3090_links = {"pcie-4", "pcie-4", "ethernet-25", 12e9, 4};
static const ClusterDeviceLinks a100_links = {"nvlink-a100", "pcie-4", "infiniband-200", 20e9, 12};
static const ClusterDeviceLinks a800_links = {"nvlink-a800", "pcie-4", "infiniband-200", 20e9, 8};
static const ClusterDeviceLinks a100_pcie_links = {"pcie-4", "pcie-4", "infiniband-200", 20e9, 12};
static const ClusterDeviceLinks l40s_links = {"pcie-4", "pcie-4", "infiniband-200", 20e9, 0};
static const ClusterDeviceLinks rtx_4090_links = {"pcie-4", "pcie-4", "ethernet-25", 20e9, 0};
static const ClusterDeviceLinks h100_links = {"nvlink-h100", "pcie-5", "infiniband-400", 20.6e9, 18};
static const ClusterDeviceLinks h800_links = {"nvlink-h800", "pcie-5", "infiniband-400", 20.6e9, 8};
static const ClusterDeviceLinks h100_pcie_links = {"pcie-5", "pcie-5", "infiniband-400", 20.6e9, 18};
static const ClusterDeviceLinks b200_links = {"nvlink-b200", "pcie-5", "infiniband-400", 41.2e9, 18};
static const ClusterDeviceLinks gb300_links = {"nvlink-b200", "pcie-5", "infiniband-800", 41.2e9, 18};
static const ClusterDeviceLinks mi300_links = {"pcie-5", "pcie-5", "infiniband-400", 20e9, 0};
static const ClusterDeviceLinks v5e_links = {"ici-v5e", "pcie-4", "roce-100", 20e9, 0};
static const ClusterDeviceLinks v5p_links = {"ici-v5p", "pcie-4", "roce-100", 20e9, 0};
static const ClusterDeviceLinks v6e_links = {"ici-v6e", "pcie-4", "roce-100", 20e9, 0};
static const ClusterDeviceLinks trainium2_links = {"neuronlink-3", "pcie-5", "efa-200", 20e9, 0};
static const ClusterDeviceLinks host_links = {"memory", "memory", "roce-100", 20e9, 0};

static const DeviceRow devices[] = {
    {"V100-32GB", &v100_links, 32 * GIB, 900e9, 15.7e12, 125e12, 0, 0, 4e-6, &volta_dot, &volta_convolution,
     &gpu_memory},
    {"V100-16GB", &v100_links, 16 * GIB, 900e9, 15.7e12, 125e12, 0, 0, 4e-6, &volta_dot, &volta_convolution,
     &gpu_memory},
    {"P100-16GB", &p100_links, 16 * GIB, 732e9, 10.6e12, 21.2e12, 0, 0, 4e-6, &volta_dot, &volta_convolution,
     &gpu_memory},
    {"T4", &t4_links, 16 * GIB, 320e9, 8.1e12, 65e12, 0, 0, 4e-6, &volta_dot, &volta_convolution,
     &gpu_memory},
    {"A10", &a10_links, 24 * GIB, 600e9, 31.2e12, 125e12, 125e12, 0, 4e-6, &ampere_dot, NULL, &gpu_memory},
    {"A40", &a40_links, 48 * GIB, 696e9, 37.4e12, 150e12, 150e12, 0, 4e-6, &ampere_dot, NULL, &gpu_memory},
    {"RTX-3090", &rtx_3090_links, 24 * GIB, 936e9, 35.6e12, 71e12, 71e12, 0, 4e-6, &ampere_dot, NULL,
     &gpu_memory},
    {"A100-40GB", &a100_links, 40 * GIB, 1555e9, 19.5e12, 312e12, 312e12, 0, 4e-6, &ampere_dot, NULL,
     &gpu_memory},
    {"A100-80GB", &a100_links, 80 * GIB, 2039e9, 19.5e12, 312e12, 312e12, 0, 4e-6, &ampere_dot, NULL,
     &gpu_memory},
    {"A800-40GB", &a800_links, 40 * GIB, 1555e9, 19.5e12, 312e12, 312e12, 0, 4e-6, &ampere_dot, NULL,
     &gpu_memory},
    {"A800-80GB", &a800_links, 80 * GIB, 2039e9, 19.5e12, 312e12, 312e12, 0, 4e-6, &ampere_dot, NULL,
     &gpu_memory},
    {"A100-PCIe-40GB", &a100_pcie_links, 40 * GIB, 1555e9, 19.5e12, 312e12, 312e12, 0, 4e-6, &ampere_dot,
     NULL, &gpu_memory},
    {"A100-PCIe-80GB", &a100_pcie_links, 80 * GIB, 1935e9, 19.5e12, 312e12, 312e12, 0, 4e-6, &ampere_dot,
     NULL, &gpu_memory},
    {"L4", &a10_links, 24 * GIB, 300e9, 30.3e12, 121e12, 121e12, 242e12, 4e-6, &ampere_dot, NULL,
     &gpu_memory},
    {"L40S", &l40s_links, 48 * GIB, 864e9, 91.6e12, 362e12, 362e12, 733e12, 4e-6, &ampere_dot, NULL,
     &gpu_memory},
    {"RTX-4090", &rtx_4090_links, 24 * GIB, 1008e9, 82.6e12, 165.2e12, 165.2e12, 330.3e12, 4e-6, &ampere_dot,
     NULL, &gpu_memory},
    {"H100-80GB", &h100_links, 80 * GIB, 3350e9, 67e12, 990e12, 990e12, 1979e12, 4e-6, &hopper_dot, NULL,
     &gpu_memory},
    {"H800-80GB", &h800_links, 80 * GIB, 3350e9, 67e12, 990e12, 990e12, 1979e12, 4e-6, &hopper_dot, NULL,
     &gpu_memory},
    {"H20-96GB", &h100_links, 96 * GB, 4000e9, 44e12, 148e12, 148e12, 296e12, 4e-6, &hopper_dot, NULL,
     &gpu_memory},
    {"GH200-96GB", &h100_links, 96 * GB, 4000e9, 67e12, 990e12, 990e12, 1979e12, 4e-6, &hopper_dot, NULL,
     &gpu_memory},
    {"H100-PCIe-80GB", &h100_pcie_links, 80 * GIB, 2000e9, 51e12, 756e12, 756e12, 1513e12, 4e-6, &hopper_dot,
     NULL, &gpu_memory},
    {"H100-96GB", &h100_links, 96 * GB, 2400e9, 67e12, 990e12, 990e12, 1979e12, 4e-6, &hopper_dot, NULL,
     &gpu_memory},
    {"H200", &h100_links, 141 * GB, 4800e9, 67e12, 990e12, 990e12, 1979e12, 4e-6, &hopper_dot, NULL,
     &gpu_memory},
    {"B200", &b200_links, 180 * GB, 8000e9, 75e12, 2250e12, 2250e12, 4500e12, 4e-6, &blackwell_dot, NULL,
     &gpu_memory},
    {"GB200", &b200_links, 186 * GB, 8000e9, 80e12, 2500e12, 2500e12, 5000e12, 4e-6, &blackwell_dot, NULL,
     &gpu_memory},
    {"GB300", &gb300_links, 279 * GB, 8000e9, 80e12, 2500e12, 2500e12, 5000e12, 4e-6, &blackwell_dot, NULL,
     &gpu_memory},
    {"MI300X", &mi300_links, 192 * GIB, 5300e9, 163.4e12, 1307.4e12, 1307.4e12, 2614.9e12, 4e-6,
     &blackwell_dot, NULL, &gpu_memory},
    {"MI355X", &mi300_links, 288 * GIB, 8000e9, 157.3e12, 2516.6e12, 2516.6e12, 5033.2e12, 4e-6,
     &blackwell_dot, NULL, &gpu_memory},
    {"TPU-v5e", &v5e_links, 16 * GB, 819e9, 32.8e12, 0, 197e12, 0, 1e-6, &hopper_dot, NULL, &gpu_memory},
    {"TPU-v5p", &v5p_links, 95 * GIB, 2765e9, 76.5e12, 0, 459e12, 0, 1e-6, &hopper_dot, NULL, &gpu_memory},
    {"TPU-v6e", &v6e_links, 32 * GB, 1638e9, 153e12, 0, 918e12, 0, 1e-6, &hopper_dot, NULL, &gpu_memory},
    {"Trainium2", &trainium2_links, 96 * GIB, 2900e9, 181e12, 667e12, 667e12, 1299e12, 1e-6, &blackwell_dot,
     NULL, &gpu_memory},
    {"host", &host_links, 4 * GIB, 8e9, 30e9, 0, 0, 0, 2e-7, &host_dot, NULL, NULL},
};

/* Device types whose 16-bit products are priced by the shares of the peak of a measured device
 * (cost/measured). */
static const struct {
    const char *type, *device;
} measured_types[] = {
    {"V100-32GB", "V100"}, {"V100-16GB", "V100"}, {"A100-PCIe-40GB", "A100"}, {"A100-PCIe-80GB", "A100"},
    {"A100-40GB", "A100"}, {"A100-80GB", "A100"}, {"A800-40GB", "A100"},      {"A800-80GB", "A100"},
    {"A10", "A100"},       {"A40", "A100"},       {"RTX-3090", "A100"},       {"L4", "A100"},
    {"L40S", "A100"},      {"RTX-4090", "A100"},  {"B200", "B200"},           {"GB200", "B200"},
    {"GB300", "B200"},
};

/* Other usual names of a device type. */
static const DeviceAlias aliases[] = {
    {"V100", "V100-32GB"},
    {"P100", "P100-16GB"},
    {"A100", "A100-80GB"},
    {"A100-PCIe", "A100-PCIe-80GB"},
    {"H100", "H100-80GB"},
    {"A100-SXM-80GB", "A100-80GB"},
    {"A100-SXM4-80GB", "A100-80GB"},
    {"A100-SXM-40GB", "A100-40GB"},
    {"A100-SXM4-40GB", "A100-40GB"},
    {"V100-SXM2-16GB", "V100-16GB"},
    {"V100-SXM2-32GB", "V100-32GB"},
    {"A800", "A800-80GB"},
    {"H100-SXM", "H100-80GB"},
    {"H100-SXM-80GB", "H100-80GB"},
    {"H100-SXM5-80GB", "H100-80GB"},
    {"H800", "H800-80GB"},
    {"H20", "H20-96GB"},
    {"GH200", "GH200-96GB"},
    {"H100-PCIe", "H100-PCIe-80GB"},
    {"H200-141GB", "H200"},
    {"L4-24GB", "L4"},
    {"L40S-48GB", "L40S"},
    {"T4-16GB", "T4"},
    {"A10-24GB", "A10"},
    {"A40-48GB", "A40"},
    {"RTX3090", "RTX-3090"},
    {"RTX4090", "RTX-4090"},
    {"B200-180GB", "B200"},
    {"Trn2", "Trainium2"},
    {"v5e", "TPU-v5e"},
    {"v5p", "TPU-v5p"},
    {"v6e", "TPU-v6e"},
    {"Trillium", "TPU-v6e"},
};

static const Curve fast_link = {{{1e5, 0.3}, {1e6, 0.5}, {1e7, 0.75}, {1e8, 0.95}}};
/* Measured: all-reduces in groups of 2, 4 and 8 A100 of a server (vTrain), beside 4 us a message. */
static const Curve a100_link = {{{1e6, 0.2}, {1.8e7, 0.69}, {3.5e7, 0.8}, {1e8, 0.85}, {5e8, 0.92}}};
static const Curve network = {{{1e5, 0.4}, {1e6, 0.6}, {1e7, 0.85}}};
/* Measured: 4 GB/s at 8 MB and 5 GB/s at 16 MB, on the line of 0.8 ms and 6.67 GB/s. */
static const Curve tcp = {{{1e6, 0.4}, {8e6, 0.6}, {1.6e7, 0.75}, {6.4e7, 0.92}}};

static const LinkRow links[] = {
    {"nvlink-v100", 120e9, 4e-6, &fast_link},
    {"nvlink-v100-pair", 23.7e9, 4e-6, &fast_link}, /* of six, to other V100 of a DGX-1 */
    {"nvlink-p100", 72e9, 4e-6, &fast_link},
    {"nvlink-a100", 240e9, 4e-6, &a100_link},
    {"nvlink-a800", 160e9, 4e-6, &fast_link}, /* 400 of 600 GB/s on the wire */
    {"nvlink-h100", 371e9, 4e-6, &fast_link},
    {"nvlink-h800", 165e9, 4e-6, &fast_link}, /* 400 of 900 GB/s on the wire */
    {"nvlink-b200", 742e9, 4e-6, &fast_link},
    {"xgmi-mi300x", 64e9, 4e-6, &fast_link},   /* of seven, to each other device of a server */
    {"xgmi-mi355x", 76.8e9, 4e-6, &fast_link}, /* of seven, to each other device */
    {"ici-v5e", 50e9, 2e-6, &fast_link},       /* of four */
    {"ici-v5p", 100e9, 2e-6, &fast_link},      /* of six */
    {"ici-v6e", 100e9, 2e-6, &fast_link},      /* of four */
    {"neuronlink-3", 160e9, 2e-6, &fast_link}, /* of four */
    {"pcie-3", 12e9, 6e-6, &fast_link},
    {"pcie-4", 22e9, 6e-6, &fast_link},
    {"pcie-5", 44e9, 6e-6, &fast_link},
    {"ethernet-25", 3.1e9, 25e-6, &network},
    {"network-50", 6.2e9, 25e-6, &network},
    {"roce-100", 12e9, 15e-6, &network},
    {"efa-200", 24e9, 15e-6, &network},
    {"infiniband-200", 24e9, 10e-6, &network},
    {"infiniband-400", 48e9, 10e-6, &network},
    {"infiniband-800", 96e9, 10e-6, &network},
    {"tcp-100", 6.67e9, 25e-6, &tcp},
    {"memory", 4e9, 4e-6, NULL},
};

enum {
    DEVICE_COUNT = sizeof devices / sizeof *devices,
    ALIAS_COUNT = sizeof aliases / sizeof *aliases,
    LINK_COUNT = sizeof links / sizeof *links
};

/* Hosts that are known: each device's part of the memory; the rate where it is not that of PCIe. Ranks of a
 * host have its memory already. */
static const struct {
    const char *type;
    int64_t memory_bytes;
    double bytes_per_second;
} hosts[] = {
    {"V100-32GB", 64 * GB, 0},  {"V100-16GB", 64 * GB, 0},  {"P100-16GB", 64 * GB, 0},
    {"A100-40GB", 128 * GB, 0}, {"A100-80GB", 256 * GB, 0}, {"A800-40GB", 128 * GB, 0},
    {"A800-80GB", 256 * GB, 0}, {"H100-80GB", 256 * GB, 0}, {"H800-80GB", 256 * GB, 0},
    {"H200", 256 * GB, 0},      {"B200", 256 * GB, 0},      {"GH200-96GB", 480 * GB, 450e9},
    {"GB200", 240 * GB, 225e9}, {"GB300", 240 * GB, 225e9}, {"host", 0, 0},
};

static void add_curve(json_t *holder, const char *key, const Curve *curve) {
    if (!curve) return;
    json_t *points = json_array();
    for (int k = 0; k < MOST_POINTS && curve->points[k].size > 0; k++)
        json_array_append_new(points, json_pack("[f, f]", curve->points[k].size, curve->points[k].fraction));
    json_object_set_new(holder, key, points);
}

const char *cluster_builtin_device_named(const char *name) {
    for (int k = 0; k < ALIAS_COUNT; k++)
        if (strcasecmp(aliases[k].alias, name) == 0) return aliases[k].name;
    for (int k = 0; k < DEVICE_COUNT; k++)
        if (strcasecmp(devices[k].name, name) == 0) return devices[k].name;
    return NULL;
}

const char *cluster_builtin_device_hint(char hint[SUGGEST_HINT_BYTES], const char *name) {
    const char *names[DEVICE_COUNT + ALIAS_COUNT];
    for (int k = 0; k < DEVICE_COUNT; k++) names[k] = devices[k].name;
    for (int k = 0; k < ALIAS_COUNT; k++) names[DEVICE_COUNT + k] = aliases[k].alias;
    return suggest_hint(hint, name, names, DEVICE_COUNT + ALIAS_COUNT);
}

json_t *cluster_builtin_device_type(const char *name) {
    const DeviceRow *row = NULL;
    for (int k = 0; k < DEVICE_COUNT; k++)
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
    for (size_t k = 0; k < sizeof measured_types / sizeof *measured_types; k++)
        if (strcmp(measured_types[k].type, name) == 0)
            json_object_set_new(type, "measured", json_pack("{s:s}", "device", measured_types[k].device));
    if (strcmp(name, "host") == 0) /* it computes or communicates */
        json_object_set_new(type, "overlaps_communication", json_false());
    return type;
}

const ClusterDeviceLinks *cluster_builtin_device_links(const char *name) {
    for (int k = 0; k < DEVICE_COUNT; k++)
        if (strcmp(devices[k].name, name) == 0) return devices[k].links;
    return NULL;
}

bool cluster_builtin_device_host(const char *name, double *bytes_per_second, double *latency_seconds,
                                 int64_t *memory_bytes) {
    const char *known = cluster_builtin_device_named(name);
    if (!known) return false;
    const char *pcie = cluster_builtin_device_links(known)->pcie;
    *memory_bytes = -1;
    for (int k = 0; k < LINK_COUNT; k++) {
        if (strcmp(links[k].name, pcie) != 0) continue;
        *bytes_per_second = links[k].bytes_per_second;
        *latency_seconds = links[k].latency_seconds;
    }
    for (size_t k = 0; k < sizeof hosts / sizeof *hosts; k++) {
        if (strcmp(hosts[k].type, known) != 0) continue;
        *memory_bytes = hosts[k].memory_bytes;
        if (hosts[k].bytes_per_second > 0) *bytes_per_second = hosts[k].bytes_per_second;
    }
    return true;
}

const char *cluster_builtin_device_link(const char *name) {
    const ClusterDeviceLinks *found = cluster_builtin_device_links(name);
    return found ? found->inside : NULL;
}

const char *cluster_builtin_device_name(int32_t k) {
    return k >= 0 && k < DEVICE_COUNT ? devices[k].name : NULL;
}

const char *cluster_builtin_link_name(int32_t k) {
    return k >= 0 && k < LINK_COUNT ? links[k].name : NULL;
}

json_t *cluster_builtin_link(const char *name) {
    const LinkRow *row = NULL;
    for (int k = 0; k < LINK_COUNT; k++)
        if (strcmp(links[k].name, name) == 0) row = &links[k];
    if (!row) return NULL;
    json_t *link = json_pack("{s:f, s:f}", "bytes_per_second", row->bytes_per_second, "latency_seconds",
                             row->latency_seconds);
    add_curve(link, "efficiency", row->efficiency);
    return link;
}
