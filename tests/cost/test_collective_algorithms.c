/* Algorithms of collectives: closed forms on trees of equal links for many sizes and
 * counts, what resharding moves, graphs of other forms, and the quickest of them all. */
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

static const double A = 1e-6, B = 1e9; /* of the links inside servers */

typedef struct Fixture {
    Arena arena;
    Cluster *cluster;
    CollectivePartition partition;
} Fixture;

/* servers x devices; `out` is the rate between servers; `topology`: JSON or "". */
static void open_cluster(Fixture *self, int servers, int devices, double out, const char *topology) {
    AmError error = {0};
    json_t *root;
    *self = (Fixture){0};
    const char *text = arena_format(
        &self->arena,
        "{\"format\": \"automap-cluster-1\", \"name\": \"t\", \"device_types\": {\"d\": {"
        "\"memory_bytes\": 1000, \"memory_bytes_per_second\": 1, \"flops_per_second\": {\"f32\": 1}}},"
        "\"links\": {\"in\": {\"bytes_per_second\": 1e9, \"latency_seconds\": 1e-6},"
        "\"out\": {\"bytes_per_second\": %g, \"latency_seconds\": 1e-5}},"
        "\"servers\": [{\"count\": %d, \"device_type\": \"d\", \"devices\": %d%s}]%s%s}",
        out, servers, devices, topology[0] ? "" : ", \"link\": \"in\"",
        topology[0] ? ", " : ", \"between_servers\": \"out\"", topology);
    assert_int_equal(json_parse(&root, "t", text, strlen(text), &error), AM_OK);
    if (cluster_from_json(&self->cluster, &self->arena, root, "t", &error) != AM_OK)
        fail_msg("%s", error.text);
    json_decref(root);
}

static void close_cluster(Fixture *self) {
    cluster_free(self->cluster);
    arena_free(&self->arena);
}

/* Groups of a mesh on the first devices of the cluster, in order. */
static const CollectiveTopology *group_of(Fixture *self, const char *text, uint32_t axes) {
    Mesh mesh;
    AmError error = {0};
    assert_int_equal(mesh_parse(&mesh, &self->arena, text, &error), AM_OK);
    int32_t *devices = ARENA_ARRAY(&self->arena, int32_t, mesh.device_count);
    for (int32_t k = 0; k < mesh.device_count; k++) devices[k] = k;
    assert_int_equal(
        collective_partition(&self->partition, &self->arena, self->cluster, &mesh, devices, axes, &error),
        AM_OK);
    return &self->partition.topologies[0];
}

static const CollectiveTopology *first_devices(Fixture *self, int count) {
    return group_of(self, arena_format(&self->arena, "x=%d", count), 1);
}

static bool is_usable(const char *name, ProgramCollectiveKind kind, const CollectiveTopology *topology,
                      const CollectiveAlgorithm **algorithm) {
    int32_t count;
    const CollectiveAlgorithm *rows = collective_algorithms(&count);
    for (int32_t k = 0; k < count; k++) {
        *algorithm = &rows[k];
        if (strcmp(rows[k].name, name) == 0 && (rows[k].kinds >> kind & 1))
            return collective_can_use(&rows[k], kind, topology);
    }
    fail_msg("no algorithm %s", name);
    return false;
}

static double seconds_of(const Fixture *self, const char *name, ProgramCollectiveKind kind, double bytes,
                         const CollectiveTopology *topology) {
    const CollectiveAlgorithm *algorithm;
    if (!is_usable(name, kind, topology, &algorithm)) fail_msg("%s cannot be used", name);
    return collective_algorithm_seconds(algorithm, kind, bytes, topology, self->cluster);
}

static void assert_close(double value, double expected, const char *what) {
    if (fabs(value - expected) > 1e-11 * fabs(expected))
        fail_msg("%s: %.17g is not %.17g", what, value, expected);
}

static bool is_power_of_two(int n) {
    return (n & (n - 1)) == 0;
}

/* n devices of one server, S bytes: messages and bytes of every algorithm (facts of the field, not of the
 * implementation). Messages of halving are log2 n, of one server's tree 2(n-1). */
