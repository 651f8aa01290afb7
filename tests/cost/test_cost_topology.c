/* Topologies: the tree that servers give, graphs by templates, routes, faults. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/files/file.h"
#include "base/files/json.h"
#include "cost/cluster/topology.h"
#include "cost/cluster/topology_expression.h"

typedef struct Graph {
    Arena arena;
    AmError error;
    Cluster *cluster;
    Topology *topology;
} Graph;

/* A cluster of equal servers whose links are all that the topology says; `more` are further members. */
static AmStatus read_graph(Graph *graph, int servers, int devices, const char *more) {
    char text[4096];
    int length = snprintf(
        text, sizeof text,
        "{\"format\": \"automap-cluster-1\", \"name\": \"graph\", \"device_types\": {\"fast\":"
        " {\"memory_bytes\": 1e9, \"memory_bytes_per_second\": 1e9, \"flops_per_second\": {\"f32\": 1e12}}},"
        " \"links\": {\"nvlink\": {\"bytes_per_second\": 100e9, \"latency_seconds\": 2e-6},"
        "  \"pcie\": {\"bytes_per_second\": 10e9, \"latency_seconds\": 3e-6},"
        "  \"network\": {\"bytes_per_second\": 5e9, \"latency_seconds\": 10e-6}},"
        " \"servers\": [{\"count\": %d, \"device_type\": \"fast\", \"devices\": %d}], %s}",
        servers, devices, more);
    assert_true(length > 0 && (size_t)length < sizeof text);
    json_t *root;
    *graph = (Graph){0};
    assert_int_equal(json_parse(&root, "g.json", text, (size_t)length, &graph->error), AM_OK);
    AmStatus status = cluster_from_json(&graph->cluster, &graph->arena, root, "g.json", &graph->error);
    json_decref(root);
    graph->topology = status == AM_OK ? graph->cluster->topology : NULL;
    return status;
}

static void read_builtin(Graph *graph, const char *name) {
    *graph = (Graph){0};
    assert_int_equal(cluster_read(&graph->cluster, &graph->arena, name, &graph->error), AM_OK);
    graph->topology = graph->cluster->topology;
}

static void free_graph(Graph *graph) {
    if (graph->cluster) cluster_free(graph->cluster);
    arena_free(&graph->arena);
}

/* The vertices of a route, "server0/device0 server0/switch server0/device1"; its latency. */
static const char *route_text(Graph *graph, int32_t a, int32_t b, double *latency) {
    const Topology *self = graph->topology;
    int32_t *edges = ARENA_ARRAY(&graph->arena, int32_t, self->longest), count;
    topology_route(self, a, b, edges, &count);
    assert_true(count <= self->longest);
    Text text = {0};
    double sum = 0;
    topology_append_vertex(&text, graph->cluster, a);
    for (int32_t k = 0; k < count; k++) {
        assert_int_equal(topology_edge_start(self, edges[k]), k ? topology_edge_end(self, edges[k - 1]) : a);
        text_append_string(&text, " ");
        topology_append_vertex(&text, graph->cluster, topology_edge_end(self, edges[k]));
        sum += self->edges[edges[k] / 2].latency_seconds;
    }
    if (count > 0) assert_int_equal(topology_edge_end(self, edges[count - 1]), b);
    if (latency) *latency = sum;
    const char *copy = arena_copy_string(&graph->arena, text.data);
    text_free(&text);
    return copy;
}

static void servers_give_a_tree(void **state) {
    (void)state;
    Graph graph;
    double inside, between;
    read_builtin(&graph, "C");
    const Topology *self = graph.topology;
    assert_int_equal(self->device_count, 32);
    assert_int_equal(self->vertex_count, 32 + 4 + 1);
    assert_int_equal(self->edge_count, 32 + 4);
    assert_true(self->is_derived && self->is_tree);
    assert_string_equal(route_text(&graph, 3, 3, NULL), "server0/device3");
    assert_string_equal(route_text(&graph, 0, 7, &inside), "server0/device0 server0/switch server0/device7");
    assert_string_equal(route_text(&graph, 8, 31, &between),
                        "server1/device0 server1/switch network server3/switch server3/device7");
    assert_true(fabs(inside - 4e-6) < 1e-18);
    assert_true(fabs(between - 25e-6) < 1e-18);
    int32_t route[8], count;
    topology_route(self, 8, 31, route, &count);
    assert_true(count >= 4);
    assert_true(self->edges[route[0] / 2].bytes_per_second == 120e9);
    assert_true(self->edges[route[1] / 2].bytes_per_second == 3.1e9);
    Text text = {0};
    topology_append_edge(&text, graph.cluster, route[2]);
    assert_string_equal(text.data, "network -> server3/switch (ethernet-25)");
    text_free(&text);
    free_graph(&graph);
}

