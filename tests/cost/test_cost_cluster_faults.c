/* Cluster files that are refused: each fault by its JSON path, at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/files/json.h"
#include "cost/cluster/cluster.h"

#define TYPE                                                                                      \
    "\"memory_bytes\": 16e9, \"memory_bytes_per_second\": 9e11, \"flops_per_second\": {\"f32\": " \
    "1e13}, \"kernel_launch_seconds\": 6e-6"
#define GOOD_TYPES "\"device_types\": {\"fast\": {" TYPE "}}"
#define GOOD_LINKS "\"links\": {\"in\": {\"bytes_per_second\": 1e11, \"latency_seconds\": 4e-6}}"
#define GOOD_SERVERS \
    "\"servers\": [{\"count\": 2, \"device_type\": \"fast\", \"devices\": 4, \"link\": \"in\"}]"
#define GOOD_BETWEEN "\"between_servers\": \"in\""
#define GOOD_HEAD    "\"format\": \"automap-cluster-1\", \"name\": \"c\""
#define TYPES(type) \
    GOOD_HEAD ", \"device_types\": {\"fast\": {" type "}}, " GOOD_LINKS ", " GOOD_SERVERS ", " GOOD_BETWEEN
#define LINKS(link) \
    GOOD_HEAD ", " GOOD_TYPES ", \"links\": {\"in\": " link "}, " GOOD_SERVERS ", " GOOD_BETWEEN
#define SERVERS(row) GOOD_HEAD ", " GOOD_TYPES ", " GOOD_LINKS ", \"servers\": [" row "], " GOOD_BETWEEN
#define RATE(member) \
    "\"memory_bytes\": 16e9, \"memory_bytes_per_second\": 9e11, \"flops_per_second\": " member
#define CURVE(points) TYPES(TYPE ", \"efficiency\": {\"dot\": " points "}")

/* Members of the object, and the expected error. */
static const struct {
    const char *members, *message;
} faults[] = {
    /* unknown keys, at every level; units that are not those of the format */
    {GOOD_HEAD ", \"server\": []", "$.server: unknown key"},
    {GOOD_HEAD ", " GOOD_TYPES ", " GOOD_LINKS ", " GOOD_SERVERS ", \"between_server\": \"in\"",
     "$.between_server: unknown key"},
    {TYPES(TYPE ", \"memory_gb\": 16"), "$.device_types.fast.memory_gb: unknown key"},
    {TYPES(TYPE ", \"tflops\": 16"), "$.device_types.fast.tflops: unknown key"},
    {TYPES(TYPE ", \"efficiency\": {\"matmul\": []}"), "$.device_types.fast.efficiency.matmul: unknown key"},
    {TYPES(TYPE ", \"efficiency\": {\"dot_tf33\": []}"),
     "$.device_types.fast.efficiency.dot_tf33: unknown key"},
    {TYPES(TYPE ", \"efficiency\": {\"memory_f32\": []}"),
     "$.device_types.fast.efficiency.memory_f32: unknown key"},
    {TYPES(TYPE ", \"efficiency\": {\"dot_f16\": [[1, 2]]}"),
     "$.device_types.fast.efficiency.dot_f16[0]: expected a fraction"},
    {LINKS("{\"bandwidth_gbps\": 100}"), "$.links.in.bandwidth_gbps: unknown key"},
    {LINKS("{\"bytes_per_second\": 1e9, \"latency_us\": 4}"), "$.links.in.latency_us: unknown key"},
    {LINKS("{\"bytes_per_second\": 1e9, \"efficiency_curve\": []}"),
     "$.links.in.efficiency_curve: unknown key"},
    {SERVERS("{\"device_type\": \"fast\", \"gpus\": 4, \"link\": \"in\"}"), "$.servers[0].gpus: unknown key"},
    /* what is missing */
    {"\"name\": \"c\"", "$.format: missing, expected \"automap-cluster-1\""},
    {"\"format\": \"automap-cluster-1\"", "$.name: missing"},
    {GOOD_HEAD, "$.device_types: missing"},
    {GOOD_HEAD ", " GOOD_TYPES, "$.servers: missing"},
    {GOOD_HEAD ", " GOOD_TYPES ", " GOOD_LINKS ", " GOOD_SERVERS, "$.between_servers: missing"},
    {TYPES("\"memory_bytes_per_second\": 9e11, \"flops_per_second\": {\"f32\": 1}"),
     "$.device_types.fast.memory_bytes: missing"},
    {TYPES("\"memory_bytes\": 16e9, \"flops_per_second\": {\"f32\": 1}"),
     "$.device_types.fast.memory_bytes_per_second: missing"},
    {TYPES("\"memory_bytes\": 16e9, \"memory_bytes_per_second\": 9e11"),
     "$.device_types.fast.flops_per_second: missing"},
    {LINKS("{}"), "$.links.in.bytes_per_second: missing"},
    {SERVERS("{\"devices\": 4, \"link\": \"in\"}"), "$.servers[0].device_type: missing"},
    {SERVERS("{\"device_type\": \"fast\", \"link\": \"in\"}"), "$.servers[0].devices: missing"},
    {SERVERS("{\"device_type\": \"fast\", \"devices\": 4}"), "$.servers[0].link: missing"},
    /* values of another kind: text with a unit, null, lists */
    {LINKS("{\"bytes_per_second\": \"12 GB/s\"}"), "$.links.in.bytes_per_second: expected a number"},
    {LINKS("{\"bytes_per_second\": null}"), "$.links.in.bytes_per_second: expected a number"},
    {LINKS("{\"bytes_per_second\": \"NaN\"}"), "$.links.in.bytes_per_second: expected a number"},
    {LINKS("{\"bytes_per_second\": \"Infinity\"}"), "$.links.in.bytes_per_second: expected a number"},
    {LINKS("{\"bytes_per_second\": 1e9, \"latency_seconds\": \"4 us\"}"),
     "$.links.in.latency_seconds: expected a number"},
    {LINKS("\"fast\""), "$.links.in: expected an object"},
    {GOOD_HEAD ", " GOOD_TYPES ", \"links\": []", "$.links: expected an object"},
    {GOOD_HEAD ", \"device_types\": []", "$.device_types: expected an object"},
    {GOOD_HEAD ", \"device_types\": {\"fast\": 3}", "$.device_types.fast: expected an object"},
    {GOOD_HEAD ", " GOOD_TYPES ", " GOOD_LINKS ", \"servers\": {}", "$.servers: expected an array"},
    {SERVERS("4"), "$.servers[0]: expected an object"},
    {SERVERS("{\"device_type\": 1, \"devices\": 4, \"link\": \"in\"}"),
     "$.servers[0].device_type: expected a string"},
    {TYPES("\"memory_bytes\": \"16 GB\", \"memory_bytes_per_second\": 9e11, \"flops_per_second\": {\"f32\": "
           "1}"),
     "$.device_types.fast.memory_bytes: expected an integer"},
    {TYPES(RATE("1e13")), "$.device_types.fast.flops_per_second: expected an object"},
    {TYPES(RATE("{}")), "$.device_types.fast.flops_per_second: expected the rate"},
    {TYPES(RATE("{\"f32\": true}")), "$.device_types.fast.flops_per_second.f32: expected a number"},
    {TYPES(RATE("{\"tf33\": 1}")), "$.device_types.fast.flops_per_second.tf33: unknown element type"},
    {TYPES(RATE("{\"tuple\": 1}")), "$.device_types.fast.flops_per_second.tuple: unknown element type"},
    {"\"format\": 1, \"name\": \"c\"", "$.format: expected \"automap-cluster-1\", a string"},
    {"\"format\": \"automap-cluster-1\", \"name\": []", "$.name: expected a string"},
    /* names that no table could show */
    {"\"format\": \"automap-cluster-1\", \"name\": \"\"", "$.name: expected a name, found an empty one"},
    {"\"format\": \"automap-cluster-1\", \"name\": \" \"", "$.name: expected a name, found an empty one"},
    {"\"format\": \"automap-cluster-1\", \"name\": \"a\\nb\"", "$.name: expected a name without control"},
    {GOOD_HEAD ", \"device_types\": {\"\": {" TYPE "}}",
     "$.device_types.: expected a name, found an empty one"},
    {GOOD_HEAD ", " GOOD_TYPES ", \"links\": {\"a\\u007f\": {}}", ": expected a name without control"},
    /* numbers that are negative, zero or beyond all measure */
    {LINKS("{\"bytes_per_second\": -1e9}"), "$.links.in.bytes_per_second: expected a number from"},
    {LINKS("{\"bytes_per_second\": 0}"), "$.links.in.bytes_per_second: expected a number from"},
    {LINKS("{\"bytes_per_second\": 1e308}"), "$.links.in.bytes_per_second: expected a number from"},
    {LINKS("{\"bytes_per_second\": 1e9, \"latency_seconds\": -1e-6}"),
     "$.links.in.latency_seconds: expected a number from"},
    {LINKS("{\"bytes_per_second\": 1e9, \"latency_seconds\": 1e300}"),
     "$.links.in.latency_seconds: expected a number from"},
    {TYPES(RATE("{\"f32\": -1}")), "$.device_types.fast.flops_per_second.f32: expected a number from"},
    {TYPES(RATE("{\"f32\": 0}")), "$.device_types.fast.flops_per_second.f32: expected a number from"},
    {TYPES(TYPE ", \"efficiency\": 1"), "$.device_types.fast.efficiency: expected an object"},
    {TYPES("\"memory_bytes\": -1, \"memory_bytes_per_second\": 9e11, \"flops_per_second\": {\"f32\": 1}"),
     "$.device_types.fast.memory_bytes: expected an integer from"},
    {TYPES("\"memory_bytes\": 1.5, \"memory_bytes_per_second\": 9e11, \"flops_per_second\": {\"f32\": 1}"),
     "$.device_types.fast.memory_bytes: expected an integer"},
    {TYPES("\"memory_bytes\": 1, \"memory_bytes_per_second\": -9e11, \"flops_per_second\": {\"f32\": 1}"),
     "$.device_types.fast.memory_bytes_per_second: expected a number from"},
    {TYPES(RATE("{\"f32\": 1}, \"kernel_launch_seconds\": -1e-6")),
     "$.device_types.fast.kernel_launch_seconds: expected a number from"},
    /* hosts */
    {TYPES(TYPE ", \"host_bytes_per_second\": 0"),
     "$.device_types.fast.host_bytes_per_second: expected a number from"},
    {TYPES(TYPE ", \"host_bytes_per_second\": \"fast\""),
     "$.device_types.fast.host_bytes_per_second: expected a number"},
    {TYPES(TYPE ", \"host_latency_seconds\": -1"),
     "$.device_types.fast.host_latency_seconds: expected a number from"},
    {TYPES(TYPE ", \"host_memory_bytes\": 1"), "$.device_types.fast.host_memory_bytes: unknown key"},
    {SERVERS("{\"device_type\": \"fast\", \"devices\": 4, \"link\": \"in\", \"host_memory_bytes\": -1}"),
     "$.servers[0].host_memory_bytes: expected an integer from"},
    {SERVERS("{\"device_type\": \"fast\", \"devices\": 4, \"link\": \"in\", \"host_memory_bytes\": 1e300}"),
     "$.servers[0].host_memory_bytes: expected an integer"},
    {SERVERS("{\"device_type\": \"fast\", \"devices\": 4, \"link\": \"in\", \"host_bytes_per_second\": 0}"),
     "$.servers[0].host_bytes_per_second: expected a number from"},
    /* the other members */
    {TYPES(TYPE ", \"overlaps_communication\": 1"),
     "$.device_types.fast.overlaps_communication: expected true"},
    {GOOD_HEAD ", \"collective_model\": \"ncl\", " GOOD_TYPES, "$.collective_model: expected \"alpha-beta\""},
    {GOOD_HEAD ", \"collective_model\": {\"name\": \"nccl\", \"speed\": 1}, " GOOD_TYPES,
     "$.collective_model.speed: unknown key"},
    /* no devices, too many */
    {GOOD_HEAD ", \"device_types\": {}", "$.device_types: expected at least one"},
    {SERVERS(""), "$.servers: expected at least one"},
    {SERVERS("{\"device_type\": \"fast\", \"devices\": 0, \"link\": \"in\"}"),
     "$.servers[0].devices: expected"},
    {SERVERS("{\"device_type\": \"fast\", \"devices\": -4, \"link\": \"in\"}"),
     "$.servers[0].devices: expected"},
    {SERVERS("{\"count\": 0, \"device_type\": \"fast\", \"devices\": 4, \"link\": \"in\"}"),
     "$.servers[0].count: expected"},
    {SERVERS("{\"count\": 65536, \"device_type\": \"fast\", \"devices\": 65536, \"link\": \"in\"}"),
     "$.servers[0]: more than 65536 devices"},
    {SERVERS("{\"count\": 9223372036854775807, \"device_type\": \"fast\", \"devices\": 1, \"link\": \"in\"}"),
     "$.servers[0].count: expected"},
    {SERVERS("{\"device_type\": \"fast\", \"devices\": 4.5, \"link\": \"in\"}"),
     "$.servers[0].devices: expected"},
    /* names that nothing has */
    {SERVERS("{\"device_type\": \"slow\", \"devices\": 4, \"link\": \"in\"}"),
     "$.servers[0].device_type: no device type \"slow\""},
    {SERVERS("{\"device_type\": \"fast\", \"devices\": 4, \"link\": \"out\"}"),
     "$.servers[0].link: no link \"out\""},
    {GOOD_HEAD ", " GOOD_TYPES ", " GOOD_LINKS ", " GOOD_SERVERS ", \"between_servers\": \"out\"",
     "$.between_servers: no link \"out\""},
    {"\"format\": \"automap-cluster-2\", \"name\": \"c\"", "$.format: expected \"automap-cluster-1\""},
    {"\"format\": \"automap-plan-1\", \"name\": \"c\"", "$.format: expected \"automap-cluster-1\""},
    /* curves */
    {CURVE("[]"), "$.device_types.fast.efficiency.dot: expected 1 to 64 points"},
    {CURVE("{}"), "$.device_types.fast.efficiency.dot: expected an array"},
    {CURVE("[[1e6]]"), "$.device_types.fast.efficiency.dot[0]: expected [size"},
    {CURVE("[[1e6, 0.5, 1]]"), "$.device_types.fast.efficiency.dot[0]: expected [size"},
    {CURVE("[[1e6, \"0.5\"]]"), "$.device_types.fast.efficiency.dot[0]: expected [size"},
    {CURVE("[7]"), "$.device_types.fast.efficiency.dot[0]: expected [size"},
    {CURVE("[[1e6, 0.5], [1e5, 0.6]]"), "$.device_types.fast.efficiency.dot[1]: expected a size"},
    {CURVE("[[1e6, 0.5], [1e6, 0.6]]"), "$.device_types.fast.efficiency.dot[1]: expected a size"},
    {CURVE("[[-1, 0.5]]"), "$.device_types.fast.efficiency.dot[0]: expected a size"},
    {CURVE("[[1e6, 0]]"), "$.device_types.fast.efficiency.dot[0]: expected a fraction"},
    {CURVE("[[1e6, -0.5]]"), "$.device_types.fast.efficiency.dot[0]: expected a fraction"},
    {CURVE("[[1e6, 90]]"), "$.device_types.fast.efficiency.dot[0]: expected a fraction"},
    {LINKS("{\"bytes_per_second\": 1e9, \"efficiency\": [[1e5, 1.5]]}"),
     "$.links.in.efficiency[0]: expected a fraction"},
};

