/* NCCL's tuning model against sums by hand, its key in a cluster file, and the description of a
 * choice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/files/json.h"
#include "cost/collective/collective.h"
#include "cost/collective/nccl_model.h"

typedef struct Fixture {
    Arena arena;
    Cluster *cluster;
    CollectivePartition partition;
} Fixture;

/* Servers of 8 devices: 120 GB/s inside, 10 GB/s between, at most half of it above 1 MB. */
static AmStatus read_cluster(Fixture *self, int servers, const char *model, AmError *error) {
    json_t *root;
    *self = (Fixture){0};
    const char *text = arena_format(
        &self->arena,
        "{\"format\": \"automap-cluster-1\", \"name\": \"t\", \"device_types\": {\"d\": {"
        "\"memory_bytes\": 1000, \"memory_bytes_per_second\": 1, \"flops_per_second\": {\"f32\": 1}}},"
        "\"links\": {\"in\": {\"bytes_per_second\": 120e9, \"latency_seconds\": 4e-6},"
        "\"out\": {\"bytes_per_second\": 10e9, \"latency_seconds\": 2e-5, \"efficiency\": [[1e3, 0.1], [1e6, "
        "0.5]]}},"
        "\"servers\": [{\"count\": %d, \"device_type\": \"d\", \"devices\": 8, \"link\": \"in\"}],"
        "\"between_servers\": \"out\"%s%s}",
        servers, model[0] ? ", \"collective_model\": " : "", model);
    assert_int_equal(json_parse(&root, "t", text, strlen(text), error), AM_OK);
    AmStatus status = cluster_from_json(&self->cluster, &self->arena, root, "t", error);
    json_decref(root);
    return status;
}

static const CollectiveTopology *open_group(Fixture *self, int servers, int devices, const char *model) {
    AmError error = {0};
    Mesh mesh;
    if (read_cluster(self, servers, model, &error) != AM_OK) fail_msg("%s", error.text);
    const char *text = arena_format(&self->arena, "x=%d", devices);
    assert_int_equal(mesh_parse(&mesh, &self->arena, text, &error), AM_OK);
    int32_t *order = ARENA_ARRAY(&self->arena, int32_t, devices);
    for (int32_t k = 0; k < devices; k++) order[k] = k;
    assert_int_equal(
        collective_partition(&self->partition, &self->arena, self->cluster, &mesh, order, 1, &error), AM_OK);
    return &self->partition.topologies[0];
}

static void close_group(Fixture *self) {
    cluster_free(self->cluster);
    arena_free(&self->arena);
}

static void assert_close(double value, double expected) {
    if (fabs(value - expected) > 1e-12 * fabs(expected)) fail_msg("%.17g is not %.17g", value, expected);
}

typedef struct Row {
    int servers, devices;
    const char *model;
    ProgramCollectiveKind kind;
    double bytes;
    NcclAlgorithm algorithm;
    NcclProtocol protocol;
    double microseconds, gigabytes_per_second; /* latency, and the rate of S */
} Row;

