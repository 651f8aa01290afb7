/* TensorBoard's event files: the frames, the sums and the messages, taken apart byte by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files/event_file.h"
#include "base/files/file.h"

static char folder[64];

static uint64_t little_endian(const unsigned char *bytes, int count) {
    uint64_t value = 0;
    for (int k = count - 1; k >= 0; k--) value = value << 8 | bytes[k];
    return value;
}

/* RFC 3720, B.4, and the sum of "123456789" of every catalogue. */
static void test_sums(void **state) {
    (void)state;
    unsigned char zeros[32] = {0}, rising[32], ones[32];
    for (int k = 0; k < 32; k++) rising[k] = (unsigned char)k;
    memset(ones, 0xff, sizeof ones);
    assert_int_equal(crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(crc32c(zeros, 32), 0x8a9136aau);
    assert_int_equal(crc32c(ones, 32), 0x62a8ab43u);
    assert_int_equal(crc32c(rising, 32), 0x46dd794eu);
    assert_int_equal(crc32c("", 0), 0);
}

/* One field of a message, and its end. */
typedef struct Field {
    int number;
    uint64_t value; /* varint, fixed, or the length */
    const unsigned char *bytes;
} Field;

static uint64_t read_varint(const unsigned char **at) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        value |= (uint64_t)(**at & 0x7f) << shift;
        if (!(*(*at)++ & 0x80)) return value;
    }
}

static Field read_field(const unsigned char **at) {
    uint64_t key = read_varint(at);
    Field field = {.number = (int)(key >> 3)};
    int wire = (int)(key & 7);
    if (wire == 0) {
        field.value = read_varint(at);
        return field;
    }
    assert_true(wire == 1 || wire == 2 || wire == 5);
    uint64_t length = wire == 2 ? read_varint(at) : wire == 1 ? 8 : 4;
    field.value = wire == 2 ? length : little_endian(*at, (int)length);
    field.bytes = *at;
    *at += length;
    return field;
}

/* The contents of a record. */
typedef struct Event {
    int64_t step;
    double wall_time;
    char version[32];
    bool starts;
    int count;
    char tags[8][64];
    float values[8];
} Event;

static void read_value(Event *event, Field summary) {
    const unsigned char *at = summary.bytes, *end = at + summary.value;
    while (at < end) {
        Field value = read_field(&at);
        assert_int_equal(value.number, 1);
        const unsigned char *inside = value.bytes, *last = inside + value.value;
        while (inside < last) {
            Field part = read_field(&inside);
            uint32_t bits = (uint32_t)part.value;
            if (part.number == 1) memcpy(event->tags[event->count], part.bytes, part.value);
            else memcpy(&event->values[event->count], &bits, 4);
        }
        event->count++;
    }
}

static Event read_event(const unsigned char *at, uint64_t length) {
    Event event = {0};
    const unsigned char *end = at + length;
    while (at < end) {
        Field field = read_field(&at);
        if (field.number == 1) memcpy(&event.wall_time, &field.value, 8);
        else if (field.number == 2) event.step = (int64_t)field.value;
        else if (field.number == 3) memcpy(event.version, field.bytes, field.value);
        else if (field.number == 5) read_value(&event, field);
        else if (field.number == 7)
            event.starts = field.value == 2 && field.bytes[0] == 8 && field.bytes[1] == 1;
        else fail_msg("field %d", field.number);
    }
    return event;
}

/* All records, their frames checked. */
static int read_events(const char *path, Event *events, int most) {
    FileBytes bytes;
    AmError error = {0};
    int count = 0;
    assert_int_equal(file_read(&bytes, path, &error), AM_OK);
    const unsigned char *at = (const unsigned char *)bytes.data, *end = at + bytes.length;
    while (at < end) {
        assert_true(end - at >= 16 && count < most);
        uint64_t length = little_endian(at, 8);
        assert_true(length <= (uint64_t)(end - at) - 16);
        assert_int_equal(little_endian(at + 8, 4), crc32c_masked(at, 8));
        assert_int_equal(little_endian(at + 12 + length, 4), crc32c_masked(at + 12, length));
        events[count++] = read_event(at + 12, length);
        at += length + 16;
    }
    file_release(&bytes);
    return count;
}