static AmStatus read_bytes(const char *text, size_t length, AmError *error) {
    Arena arena = {0};
    Cluster *cluster = NULL;
    json_t *root;
    AmStatus status = json_parse(&root, "c.json", text, length, error);
    if (status == AM_OK) {
        status = cluster_from_json(&cluster, &arena, root, "c.json", error);
        json_decref(root);
        if (cluster) cluster_free(cluster);
    }
    arena_free(&arena);
    return status;
}

static void every_fault_is_refused_by_its_path(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) {
        char text[2048];
        AmError error = {0};
        int length = snprintf(text, sizeof text, "{%s}", faults[k].members);
        assert_true(length > 0 && (size_t)length < sizeof text);
        AmStatus status = read_bytes(text, (size_t)length, &error);
        if (status != AM_ERROR_INPUT || !strstr(error.text, faults[k].message))
            fail_msg("row %zu: status %d, \"%s\" does not say \"%s\"", k, status, error.text,
                     faults[k].message);
        assert_string_equal(error.source, "c.json");
    }
}

static void the_rows_differ_from_a_good_file(void **state) {
    (void)state;
    AmError error = {0};
    static const char good[] =
        "{" SERVERS("{\"device_type\": \"fast\", \"devices\": 4, \"link\": \"in\"}") "}";
    assert_int_equal(read_bytes(good, sizeof good - 1, &error), AM_OK);
    static const char curve[] = "{" CURVE("[[1e5, 0.5], [1e6, 1]]") "}";
    assert_int_equal(read_bytes(curve, sizeof curve - 1, &error), AM_OK);
}