static void closed_forms_inside_a_server(void **state) {
    (void)state;
    static const int counts[] = {2, 3, 4, 5, 7, 8, 16, 24, 64};
    static const double sizes[] = {1, 1e3, 12e6, 7e9};
    Fixture self;
    open_cluster(&self, 1, 64, 1e8, "");
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        double n = counts[c], logarithm = log2(n), share = (n - 1) / n;
        const CollectiveTopology *group = first_devices(&self, counts[c]);
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            double S = sizes[k], T = S / B;
            const CollectiveAlgorithm *unused;
            assert_close(seconds_of(&self, "ring", PROGRAM_ALL_REDUCE, S, group),
                         2 * (n - 1) * A + 2 * share * T, "ring all_reduce");
            assert_close(seconds_of(&self, "ring", PROGRAM_ALL_GATHER, S, group), (n - 1) * A + share * T,
                         "ring all_gather");
            assert_close(seconds_of(&self, "ring", PROGRAM_REDUCE_SCATTER, S, group), (n - 1) * A + share * T,
                         "ring reduce_scatter");
            assert_close(seconds_of(&self, "pairwise", PROGRAM_ALL_TO_ALL, S, group),
                         (n - 1) * A + share / n * T, "pairwise all_to_all");
            assert_close(seconds_of(&self, "neighbours", PROGRAM_HALO_EXCHANGE, S, group),
                         (n < 3 ? n - 1 : 2) * A + T, "neighbours");
            assert_close(seconds_of(&self, "tree", PROGRAM_ALL_REDUCE, S, group),
                         2 * (n - 1) * A + (n == 2 ? 1 : 2) * T, "chain");
            assert_int_equal(is_usable("halving-doubling", PROGRAM_ALL_REDUCE, group, &unused),
                             is_power_of_two(counts[c]));
            if (is_power_of_two(counts[c]))
                assert_close(seconds_of(&self, "halving-doubling", PROGRAM_ALL_REDUCE, S, group),
                             2 * logarithm * A + 2 * share * T, "halving-doubling");
            if (counts[c] <= 16) {
                assert_close(seconds_of(&self, "direct", PROGRAM_ALL_GATHER, S, group),
                             (n - 1) * A + share * T, "direct all_gather");
                assert_close(seconds_of(&self, "all to everyone", PROGRAM_ALL_REDUCE, S, group),
                             (n - 1) * A + (n - 1) * T, "all to everyone");
            }
        }
    }
    close_cluster(&self);
}

/* n x the bandwidth term x B is the total of the resharding table. */
static void bandwidth_terms_are_the_reshard_tables(void **state) {
    (void)state;
    Fixture self;
    open_cluster(&self, 1, 8, 1e8, "");
    for (int n = 2; n <= 8; n++) {
        const CollectiveTopology *group = first_devices(&self, n);
        double T = 12e6, moved[PROGRAM_ALL_TO_ALL + 1] = {[PROGRAM_ALL_REDUCE] = 2 * (n - 1) * T,
                                                          [PROGRAM_ALL_GATHER] = (n - 1) * T,
                                                          [PROGRAM_REDUCE_SCATTER] = (n - 1) * T,
                                                          [PROGRAM_ALL_TO_ALL] = (n - 1) * T / n};
        for (int32_t k = 0; k <= PROGRAM_ALL_TO_ALL; k++) {
            ProgramCollectiveKind kind = (ProgramCollectiveKind)k;
            const char *name = kind == PROGRAM_ALL_TO_ALL ? "pairwise" : "ring";
            double latency = (kind == PROGRAM_ALL_REDUCE ? 2 : 1) * (n - 1) * A;
            double seconds = seconds_of(&self, name, kind, T, group);
            assert_close(n * collective_sent_bytes(kind, T, n), moved[k], "sent");
            assert_true(fabs(n * (seconds - latency) * B - moved[k]) < 1e-9 * moved[k]);
        }
    }
    close_cluster(&self);
}

/* Servers of one device, joined by a network: two trees send and receive 2 S at the busiest. */
static void trees_between_servers(void **state) {
    (void)state;
    for (int m = 4; m <= 64; m *= 2) {
        Fixture self;
        open_cluster(&self, m, 1, 1e8, "");
        const CollectiveTopology *group = first_devices(&self, m);
        assert_int_equal(group->servers, m);
        assert_close(seconds_of(&self, "tree", PROGRAM_ALL_REDUCE, 1e6, group),
                     2 * log2(m) * 1e-5 + 2 * 1e6 / 1e8, "tree");
        close_cluster(&self);
    }
}