static void test_scalars_by_step(void **state) {
    (void)state;
    AmError error = {0};
    EventFile file;
    Event events[8];
    char path[512];
    const EventScalar scalars[] = {{"loss", 2.5}, {"step_seconds", 1e-3}};
    const EventScalar lost = {"loss", NAN};
    assert_int_equal(event_file_open(&file, folder, &error), AM_OK);
    snprintf(path, sizeof path, "%s", file.path);
    assert_non_null(strstr(path, "/events.out.tfevents."));
    assert_int_equal(event_file_start(&file, 300, &error), AM_OK);
    assert_int_equal(event_file_scalars(&file, 300, scalars, 2, &error), AM_OK);
    assert_int_equal(event_file_scalars(&file, INT64_C(1) << 40, &lost, 1, &error), AM_OK);
    /* It is all there while the file is still open. */
    assert_int_equal(read_events(path, events, 8), 4);
    assert_int_equal(event_file_close(&file, &error), AM_OK);
    assert_string_equal(events[0].version, "brain.Event:2");
    assert_true(events[1].starts && events[1].step == 300 && events[1].count == 0);
    assert_true(events[2].step == 300 && events[2].count == 2 && events[2].wall_time > 1.6e9);
    assert_string_equal(events[2].tags[0], "loss");
    assert_string_equal(events[2].tags[1], "step_seconds");
    assert_true(events[2].values[0] == 2.5f && events[2].values[1] == 1e-3f);
    assert_true(events[3].step == INT64_C(1) << 40 && isnan(events[3].values[0]));
    unlink(path);
}

/* Two runs in one second, and a folder that cannot be made. */
static void test_files_are_new(void **state) {
    (void)state;
    AmError error = {0};
    EventFile first, second, third;
    char path[512];
    assert_int_equal(event_file_open(&first, folder, &error), AM_OK);
    assert_int_equal(event_file_open(&second, folder, &error), AM_OK);
    assert_string_not_equal(first.path, second.path);
    snprintf(path, sizeof path, "%s/deeper", first.path);
    assert_int_equal(event_file_open(&third, path, &error), AM_ERROR_USAGE);
    event_file_close(&third, NULL);
    unlink(first.path);
    unlink(second.path);
    assert_int_equal(event_file_close(&first, &error), AM_OK);
    assert_int_equal(event_file_close(&second, &error), AM_OK);
}

static void test_long_tags_and_many_values_are_cut(void **state) {
    (void)state;
    AmError error = {0};
    EventFile file;
    Event events[2];
    char path[512], tag[200];
    memset(tag, 'a', sizeof tag);
    tag[sizeof tag - 1] = '\0';
    const EventScalar scalar = {tag, 1};
    assert_int_equal(event_file_open(&file, folder, &error), AM_OK);
    snprintf(path, sizeof path, "%s", file.path);
    assert_int_equal(event_file_scalars(&file, 0, &scalar, 1, &error), AM_OK);
    EventScalar many[EVENT_SCALARS];
    for (int k = 0; k < EVENT_SCALARS; k++) many[k] = scalar;
    assert_int_equal(read_events(path, events, 2), 2);
    assert_int_equal(strlen(events[1].tags[0]), EVENT_TAG_LENGTH);
    assert_int_equal(event_file_scalars(&file, 1, many, EVENT_SCALARS, &error), AM_OK);
    assert_int_equal(event_file_close(&file, &error), AM_OK);
    unlink(path);
}

static int teardown(void **state) {
    (void)state;
    char parent[64];
    snprintf(parent, sizeof parent, "%s", folder);
    rmdir(folder);
    *strrchr(parent, '/') = '\0';
    return rmdir(parent);
}

int main(void) {
    snprintf(folder, sizeof folder, "test_event_file_%d/run", (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_scalars_by_step),
        cmocka_unit_test(test_files_are_new),
        cmocka_unit_test(test_long_tags_and_many_values_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
