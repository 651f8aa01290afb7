/* Clusters: built-ins read back, files are read strictly, curves and links. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/files/json.h"
#include "cost/cluster/cluster.h"
#include "cost/cluster/topology.h"

static const char mixed[] =
    "{\"format\": \"automap-cluster-1\", \"name\": \"mixed\","
    " \"device_types\": {"
    "  \"V100\": {\"memory_bytes\": 34359738368, \"memory_bytes_per_second\": 900e9,"
    "    \"flops_per_second\": {\"f32\": 15.7e12, \"f16\": 125e12}, \"kernel_launch_seconds\": 6e-6,"
    "    \"efficiency\": {\"dot\": [[1e6, 0.1], [1e9, 0.9]], \"memory\": [[1e6, 0.3], [1e8, 0.9]]}},"
    "  \"P100\": {\"memory_bytes\": 17179869184, \"memory_bytes_per_second\": 732e9,"
    "    \"flops_per_second\": {\"f32\": 10.6e12}}},"
    " \"links\": {\"nvlink\": {\"bytes_per_second\": 120e9, \"latency_seconds\": 4e-6,"
    "    \"efficiency\": [[1e5, 0.3], [1e8, 0.9]]},"
    "  \"ethernet\": {\"bytes_per_second\": 3.1e9, \"latency_seconds\": 25e-6}},"
    " \"servers\": [{\"count\": 2, \"device_type\": \"V100\", \"devices\": 2, \"link\": \"nvlink\"},"
    "  {\"count\": 1, \"device_type\": \"P100\", \"devices\": 3, \"link\": \"nvlink\"}],"
    " \"between_servers\": \"ethernet\"}";

static AmStatus read_text(Cluster **cluster, Arena *arena, const char *text, AmError *error) {
    json_t *root;
    assert_int_equal(json_parse(&root, "c.json", text, strlen(text), error), AM_OK);
    AmStatus status = cluster_from_json(cluster, arena, root, "c.json", error);
    json_decref(root);
    return status;
}

static void a_file_gives_devices_types_and_links(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    assert_int_equal(read_text(&cluster, &arena, mixed, &error), AM_OK);
    assert_int_equal(cluster->device_count, 7);
    assert_int_equal(cluster->server_count, 3);
    assert_int_equal(cluster->server_of[3], 1);
    assert_string_equal(cluster_device_type(cluster, 3)->name, "V100");
    assert_string_equal(cluster_device_type(cluster, 4)->name, "P100");
    assert_string_equal(cluster_device_name(cluster, &arena, 6), "server2/P100-2");
    assert_int_equal(cluster_link_between(cluster, 2, 2), -1);
    assert_string_equal(cluster->links[cluster_link_between(cluster, 2, 3)].name, "nvlink");
    assert_string_equal(cluster->links[cluster_link_between(cluster, 1, 2)].name, "ethernet");
    assert_int_equal(cluster_least_memory(cluster, NULL, 0), 17179869184);
    assert_int_equal(cluster_least_memory(cluster, (const int32_t[]){0, 3}, 2), 34359738368);
    cluster_free(cluster);
    arena_free(&arena);
}

static void types_fall_back_to_the_next_wider(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    assert_int_equal(read_text(&cluster, &arena, mixed, &error), AM_OK);
    const ClusterDeviceType *v100 = cluster_device_type(cluster, 0), *p100 = cluster_device_type(cluster, 4);
    assert_true(v100->flops_per_second[DTYPE_F16] == 125e12);
    assert_true(v100->flops_per_second[DTYPE_F8E5M2] == 125e12);
    assert_true(v100->flops_per_second[DTYPE_BF16] == 15.7e12);
    assert_true(v100->flops_per_second[DTYPE_S8] == 15.7e12);
    assert_true(p100->flops_per_second[DTYPE_F16] == 10.6e12);
    assert_true(p100->flops_per_second[DTYPE_F64] == 10.6e12);
    assert_true(v100->named[DTYPE_F16] && !v100->named[DTYPE_BF16]);
    cluster_free(cluster);
    arena_free(&arena);
}

/* A type's own curve stands for the general one, that of products for one of convolutions that is missing. */
static void curves_may_be_of_one_type(void **state) {
    (void)state;
    static const struct {
        const char *curves;
        double dot, dot_f16, convolution, convolution_f16;
    } cases[] = {
        {"\"dot\": [[1, 0.5]]", 0.5, 0.5, 0.5, 0.5},
        {"\"dot\": [[1, 0.5]], \"dot_f16\": [[1, 0.25]]", 0.5, 0.25, 0.5, 0.25},
        {"\"dot_f16\": [[1, 0.25]], \"dot\": [[1, 0.5]]", 0.5, 0.25, 0.5, 0.25},
        {"\"dot_f16\": [[1, 0.25]], \"convolution\": [[1, 0.5]]", 1, 0.25, 0.5, 0.5},
        {"\"dot\": [[1, 0.5]], \"convolution_f16\": [[1, 0.125]]", 0.5, 0.5, 0.5, 0.125},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Arena arena = {0};
        Cluster *cluster;
        char text[512];
        snprintf(text, sizeof text,
                 "{\"format\": \"automap-cluster-1\", \"name\": \"c\", \"device_types\": {\"d\": {"
                 "\"memory_bytes\": 1, \"memory_bytes_per_second\": 1, \"flops_per_second\": {\"f32\": 1}, "
                 "\"efficiency\": {%s}}}, \"servers\": [{\"device_type\": \"d\", \"devices\": 1}]}",
                 cases[k].curves);
        assert_int_equal(read_text(&cluster, &arena, text, NULL), AM_OK);
        const ClusterDeviceType *type = cluster_device_type(cluster, 0);
        assert_true(cluster_efficiency(&type->dot[DTYPE_F32], 1) == cases[k].dot);
        assert_true(cluster_efficiency(&type->dot[DTYPE_F16], 1) == cases[k].dot_f16);
        assert_true(cluster_efficiency(&type->convolution[DTYPE_F32], 1) == cases[k].convolution);
        assert_true(cluster_efficiency(&type->convolution[DTYPE_F16], 1) == cases[k].convolution_f16);
        cluster_free(cluster);
        arena_free(&arena);
    }
}

