/* Collectives of the groups of a mesh: two servers by hand, groups with common links, cached
 * prices, bytes of instructions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/files/json.h"
#include "cost/collective/collective_algorithms.h"
#include "cost/operator/measured_events.h"

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

static double priced(Fixture *fixture, const char *algorithm, ProgramCollectiveKind kind, double bytes,
                     const CollectiveTopology *topology) {
    int32_t count;
    const CollectiveAlgorithm *rows = collective_algorithms(&count);
    for (int32_t k = 0; k < count; k++)
        if (strcmp(rows[k].name, algorithm) == 0 && collective_can_use(&rows[k], kind, topology))
            return collective_algorithm_seconds(&rows[k], kind, bytes, topology, fixture->cluster);
    return -1;
}

/* Two servers of four, all eight devices. */
static void two_servers_are_hierarchical(void **state) {
    Fixture *fixture = *state;
    CollectivePartition partition = partition_of(fixture, "data=8", in_order, 1);
    const CollectiveTopology *all = &partition.topologies[0];
    assert_int_equal(all->servers, 2);
    assert_int_equal(all->per_server, 4);
    double S = 8e6, in = S / 1e9, out = S / 1e8, a = 1e-6, b = 1e-5;
    assert_close(priced(fixture, "hierarchical (rings)", PROGRAM_ALL_REDUCE, S, all),
                 6 * a + 1.5 * in + 2 * b + 1 * out);
    assert_close(priced(fixture, "hierarchical (rings)", PROGRAM_ALL_GATHER, S, all),
                 3 * a + 0.75 * in + b + 0.5 * out);
    assert_close(priced(fixture, "halving-doubling", PROGRAM_ALL_REDUCE, S, all),
                 4 * a + 1.5 * in + 2 * b + 1 * out);
    /* Each of a server's 4 devices sends S/64 to 3 neighbours and to 4 devices elsewhere. */
    assert_close(priced(fixture, "pairwise", PROGRAM_ALL_TO_ALL, S, all),
                 3 * a + 3. / 64 * in + 4 * b + 16. / 64 * out);
    /* 3/4 of the own S/8 to the others of the server, then half of it across, where four meet. */
    assert_close(priced(fixture, "hierarchical", PROGRAM_ALL_TO_ALL, S, all),
                 3 * a + 3. / 32 * in + b + 4. / 16 * out);
    /* One ring: seven hops per round without a short one; the server's link carries 7/8. */
    assert_close(priced(fixture, "ring", PROGRAM_ALL_REDUCE, S, all), 2 * (5 * a + 2 * b) + 1.75 * out);
    /* Two trees over two servers: each sends half of S up and half down, while chains pass it on inside. */
    assert_close(priced(fixture, "tree", PROGRAM_ALL_REDUCE, S, all), 2 * (3 * a + b) + 1 * out);
    assert_close(collective_seconds(PROGRAM_ALL_REDUCE, S, all, fixture->cluster), 2 * (3 * a + b) + 1 * out);
    /* Few bytes: the fewest messages. */
    assert_close(collective_seconds(PROGRAM_ALL_REDUCE, 8, all, fixture->cluster),
                 4 * a + 2 * b + 1.5 * 8 / 1e9 + 8 / 1e8);
}

/* data=2,model=4: the four groups of `data` are pairs across the servers and share their links. */
static void groups_that_cross_share_the_link(void **state) {
    Fixture *fixture = *state;
    CollectivePartition across = partition_of(fixture, "data=2,model=4", in_order, 1);
    assert_int_equal(across.group_count, 4);
    assert_int_equal(across.distinct_count, 1);
    assert_int_equal(across.members[2], 1);
    assert_int_equal(across.members[3], 5);
    double S = 2e6;
    assert_close(priced(fixture, "ring", PROGRAM_ALL_REDUCE, S, &across.topologies[0]), 2e-5 + 4 * S / 1e8);
    CollectivePartition inside = partition_of(fixture, "data=2,model=4", in_order, 2);
    assert_int_equal(inside.group_count, 2);
    assert_int_equal(inside.distinct_count, 1);
    assert_int_equal(inside.topologies[1].servers, 1);
    assert_close(priced(fixture, "ring", PROGRAM_ALL_REDUCE, S, &inside.topologies[1]), 6e-6 + 1.5 * S / 1e9);
    /* With the axes the other way round each group of `model` has two devices on each server. */
    static const int32_t dealt[] = {0, 4, 1, 5, 2, 6, 3, 7};
    CollectivePartition mixed = partition_of(fixture, "data=2,model=4", dealt, 2);
    assert_int_equal(mixed.topologies[0].per_server, 2);
    assert_close(priced(fixture, "hierarchical (rings)", PROGRAM_ALL_REDUCE, S, &mixed.topologies[0]),
                 2 * (1e-6 + 0.5 * S / 1e9) + 2 * (1e-5 + 2 * 0.5 * S / 1e8));
}