static void servers_of_one_device_need_no_switch(void **state) {
    (void)state;
    Graph graph;
    read_builtin(&graph, "nominal:1");
    assert_int_equal(graph.topology->edge_count, 0);
    assert_int_equal(graph.topology->vertex_count, 1);
    free_graph(&graph);
    double latency;
    assert_int_equal(read_graph(&graph, 3, 1, "\"between_servers\": \"network\""), AM_OK);
    assert_string_equal(route_text(&graph, 0, 2, &latency), "server0/device0 network server2/device0");
    assert_true(fabs(latency - 10e-6) < 1e-18);
    free_graph(&graph);
}

/* Two PCIe switches of four devices below a bridge, servers joined by one card on the bridge. */
static void a_pcie_tree_is_a_tree(void **state) {
    (void)state;
    Graph graph;
    double latency;
    assert_int_equal(
        read_graph(&graph, 2, 8,
                   "\"topology\": {\"edges\": ["
                   "{\"for\": {\"s\": [0, 2], \"d\": [0, 8]}, \"from\": \"server{s}/device{d}\","
                   " \"to\": \"server{s}/pcie{d/4}\", \"link\": \"pcie\"},"
                   "{\"for\": {\"s\": [0, 2], \"p\": [0, 2]}, \"from\": \"server{s}/pcie{p}\","
                   " \"to\": \"server{s}/bridge\", \"link\": \"pcie\", \"width\": 2},"
                   "{\"for\": {\"s\": [0, 2]}, \"from\": \"server{s}/bridge\", \"to\": \"upper\","
                   " \"link\": \"network\"}]}"),
        AM_OK);
    assert_true(graph.topology->is_tree && !graph.topology->is_derived);
    assert_int_equal(graph.topology->edge_count, 16 + 4 + 2);
    assert_string_equal(route_text(&graph, 0, 3, &latency), "server0/device0 server0/pcie0 server0/device3");
    assert_true(fabs(latency - 6e-6) < 1e-18);
    assert_string_equal(route_text(&graph, 1, 6, NULL),
                        "server0/device1 server0/pcie0 server0/bridge server0/pcie1 server0/device6");
    assert_string_equal(route_text(&graph, 1, 15, &latency),
                        "server0/device1 server0/pcie0 server0/bridge upper server1/bridge server1/pcie1 "
                        "server1/device7");
    assert_true(fabs(latency - 32e-6) < 1e-18);
    int32_t route[16], count;
    topology_route(graph.topology, 0, 4, route, &count);
    assert_true(graph.topology->edges[route[1] / 2].bytes_per_second == 20e9);
    /* The one link that stands for many: the slowest. */
    assert_string_equal(graph.cluster->links[cluster_link_between(graph.cluster, 0, 1)].name, "pcie");
    assert_string_equal(graph.cluster->links[cluster_link_between(graph.cluster, 0, 8)].name, "network");
    free_graph(&graph);
}