/* m servers of g: rings inside, then rings of equal places, all g of them over one link of the server. */
static void hierarchies(void **state) {
    (void)state;
    static const int shapes[][2] = {{2, 2}, {3, 4}, {4, 8}, {5, 3}, {16, 8}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        double m = shapes[k][0], g = shapes[k][1], n = m * g, S = 3e7, a = 1e-5, out = S / 1e8, in = S / B;
        Fixture self;
        open_cluster(&self, shapes[k][0], shapes[k][1], 1e8, "");
        const CollectiveTopology *group = first_devices(&self, shapes[k][0] * shapes[k][1]);
        double half = (g - 1) * A + (g - 1) / g * in + (m - 1) * a + (m - 1) / m * out;
        assert_close(seconds_of(&self, "hierarchical (rings)", PROGRAM_ALL_REDUCE, S, group), 2 * half,
                     "reduce");
        assert_close(seconds_of(&self, "hierarchical (rings)", PROGRAM_ALL_GATHER, S, group), half, "gather");
        assert_close(seconds_of(&self, "pairwise", PROGRAM_ALL_TO_ALL, S, group),
                     (g - 1) * A + (g - 1) / (n * n) * in + (n - g) * a + g * (n - g) / (n * n) * out,
                     "pairs");
        assert_close(seconds_of(&self, "hierarchical", PROGRAM_ALL_TO_ALL, S, group),
                     (g - 1) * A + (g - 1) / g / n * in + (m - 1) * a + g * (m - 1) / m / n * out, "shares");
        if (is_power_of_two((int)g) && is_power_of_two((int)m))
            assert_close(seconds_of(&self, "halving-doubling", PROGRAM_ALL_REDUCE, S, group),
                         2 * (log2(g) * A + (g - 1) / g * in + log2(m) * a + (m - 1) / m * out), "halving");
        close_cluster(&self);
    }
}

/* Unequal numbers on the servers, 3 and 1: inside, the two others hand their thirds to the first. */
static void servers_of_unequal_parts(void **state) {
    (void)state;
    Fixture self;
    open_cluster(&self, 2, 3, 1e8, "");
    const CollectiveTopology *group = first_devices(&self, 4);
    double S = 3e6, in = S / B, out = S / 1e8;
    assert_close(seconds_of(&self, "hierarchical (rings)", PROGRAM_REDUCE_SCATTER, S, group),
                 (2 * A + 2. / 3 * in) + (2 * A + 2. / 3 * in) + (1e-5 + 0.5 * out), "unequal");
    close_cluster(&self);
}

/* Two servers of four devices with a card and a rail for each: rings of equal places do not meet. */
static void rails_are_not_shared(void **state) {
    (void)state;
    static const char rails[] =
        "\"topology\": {\"edges\": ["
        "{\"for\": {\"s\": [0, 2], \"d\": [0, 4]}, \"from\": \"server{s}/device{d}\", \"to\": "
        "\"server{s}/switch\", "
        "\"link\": \"in\"},"
        "{\"for\": {\"s\": [0, 2], \"d\": [0, 4]}, \"from\": \"server{s}/device{d}\", \"to\": \"rail{d}\", "
        "\"link\": \"out\"}]}";
    Fixture shared, own;
    open_cluster(&shared, 2, 4, 1e8, "");
    open_cluster(&own, 2, 4, 1e8, rails);
    double S = 8e6, out = S / 1e8;
    const CollectiveTopology *a = group_of(&shared, "x=2,y=4", 1), *b = group_of(&own, "x=2,y=4", 1);
    double one = seconds_of(&shared, "ring", PROGRAM_ALL_REDUCE, S, a);
    double other = seconds_of(&own, "ring", PROGRAM_ALL_REDUCE, S, b);
    assert_close(one, 2 * 1e-5 + 4 * out, "four groups on one card");
    assert_close(other, 2 * 2e-5 + out, "a card each");
    const CollectiveTopology *all = first_devices(&own, 8);
    assert_close(seconds_of(&own, "hierarchical (rings)", PROGRAM_ALL_REDUCE, S, all),
                 2 * (3 * 2e-6 + 0.75 * S / B + 2e-5 + 0.5 * out / 4), "hierarchical on rails");
    close_cluster(&shared);
    close_cluster(&own);
}

