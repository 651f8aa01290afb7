/* Collectives: the formulas by hand, what boxing moves, shared networks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "cost/collective.h"

/* 2 servers x 4 devices; 1e9 B/s and 1 us inside, 1e8 B/s and 10 us between; no curves. */
static const char plain[] =
    "{\"format\": \"automap-cluster-1\", \"name\": \"plain\", \"device_types\": {\"d\": {"
    "\"memory_bytes\": 1000, \"memory_bytes_per_second\": 1, \"flops_per_second\": {\"f32\": 1}}},"
    "\"links\": {\"in\": {\"bytes_per_second\": 1e9, \"latency_seconds\": 1e-6},"
    "\"out\": {\"bytes_per_second\": 1e8, \"latency_seconds\": 1e-5}},"
    "\"servers\": [{\"count\": 2, \"device_type\": \"d\", \"devices\": 4, \"link\": \"in\"}],"
    "\"between_servers\": \"out\"}";

typedef struct Fixture {
    Arena arena;
    Cluster *cluster;
} Fixture;

static int set_up(void **state) {
    static Fixture fixture;
    AmError error = {0};
    json_t *root;
    fixture = (Fixture){0};
    assert_int_equal(json_parse(&root, "plain", plain, strlen(plain), &error), AM_OK);
    assert_int_equal(cluster_from_json(&fixture.cluster, &fixture.arena, root, "plain", &error), AM_OK);
    json_decref(root);
    *state = &fixture;
    return 0;
}

static int tear_down(void **state) {
    Fixture *fixture = *state;
    cluster_free(fixture->cluster);
    arena_free(&fixture->arena);
    return 0;
}

static void assert_close(double value, double expected) {
    if (fabs(value - expected) > 1e-12 * fabs(expected) + 1e-15)
        fail_msg("%.17g is not %.17g", value, expected);
}

static CollectivePartition partition_of(Fixture *fixture, const char *text, const int32_t *devices,
                                        uint32_t axes) {
    Mesh mesh;
    AmError error = {0};
    CollectivePartition partition;
    assert_int_equal(mesh_parse(&mesh, &fixture->arena, text, &error), AM_OK);
    assert_int_equal(
        collective_partition(&partition, &fixture->arena, fixture->cluster, &mesh, devices, axes, &error),
        AM_OK);
    return partition;
}

static const int32_t in_order[] = {0, 1, 2, 3, 4, 5, 6, 7};

static void ring_inside_a_server(void **state) {
    Fixture *fixture = *state;
    CollectivePartition partition = partition_of(fixture, "data=4", in_order, 1);
    const CollectiveTopology *ring = &partition.topologies[0];
    assert_int_equal(partition.group_count, 1);
    assert_int_equal(ring->servers, 1);
    assert_int_equal(ring->between, -1);
    double S = 4e6, a = 1e-6, B = 1e9;
    assert_close(collective_seconds(PROGRAM_ALL_REDUCE, S, ring, fixture->cluster), 6 * a + 1.5 * S / B);
    assert_close(collective_seconds(PROGRAM_ALL_GATHER, S, ring, fixture->cluster), 3 * a + 0.75 * S / B);
    assert_close(collective_seconds(PROGRAM_REDUCE_SCATTER, S, ring, fixture->cluster), 3 * a + 0.75 * S / B);
    assert_close(collective_seconds(PROGRAM_ALL_TO_ALL, S, ring, fixture->cluster), 3 * a + 3. / 16 * S / B);
}

