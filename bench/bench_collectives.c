/* Benchmark of collective prices: predictions beside measurements, and the time of pricing.
 *
 * The first table is bus bandwidth of all-reduces, 2(n-1)/n S / seconds, under both
 * models of a cluster, alpha-beta and NCCL's tuning model (cost/collective/nccl_model.h), beside published
 * measurements by nccl-tests: rings of H100, A100, V100 and P100 servers, three servers of
 * eight A100 with four HDR cards each, two hosts on 100 Gb/s TCP. Rates of links are
 * those of the built-in clusters; the last point of a curve keeps many bytes below them.
 *
 * The second is the time of 10,000 collectives of 100 kinds and sizes on 1,024
 * devices: facts about their groups are computed once (`known`), each is then
 * priced (`priced`). Least of RUNS, in processor time.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/json.h"
#include "base/system/clock.h"
#include "bench/check.h"
#include "cost/collective/collective.h"

#define RUNS        5
#define COLLECTIVES 10000
#define DISTINCT    100

/* Three servers of eight A100, two to a card. */
static const char four_cards[] =
    "{\"format\": \"automap-cluster-1\", \"name\": \"3x8 A100\", \"device_types\": {\"A100\": {"
    "\"memory_bytes\": 8e10, \"memory_bytes_per_second\": 2e12, \"flops_per_second\": {\"f32\": 19.5e12}}},"
    "\"links\": {\"nvlink\": {\"bytes_per_second\": 240e9, \"latency_seconds\": 4e-6},"
    "\"hdr\": {\"bytes_per_second\": 24e9, \"latency_seconds\": 5e-6,"
    " \"efficiency\": [[1e5, 0.4], [1e6, 0.6], [1e7, 0.85]]}},"
    "\"servers\": [{\"count\": 3, \"device_type\": \"A100\", \"devices\": 8, \"link\": \"nvlink\"}],"
    "\"topology\": {\"edges\": ["
    "{\"for\": {\"s\": [0, 3], \"d\": [0, 8]}, \"from\": \"server{s}/device{d}\","
    " \"to\": \"server{s}/card{d/2}\", \"link\": \"nvlink\"},"
    "{\"for\": {\"s\": [0, 3], \"c\": [0, 4]}, \"from\": \"server{s}/card{c}\", \"to\": \"rail{c}\","
    " \"link\": \"hdr\"}]}}";

/* The hybrid cube of a DGX-1: six NVLinks a device. */
static const char hybrid_cube[] =
    "{\"format\": \"automap-cluster-1\", \"name\": \"hybrid cube\", \"device_types\": {\"V100\": {"
    "\"memory_bytes\": 16e9, \"memory_bytes_per_second\": 9e11, \"flops_per_second\": {\"f32\": 15.7e12}}},"
    "\"links\": {\"nvlink\": {\"bytes_per_second\": 20e9, \"latency_seconds\": 4e-6}},"
    "\"servers\": [{\"device_type\": \"V100\", \"devices\": 8}], \"topology\": {\"edges\": ["
    "{\"for\": {\"h\": [0, 2], \"a\": [0, 4], \"b\": [0, 4]}, \"where\": \"a < b && a + b != 3 && a * b != "
    "6\","
    " \"from\": \"server0/device{4*h+a}\", \"to\": \"server0/device{4*h+b}\", \"link\": \"nvlink\", "
    "\"width\": 1},"
    "{\"for\": {\"h\": [0, 2], \"a\": [0, 4], \"b\": [0, 4]}, \"where\": \"a < b && (a + b == 3 || a * b == "
    "6)\","
    " \"from\": \"server0/device{4*h+a}\", \"to\": \"server0/device{4*h+b}\", \"link\": \"nvlink\", "
    "\"width\": 2},"
    "{\"for\": {\"a\": [0, 2]},"
    " \"from\": \"server0/device{a}\", \"to\": \"server0/device{a+4}\", \"link\": \"nvlink\", \"width\": 2},"
    "{\"for\": {\"a\": [2, 4]},"
    " \"from\": \"server0/device{a}\", \"to\": \"server0/device{a+4}\", \"link\": \"nvlink\", \"width\": "
    "1}]}}";

typedef struct Row {
    const char *what, *cluster; /* a built-in name, or a description */
    int32_t first, stride, count;
    double bytes;
    const char *measured;
} Row;

static const Row rows[] = {
    {"8 H100, NVSwitch", "h100:1", 0, 1, 8, 8e9, "370"},
    {"2 A100, NVSwitch", "a100:1", 0, 1, 2, 8e9, "208"},
    {"3 x 8 A100, 4 HDR cards", four_cards, 0, 1, 24, 8e9, "85"},
    {"8 V100, NVLink", "C", 0, 1, 8, 1e9, "120"},
    {"8 V100, each NVLink", hybrid_cube, 0, 1, 8, 1e9, "120"},
    {"8 P100, NVLink", "whale-dp", 8, 1, 8, 1e9, "72"},
    {"2 hosts, 100 Gb/s TCP", "distsim", 0, 4, 2, 12e6, "4-5"},
};

