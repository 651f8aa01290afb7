/* The Chrome trace: read back as JSON, names of any bytes, slices that stay inside one another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files/json.h"
#include "base/files/trace.h"
#include "base/random.h"

static char path[64];

static json_t *read_events(void) {
    FileBytes bytes;
    json_t *root;
    AmError error = {0};
    assert_int_equal(file_read(&bytes, path, &error), AM_OK);
    if (json_parse(&root, path, bytes.data, (size_t)bytes.length, &error) != AM_OK)
        fail_msg("%s", error.text);
    json_t *events = json_incref(json_object_get(root, "traceEvents"));
    assert_true(json_is_array(events));
    json_decref(root);
    file_release(&bytes);
    unlink(path);
    return events;
}

static void add_slice(Trace *trace, const TraceSlice *slice) {
    AmError error = {0};
    Text text = {0};
    trace_append_slice(&text, slice);
    assert_int_equal(trace_add(trace, text.data, text.length, &error), AM_OK);
    text_free(&text);
}

static void test_devices_streams_and_slices(void **state) {
    (void)state;
    AmError error = {0};
    Trace trace;
    const TraceNote notes[] = {{"op_name", "jit(step)/\"dot\"\\\n", 0}, {"bytes", NULL, 4096}};
    const TraceSlice slice = {3, TRACE_SEND, 0, "transfer", "forward", 1.5, 1.5000025, notes, 2};
    assert_int_equal(trace_begin(&trace, path, TRACE_OF_RUN, &error), AM_OK);
    Text device = {0};
    trace_append_device(&device, 3, "rank 3", trace_bit(TRACE_COMPUTE, 0) | trace_bit(TRACE_SEND, 0));
    assert_int_equal(trace_add(&trace, device.data, device.length, &error), AM_OK);
    text_free(&device);
    add_slice(&trace, &slice);
    assert_int_equal(trace_end(&trace, &error), AM_OK);
    json_t *events = read_events();
    assert_int_equal(json_array_size(events), 2 + 2 * 2 + 1);
    const char *name;
    int pid, tid;
    assert_int_equal(
        json_unpack(json_array_get(events, 0), "{s:i, s:{s:s}}", "pid", &pid, "args", "name", &name), 0);
    assert_int_equal(pid, 3);
    assert_string_equal(name, "rank 3");
    assert_int_equal(json_unpack(json_array_get(events, 4), "{s:i, s:i, s:{s:s}}", "pid", &pid, "tid", &tid,
                                 "args", "name", &name),
                     0);
    assert_int_equal(tid, TRACE_SEND);
    assert_string_equal(name, "send");
    json_t *last = json_array_get(events, 6);
    double ts, duration, bytes;
    assert_int_equal(json_unpack(last, "{s:F, s:F, s:{s:s, s:F}}", "ts", &ts, "dur", &duration, "args",
                                 "op_name", &name, "bytes", &bytes),
                     0);
    assert_true(ts == 1500000 && duration == 2.5 && bytes == 4096);
    assert_string_equal(name, "jit(step)/\"dot\"\\\n");
    json_decref(events);
}

static void test_an_empty_trace_is_json(void **state) {
    (void)state;
    AmError error = {0};
    Trace trace;
    assert_int_equal(trace_begin(&trace, path, TRACE_OF_RUN, &error), AM_OK);
    assert_int_equal(trace_end(&trace, &error), AM_OK);
    json_t *events = read_events();
    assert_int_equal(json_array_size(events), 0);
    json_decref(events);
}

/* Random bytes, including cut characters and surrogates. */
static void test_any_bytes_are_a_name(void **state) {
    (void)state;
    static const char *const hard[] = {"\xc3",     "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                       "\xc0\x80", "\xe2\x82",     "\x7f\x01"};
    AmError error = {0};
    Trace trace;
    Random random;
    random_seed(&random, 7);
    assert_int_equal(trace_begin(&trace, path, TRACE_OF_RUN, &error), AM_OK);
    for (int k = 0; k < 2000; k++) {
        char name[24] = {0};
        for (int c = 0; c < 20; c++) name[c] = (char)random_below(&random, 256);
        if (k < 6) snprintf(name, sizeof name, "%s", hard[k]);
        const TraceSlice slice = {.name = name, .category = name, .start = k, .end = k};
        add_slice(&trace, &slice);
    }
    const TraceSlice euro = {.name = "\xe2\x82\xac", .start = 0, .end = 1};
    add_slice(&trace, &euro);
    assert_int_equal(trace_end(&trace, &error), AM_OK);
    json_t *events = read_events();
    assert_int_equal(json_array_size(events), 2001);
    assert_string_equal(json_string_value(json_object_get(json_array_get(events, 2000), "name")),
                        "\xe2\x82\xac");
    json_decref(events);
}

static long long nanoseconds(const json_t *event, const char *key) {
    return llround(json_number_value(json_object_get(event, key)) * 1000);
}

/* Ends are rounded like beginnings, so a part does not reach beyond its whole. */
static void test_nested_slices_stay_nested(void **state) {
    (void)state;
    AmError error = {0};
    Trace trace;
    Random random;
    random_seed(&random, 1);
    assert_int_equal(trace_begin(&trace, path, TRACE_OF_RUN, &error), AM_OK);
    for (int k = 0; k < 500; k++) {
        double start = random_uniform(&random), end = start + random_uniform(&random) * 1e-6;
        double middle = start + (end - start) * random_uniform(&random);
        const TraceSlice outer = {.name = "loop", .start = start, .end = end};
        const TraceSlice first = {.name = "turn 0", .start = start, .end = middle};
        const TraceSlice second = {.name = "turn 1", .start = middle, .end = end};
        add_slice(&trace, &outer);
        add_slice(&trace, &first);
        add_slice(&trace, &second);
    }
    assert_int_equal(trace_end(&trace, &error), AM_OK);
    json_t *events = read_events();
    for (size_t k = 0; k < 1500; k += 3) {
        long long from[3], to[3];
        for (size_t j = 0; j < 3; j++) {
            from[j] = nanoseconds(json_array_get(events, k + j), "ts");
            to[j] = from[j] + nanoseconds(json_array_get(events, k + j), "dur");
        }
        assert_true(from[1] == from[0] && to[1] == from[2] && to[2] == to[0]);
    }
    json_decref(events);
}

static void test_failures_are_told(void **state) {
    (void)state;
    AmError error = {0};
    Trace trace;
    assert_int_equal(trace_begin(&trace, "/nowhere/trace.json", TRACE_OF_RUN, &error), AM_ERROR_USAGE);
    trace_abandon(&trace);
    assert_int_equal(trace_begin(&trace, path, TRACE_OF_RUN, &error), AM_OK);
    trace_abandon(&trace);
    assert_int_not_equal(access(path, F_OK), 0);
}

int main(void) {
    snprintf(path, sizeof path, "test_base_trace_%d.json", (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices_streams_and_slices), cmocka_unit_test(test_an_empty_trace_is_json),
        cmocka_unit_test(test_any_bytes_are_a_name),       cmocka_unit_test(test_nested_slices_stay_nested),
        cmocka_unit_test(test_failures_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