/* n x the bandwidth term x B is what the boxing table moves in total. */
static void bandwidth_terms_are_the_boxing_tables(void **state) {
    Fixture *fixture = *state;
    double T = 12e6, B = 1e9, a = 1e-6;
    for (int32_t n = 2; n <= 4; n++) {
        CollectiveTopology ring = {.devices = n, .servers = 1, .per_server = n, .between = -1, .sharing = 1};
        double moved[PROGRAM_ALL_TO_ALL + 1] = {[PROGRAM_ALL_REDUCE] = 2 * (n - 1) * T,
                                                [PROGRAM_ALL_GATHER] = (n - 1) * T,
                                                [PROGRAM_REDUCE_SCATTER] = (n - 1) * T,
                                                [PROGRAM_ALL_TO_ALL] = (n - 1) * T / n};
        for (int32_t kind = 0; kind <= PROGRAM_ALL_TO_ALL; kind++) {
            double latency = (kind == PROGRAM_ALL_REDUCE ? 2 : 1) * (n - 1) * a;
            double seconds = collective_seconds((ProgramCollectiveKind)kind, T, &ring, fixture->cluster);
            assert_close(n * collective_sent_bytes((ProgramCollectiveKind)kind, T, n), moved[kind]);
            assert_true(fabs(n * (seconds - latency) * B - moved[kind]) < 1e-9 * moved[kind]);
        }
    }
}

static void two_servers_are_hierarchical(void **state) {
    Fixture *fixture = *state;
    CollectivePartition partition = partition_of(fixture, "data=8", in_order, 1);
    const CollectiveTopology *all = &partition.topologies[0];
    assert_int_equal(all->servers, 2);
    assert_int_equal(all->per_server, 4);
    assert_int_equal(all->sharing, 1);
    double S = 8e6, in = S / 1e9, out = S / 1e8, a = 1e-6, b = 1e-5;
    assert_close(collective_seconds(PROGRAM_ALL_REDUCE, S, all, fixture->cluster),
                 6 * a + 1.5 * in + 2 * b + 1 * out);
    assert_close(collective_seconds(PROGRAM_ALL_GATHER, S, all, fixture->cluster),
                 3 * a + 0.75 * in + b + 0.5 * out);
    /* Each of a server's 4 devices sends S/64 to 3 neighbours and to 4 devices elsewhere. */
    assert_close(collective_seconds(PROGRAM_ALL_TO_ALL, S, all, fixture->cluster),
                 3 * a + 3. / 64 * in + 4 * b + 16. / 64 * out);
}

/* data=2,model=4: the four groups of `data` are pairs across the servers and share their links. */
static void groups_that_cross_share_the_link(void **state) {
    Fixture *fixture = *state;
    CollectivePartition across = partition_of(fixture, "data=2,model=4", in_order, 1);
    assert_int_equal(across.group_count, 4);
    assert_int_equal(across.distinct_count, 1);
    assert_int_equal(across.members[2], 1);
    assert_int_equal(across.members[3], 5);
    assert_int_equal(across.topologies[0].sharing, 4);
    assert_int_equal(across.topologies[0].local, -1);
    double S = 2e6;
    assert_close(collective_seconds(PROGRAM_ALL_REDUCE, S, &across.topologies[0], fixture->cluster),
                 2e-5 + 4 * S / 1e8);
    CollectivePartition inside = partition_of(fixture, "data=2,model=4", in_order, 2);
    assert_int_equal(inside.group_count, 2);
    assert_int_equal(inside.topologies[1].servers, 1);
    assert_int_equal(inside.topologies[1].sharing, 1);
    /* With the axes the other way round each group of `model` has two devices on each server. */
    static const int32_t dealt[] = {0, 4, 1, 5, 2, 6, 3, 7};
    CollectivePartition mixed = partition_of(fixture, "data=2,model=4", dealt, 2);
    assert_int_equal(mixed.topologies[0].per_server, 2);
    assert_int_equal(mixed.topologies[0].sharing, 2);
}

static void groups_may_lie_differently(void **state) {
    Fixture *fixture = *state;
    static const int32_t devices[] = {0, 1, 2, 4};
    CollectivePartition partition = partition_of(fixture, "data=2,model=2", devices, 2);
    assert_int_equal(partition.distinct_count, 2);
    assert_int_equal(partition.topologies[0].servers, 1);
    assert_int_equal(partition.topologies[1].servers, 2);
}

static void one_device_needs_no_collective(void **state) {
    Fixture *fixture = *state;
    CollectivePartition partition = partition_of(fixture, "data=1", in_order, 1);
    assert_true(collective_seconds(PROGRAM_ALL_REDUCE, 1e6, &partition.topologies[0], fixture->cluster) == 0);
}