/* A switch inside each server, and a network card for each device: equal ranks share a rail. */
static void rails_join_equal_ranks(void **state) {
    (void)state;
    Graph graph;
    assert_int_equal(read_graph(&graph, 4, 8,
                                "\"topology\": {\"edges\": ["
                                "{\"for\": {\"s\": [0, 4], \"d\": [0, 8]}, \"from\": \"server{s}/device{d}\","
                                " \"to\": \"server{s}/nvswitch\", \"link\": \"nvlink\"},"
                                "{\"for\": {\"s\": [0, 4], \"d\": [0, 8]}, \"from\": \"server{s}/device{d}\","
                                " \"to\": \"rail{d}\", \"link\": \"network\"},"
                                "{\"for\": {\"r\": [0, 8]}, \"from\": \"rail{r}\", \"to\": \"spine\","
                                " \"link\": \"network\", \"width\": 0.5}]}"),
                     AM_OK);
    assert_false(graph.topology->is_tree);
    assert_int_equal(graph.topology->vertex_count, 32 + 4 + 8 + 1);
    assert_string_equal(route_text(&graph, 3, 27, NULL), "server0/device3 rail3 server3/device3");
    assert_string_equal(route_text(&graph, 0, 7, NULL), "server0/device0 server0/nvswitch server0/device7");
    /* To another rank of another server: over the own rail and the other server's switch. An iteration in
     * the own server has the same length; the lower of the arriving edges decides, independently of
     * earlier queries. */
    const char *crossing = route_text(&graph, 0, 15, NULL);
    assert_string_equal(route_text(&graph, 0, 15, NULL), crossing);
    assert_string_equal(crossing, "server0/device0 rail0 server1/device0 server1/nvswitch server1/device7");
    free_graph(&graph);
}

/* The links of 8 devices in two fully meshed fours and a cube; where two are not neighbours a third one
 * relays. */
static void a_hybrid_cube_mesh_has_neighbours(void **state) {
    (void)state;
    Graph graph;
    assert_int_equal(read_graph(&graph, 1, 8,
                                "\"topology\": {\"edges\": ["
                                "{\"for\": {\"a\": [0, 8], \"b\": [0, 8]},"
                                " \"where\": \"a < b && a/4 == b/4\", \"from\": \"server0/device{a}\","
                                " \"to\": \"server0/device{b}\", \"link\": \"nvlink\"},"
                                "{\"for\": {\"a\": [0, 4]}, \"from\": \"server0/device{a}\","
                                " \"to\": \"server0/device{a + 4}\", \"link\": \"nvlink\", \"width\": 2}]}"),
                     AM_OK);
    assert_int_equal(graph.topology->edge_count, 6 + 6 + 4);
    assert_int_equal(graph.topology->vertex_count, 8);
    assert_string_equal(route_text(&graph, 0, 3, NULL), "server0/device0 server0/device3");
    assert_string_equal(route_text(&graph, 1, 5, NULL), "server0/device1 server0/device5");
    assert_string_equal(route_text(&graph, 0, 5, NULL), "server0/device0 server0/device4 server0/device5");
    for (int32_t a = 0; a < 8; a++)
        for (int32_t b = 0; b < 8; b++) {
            int32_t edges[8], count;
            topology_route(graph.topology, a, b, edges, &count);
            assert_int_equal(count, a == b ? 0 : a / 4 == b / 4 || a % 4 == b % 4 ? 1 : 2);
        }
    free_graph(&graph);
}

/* Edges in addition to those of servers: an upper level that is narrower than the levels below it. */
static void edges_add_to_what_servers_say(void **state) {
    (void)state;
    Graph graph;
    double latency;
    assert_int_equal(read_graph(&graph, 4, 2,
                                "\"topology\": {\"edges\": ["
                                "{\"for\": {\"s\": [0, 4], \"d\": [0, 2]}, \"from\": \"server{s}/device{d}\","
                                " \"to\": \"server{s}/card\", \"link\": \"pcie\"},"
                                "{\"for\": {\"s\": [0, 4]}, \"from\": \"server{s}/card\","
                                " \"to\": \"leaf{s/2}\", \"link\": \"network\"},"
                                "{\"for\": {\"l\": [0, 2]}, \"from\": \"leaf{l}\", \"to\": \"spine\","
                                " \"link\": \"network\"}]}"),
                     AM_OK);
    assert_string_equal(route_text(&graph, 0, 7, &latency),
                        "server0/device0 server0/card leaf0 spine leaf1 server3/card server3/device1");
    assert_true(fabs(latency - 46e-6) < 1e-18);
    free_graph(&graph);
    assert_int_equal(read_graph(&graph, 2, 1,
                                "\"between_servers\": \"network\", \"topology\": {\"edges\": ["
                                "{\"from\": \"server0/device0\", \"to\": \"server1/device0\", \"link\": "
                                "\"nvlink\"}]}"),
                     AM_OK);
    assert_int_equal(graph.topology->edge_count, 3);
    assert_string_equal(route_text(&graph, 0, 1, NULL), "server0/device0 server1/device0");
    free_graph(&graph);
}

