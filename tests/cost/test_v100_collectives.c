/* All-reduces among V100 of a DGX-1 against measured ones (vTrain's table of NCCL, 1 GB). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cost/cluster/cluster_servers.h"
#include "cost/collective/collective.h"

static double all_reduce_seconds(int32_t devices, double bytes) {
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    json_t *description;
    const ClusterServers servers = {.device_type = "V100-32GB", .devices = 8, .per_server = 8};
    const int32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7};
    if (cluster_of_servers(&description, &servers, &error) != AM_OK ||
        cluster_from_json(&cluster, &arena, description, "test", &error) != AM_OK)
        fail_msg("%s", error.text);
    const Mesh mesh = {.axis_count = 2,
                       .axes = {{.name = "data", .size = 8 / devices}, {.name = "model", .size = devices}},
                       .device_count = 8};
    CollectivePartition partition;
    if (collective_partition(&partition, &arena, cluster, &mesh, all, 2, &error) != AM_OK)
        fail_msg("%s", error.text);
    double seconds = collective_seconds(PROGRAM_ALL_REDUCE, bytes, &partition.topologies[0], cluster);
    json_decref(description);
    cluster_free(cluster);
    arena_free(&arena);
    return seconds;
}

static void all_reduces_are_as_measured(void **state) {
    (void)state;
    const struct {
        int32_t devices;
        double rate; /* 2 (n - 1) / n bytes / seconds */
    } measured[] = {{2, 22.6e9}, {4, 85.1e9}, {8, 133.9e9}};
    for (int32_t k = 0; k < 3; k++) {
        int32_t n = measured[k].devices;
        double rate = 2 * (n - 1.) / n * 1e9 / all_reduce_seconds(n, 1e9);
        print_message("%d V100: %.1f GB/s, measured %.1f\n", (int)n, rate / 1e9, measured[k].rate / 1e9);
        assert_true(rate > 0.92 * measured[k].rate && rate < 1.08 * measured[k].rate);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_reduces_are_as_measured)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