static void groups_may_lie_differently(void **state) {
    Fixture *fixture = *state;
    static const int32_t devices[] = {0, 1, 2, 4};
    CollectivePartition partition = partition_of(fixture, "data=2,model=2", devices, 2);
    assert_int_equal(partition.distinct_count, 2);
    assert_int_equal(partition.topologies[0].servers, 1);
    assert_int_equal(partition.topologies[1].servers, 2);
    /* The pair across does not make the one inside slower. */
    double S = 1e6;
    assert_close(priced(fixture, "ring", PROGRAM_ALL_REDUCE, S, &partition.topologies[0]), 2e-6 + S / 1e9);
    assert_close(priced(fixture, "ring", PROGRAM_ALL_REDUCE, S, &partition.topologies[1]), 2e-5 + S / 1e8);
}

/* A cluster remembers: the same devices in the same groups are found again, others are not mixed up. */
static void what_is_known_is_found_again(void **state) {
    Fixture *fixture = *state;
    CollectivePartition first = partition_of(fixture, "data=2,model=4", in_order, 1);
    CollectivePartition again = partition_of(fixture, "x=2,y=2,z=2", in_order, 1);
    CollectivePartition other = partition_of(fixture, "data=4,model=2", in_order, 1);
    assert_ptr_equal(first.topologies, again.topologies);
    assert_ptr_not_equal(first.topologies, other.topologies);
    assert_ptr_not_equal(first.topologies[0].loads, other.topologies[0].loads);
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
    const ClusterLink *link = &fixture->cluster->links[fixture->cluster->servers[0].link];
    assert_close(collective_seconds(PROGRAM_HALO_EXCHANGE, S, &partition.topologies[0], fixture->cluster),
                 2 * link->latency_seconds +
                     S / (link->bytes_per_second * cluster_efficiency(&link->efficiency, S)));
    assert_int_equal(collective_priced_kind(&instruction), PROGRAM_HALO_EXCHANGE);
    /* Reversed, no rank has its own elements, and the outer ones receive everything from distant
     * ranks. */
    movement.range_start = (const int64_t[]){12, 8, 4, 0};
    movement.range_extent = movement.parts;
    assert_int_equal(collective_priced_kind(&instruction), PROGRAM_ALL_TO_ALL);
    S = collective_tensor_bytes(&program, &instruction);
    assert_close(collective_sent_bytes(PROGRAM_ALL_TO_ALL, S, 4), 4 * 10 * 4);
}

/* A run's figure precedes the link's curve, that a probe's, and both the model; at other sizes
 * measurements scale with the modelled price. */
static void what_was_measured_counts(void **state) {
    (void)state;
    static const char text[] =
        "{\"format\": \"automap-cluster-1\", \"name\": \"one\", \"device_types\": {\"d\": {"
        "\"memory_bytes\": 1000, \"memory_bytes_per_second\": 1, \"flops_per_second\": {\"f32\": 1}}},"
        "\"links\": {\"in\": {\"bytes_per_second\": 1e9, \"latency_seconds\": 1e-6, \"collectives\":"
        "{\"all_gather\": {\"sizes\": [[2], [1000, 2000]], \"seconds\": [1e-3, 3e-3]}}}},"
        "\"servers\": [{\"count\": 1, \"device_type\": \"d\", \"devices\": 2, \"link\": \"in\"}]}";
    Fixture one = {0};
    Profile *profile;
    Text told = {0};
    json_t *root;
    assert_int_equal(json_parse(&root, "one", text, strlen(text), NULL), AM_OK);
    assert_int_equal(cluster_from_json(&one.cluster, &one.arena, root, "one", NULL), AM_OK);
    json_decref(root);
    CollectivePartition pair = partition_of(&one, "a=2", in_order, 1);
    const CollectiveTopology *of = pair.topologies;
    double modelled = collective_seconds(PROGRAM_ALL_REDUCE, 4000, of, one.cluster), twice;
    twice = collective_seconds(PROGRAM_ALL_REDUCE, 8000, of, one.cluster);
    assert_int_equal(profile_open(&profile, NULL), AM_OK);
    const MeasuredCollective reduced = {PROGRAM_ALL_REDUCE, 2, 4000, NULL, 0},
                             gathered = {PROGRAM_ALL_GATHER, 2, 1000, NULL, 0};
    assert_int_equal(measured_add_collective(profile, "d", PROFILE_PROBE, &reduced, 7, NULL), AM_OK);
    assert_int_equal(measured_add_collective(profile, "d", PROFILE_PROBE, &gathered, 7, NULL), AM_OK);
    assert_int_equal(profile_attach(profile, one.cluster, "profile", NULL), AM_OK);
    assert_close(collective_seconds(PROGRAM_ALL_REDUCE, 4000, of, one.cluster), 7);
    assert_close(collective_seconds(PROGRAM_ALL_REDUCE, 8000, of, one.cluster), 7 * twice / modelled);
    assert_close(collective_seconds(PROGRAM_ALL_GATHER, 1000, of, one.cluster), 1e-3);
    collective_describe(&told, PROGRAM_ALL_GATHER, 1000, of, one.cluster);
    assert_non_null(strstr(told.data, "measured, 1 ms, by the curves of the cluster's link"));
    assert_int_equal(measured_add_collective(profile, "d", PROFILE_RUN, &gathered, 5, NULL), AM_OK);
    assert_close(collective_seconds(PROGRAM_ALL_GATHER, 1000, of, one.cluster), 5);
    assert_close(collective_seconds(PROGRAM_ALL_GATHER, 2000, of, one.cluster), 15);
    one.cluster->types[0].processors = 0.5;
    assert_close(collective_seconds(PROGRAM_ALL_GATHER, 2000, of, one.cluster), 3e-3);
    text_free(&told);
    profile_close(profile);
    tear_down((void *[]){&one});
}