/* A ring of 16,384 single devices, with cached routes for 256 of them; more are queried, twice. */
static void many_devices_are_routed_in_little_memory(void **state) {
    (void)state;
    Graph graph;
    enum { DEVICES = 16384 };
    assert_int_equal(
        read_graph(&graph, DEVICES, 1,
                   "\"topology\": {\"edges\": [{\"for\": {\"s\": [0, 16384]},"
                   " \"from\": \"server{s}/device0\", \"to\": \"server{(s + 1) % 16384}/device0\","
                   " \"link\": \"network\"}]}"),
        AM_OK);
    assert_true(graph.arena.used < (size_t)32 << 20);
    int32_t *edges = ARENA_ARRAY(&graph.arena, int32_t, graph.topology->longest), count;
    for (int32_t round = 0; round < 2; round++)
        for (int32_t a = 0; a < 300; a++) {
            topology_route(graph.topology, a, (a + 3) % DEVICES, edges, &count);
            assert_int_equal(count, 3);
            for (int32_t k = 0; k < count; k++) assert_int_equal(edges[k], 2 * (a + k));
        }
    topology_route(graph.topology, 7, 7 + DEVICES / 2 + 1, edges, &count);
    assert_int_equal(count, DEVICES / 2 - 1);
    assert_int_equal(edges[0], 2 * 6 + 1);
    free_graph(&graph);
}

/* Asks for routes to so many devices, by whose end all routes from a device are kept. */
static void keep_routes(const Topology *topology, int32_t a, int32_t *route) {
    enum { ENOUGH = 400 };
    int32_t length;
    for (int32_t k = 1; k < ENOUGH; k++)
        topology_route(topology, a, (a + 13 * k) % topology->device_count, route, &length);
}

/* Near ones asked for first, far ones later: the same as from the start. A switch of the larger cluster has
 * more edges than the search visits one by one. */
static void routes_do_not_depend_on_the_order_of_asking(void **state) {
    (void)state;
    static const char *const names[] = {"h100:4", "h100:80"};
    for (int k = 0; k < 2; k++) {
        Graph graph, other;
        read_builtin(&graph, names[k]);
        read_builtin(&other, names[k]);
        int32_t count = graph.topology->device_count, length, other_length, starts = count < 32 ? count : 32;
        int32_t *route = ARENA_ARRAY(&graph.arena, int32_t, graph.topology->longest);
        int32_t *other_route = ARENA_ARRAY(&graph.arena, int32_t, graph.topology->longest);
        for (int32_t a = 0; a < starts; a++) keep_routes(other.topology, a, route);
        for (int32_t distance = 0; distance<count; distance += count> 32 ? 29 : 1)
            for (int32_t a = 0; a < starts; a++) {
                int32_t b = (a + distance) % count;
                topology_route(graph.topology, a, b, route, &length);
                topology_route(other.topology, a, b, other_route, &other_length);
                assert_int_equal(length, a == b ? 0 : a / 8 == b / 8 || a % 8 == b % 8 ? 2 : 4);
                assert_int_equal(length, other_length);
                assert_memory_equal(route, other_route, sizeof *route * (size_t)length);
            }
        free_graph(&graph);
        free_graph(&other);
    }
}

/* Picoseconds and edges from a start to every vertex, by relaxing all edges until nothing changes. */
static void find_distances(const Topology *topology, int32_t start, int64_t *picoseconds, int32_t *edges) {
    for (int32_t v = 0; v < topology->vertex_count; v++) picoseconds[v] = v == start ? 0 : INT64_MAX;
    edges[start] = 0;
    for (bool is_changed = true; is_changed;) {
        is_changed = false;
        for (int32_t e = 0; e < 2 * topology->edge_count; e++) {
            int32_t from = topology_edge_start(topology, e), to = topology_edge_end(topology, e);
            if (picoseconds[from] == INT64_MAX) continue;
            int64_t further = picoseconds[from] + llround(topology->edges[e / 2].latency_seconds * 1e12);
            bool is_equal = further == picoseconds[to];
            if (further > picoseconds[to] || (is_equal && edges[from] + 1 >= edges[to])) continue;
            picoseconds[to] = further;
            edges[to] = edges[from] + 1;
            is_changed = true;
        }
    }
}

