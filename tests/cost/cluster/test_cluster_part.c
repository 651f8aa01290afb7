/* Parts of clusters: collectives and routes cost the same as on the cluster, in any order of the servers and
 * with devices left out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "cost/cluster/topology.h"
#include "cost/collective/collective.h"

enum { MOST_DEVICES = 64 };

/* Servers in a random order, each with a random number of its devices at least one. */
static int32_t choose_devices(int32_t *devices, const Cluster *cluster, Random *random, bool whole) {
    int32_t order[MOST_DEVICES], count = 0;
    for (int32_t s = 0; s < cluster->server_count; s++) order[s] = s;
    for (int32_t s = cluster->server_count - 1; s > 0; s--) {
        int32_t other = (int32_t)random_below(random, s + 1), kept = order[s];
        order[s] = order[other];
        order[other] = kept;
    }
    for (int32_t s = 0; s < cluster->server_count; s++) {
        const ClusterServer *server = &cluster->servers[order[s]];
        int32_t used = whole ? server->device_count : 1 + (int32_t)random_below(random, server->device_count);
        for (int32_t d = 0; d < used; d++) devices[count++] = server->first_device + d;
    }
    return count;
}

static double seconds_of(ProgramCollectiveKind kind, double bytes, const Cluster *cluster,
                         const int32_t *devices, int32_t count) {
    Arena arena = {0};
    AmError error = {0};
    CollectivePartition partition;
    const Mesh mesh = {.axis_count = 1, .axes = {{.name = "data", .size = count}}, .device_count = count};
    assert_int_equal(collective_partition(&partition, &arena, cluster, &mesh, devices, 1, &error), AM_OK);
    double most = 0;
    for (int32_t k = 0; k < partition.distinct_count; k++) {
        double seconds = collective_seconds(kind, bytes, &partition.distinct[k], cluster);
        if (seconds > most) most = seconds;
    }
    arena_free(&arena);
    return most;
}

/* Compares a part with its cluster: routes, types, names, and collectives among some of its devices. */
static void compare(const Cluster *cluster, const Cluster *part, const int32_t *devices, int32_t count,
                    Random *random) {
    static const ProgramCollectiveKind kinds[] = {PROGRAM_ALL_REDUCE, PROGRAM_ALL_GATHER, PROGRAM_ALL_TO_ALL};
    int32_t here[MOST_DEVICES], there[MOST_DEVICES], own[256], other[256], length, other_length;
    Arena arena = {0};
    assert_int_equal(part->device_count, count);
    for (int32_t k = 0; k < count; k++) {
        assert_int_equal(cluster_number(part, k), devices[k]);
        assert_ptr_equal(cluster_device_type(part, k), cluster_device_type(cluster, devices[k]));
        assert_string_equal(cluster_device_name(part, &arena, k),
                            cluster_device_name(cluster, &arena, devices[k]));
        topology_route(part->topology, 0, k, own, &length);
        topology_route(cluster->topology, devices[0], devices[k], other, &other_length);
        assert_int_equal(length, other_length);
        for (int32_t e = 0; e < length; e++) assert_int_equal(own[e], other[e]);
    }
    for (int32_t k = 0; k < 6; k++) {
        int32_t used = 0, stride = 1 + (int32_t)random_below(random, 3);
        for (int32_t d = (int32_t)random_below(random, 2); d < count; d += stride) {
            here[used] = d;
            there[used++] = devices[d];
        }
        if (used < 2) continue;
        for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
            double bytes = k % 2 ? 1e5 : 1e8;
            double expected = seconds_of(kinds[kind], bytes, cluster, there, used);
            double seconds = seconds_of(kinds[kind], bytes, part, here, used);
            if (fabs(seconds - expected) > 1e-9 * expected)
                fail_msg("%s: collective %zu of %.0f bytes among %d devices: %g s, of the cluster %g s",
                         cluster->name, kind, bytes, used, seconds, expected);
        }
    }
    arena_free(&arena);
}

static void parts_cost_what_their_devices_do(void **state) {
    static const char *const names[] = {"whale-pp", "C", "h100:3", "t4:4", "mi300x:2", "tpu-v5e:16"};
    (void)state;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (uint64_t seed = 0; seed < 6; seed++) {
            Arena arena = {0};
            AmError error = {0};
            Cluster *cluster, *part;
            int32_t devices[MOST_DEVICES];
            Random random;
            random_seed(&random, seed);
            assert_int_equal(cluster_read(&cluster, &arena, names[n], &error), AM_OK);
            int32_t count = choose_devices(devices, cluster, &random, seed % 2 == 0);
            assert_int_equal(cluster_part(&part, &arena, cluster, devices, count, &error), AM_OK);
            compare(cluster, part, devices, count, &random);
            cluster_free(part);
            cluster_free(cluster);
            arena_free(&arena);
        }
}

/* A part of a part has the numbers of the described cluster. */
static void parts_of_parts_keep_numbers(void **state) {
    static const int32_t first[] = {4, 5, 6, 7, 0, 1}, second[] = {4, 5, 2};
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster, *part, *inner;
    (void)state;
    assert_int_equal(cluster_read(&cluster, &arena, "whale-pp", &error), AM_OK);
    assert_int_equal(cluster_part(&part, &arena, cluster, first, 6, &error), AM_OK);
    assert_int_equal(cluster_part(&inner, &arena, part, second, 3, &error), AM_OK);
    assert_int_equal(part->server_count, 2);
    assert_int_equal(inner->servers[1].link, -1);
    assert_int_equal(cluster_number(inner, 0), 0);
    assert_int_equal(cluster_number(inner, 2), 6);
    assert_string_equal(cluster_device_name(inner, &arena, 2), "server1/P100-16GB-2");
    cluster_free(inner);
    cluster_free(part);
    cluster_free(cluster);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_cost_what_their_devices_do),
        cmocka_unit_test(parts_of_parts_keep_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
