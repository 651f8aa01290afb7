/* Profiles of measured events, and curves of operator classes: reading, refusals, and
 * interpolation. */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/files/json.h"
#include "cost/cluster/operator_curves.h"
#include "cost/operator/profile.h"

static StepEvent event_of(const char *key, int32_t count, double a, double b) {
    StepEvent event = {.size_count = count, .sizes = {a, b}};
    text_append_string(&event.key, key);
    return event;
}

/* Writes text to a file of its own; the name is `path`. */
static void write_file(char *path, const char *text) {
    strcpy(path, "/tmp/automap_profile_XXXXXX");
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), (ssize_t)strlen(text));
    close(file);
}

static Cluster *read_cluster(Arena *arena) {
    Cluster *cluster;
    assert_int_equal(cluster_read(&cluster, arena, "nominal:2", NULL), AM_OK);
    return cluster;
}

static void a_profile_is_written_and_read(void **state) {
    (void)state;
    Arena arena = {0};
    Profile *profile, *slower, *again;
    char path[64];
    double seconds;
    StepEvent one = event_of("dot \"a\"", 2, 8, 16), other = event_of("dot \"a\"", 2, 32, 64),
              between = event_of("dot \"a\"", 2, 16, 32), unknown = event_of("reduce", 2, 8, 16);
    write_file(path, "");
    assert_int_equal(profile_open(&profile, NULL), AM_OK);
    assert_int_equal(profile_open(&slower, NULL), AM_OK);
    assert_int_equal(profile_add(profile, "host", PROFILE_RUN, &one, 100, 1e-6, NULL), AM_OK);
    assert_int_equal(profile_add(profile, "host", PROFILE_RUN, &one, 100, 1e-6, NULL), AM_OK);
    assert_int_equal(profile_add(profile, "host", PROFILE_RUN, &one, 100, 4e-6, NULL), AM_OK);
    assert_int_equal(profile_add(slower, "host", PROFILE_RUN, &one, 100, 1e-6, NULL), AM_OK);
    assert_int_equal(profile_add(slower, "host", PROFILE_RUN, &one, 100, 9e-6, NULL), AM_OK);
    assert_int_equal(profile_add(slower, "host", PROFILE_RUN, &other, 1600, 32e-6, NULL), AM_OK);
    assert_int_equal(profile_add(slower, "host", PROFILE_PROBE, &one, 100, 3e-6, NULL), AM_OK);
    assert_int_equal(profile_merge(profile, slower, NULL), AM_OK);
    assert_int_equal(profile_write(profile, path, NULL), AM_OK);
    assert_int_equal(profile_open(&again, NULL), AM_OK);
    assert_int_equal(profile_read(again, path, NULL), AM_OK);
    Cluster *cluster = read_cluster(&arena);
    assert_int_equal(profile_attach(again, cluster, path, NULL), AM_OK);
    const ProfileType *type = cluster->types[0].profile;
    assert_true(profile_seconds(type, PROFILE_RUN, &one, 100, &seconds));
    assert_true(fabs(seconds - 2e-6) < 1e-12); /* the mean of a run, and the least of two */
    assert_true(profile_seconds(type, PROFILE_RUN, &between, 400, &seconds));
    assert_true(fabs(seconds - 8e-6) < 1e-10); /* both have the same rate */
    assert_false(profile_seconds(type, PROFILE_RUN, &unknown, 100, &seconds));
    assert_false(profile_seconds(type, PROFILE_PROBE, &unknown, 100, &seconds));
    assert_true(profile_seconds(type, PROFILE_PROBE, &one, 100, &seconds));
    assert_true(seconds == 3e-6); /* a probe's is kept beside the run's */
    cluster_free(cluster);
    profile_close(profile);
    profile_close(slower);
    profile_close(again);
    unlink(path);
    text_free(&one.key);
    text_free(&other.key);
    text_free(&between.key);
    text_free(&unknown.key);
    arena_free(&arena);
}

/* Less than one FLOP or byte does not scale to other sizes; seconds divided by it could be
 * infinite. */