/* Checks that each edge of a route is the lowest one by which its end is reached at its distance. */
static void check_route(const Topology *topology, const int32_t *route, int32_t length,
                        const int64_t *picoseconds, const int32_t *edges) {
    for (int32_t k = 0; k < length; k++) {
        int32_t end = topology_edge_end(topology, route[k]), lowest = 2 * topology->edge_count;
        for (int32_t e = lowest - 1; e >= 0; e--) {
            int32_t from = topology_edge_start(topology, e);
            int64_t latency = llround(topology->edges[e / 2].latency_seconds * 1e12);
            bool is_best = picoseconds[from] + latency == picoseconds[end] && edges[from] + 1 == edges[end];
            if (topology_edge_end(topology, e) == end && is_best) lowest = e;
        }
        assert_int_equal(route[k], lowest);
    }
}

/* Each graph is read anew for each distance, so that no route is cached. */
static void searched_routes_are_the_shortest(void **state) {
    (void)state;
    static const char *const names[] = {"h100:3", "mi300x:2", "trn2:2", "tpu-v5p:32"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        int32_t count = 2;
        for (int32_t distance = 1; distance < count; distance += 3) {
            Graph graph;
            read_builtin(&graph, names[k]);
            const Topology *topology = graph.topology;
            count = topology->device_count;
            int64_t *picoseconds = ARENA_ARRAY(&graph.arena, int64_t, topology->vertex_count);
            int32_t *edges = ARENA_ARRAY(&graph.arena, int32_t, topology->vertex_count), length;
            int32_t *route = ARENA_ARRAY(&graph.arena, int32_t, topology->longest);
            for (int32_t a = distance % 2; a < count; a += 2) {
                int32_t b = (a + distance) % count;
                find_distances(topology, a, picoseconds, edges);
                topology_route(topology, a, b, route, &length);
                assert_int_equal(length, edges[b]);
                check_route(topology, route, length, picoseconds, edges);
            }
            free_graph(&graph);
        }
    }
}

enum { ASKERS = 4 };

/* Asks for all routes; returns how many were of another length than they should be. */
static void *ask(void *argument) {
    const Topology *topology = argument;
    int32_t *route = malloc(sizeof *route * (size_t)topology->longest), length;
    intptr_t wrong = 0;
    for (int32_t a = 0; a < topology->device_count; a++)
        for (int32_t b = 0; b < topology->device_count; b++) {
            topology_route(topology, a, b, route, &length);
            wrong += length != (a == b ? 0 : a / 8 == b / 8 || a % 8 == b % 8 ? 2 : 4);
        }
    free(route);
    return (void *)wrong;
}

static void threads_may_ask_at_once(void **state) {
    (void)state;
    Graph graph;
    pthread_t threads[ASKERS];
    read_builtin(&graph, "h100:4");
    for (int32_t k = 0; k < ASKERS; k++)
        assert_int_equal(pthread_create(&threads[k], NULL, ask, graph.topology), 0);
    for (int32_t k = 0; k < ASKERS; k++) {
        void *wrong;
        pthread_join(threads[k], &wrong);
        assert_null(wrong);
    }
    free_graph(&graph);
}