/* Devices joined by private links: rings without a common link. A full mesh of four has three links
 * per device, and one ring uses two. */
static void rings_use_all_links(void **state) {
    (void)state;
    static const char mesh[] =
        "\"topology\": {\"edges\": ["
        "{\"for\": {\"a\": [0, 4], \"b\": [0, 4]}, \"where\": \"a < b\", \"from\": \"server0/device{a}\", "
        "\"to\": \"server0/device{b}\", \"link\": \"in\", \"width\": 2}]}";
    Fixture self;
    open_cluster(&self, 1, 4, 1e8, mesh);
    const CollectiveTopology *group = first_devices(&self, 4);
    double S = 6e6, in = S / B;
    /* Six links a device, three rings of two each, both ways: six streams of 1e9. */
    assert_close(seconds_of(&self, "rings", PROGRAM_ALL_REDUCE, S, group), 2 * (3 * A + 0.75 * in / 6),
                 "rings");
    assert_close(seconds_of(&self, "direct", PROGRAM_ALL_REDUCE, S, group), 2 * (3 * A + 0.25 * in / 2),
                 "direct");
    assert_close(seconds_of(&self, "ring", PROGRAM_ALL_REDUCE, S, group), 2 * (3 * A + 0.75 * in / 2),
                 "ring");
    close_cluster(&self);
}

/* Two islands of two, joined by a slow link between switches: as two servers are. */
static void islands_are_like_servers(void **state) {
    (void)state;
    static const char islands[] =
        "\"topology\": {\"edges\": ["
        "{\"for\": {\"d\": [0, 4]}, \"from\": \"server0/device{d}\", \"to\": \"hub{d%2}\", \"link\": \"in\"},"
        "{\"from\": \"hub0\", \"to\": \"hub1\", \"link\": \"out\"}]}";
    Fixture self;
    open_cluster(&self, 1, 4, 1e8, islands);
    const CollectiveTopology *group = first_devices(&self, 4);
    assert_int_equal(group->servers, 1);
    assert_int_equal(group->per_server, 4);
    double S = 6e6, in = S / B, out = S / 1e8, a = 2 * A, b = 2 * A + 1e-5;
    assert_close(seconds_of(&self, "hierarchical (rings)", PROGRAM_ALL_REDUCE, S, group),
                 2 * (a + 0.5 * in + b + 2 * 0.5 / 2 * out), "rings");
    assert_close(seconds_of(&self, "ring", PROGRAM_ALL_REDUCE, S, group), 2 * (a + 2 * b + 0.75 * out),
                 "ring");
    close_cluster(&self);
}

/* Never slower with any link twice as fast; more bytes never quicker; the choice is the least. */
static void prices_are_monotone(void **state) {
    (void)state;
    Fixture slow, quick;
    open_cluster(&slow, 4, 8, 1e8, "");
    open_cluster(&quick, 4, 8, 2e8, "");
    for (int n = 2; n <= 32; n++) {
        const CollectiveTopology *a = first_devices(&slow, n), *b = first_devices(&quick, n);
        for (int32_t k = 0; k < PROGRAM_DEVICE_COLLECTIVES; k++) {
            ProgramCollectiveKind kind = (ProgramCollectiveKind)k;
            double last = 0;
            for (double S = 1; S < 1e10; S *= 7) {
                double seconds = collective_seconds(kind, S, a, slow.cluster), least = INFINITY;
                assert_true(seconds >= last && seconds > 0);
                assert_true(collective_seconds(kind, S, b, quick.cluster) <= seconds);
                int32_t count;
                const CollectiveAlgorithm *rows = collective_algorithms(&count);
                for (int32_t r = 0; r < count; r++)
                    if (collective_can_use(&rows[r], kind, a))
                        least = fmin(least, collective_algorithm_seconds(&rows[r], kind, S, a, slow.cluster));
                assert_true(least == seconds);
                last = seconds;
            }
        }
    }
    close_cluster(&slow);
    close_cluster(&quick);
}