static void curves_are_interpolated_in_log_size(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    assert_int_equal(read_text(&cluster, &arena, mixed, &error), AM_OK);
    const ClusterDeviceType *type = cluster_device_type(cluster, 0);
    assert_true(cluster_efficiency(&type->dot[DTYPE_F32], 1) == 0.1);
    assert_true(cluster_efficiency(&type->dot[DTYPE_F32], 1e6) == 0.1);
    assert_true(fabs(cluster_efficiency(&type->dot[DTYPE_F32], 1e7) - (0.1 + 0.8 / 3)) < 1e-12);
    assert_true(fabs(cluster_efficiency(&type->memory, 1e7) - 0.6) < 1e-12);
    assert_true(cluster_efficiency(&type->dot[DTYPE_F32], 1e15) == 0.9);
    assert_true(cluster_efficiency(&type->convolution[DTYPE_F32], 1e7) ==
                cluster_efficiency(&type->dot[DTYPE_F32], 1e7));
    assert_true(cluster_efficiency(&cluster_device_type(cluster, 4)->dot[DTYPE_F32], 5) == 1);
    cluster_free(cluster);
    arena_free(&arena);
}

static void builtins_read_back_with_the_same_hash(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int32_t devices;
    } rows[] = {{"A", 16},
                {"B", 24},
                {"C", 32},
                {"whale-dp", 16},
                {"whale-pp", 8},
                {"oneflow", 32},
                {"distsim", 16},
                {"distsim-search", 16},
                {"nominal:4", 4},
                {"h100:4", 32},
                {"h100:1", 8},
                {"h200:2", 16},
                {"a100:2", 16},
                {"a100-40:1", 8},
                {"t4:3", 12},
                {"b200:2", 16},
                {"gb200:1", 72},
                {"gb300:2", 144},
                {"mi300x:1", 8},
                {"mi355x:3", 24},
                {"l4:2", 16},
                {"l40s:1", 8},
                {"rtx-4090:2", 16},
                {"a100-pcie:2", 16},
                {"trn2:2", 32},
                {"tpu-v5e:1", 1},
                {"tpu-v5e:8", 8},
                {"tpu-v5p:64", 64},
                {"tpu-v6e:256", 256},
                {"h100:1024", 8192}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        Arena arena = {0};
        AmError error = {0};
        Cluster *cluster, *again;
        assert_int_equal(cluster_read(&cluster, &arena, rows[k].name, &error), AM_OK);
        assert_string_equal(cluster->name, rows[k].name);
        assert_int_equal(cluster->device_count, rows[k].devices);
        assert_int_equal(strlen(cluster->sha256), 64);
        Text text = {0};
        json_t *description = cluster_to_json(cluster);
        json_write(&text, description, JSON_STYLE_INDENTED);
        json_decref(description);
        assert_int_equal(read_text(&again, &arena, text.data, &error), AM_OK);
        assert_string_equal(again->sha256, cluster->sha256);
        assert_int_equal(again->device_count, cluster->device_count);
        text_free(&text);
        cluster_free(cluster);
        cluster_free(again);
        arena_free(&arena);
    }
}