static void work_below_one_does_not_scale(void **state) {
    (void)state;
    Profile *profile;
    Arena arena = {0};
    char path[64];
    double seconds;
    StepEvent one = event_of("dot \"a\"", 2, 8, 16), other = event_of("dot \"a\"", 2, 16, 32);
    write_file(path, "");
    assert_int_equal(profile_open(&profile, NULL), AM_OK);
    assert_int_equal(profile_add(profile, "host", PROFILE_RUN, &one, 1e-300, 3600, NULL), AM_OK);
    Cluster *cluster = read_cluster(&arena);
    assert_int_equal(profile_attach(profile, cluster, path, NULL), AM_OK);
    assert_true(profile_seconds(cluster->types[0].profile, PROFILE_RUN, &other, 1e9, &seconds));
    assert_true(fabs(seconds - 3600) < 1e-6);
    cluster_free(cluster);
    profile_close(profile);
    unlink(path);
    text_free(&one.key);
    text_free(&other.key);
    arena_free(&arena);
}

#define ROWS(rows) "{\"format\": \"automap-profile-1\", \"device_types\": {\"host\": [" rows "]}}"

#define EVENT(key, sizes) \
    ROWS("{\"event\": \"" key "\", \"sizes\": [" sizes "], \"work\": 1, \"seconds\": 1}")

/* Links may be called as they like. */
static void collectives_of_links_are_read(void **state) {
    (void)state;
    static const char *const texts[] = {
        EVENT("all_gather of 2", "8"), EVENT("all_gather of 16 over in in 2 servers", "8"),
        EVENT("all_gather of 2 over a link in a rack in 1 server", "8"), EVENT("all_gather", "8, 8")};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        AmError error = {0};
        Profile *profile;
        char path[64];
        write_file(path, texts[k]);
        assert_int_equal(profile_open(&profile, NULL), AM_OK);
        if (profile_read(profile, path, &error) != AM_OK) fail_msg("%s", error.text);
        profile_close(profile);
        unlink(path);
    }
}

static void faults_are_told_by_their_path(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } faults[] = {
        {"[]", "$: expected a profile"},
        {"{\"format\": \"other\", \"device_types\": {}}", "$.format"},
        {"{\"device_types\": {}}", "$.format: missing, expected \"automap-profile-1\""},
        {"{\"format\": \"automap-profile-1\", \"device_types\": {}, \"more\": 1}", "$.more"},
        {ROWS("1"), "$.device_types.host[0]"},
        {ROWS("{\"event\": \"a\", \"sizes\": [1], \"work\": 1, \"seconds\": 1, \"x\": 1}"),
         "$.device_types.host[0].x"},
        {ROWS("{\"event\": \"a\", \"sizes\": [1.5], \"work\": 1, \"seconds\": 1}"),
         "$.device_types.host[0].sizes[0]"},
        {ROWS("{\"event\": \"a\", \"sizes\": [1], \"work\": -1, \"seconds\": 1}"),
         "$.device_types.host[0].work"},
        {ROWS("{\"event\": \"a\", \"sizes\": [1], \"work\": 1, \"seconds\": 1, \"probed\": 1}"),
         "$.device_types.host[0].probed"},
        {ROWS("{\"event\": \"a\", \"sizes\": [1], \"work\": 1, \"seconds\": 1}, {\"event\": \"a\", "
              "\"sizes\": [2], \"work\": 1, \"seconds\": 1}, {\"event\": \"a\", \"sizes\": [1], \"work\": 1, "
              "\"seconds\": 2}"),
         "$.device_types.host[2]: duplicate row (same event and sizes)"},
        {ROWS("{\"event\": \"a\", \"sizes\": [1], \"work\": 1, \"seconds\": 0}"),
         "$.device_types.host[0].seconds"},
        {EVENT("", "1"), "$.device_types.host[0].event: expected an event's name"},
        {EVENT("all_gather of 0", "1"),
         "host[0].event: expected a collective of 2 to 65536 devices, found \"all_"},
        {EVENT("all_gather of 1", "1"), "host[0].event: expected a collective of 2 to 65536"},
        {EVENT("all_reduce of -2", "1"), "host[0].event: expected a collective of 2 to 65536"},
        {EVENT("all_reduce of 2e3", "1"), "host[0].event: expected nothing more, or \" over"},
        {EVENT("all_reduce of nan", "1"), "host[0].event: expected a collective of 2 to 65536"},
        {EVENT("all_reduce of 65537", "1"), "host[0].event: expected a collective of 2 to 65536"},
        {EVENT("all_reduce of 99999999999999", "1"), "host[0].event: expected a collective of 2 to 65536"},
        {EVENT("reduce_scatter of 2", "1, 2"), "host[0].event: expected one size of a collective"},
        {EVENT("all_to_all of 2", "-8"), "host[0].sizes[0]"},
        {EVENT("all_to_all of 2", "NaN"), "invalid token"},
        {EVENT("all_to_all of 2 over", "8"), "host[0].event: expected nothing more"},
        {EVENT("all_to_all of 2 over  in 1 server", "8"), "host[0].event: expected nothing more"},
        {EVENT("all_to_all of 2 over nvlink in 3 servers", "8"), "host[0].event: expected nothing more"},
        {EVENT("all_to_all of 2 over nvlink in 2 server", "8"), "host[0].event: expected nothing more"},
    };
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) {
        AmError error = {0};
        Profile *profile;
        char path[64];
        write_file(path, faults[k].text);
        assert_int_equal(profile_open(&profile, NULL), AM_OK);
        assert_int_equal(profile_read(profile, path, &error), AM_ERROR_INPUT);
        if (!strstr(error.text, faults[k].message)) fail_msg("%s: %s", faults[k].message, error.text);
        profile_close(profile);
        unlink(path);
    }
}