/* With NCCL's model where `is_nccl`. */
static Cluster *open_cluster(Arena *arena, const char *name, bool is_nccl) {
    AmError error = {0};
    Cluster *cluster;
    json_t *root = NULL;
    AmStatus status = name[0] == '{' ? json_parse(&root, "row", name, strlen(name), &error)
                                     : cluster_builtin(&root, name, &error);
    if (status != AM_OK || !root) bench_fail(name, &error);
    if (is_nccl) json_object_set_new(root, "collective_model", json_string("nccl"));
    if (cluster_from_json(&cluster, arena, root, "row", &error) != AM_OK) bench_fail(name, &error);
    json_decref(root);
    return cluster;
}

static void open_groups(CollectivePartition *partition, Arena *arena, const Cluster *cluster,
                        const Mesh *mesh, int32_t first, int32_t stride, uint32_t axes) {
    AmError error = {0};
    int32_t *devices = ARENA_ARRAY(arena, int32_t, mesh->device_count);
    for (int32_t k = 0; k < mesh->device_count; k++) devices[k] = first + k * stride;
    if (collective_partition(partition, arena, cluster, mesh, devices, axes, &error) != AM_OK)
        bench_fail("groups", &error);
}

/* GB/s that each device of the row's ring sends. */
static double bus_bandwidth(const Row *row, bool is_nccl, Text *told) {
    Arena arena = {0};
    Cluster *cluster = open_cluster(&arena, row->cluster, is_nccl);
    Mesh mesh = {.axis_count = 1, .axes = {{.name = "x", .size = row->count}}, .device_count = row->count};
    CollectivePartition partition;
    open_groups(&partition, &arena, cluster, &mesh, row->first, row->stride, 1);
    double seconds = collective_seconds(PROGRAM_ALL_REDUCE, row->bytes, &partition.topologies[0], cluster);
    collective_describe(told, PROGRAM_ALL_REDUCE, row->bytes, &partition.topologies[0], cluster);
    cluster_free(cluster);
    arena_free(&arena);
    return 2. * (row->count - 1) / row->count * row->bytes / seconds / 1e9;
}

static void compare(bool tells) {
    Text told = {0};
    printf("%-26s %8s %10s %12s %8s\n", "all_reduce, bus GB/s", "bytes", "measured", "alpha-beta", "NCCL");
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        double ours = bus_bandwidth(&rows[k], false, &told), nccl = bus_bandwidth(&rows[k], true, &told);
        printf("%-26s %8.3g %10s %12.1f %8.1f\n", rows[k].what, rows[k].bytes, rows[k].measured, ours, nccl);
    }
    if (tells) printf("\n%s", told.data);
    text_free(&told);
}

/* Every axis of data=8, pipe=16, model=8 and pairs of them, five kinds, sizes between. */
static void measure(const char *label, const char *name) {
    static const uint32_t axes[] = {1, 2, 4, 3, 5, 6, 7};
    double known = INFINITY, priced = INFINITY, sum = 0;
    for (int run = 0; run < RUNS; run++) {
        Arena arena = {0};
        Cluster *cluster = open_cluster(&arena, name, false);
        Mesh mesh = {
            .axis_count = 3,
            .axes = {{.name = "data", .size = 8}, {.name = "pipe", .size = 16}, {.name = "model", .size = 8}},
            .device_count = 1024};
        CollectivePartition partitions[sizeof axes / sizeof *axes];
        double start = clock_thread_seconds();
        for (size_t k = 0; k < sizeof axes / sizeof *axes; k++)
            open_groups(&partitions[k], &arena, cluster, &mesh, 0, 1, axes[k]);
        double middle = clock_thread_seconds();
        for (int k = 0; k < COLLECTIVES; k++) {
            int kind = k % DISTINCT;
            const CollectivePartition *partition = &partitions[kind % (sizeof axes / sizeof *axes)];
            for (int32_t d = 0; d < partition->distinct_count; d++)
                sum += collective_seconds((ProgramCollectiveKind)(kind % PROGRAM_DEVICE_COLLECTIVES),
                                          1e3 * (1 + kind) * (1 + kind), &partition->distinct[d], cluster);
        }
        double end = clock_thread_seconds();
        if (middle - start < known) known = middle - start;
        if (end - middle < priced) priced = end - middle;
        cluster_free(cluster);
        arena_free(&arena);
    }
    printf("%-26s %8.2f %10.2f %12.2f   (%.3g s in all)\n", label, known * 1e3, priced * 1e3,
           (known + priced) * 1e3, sum / RUNS);
}

int main(int argc, char **argv) {
    compare(argc > 1 && strcmp(argv[1], "--verbose") == 0);
    printf("\n%-26s %8s %10s %12s\n", "10,000 collectives, ms", "known", "priced", "both");
    measure("h100:128", "h100:128");
    measure("128 x 8, shared cards",
            "{\"format\": \"automap-cluster-1\", \"name\": \"tree\", \"device_types\": {\"d\": {"
            "\"memory_bytes\": 1000, \"memory_bytes_per_second\": 1, \"flops_per_second\": {\"f32\": 1}}},"
            "\"links\": {\"in\": {\"bytes_per_second\": 1e11, \"latency_seconds\": 1e-6},"
            "\"out\": {\"bytes_per_second\": 1e10, \"latency_seconds\": 1e-5}},"
            "\"servers\": [{\"count\": 128, \"device_type\": \"d\", \"devices\": 8, \"link\": \"in\"}],"
            "\"between_servers\": \"out\"}");
    return 0;
}