static void faults_are_named(void **state) {
    (void)state;
#define EDGE(text) "\"topology\": {\"edges\": [" text "]}"
#define PAIR       "\"from\": \"server0/device0\", \"to\": \"server0/device1\""
    static const struct {
        const char *more, *message;
    } rows[] = {
        {"\"topology\": []", "$.topology: expected an object"},
        {"\"topology\": {\"edge\": []}", "$.topology.edge: unknown key"},
        {"\"topology\": {}", "$.topology.edges: missing"},
        {"\"topology\": {\"edges\": []}", "$.topology: no route between server0/device0 and server0/device1"},
        {EDGE("7"), "$.topology.edges[0]: expected an object"},
        {EDGE("{" PAIR "}"), "$.topology.edges[0].link: missing"},
        {EDGE("{" PAIR ", \"link\": \"nvlnk\"}"), "$.topology.edges[0].link: no link \"nvlnk\""},
        {EDGE("{" PAIR ", \"link\": \"pcie\", \"bandwidth_gbps\": 1}"),
         "$.topology.edges[0].bandwidth_gbps: unknown key"},
        {EDGE("{" PAIR ", \"link\": \"pcie\", \"width\": 0}"),
         "$.topology.edges[0].width: expected a number"},
        {EDGE("{" PAIR ", \"link\": \"pcie\", \"for\": {\"d\": [0, 1000000000]}}"),
         "$.topology.edges[0]: more than 262144 edges"},
        {EDGE("{" PAIR ", \"link\": \"pcie\", \"for\": {\"a\": [0, 9000000000000000000],"
              " \"b\": [0, 9000000000000000000]}}"),
         "$.topology.edges[0]: more than 262144 edges"},
        {EDGE("{" PAIR ", \"link\": \"pcie\", \"for\": {\"d\": [3, 3]}}"),
         "$.topology.edges[0].for.d: expected"},
        {EDGE("{" PAIR ", \"link\": \"pcie\", \"for\": {\"d\": 3}}"), "$.topology.edges[0].for.d: expected"},
        {EDGE("{" PAIR ", \"link\": \"pcie\", \"for\": {\"D\": [0, 1]}}"),
         "$.topology.edges[0].for: expected"},
        {EDGE("{" PAIR ", \"link\": \"pcie\", \"for\": {\"a\": [0, 1], \"b\": [0, 1], \"c\": [0, 1],"
              " \"d\": [0, 1], \"e\": [0, 1]}}"),
         "$.topology.edges[0].for: more than 4 variables"},
        {EDGE("{" PAIR ", \"link\": \"pcie\"}, {" PAIR ", \"link\": \"pcie\"}"),
         "$.topology.edges[1].to: these two are joined already"},
        {EDGE("{\"from\": \"server0/device0\", \"to\": \"server0/device2\", \"link\": \"pcie\"}"),
         "$.topology.edges[0].to: no such device: \"server0/device2\""},
        {EDGE("{\"from\": \"server0/device0\", \"to\": \"server0/device0\", \"link\": \"pcie\"}"),
         "$.topology.edges[0].to: an edge from a place to itself"},
        {EDGE("{\"from\": \"server0/device{d\", \"to\": \"x\", \"link\": \"pcie\"}"),
         "$.topology.edges[0].from: a brace without its pair"},
        {EDGE("{\"from\": \"server0/device{d}\", \"to\": \"x\", \"link\": \"pcie\"}"),
         "$.topology.edges[0].from: a name that \"for\" does not have"},
        {EDGE("{\"for\": {\"d\": [0, 2]}, \"from\": \"server0/device{d}\", \"to\": \"x{1/d}\", \"link\": "
              "\"pcie\"}"),
         "$.topology.edges[0].to: division by zero: \"x{1/d}\" for d = 0"},
        {EDGE("{\"for\": {\"d\": [0, 2]}, \"from\": \"server0/device{d}\", \"to\": \"x{d-1}\", \"link\": "
              "\"pcie\"}"),
         "$.topology.edges[0].to: a number below zero"},
        {EDGE("{\"from\": \"server0/device0\", \"to\": \"x y\", \"link\": \"pcie\"}"),
         "$.topology.edges[0].to: expected letters, digits"},
        {EDGE(
             "{" PAIR
             ", \"link\": \"pcie\"}, {\"from\": \"server0/device0\", \"to\": \"swich\", \"link\": \"pcie\"}"),
         "$.topology: the switch \"swich\" has fewer than two edges"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        Graph graph;
        clock_t start = clock();
        assert_int_equal(read_graph(&graph, 1, 2, rows[k].more), AM_ERROR_INPUT);
        assert_null(graph.cluster);
        if (!strstr(graph.error.text, rows[k].message))
            fail_msg("\"%s\" does not say \"%s\"", graph.error.text, rows[k].message);
        assert_true(clock() - start < CLOCKS_PER_SEC / 2);
        free_graph(&graph);
    }
}

/* Reads every example of the document and compares its figures. */
static void the_examples_of_the_document_are_right(void **state) {
    (void)state;
    FileBytes file = {0};
    AmError error = {0};
    assert_int_equal(file_read(&file, SOURCE_DIR "/docs/cost-model.md", &error), AM_OK);
    static const char fence[] = "```json\n"; /* of whole files; others show a part of one */
    int32_t count = 0;
    for (const char *at = file.data; (at = strstr(at, fence));) {
        at += sizeof fence - 1;
        if (*at != '{') continue;
        count++;
        const char *last = strstr(at, "```");
        assert_non_null(last);
        Graph graph = {0};
        json_t *root;
        assert_int_equal(json_parse(&root, "cost-model.md", at, (size_t)(last - at), &error), AM_OK);
        AmStatus status =
            cluster_from_json(&graph.cluster, &graph.arena, root, "cost-model.md", &graph.error);
        json_decref(root);
        if (status != AM_OK) fail_msg("%s", graph.error.text);
        graph.topology = graph.cluster->topology;
        if (strcmp(graph.cluster->name, "islands") == 0) {
            assert_string_equal(route_text(&graph, 4, 7, NULL), "server0/device4 server0/device7");
            assert_string_equal(route_text(&graph, 0, 4, NULL),
                                "server0/device0 server0/pcie0 server0/host server0/pcie1 server0/device4");
        } else if (strcmp(graph.cluster->name, "rails") == 0) {
            assert_string_equal(route_text(&graph, 1, 9, NULL), "server0/device1 rail1 server1/device1");
        } else if (strcmp(graph.cluster->name, "narrow") == 0) {
            assert_string_equal(
                route_text(&graph, 0, 31, NULL),
                "server0/device0 server0/switch leaf0 spine leaf1 server7/switch server7/device3");
        }
        free_graph(&graph);
        at = last + 3;
    }
    assert_true(count >= 4);
    file_release(&file);
}

static void expressions_have_values(void **state) {
    (void)state;
    TopologyVariables variables = {.count = 2, .names = {"s", "dev"}, .values = {3, 10}};
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {
        {"1 + 2 * 3", 7},
        {"(1 + 2) * 3", 9},
        {"10 - 4 - 3", 3},
        {"dev / 4", 2},
        {"dev % 4", 2},
        {"-s + dev", 7},
        {"s < dev", 1},
        {"s == 3 && dev != 10", 0},
        {"s == 4 || dev >= 10", 1},
        {"dev <= 9", 0},
        {"2 > 1", 1},
        {"-2 * -3", 6},
        {"9223372036854775807", INT64_MAX},
    };
    for (size_t k = 0; k < sizeof good / sizeof *good; k++) {
        int64_t value;
        assert_null(topology_expression(&value, good[k].text, strlen(good[k].text), &variables));
        if (value != good[k].value) fail_msg("%s gives %lld", good[k].text, (long long)value);
    }
    static const char *const bad[] = {"",
                                      "1 +",
                                      "(1",
                                      "1)",
                                      "1 2",
                                      "x",
                                      "S",
                                      "1 / 0",
                                      "1 % 0",
                                      "* 1",
                                      "1 = 1",
                                      "- ",
                                      "d",
                                      "1.5",
                                      "s ++",
                                      "9223372036854775808",
                                      "9223372036854775807 + 1",
                                      "-9223372036854775807 * 2"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        int64_t value;
        if (!topology_expression(&value, bad[k], strlen(bad[k]), &variables)) fail_msg("%s is taken", bad[k]);
    }
    char deep[256];
    int64_t value;
    memset(deep, '(', sizeof deep);
    assert_non_null(topology_expression(&value, deep, sizeof deep, &variables));
    memset(deep, '-', sizeof deep);
    assert_non_null(topology_expression(&value, deep, sizeof deep, &variables));
    char name[16];
    assert_null(topology_format(name, sizeof name, "a{s}/b{dev*2}", &variables));
    assert_string_equal(name, "a3/b20");
    assert_non_null(topology_format(name, sizeof name, "sixteen letters.", &variables));
    assert_non_null(topology_format(name, sizeof name, "a}", &variables));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_give_a_tree),
        cmocka_unit_test(servers_of_one_device_need_no_switch),
        cmocka_unit_test(a_pcie_tree_is_a_tree),
        cmocka_unit_test(rails_join_equal_ranks),
        cmocka_unit_test(a_hybrid_cube_mesh_has_neighbours),
        cmocka_unit_test(edges_add_to_what_servers_say),
        cmocka_unit_test(many_devices_are_routed_in_little_memory),
        cmocka_unit_test(routes_do_not_depend_on_the_order_of_asking),
        cmocka_unit_test(searched_routes_are_the_shortest),
        cmocka_unit_test(threads_may_ask_at_once),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(the_examples_of_the_document_are_right),
        cmocka_unit_test(expressions_have_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