static void every_listed_builtin_exists(void **state) {
    (void)state;
    int32_t count;
    const ClusterBuiltin *builtins = cluster_builtins(&count);
    assert_true(count >= 9);
    for (int32_t k = 0; k < count; k++) {
        json_t *description;
        AmError error = {0};
        char name[32];
        snprintf(name, sizeof name, "%s", builtins[k].name);
        char *count_place = strstr(name, ":N");
        if (count_place) memcpy(count_place, ":2", 3);
        assert_int_equal(cluster_builtin(&description, name, &error), AM_OK);
        assert_non_null(description);
        json_decref(description);
    }
}

/* The rate of a device's copies while all devices of its server copy, and the memory of the host. */
static void hosts_have_rates_and_memory(void **state) {
    (void)state;
    static const char *const file =
        "{\"format\": \"automap-cluster-1\", \"name\": \"c\", \"device_types\": {\"%s\": {\"memory_bytes\": "
        "%s, "
        "\"memory_bytes_per_second\": 9e11, \"flops_per_second\": {\"f32\": 1e13}%s}}, \"links\": {\"in\": "
        "{\"bytes_per_second\": 1e11, \"latency_seconds\": 4e-6}}, \"servers\": [{\"device_type\": \"%s\", "
        "\"devices\": 4, \"link\": \"in\"%s}]}";
    const struct {
        const char *type, *bytes, *of_type, *of_server;
        double rate, latency, memory;
    } rows[] = {{"A100-80GB", "80000000000", "", "", 22e9, 6e-6, 1024e9},
                {"a100", "80000000000", "", "", 22e9, 6e-6, 1024e9}, /* a short name */
                {"H100-80GB", "80000000000", "", ", \"host_memory_bytes\": 5", 44e9, 6e-6, 5},
                {"GB200", "80000000000", "", "", 225e9, 6e-6, 960e9},
                {"host", "1000", "", "", 4e9, 4e-6, 0},
                {"T4", "1000", "", "", 12e9, 6e-6, 4000}, /* as much as the devices */
                {"own", "1000", "", "", 0, 0, 4000},
                {"own", "9007199254740992", "", "", 0, 0, 9007199254740992.0},
                {"own", "1000", ", \"host_bytes_per_second\": 8e9, \"host_latency_seconds\": 1e-3", "", 8e9,
                 1e-3, 4000},
                {"own", "1000", ", \"host_bytes_per_second\": 8e9", ", \"host_bytes_per_second\": 16e9", 4e9,
                 0, 4000},
                {"own", "1000", ", \"host_bytes_per_second\": 8e9", ", \"host_bytes_per_second\": 64e9", 8e9,
                 0, 4000},
                {"own", "1000", "", ", \"host_bytes_per_second\": 16e9", 4e9, 0, 4000}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        Arena arena = {0};
        AmError error = {0};
        Cluster *cluster;
        char text[1024];
        snprintf(text, sizeof text, file, rows[k].type, rows[k].bytes, rows[k].of_type, rows[k].type,
                 rows[k].of_server);
        assert_int_equal(read_text(&cluster, &arena, text, &error), AM_OK);
        assert_true(cluster->servers[0].host_bytes_per_second == rows[k].rate);
        assert_true((double)cluster->servers[0].host_memory_bytes == rows[k].memory);
        double seconds = cluster_host_copy_seconds(cluster, 3, 1e9);
        if (rows[k].rate == 0) assert_true(isinf(seconds));
        else assert_true(fabs(seconds - rows[k].latency - 1e9 / rows[k].rate) < 1e-12);
        cluster_free(cluster);
        arena_free(&arena);
    }
}