static const OperatorCurves *read_curves(Arena *arena, const char *text, AmStatus expected, AmError *error) {
    const OperatorCurves *curves = NULL;
    json_t *root;
    assert_int_equal(json_parse(&root, "test", text, strlen(text), NULL), AM_OK);
    assert_int_equal(operator_curves_read(&curves, arena, root, false, "test", "$", error), expected);
    json_decref(root);
    return curves;
}

/* 5 + 2 a + 3 b + 7 a b is linear in each of the sizes, so that four points determine it. */
static void sums_of_products_are_exact_in_between(void **state) {
    (void)state;
    Arena arena = {0};
    const OperatorCurves *curves = read_curves(
        &arena, "{\"reduce_rows\": {\"sizes\": [[1, 3], [2, 10]], \"seconds\": [27, 107, 59, 251]}}", AM_OK,
        NULL);
    assert_true(fabs(operator_curve_seconds(curves, OPERATOR_CLASS_REDUCE_ROWS, (double[]){2, 5}) - 94) <
                1e-9);
    assert_true(operator_curve_seconds(curves, OPERATOR_CLASS_REDUCE_ROWS, (double[]){1, 1}) == 27);
    assert_true(operator_curve_seconds(curves, OPERATOR_CLASS_REDUCE_ROWS, (double[]){6, 20}) == 4 * 251);
    assert_true(operator_curve_seconds(curves, OPERATOR_CLASS_TANH, (double[]){6}) == 0);
    arena_free(&arena);
}

static void faulty_curves_are_told_by_their_path(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } faults[] = {
        {"{\"dots\": {}}", "$.dots: unknown class"},
        {"{\"all_reduce\": {\"sizes\": [[2], [1]], \"seconds\": [1]}}", "$.all_reduce: unknown class"},
        {"{\"tanh\": 1}", "$.tanh"},
        {"{\"tanh\": {\"sizes\": [[1]], \"seconds\": [1], \"x\": 1}}", "$.tanh.x"},
        {"{\"tanh\": {\"sizes\": [[1], [2]], \"seconds\": [1]}}", "$.tanh.sizes"},
        {"{\"tanh\": {\"sizes\": [[2, 1]], \"seconds\": [1, 1]}}", "$.tanh.sizes[0][1]"},
        {"{\"tanh\": {\"sizes\": [[1, 2]], \"seconds\": [1]}}", "$.tanh.seconds"},
        {"{\"tanh\": {\"sizes\": [[1, 2]], \"seconds\": [1, -1]}}", "$.tanh.seconds[1]"},
        {"{\"tanh\": {\"sizes\": [[1, \"2\"]], \"seconds\": [1, 1]}}", "$.tanh.sizes[0][1]"},
    };
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) {
        Arena arena = {0};
        AmError error = {0};
        read_curves(&arena, faults[k].text, AM_ERROR_INPUT, &error);
        if (!strstr(error.text, faults[k].message)) fail_msg("%s: %s", faults[k].message, error.text);
        arena_free(&arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_profile_is_written_and_read),
        cmocka_unit_test(work_below_one_does_not_scale),
        cmocka_unit_test(faults_are_told_by_their_path),
        cmocka_unit_test(collectives_of_links_are_read),
        cmocka_unit_test(sums_of_products_are_exact_in_between),
        cmocka_unit_test(faulty_curves_are_told_by_their_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
