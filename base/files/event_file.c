/* TensorBoard event files: scalars by step, readable while they are written. Protobuf's wire format is
 * written by hand. */
#define _GNU_SOURCE
#include "base/files/event_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A message being made; what does not fit sets `length` past its end. */
enum { MESSAGE_BYTES = 2048 };
typedef struct Message {
    unsigned char bytes[MESSAGE_BYTES];
    size_t length;
} Message;

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

uint32_t crc32c(const void *bytes, size_t count) {
    const unsigned char *byte = bytes;
    uint32_t sum = 0xffffffffu;
    for (size_t k = 0; k < count; k++) {
        sum ^= byte[k];
        for (int bit = 0; bit < 8; bit++) sum = sum >> 1 ^ (sum & 1 ? 0x82f63b78u : 0);
    }
    return ~sum;
}

/* Rotated and shifted, so that a record may hold sums of other records. */
uint32_t crc32c_masked(const void *bytes, size_t count) {
    uint32_t sum = crc32c(bytes, count);
    return (sum >> 15 | sum << 17) + 0xa282ead8u;
}

static void append_bytes(Message *message, const void *bytes, size_t count) {
    if (message->length + count <= sizeof message->bytes)
        memcpy(message->bytes + message->length, bytes, count);
    message->length += count;
}

static void add_varint(Message *message, uint64_t value) {
    do {
        unsigned char byte = (unsigned char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        append_bytes(message, &byte, 1);
        value >>= 7;
    } while (value);
}

static void add_little_endian(Message *message, uint64_t value, int bytes) {
    for (int k = 0; k < bytes; k++) {
        unsigned char byte = (unsigned char)(value >> 8 * k);
        append_bytes(message, &byte, 1);
    }
}

static void add_key(Message *message, int field, int wire) {
    add_varint(message, (uint64_t)(field << 3 | wire));
}

static void add_bytes(Message *message, int field, const void *bytes, size_t count) {
    add_key(message, field, WIRE_BYTES);
    add_varint(message, count);
    append_bytes(message, bytes, count);
}

/* Begins an Event {wall_time, step}. */
static void begin_event(Message *message, int64_t step) {
    struct timespec now = {0};
    uint64_t bits;
    clock_gettime(CLOCK_REALTIME, &now);
    double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    memcpy(&bits, &seconds, sizeof bits);
    message->length = 0;
    add_key(message, 1, WIRE_FIXED64);
    add_little_endian(message, bits, 8);
    add_key(message, 2, WIRE_VARINT);
    add_varint(message, (uint64_t)step);
}

static AmStatus write_record(EventFile *events, const Message *event, AmError *error) {
    Message head = {.length = 0}, tail = {.length = 0};
    if (event->length > sizeof event->bytes)
        return am_fail(error, AM_ERROR_INTERNAL, events->path, "an event is too long");
    add_little_endian(&head, event->length, 8);
    add_little_endian(&head, crc32c_masked(head.bytes, 8), 4);
    add_little_endian(&tail, crc32c_masked(event->bytes, event->length), 4);
    if (fwrite(head.bytes, 1, head.length, events->file) == head.length &&
        fwrite(event->bytes, 1, event->length, events->file) == event->length &&
        fwrite(tail.bytes, 1, tail.length, events->file) == tail.length && fflush(events->file) == 0)
        return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, events->path, "writing failed: %s", strerror(errno));
}

/* Makes the folder and its parents. */
static bool make_folder(const char *folder) {
    char path[4096];
    size_t length = strlen(folder);
    if (length == 0 || length >= sizeof path) {
        errno = length == 0 ? ENOENT : ENAMETOOLONG;
        return false;
    }
    memcpy(path, folder, length + 1);
    for (size_t k = 1; k <= length; k++) {
        if (path[k] != '/' && path[k] != '\0') continue;
        path[k] = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST) return false;
        path[k] = folder[k];
    }
    return true;
}

AmStatus event_file_open(EventFile *events, const char *folder, AmError *error) {
    static const char version[] = "brain.Event:2";
    static int32_t opened; /* by this process: two files of one second differ */
    char host[256] = "host";
    Message event;
    *events = (EventFile){0};
    if (!make_folder(folder))
        return am_fail(error, AM_ERROR_USAGE, folder, "cannot be made: %s", strerror(errno));
    if (gethostname(host, sizeof host - 1) != 0) snprintf(host, sizeof host, "host");
    for (char *c = host; *c; c++)
        if (*c == '/') *c = '_';
    size_t room = strlen(folder) + sizeof host + 96;
    events->path = malloc(room);
    if (!events->path) return am_fail_memory(error, (int64_t)room);
    snprintf(events->path, room, "%s/events.out.tfevents.%010lld.%s.%ld.%d", folder, (long long)time(NULL),
             host, (long)getpid(), opened++);
    events->file = fopen(events->path, "wbx");
    if (!events->file) {
        am_fail(error, AM_ERROR_USAGE, events->path, "cannot be written: %s", strerror(errno));
        event_file_close(events, NULL);
        return AM_ERROR_USAGE;
    }
    begin_event(&event, 0);
    add_bytes(&event, 3, version, strlen(version));
    return write_record(events, &event, error);
}

AmStatus event_file_start(EventFile *events, int64_t step, AmError *error) {
    static const unsigned char session_log[] = {1 << 3 | WIRE_VARINT, 1};
    Message event;
    begin_event(&event, step);
    add_bytes(&event, 7, session_log, sizeof session_log);
    return write_record(events, &event, error);
}

AmStatus event_file_scalars(EventFile *events, int64_t step, const EventScalar *scalars, int32_t count,
                            AmError *error) {
    Message event, summary = {.length = 0}, value;
    for (int32_t k = 0; k < count && k < EVENT_SCALARS; k++) {
        float single = (float)scalars[k].value;
        uint32_t bits;
        memcpy(&bits, &single, sizeof bits);
        value.length = 0;
        add_bytes(&value, 1, scalars[k].tag, strnlen(scalars[k].tag, EVENT_TAG_LENGTH));
        add_key(&value, 2, WIRE_FIXED32);
        add_little_endian(&value, bits, 4);
        add_bytes(&summary, 1, value.bytes, value.length);
    }
    begin_event(&event, step);
    add_bytes(&event, 5, summary.bytes, summary.length);
    return write_record(events, &event, error);
}

AmStatus event_file_close(EventFile *events, AmError *error) {
    AmStatus status = AM_OK;
    if (events->file && fclose(events->file) != 0)
        status = am_fail(error, AM_ERROR_RUNTIME, events->path, "writing failed: %s", strerror(errno));
    free(events->path);
    *events = (EventFile){0};
    return status;
}