/* Links of a built-in cluster: edges of one device, and of all devices. */
static int32_t count_edges(const char *name, const char *link, int32_t device) {
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    int32_t count = 0;
    assert_int_equal(cluster_read(&cluster, &arena, name, &error), AM_OK);
    for (int32_t e = 0; e < cluster->topology->edge_count; e++) {
        const TopologyEdge *edge = &cluster->topology->edges[e];
        if (strcmp(cluster->links[edge->link].name, link) != 0) continue;
        if (device < 0 || edge->from == device || edge->to == device) count++;
    }
    cluster_free(cluster);
    arena_free(&arena);
    return count;
}

/* A k-ary torus of n axes has n N links, a mesh of axes a and b has a (b - 1) + b (a - 1). */
static void shapes_have_their_links(void **state) {
    (void)state;
    assert_int_equal(count_edges("mi300x:2", "xgmi-mi300x", -1), 2 * 28);
    assert_int_equal(count_edges("mi300x:2", "xgmi-mi300x", 3), 7);
    assert_int_equal(count_edges("tpu-v5e:8", "ici-v5e", -1), 4 + 6);
    assert_int_equal(count_edges("tpu-v5e:8", "ici-v5e", 0), 2);
    assert_int_equal(count_edges("tpu-v5e:128", "ici-v5e", -1), 128 + 7 * 16);
    assert_int_equal(count_edges("tpu-v6e:256", "ici-v6e", -1), 512);
    assert_int_equal(count_edges("tpu-v6e:256", "ici-v6e", 17), 4);
    assert_int_equal(count_edges("tpu-v5p:16", "ici-v5p", -1), 8 + 8 + 12);
    assert_int_equal(count_edges("tpu-v5p:64", "ici-v5p", -1), 192);
    assert_int_equal(count_edges("tpu-v5p:64", "ici-v5p", 63), 6);
    assert_int_equal(count_edges("trn2:2", "neuronlink-3", -1), 64);
    assert_int_equal(count_edges("gb200:2", "infiniband-400", 0), 1);
}

static void names_are_read_in_upper_and_lower_case(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    assert_int_equal(cluster_read(&cluster, &arena, "H100:2", &error), AM_OK);
    assert_string_equal(cluster->name, "h100:2");
    assert_int_equal(cluster_type_named(cluster, "h100"), 0);
    assert_int_equal(cluster_type_named(cluster, "H100-80gb"), 0);
    assert_int_equal(cluster_type_named(cluster, "A100"), -1);
    cluster_free(cluster);
    static const char *const names[][2] = {{"A100-80GB:2", "a100:2"},
                                           {"rtx4090:2", "rtx-4090:2"},
                                           {"v5p:4", "tpu-v5p:4"},
                                           {"whale-DP", "whale-dp"}};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        assert_int_equal(cluster_read(&cluster, &arena, names[k][0], &error), AM_OK);
        assert_string_equal(cluster->name, names[k][1]);
        cluster_free(cluster);
    }
    AmError no_family = {0};
    assert_int_equal(cluster_read(&cluster, &arena, "V100:2", &no_family), AM_ERROR_USAGE);
    assert_int_equal(cluster_read(&cluster, &arena, "TPU-v5e:12", &error), AM_ERROR_USAGE);
    assert_string_equal(error.text,
                        "cluster \"TPU-v5e:12\": expected tpu-v5e:N with N a power of two from 1 to 256");
    assert_string_equal(cluster_builtin_device_named("h100"), "H100-80GB");
    assert_string_equal(cluster_builtin_device_named("L4-24GB"), "L4");
    assert_string_equal(cluster_builtin_device_named("mi300x"), "MI300X");
    assert_null(cluster_builtin_device_named("H101"));
    assert_string_equal(cluster_builtin_device_link("B200"), "nvlink-b200");
    assert_string_equal(cluster_builtin_device_link("A100-80GB"), "nvlink-a100");
    assert_string_equal(cluster_builtin_device_link("A100-PCIe-80GB"), "pcie-4");
    arena_free(&arena);
}

/* Replaces `from` in the good file by `to`; expects an input error that says `message`. */
static void assert_refused(const char *from, const char *to, const char *message) {
    char text[2048];
    const char *at = strstr(mixed, from);
    assert_non_null(at);
    int written = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - mixed), mixed, to, at + strlen(from));
    assert_true(written > 0 && (size_t)written < sizeof text);
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    assert_int_equal(read_text(&cluster, &arena, text, &error), AM_ERROR_INPUT);
    assert_null(cluster);
    if (!strstr(error.text, message)) fail_msg("\"%s\" does not say \"%s\"", error.text, message);
    assert_string_equal(error.source, "c.json");
    arena_free(&arena);
}