static void tensor_bytes_are_those_of_the_whole(void **state) {
    (void)state;
    /* f32[3,8] on this device, f32[5,8] on the other: the whole is priced as 2 x 5 rows. */
    ProgramValue values[] = {{.shape = {DTYPE_F32, 2, (const int64_t[]){3, 8}, NULL, NULL}},
                             {.shape = {DTYPE_F32, 2, (const int64_t[]){8, 8}, NULL, NULL}}};
    ProgramMovement movement = {.dimension = 0, .parts = (const int64_t[]){3, 5}};
    ProgramCollective collective = {.kind = PROGRAM_ALL_GATHER, .group_count = 2, .movements = &movement};
    ProgramInstruction instruction = {.kind = PROGRAM_COLLECTIVE,
                                      .operand_count = 1,
                                      .operands = (const int32_t[]){0},
                                      .collective = &collective};
    Program program = {.values = values, .value_count = 2};
    assert_close(collective_tensor_bytes(&program, &instruction), 2 * 5 * 8 * 4);
    collective.kind = PROGRAM_REDUCE_SCATTER;
    instruction.operands = (const int32_t[]){1};
    movement.parts = (const int64_t[]){4, 4};
    assert_close(collective_tensor_bytes(&program, &instruction), 8 * 8 * 4);
    collective.kind = PROGRAM_ALL_REDUCE;
    collective.movements = NULL;
    assert_close(collective_tensor_bytes(&program, &instruction), 8 * 8 * 4);
}

/* Parts of 4 rows of 10 floats, a row of each neighbour beside them: who is in the middle receives two. */
static void a_halo_is_priced_by_the_most_received(void **state) {
    Fixture *fixture = *state;
    ProgramValue value = {.shape = {DTYPE_F32, 2, (const int64_t[]){4, 10}, NULL, NULL}};
    ProgramMovement movement = {.dimension = 0,
                                .parts = (const int64_t[]){4, 4, 4, 4},
                                .range_start = (const int64_t[]){0, 3, 7, 11},
                                .range_extent = (const int64_t[]){5, 6, 6, 5}};
    ProgramCollective collective = {.kind = PROGRAM_HALO_EXCHANGE, .group_count = 4, .movements = &movement};
    ProgramInstruction instruction = {.kind = PROGRAM_COLLECTIVE,
                                      .operand_count = 1,
                                      .operands = (const int32_t[]){0},
                                      .collective = &collective};
    Program program = {.values = &value, .value_count = 1};
    double S = collective_tensor_bytes(&program, &instruction);
    assert_close(S, 2 * 10 * 4);
    assert_close(collective_sent_bytes(PROGRAM_HALO_EXCHANGE, S, 4), S);
    CollectivePartition partition = partition_of(fixture, "data=4", in_order, 1);
    const ClusterLink *link = &fixture->cluster->links[partition.topologies[0].local];
    assert_close(collective_seconds(PROGRAM_HALO_EXCHANGE, S, &partition.topologies[0], fixture->cluster),
                 2 * link->latency_seconds +
                     S / (link->bytes_per_second * cluster_efficiency(&link->efficiency, S)));
    /* Reversed, nobody has anything of its own. */
    movement.range_start = (const int64_t[]){12, 8, 4, 0};
    movement.range_extent = movement.parts;
    assert_close(collective_tensor_bytes(&program, &instruction), 4 * 10 * 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ring_inside_a_server, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bandwidth_terms_are_the_boxing_tables, set_up, tear_down),
        cmocka_unit_test_setup_teardown(two_servers_are_hierarchical, set_up, tear_down),
        cmocka_unit_test_setup_teardown(groups_that_cross_share_the_link, set_up, tear_down),
        cmocka_unit_test_setup_teardown(groups_may_lie_differently, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_device_needs_no_collective, set_up, tear_down),
        cmocka_unit_test(tensor_bytes_are_those_of_the_whole),
        cmocka_unit_test_setup_teardown(a_halo_is_priced_by_the_most_received, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