/* Ring, LL, 8 on NVLink: 6.6 + 14 x 0.6 us; 120 x 0.5 x 8/14 GB/s, or held to 39 x 8/14. */
static const Row rows[] = {
    {1, 8, "\"nccl\"", PROGRAM_ALL_REDUCE, 8, NCCL_RING, NCCL_LL, 15, 60. * 8 / 14},
    {1, 8, "{\"name\": \"nccl\", \"generation\": \"volta\"}", PROGRAM_ALL_REDUCE, 8, NCCL_RING, NCCL_LL, 15,
     39. * 8 / 14},
    {1, 8, "{\"name\": \"nccl\", \"inside\": \"pci\"}", PROGRAM_ALL_REDUCE, 8, NCCL_RING, NCCL_LL, 20.6,
     60. * 8 / 14},
    /* Two servers: 30 steps, 2 of them over the network; 10 x 0.5 GB/s between. */
    {2, 16, "\"nccl\"", PROGRAM_ALL_REDUCE, 8, NCCL_RING, NCCL_LL, 6.6 + 28 * 0.6 + 2 * 2.7, 2.5 * 16 / 30},
    /* Tree: 6.8 + 2 (7 x 0.6 + 1 x 5); 5 x 0.5 x 0.92 / 2. */
    {2, 16, "\"nccl\"", PROGRAM_ALL_REDUCE, 8, NCCL_TREE, NCCL_LL, 25.2, 1.15},
    {4, 32, "\"nccl\"", PROGRAM_ALL_REDUCE, 8, NCCL_TREE, NCCL_LL128, 14 + 2 * (7 * 1.25 + 2 * 8.5),
     5 * 0.92 * 0.92 / 2},
    {4, 32, "\"nccl\"", PROGRAM_ALL_REDUCE, 8, NCCL_TREE, NCCL_SIMPLE, 8.4 + 2 * (7 * 4. + 2 * 14),
     5 * 0.92 / 2},
    /* One round: 7 and 31 steps, 0 and 3 of them over the network. */
    {1, 8, "\"nccl\"", PROGRAM_ALL_GATHER, 1e9, NCCL_RING, NCCL_SIMPLE, 8.4 + 7 * 3.4, 120. * 8 / 7},
    {4, 32, "\"nccl\"", PROGRAM_REDUCE_SCATTER, 1e9, NCCL_RING, NCCL_LL128, 14 + 28 * 1.9 + 3 * 4.,
     5 * 0.92 * 32 / 31},
};

static void constants_add_up(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const Row *row = &rows[k];
        Fixture self;
        NcclChoice choice;
        const CollectiveTopology *group = open_group(&self, row->servers, row->devices, row->model);
        assert_true(nccl_model_price(&choice, row->algorithm, row->protocol, row->kind, row->bytes, group,
                                     self.cluster));
        assert_close(choice.latency, row->microseconds * 1e-6);
        assert_close(choice.bytes_per_second, row->gigabytes_per_second * 1e9);
        assert_close(choice.seconds,
                     row->microseconds * 1e-6 + row->bytes / (row->gigabytes_per_second * 1e9));
        close_group(&self);
    }
}

/* Few bytes go under LL, many under Simple in a ring; a tree wins between many servers. */
static void the_quickest_is_taken(void **state) {
    (void)state;
    Fixture self;
    const CollectiveTopology *group = open_group(&self, 1, 8, "\"nccl\"");
    NcclChoice few = nccl_model_choose(PROGRAM_ALL_REDUCE, 1e3, group, self.cluster);
    assert_int_equal(few.algorithm, NCCL_RING);
    assert_int_equal(few.protocol, NCCL_LL);
    assert_close(collective_seconds(PROGRAM_ALL_REDUCE, 1e3, group, self.cluster), few.seconds);
    NcclChoice many = nccl_model_choose(PROGRAM_ALL_REDUCE, 1e9, group, self.cluster);
    assert_int_equal(many.algorithm, NCCL_RING);
    assert_int_equal(many.protocol, NCCL_SIMPLE);
    assert_close(many.seconds, (8.4 + 14 * 3.4) * 1e-6 + 1e9 / (120e9 * 8 / 14));
    NcclChoice none;
    assert_false(nccl_model_price(&none, NCCL_TREE, NCCL_LL, PROGRAM_ALL_GATHER, 1, group, self.cluster));
    assert_false(nccl_model_price(&none, NCCL_RING, NCCL_LL, PROGRAM_ALL_TO_ALL, 1, group, self.cluster));
    close_group(&self);
    group = open_group(&self, 32, 256, "\"nccl\"");
    assert_int_equal(nccl_model_choose(PROGRAM_ALL_REDUCE, 1e3, group, self.cluster).algorithm, NCCL_TREE);
    close_group(&self);
    group = open_group(&self, 1, 8, "{\"name\": \"nccl\", \"inside\": \"pci\"}");
    assert_false(nccl_model_price(&none, NCCL_RING, NCCL_LL128, PROGRAM_ALL_REDUCE, 1, group, self.cluster));
    close_group(&self);
    group = open_group(&self, 1, 8, "\"alpha-beta\"");
    assert_null(self.cluster->nccl);
    assert_close(collective_seconds(PROGRAM_ALL_TO_ALL, 64e9, group, self.cluster), 7 * 4e-6 + 7e9 / 120e9);
    close_group(&self);
}