static void faults_are_named_with_their_path(void **state) {
    (void)state;
    assert_refused("\"kernel_launch_seconds\"", "\"kernel_launch_ms\"",
                   "$.device_types.V100.kernel_launch_ms: unknown key");
    assert_refused("\"latency_seconds\"", "\"latency\"", "$.links.nvlink.latency: unknown key");
    assert_refused("\"name\"", "\"nam\"", "$.nam: unknown key");
    assert_refused("\"between_servers\": \"ethernet\"", "\"topology\": 1", "$.topology: expected an object");
    assert_refused("automap-cluster-1", "automap-cluster-2", "$.format: expected \"automap-cluster-1\"");
    assert_refused("\"f16\": 125e12", "\"f17\": 125e12",
                   "$.device_types.V100.flops_per_second.f17: unknown element type");
    assert_refused("\"f16\": 125e12", "\"f16\": -1", "$.device_types.V100.flops_per_second.f16");
    assert_refused("\"memory_bytes\": 34359738368", "\"memory_bytes\": 0",
                   "$.device_types.V100.memory_bytes");
    assert_refused("[1e9, 0.9]", "[1e9, 1.9]", "$.device_types.V100.efficiency.dot[1]: expected a fraction");
    assert_refused("[1e9, 0.9]", "[1e5, 0.9]", "$.device_types.V100.efficiency.dot[1]: expected a size");
    assert_refused("\"device_type\": \"P100\"", "\"device_type\": \"P10\"",
                   "$.servers[1].device_type: no device type \"P10\"");
    assert_refused("\"link\": \"nvlink\"}]", "\"link\": \"nvlnk\"}]", "$.servers[1].link: no link \"nvlnk\"");
    assert_refused("\"between_servers\": \"ethernet\"", "\"between_servers\": \"nvlin\"",
                   "$.between_servers: no link \"nvlin\"");
    assert_refused("\"devices\": 3", "\"devices\": 65533", "$.servers[1]: more than 65536 devices");
    assert_refused("\"devices\": 3", "\"devices\": 0", "$.servers[1].devices");
}

static void names_that_mean_nothing_are_usage_errors(void **state) {
    (void)state;
    static const char *const bad[] = {
        "host:",           "nominal:0", "nominal:4x", "host:-1", "nominal:100000",
        "no-such-cluster", "h100:0",    "a100:2049",  "t4:",     "h100"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        Arena arena = {0};
        AmError error = {0};
        Cluster *cluster;
        assert_int_equal(cluster_read(&cluster, &arena, bad[k], &error), AM_ERROR_USAGE);
        assert_null(cluster);
        assert_non_null(strstr(error.text, bad[k]));
        arena_free(&arena);
    }
    static const struct {
        const char *name, *near;
    } misspelt[] = {{"hots:4", "did you mean host:4?"},
                    {"Nomnal:2", "did you mean nominal:2?"},
                    {"h100", "did you mean h100:N?"},
                    {"whale_dp", "did you mean whale-dp?"}};
    for (size_t k = 0; k < sizeof misspelt / sizeof *misspelt; k++) {
        Arena arena = {0};
        AmError error = {0};
        Cluster *cluster;
        assert_int_equal(cluster_read(&cluster, &arena, misspelt[k].name, &error), AM_ERROR_USAGE);
        if (!strstr(error.text, misspelt[k].near)) fail_msg("%s", error.text);
        arena_free(&arena);
    }
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    assert_int_equal(cluster_read(&cluster, &arena, "no/such/cluster.json", &error), AM_ERROR_INPUT);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_gives_devices_types_and_links),
        cmocka_unit_test(types_fall_back_to_the_next_wider),
        cmocka_unit_test(curves_may_be_of_one_type),
        cmocka_unit_test(curves_are_interpolated_in_log_size),
        cmocka_unit_test(builtins_read_back_with_the_same_hash),
        cmocka_unit_test(every_listed_builtin_exists),
        cmocka_unit_test(hosts_have_rates_and_memory),
        cmocka_unit_test(shapes_have_their_links),
        cmocka_unit_test(names_are_read_in_upper_and_lower_case),
        cmocka_unit_test(faults_are_named_with_their_path),
        cmocka_unit_test(names_that_mean_nothing_are_usage_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