/* Four devices on a given number of servers, with a profile; the device type is "d". */
static void open_profiled(Fixture *self, Profile **profile, int32_t servers, const char *edges,
                          const char *collectives) {
    char text[2048];
    json_t *root;
    snprintf(text, sizeof text,
             "{\"format\": \"automap-cluster-1\", \"name\": \"four\", \"device_types\": {\"d\": {"
             "\"memory_bytes\": 1000, \"memory_bytes_per_second\": 1, \"flops_per_second\": {\"f32\": 1}}},"
             "\"links\": {\"in\": {\"bytes_per_second\": 1e9, \"latency_seconds\": 1e-6%s},"
             "\"out\": {\"bytes_per_second\": 1e8, \"latency_seconds\": 1e-5}},"
             "\"servers\": [{\"count\": %d, \"device_type\": \"d\", \"devices\": %d, \"link\": \"in\"}],"
             "\"between_servers\": \"out\"%s}",
             collectives, servers, 4 / servers, edges);
    *self = (Fixture){0};
    assert_int_equal(json_parse(&root, "four", text, strlen(text), NULL), AM_OK);
    AmError error = {0};
    if (cluster_from_json(&self->cluster, &self->arena, root, "four", &error) != AM_OK)
        fail_msg("%s", error.text);
    json_decref(root);
    assert_int_equal(profile_open(profile, NULL), AM_OK);
}

/* A profile's collective counts for groups that have its link between them, and as many servers; one of no
 * link where all is one server. */
static void a_measured_link_counts_where_it_is(void **state) {
    (void)state;
    static const struct {
        MeasuredCollective of;
        const char *mesh, *edges;
        int32_t servers, axes;
        bool counts;
    } rows[] = {
        {{PROGRAM_ALL_GATHER, 2, 4000, "in", 1}, "a=2,b=2", "", 2, 2, true},
        {{PROGRAM_ALL_GATHER, 2, 4000, "in", 1}, "a=4", "", 1, 1, false},
        {{PROGRAM_ALL_GATHER, 4, 4000, "in", 1}, "a=4", "", 1, 1, true},
        {{PROGRAM_ALL_GATHER, 2, 4000, "out", 1}, "a=2,b=2", "", 2, 2, false},
        {{PROGRAM_ALL_GATHER, 2, 4000, "in", 1}, "a=2,b=2", "", 2, 1, false},
        {{PROGRAM_ALL_GATHER, 2, 4000, "out", 2}, "a=2,b=2", "", 2, 1, true},
        {{PROGRAM_ALL_GATHER, 2, 4000, NULL, 0}, "a=2,b=2", "", 2, 2, false},
        {{PROGRAM_ALL_GATHER, 4, 4000, NULL, 0}, "a=4", "", 1, 1, true},
        {{PROGRAM_ALL_GATHER, 4, 4000, "in", 1},
         "a=4",
         ", \"topology\": {\"edges\": [{\"from\": \"server0/device0\", \"to\": \"server0/device1\", "
         "\"link\": \"out\"}]}",
         1,
         1,
         false},
        {{PROGRAM_ALL_GATHER, 4, 4000, NULL, 0},
         "a=4",
         ", \"topology\": {\"edges\": [{\"from\": \"server0/device0\", \"to\": \"server0/device1\", "
         "\"link\": \"in\"}]}",
         1,
         1,
         true},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        Fixture four;
        Profile *profile;
        open_profiled(&four, &profile, rows[k].servers, rows[k].edges, "");
        CollectivePartition groups = partition_of(&four, rows[k].mesh, in_order, (uint32_t)rows[k].axes);
        assert_int_equal(measured_add_collective(profile, "d", PROFILE_RUN, &rows[k].of, 7, NULL), AM_OK);
        assert_int_equal(profile_attach(profile, four.cluster, "profile", NULL), AM_OK);
        double seconds = collective_seconds(PROGRAM_ALL_GATHER, 4000, groups.topologies, four.cluster);
        if ((seconds == 7) != rows[k].counts) fail_msg("row %zu: %g s", k, seconds);
        profile_close(profile);
        tear_down((void *[]){&four});
    }
}