static void wrong_keys_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *model, *where;
    } cases[] = {{"\"mpi\"", "$.collective_model: "},
                 {"1", "$.collective_model: "},
                 {"null", "$.collective_model: "},
                 {"{}", "$.collective_model.name: "},
                 {"{\"name\": 2}", "$.collective_model.name: "},
                 {"{\"name\": \"nccl\", \"inside\": \"network\"}", "$.collective_model.inside: "},
                 {"{\"name\": \"nccl\", \"generation\": 9}", "$.collective_model.generation: "},
                 {"{\"name\": \"nccl\", \"ll\": 9}", "$.collective_model"},
                 {"{\"name\": \"alpha-beta\", \"inside\": \"pci\"}", "$.collective_model"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Fixture self;
        AmError error = {0};
        assert_int_equal(read_cluster(&self, 1, cases[k].model, &error), AM_ERROR_INPUT);
        if (strncmp(error.text, cases[k].where, strlen(cases[k].where)) != 0)
            fail_msg("%s: \"%s\"", cases[k].model, error.text);
        close_group(&self);
    }
}

static void assert_says(const Text *text, const char *part) {
    if (!strstr(text->data, part)) fail_msg("no \"%s\" in\n%s", part, text->data);
}

static void a_choice_is_told(void **state) {
    (void)state;
    Fixture self;
    Text text = {0};
    const CollectiveTopology *group = open_group(&self, 2, 16, "");
    collective_describe(&text, PROGRAM_ALL_REDUCE, 16e6, group, self.cluster);
    assert_says(&text, "all_reduce of 16 MB among 16 devices of 2 servers: tree, ");
    /* Two trees over two servers: half of S each up, and half down. */
    assert_says(&text, "tree: 16 messages, ");
    assert_says(&text, "server1/switch -> network (out): 16 MB at 10 GB/s x 0.5, 3.2 ms\n");
    assert_says(&text, "others: ring ");
    text.length = 0;
    collective_describe(&text, PROGRAM_ALL_REDUCE, 100, group, self.cluster);
    assert_says(&text, ": halving-doubling, ");
    assert_says(&text, "2 x halving: 3 messages, ");
    text_free(&text);
    close_group(&self);
    group = open_group(&self, 1, 8, "\"nccl\"");
    collective_describe(&text, PROGRAM_ALL_GATHER, 1e3, group, self.cluster);
    assert_says(&text, "all_gather of 1 kB among 8 devices of 1 server: NCCL ring, LL, ");
    assert_says(&text, "  latency 10.8 us, ");
    text.length = 0;
    collective_describe(&text, PROGRAM_HALO_EXCHANGE, 1e3, group, self.cluster);
    assert_says(&text, "halo_exchange of 1 kB among 8 devices of 1 server: neighbours, ");
    text_free(&text);
    close_group(&self);
    group = open_group(&self, 1, 1, "");
    collective_describe(&text, PROGRAM_ALL_REDUCE, 1e3, group, self.cluster);
    assert_says(&text, "nothing to do, 0 ");
    text_free(&text);
    close_group(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constants_add_up),
        cmocka_unit_test(the_quickest_is_taken),
        cmocka_unit_test(wrong_keys_are_refused),
        cmocka_unit_test(a_choice_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