/* The same with links listed as edges: islands and rings do not change if one kind of link gets
 * faster than the other. */
static void islands_are_monotone(void **state) {
    (void)state;
    static const char *const graphs[] = {
        /* Two full meshes of four; two switches and a bridge between them. */
        "{\"for\": {\"a\": [0, 8], \"b\": [0, 8]}, \"where\": \"a < b && a/4 == b/4\", "
        "\"from\": \"server0/device{a}\", \"to\": \"server0/device{b}\", \"link\": \"in\", \"width\": 2},"
        "{\"for\": {\"d\": [0, 8]}, \"from\": \"server0/device{d}\", \"to\": \"p{d/4}\", \"link\": \"out\"},"
        "{\"for\": {\"p\": [0, 2]}, \"from\": \"p{p}\", \"to\": \"host\", \"link\": \"out\"}",
        /* A ring of pairs. */
        "{\"for\": {\"p\": [0, 4]}, \"from\": \"server0/device{2*p}\", \"to\": \"server0/device{2*p+1}\", "
        "\"link\": \"in\", \"width\": 3},"
        "{\"for\": {\"p\": [0, 4]}, \"from\": \"server0/device{2*p+1}\", \"to\": "
        "\"server0/device{(2*p+2)%8}\", \"link\": \"out\"}",
        /* Pairs below switches, two of them on each of two sockets. */
        "{\"for\": {\"d\": [0, 8]}, \"from\": \"server0/device{d}\", \"to\": \"p{d/2}\", \"link\": \"in\"},"
        "{\"for\": {\"p\": [0, 4]}, \"from\": \"p{p}\", \"to\": \"socket{p/2}\", \"link\": \"in\"},"
        "{\"from\": \"socket0\", \"to\": \"socket1\", \"link\": \"out\"}"};
    static const double rates[] = {1e7, 3e8, 9e8, 1.1e9, 2.5e9, 1e10};
    static const char *const meshes[] = {"x=3", "x=4", "x=6", "x=8", "x=2,y=4", "x=4,y=2"};
    enum { RATES = sizeof rates / sizeof *rates, MESHES = sizeof meshes / sizeof *meshes };
    for (size_t g = 0; g < sizeof graphs / sizeof *graphs; g++) {
        double before[MESHES][PROGRAM_DEVICE_COLLECTIVES][8];
        for (size_t r = 0; r < RATES; r++) {
            Fixture self;
            Arena text = {0};
            open_cluster(&self, 1, 8, rates[r],
                         arena_format(&text, "\"topology\": {\"edges\": [%s]}", graphs[g]));
            for (size_t m = 0; m < MESHES; m++) {
                const CollectiveTopology *group = group_of(&self, meshes[m], 1);
                for (int32_t k = 0; k < PROGRAM_DEVICE_COLLECTIVES; k++) {
                    double S = 100;
                    for (int32_t size = 0; size < 8; size++, S *= 12) {
                        double *last = &before[m][k][size];
                        double now = collective_seconds((ProgramCollectiveKind)k, S, group, self.cluster);
                        if (r > 0 && now > *last * (1 + 1e-12))
                            fail_msg("graph %zu, %s, %s of %g bytes: %g s at %g bytes/s, %g s at %g", g,
                                     meshes[m], program_collective_name((ProgramCollectiveKind)k), S, *last,
                                     rates[r - 1], now, rates[r]);
                        *last = now;
                    }
                }
            }
            close_cluster(&self);
            arena_free(&text);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_forms_inside_a_server),
        cmocka_unit_test(bandwidth_terms_are_the_reshard_tables),
        cmocka_unit_test(trees_between_servers),
        cmocka_unit_test(hierarchies),
        cmocka_unit_test(servers_of_unequal_parts),
        cmocka_unit_test(rails_are_not_shared),
        cmocka_unit_test(rings_use_all_links),
        cmocka_unit_test(islands_are_like_servers),
        cmocka_unit_test(islands_are_monotone),
        cmocka_unit_test(prices_are_monotone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