/* Measured prices, and prices interpolated between measurements or extrapolated on one side. */
static void prices_tell_what_was_measured(void **state) {
    (void)state;
    static const struct {
        const char *mesh, *expected;
        double bytes;
    } rows[] = {
        {"a=2,b=2", "measured, 1 ms, by the curves of the cluster's link\n", 1000},
        {"a=2,b=2",
         "interpolated, 2 ms, by the curves of the cluster's link, from 2 devices, 1 kB and 3 kB\n", 2000},
        {"a=2,b=2", "extrapolated, 6 ms, by the curves of the cluster's link, from 2 devices, 3 kB\n", 6000},
        {"a=2,b=2", "extrapolated, 1 ms, by the curves of the cluster's link, from 2 devices, 1 kB\n", 500},
        {"a=4", "extrapolated, 2 ms, by the curves of the cluster's link, from 2 devices, 1 kB\n", 1000},
    };
    Fixture four;
    Profile *profile;
    open_profiled(
        &four, &profile, 1, "",
        ", \"collectives\": {\"all_gather\": {\"sizes\": [[2], [1000, 3000]], \"seconds\": [1e-3, 3e-3]}}");
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        CollectivePartition groups = partition_of(&four, rows[k].mesh, in_order, 1);
        Text told = {0};
        collective_describe(&told, PROGRAM_ALL_GATHER, rows[k].bytes, groups.topologies, four.cluster);
        if (!strstr(told.data, rows[k].expected)) fail_msg("%s", told.data);
        text_free(&told);
    }
    const MeasuredCollective one = {PROGRAM_ALL_REDUCE, 2, 1000, "in", 1},
                             other = {PROGRAM_ALL_REDUCE, 2, 4000, "in", 1};
    assert_int_equal(measured_add_collective(profile, "d", PROFILE_RUN, &one, 1e-3, NULL), AM_OK);
    assert_int_equal(measured_add_collective(profile, "d", PROFILE_RUN, &other, 1e-3, NULL), AM_OK);
    assert_int_equal(profile_attach(profile, four.cluster, "profile", NULL), AM_OK);
    CollectivePartition pairs = partition_of(&four, "a=2,b=2", in_order, 1);
    static const char *const of_run[] = {"measured, ", "interpolated, ", "extrapolated, "};
    static const char *const from[] = {"by the profile of a run\n", "from 2 devices, 1 kB and 4 kB\n",
                                       "from 2 devices, 4 kB\n"};
    const double bytes[] = {1000, 2000, 8000};
    for (int k = 0; k < 3; k++) {
        Text told = {0};
        collective_describe(&told, PROGRAM_ALL_REDUCE, bytes[k], pairs.topologies, four.cluster);
        if (!strstr(told.data, of_run[k]) || !strstr(told.data, from[k])) fail_msg("%s", told.data);
        text_free(&told);
    }
    profile_close(profile);
    tear_down((void *[]){&four});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(two_servers_are_hierarchical, set_up, tear_down),
        cmocka_unit_test_setup_teardown(groups_that_cross_share_the_link, set_up, tear_down),
        cmocka_unit_test_setup_teardown(groups_may_lie_differently, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_known_is_found_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_device_needs_no_collective, set_up, tear_down),
        cmocka_unit_test(what_was_measured_counts),
        cmocka_unit_test(a_measured_link_counts_where_it_is),
        cmocka_unit_test(prices_tell_what_was_measured),
        cmocka_unit_test(tensor_bytes_are_those_of_the_whole),
        cmocka_unit_test_setup_teardown(a_halo_is_priced_by_the_most_received, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