/* Not JSON at all, with lengths, since some hold a NUL. */
static void what_is_not_json_is_refused(void **state) {
    (void)state;
#define BYTES(text) \
    { text, sizeof text - 1 }
    static const struct {
        const char *text;
        size_t length;
    } rows[] = {
        BYTES(""),
        BYTES(" "),
        BYTES("{"),
        BYTES("{} {}"),
        BYTES("{}x"),
        BYTES("{}\0"),
        BYTES("\0{}"),
        BYTES("{\"name\": \"a\0b\"}"),
        BYTES("{\"name\": \"a\\u0000b\"}"),
        BYTES("{\"na\\u0000me\": 1}"),
        BYTES("{\"name\": \"\\ud800\"}"),
        BYTES("{\"name\": \"\\udc00\\ud800\"}"),
        BYTES("{\"name\": \"\xed\xa0\x80\"}"),
        BYTES("{\"name\": \"\xff\"}"),
        BYTES("{\"name\": \"\xc0\x80\"}"),
        BYTES("{\"name\": NaN}"),
        BYTES("{\"name\": Infinity}"),
        BYTES("{\"name\": -Infinity}"),
        BYTES("{\"name\": 1e999}"),
        BYTES("{\"name\": 99999999999999999999}"),
        BYTES("{\"name\": 01}"),
        BYTES("{\"name\": +1}"),
        BYTES("{\"name\": .5}"),
        BYTES("{\"name\": 1,}"),
        BYTES("{\"name\": 'c'}"),
        BYTES("{name: 1}"),
        BYTES("{\"name\": 1, \"name\": 2}"),
        BYTES("// a comment\n{}"),
        BYTES("\xef\xbb\xbf{}"),
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        AmError error = {0};
        if (read_bytes(rows[k].text, rows[k].length, &error) != AM_ERROR_INPUT)
            fail_msg("row %zu is taken or fails otherwise: %s", k, error.text);
    }
}

static void deep_and_long_texts_are_refused_at_once(void **state) {
    (void)state;
    enum { COUNT = 100000 };
    static const char *const pieces[] = {"[", "{\"a\":", "[[],", "\"", "-", "1"};
    for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
        size_t length = strlen(pieces[k]);
        char *text = malloc(COUNT * length);
        assert_non_null(text);
        for (size_t i = 0; i < COUNT; i++) memcpy(text + i * length, pieces[k], length);
        AmError error = {0};
        clock_t start = clock();
        assert_int_equal(read_bytes(text, COUNT * length, &error), AM_ERROR_INPUT);
        assert_true(clock() - start < CLOCKS_PER_SEC);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fault_is_refused_by_its_path),
        cmocka_unit_test(the_rows_differ_from_a_good_file),
        cmocka_unit_test(what_is_not_json_is_refused),
        cmocka_unit_test(deep_and_long_texts_are_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
