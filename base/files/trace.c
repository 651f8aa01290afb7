/* The Chrome trace event format, by hand.
 *
 * https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU:
 * "ts" and "dur" are microseconds, here with three decimals. */
#include "base/files/trace.h"

#include <math.h>
#include <string.h>

#include "base/utf8.h"

static const char *const stream_names[TRACE_STREAMS] = {
    [TRACE_STEPS] = "steps", [TRACE_COMPUTE] = "compute", [TRACE_COLLECTIVES] = "collectives",
    [TRACE_SEND] = "send",   [TRACE_RECEIVE] = "receive",
};

/* Appends a JSON string; invalid UTF-8 becomes the replacement character. */
static void append_string(Text *text, const char *string) {
    const unsigned char *byte = (const unsigned char *)string;
    text_append_bytes(text, "\"", 1);
    while (*byte) {
        int64_t length = utf8_character_bytes((const char *)byte, 4);
        if (*byte == '"' || *byte == '\\') text_append(text, "\\%c", *byte);
        else if (*byte < 0x20) text_append(text, "\\u%04x", *byte);
        else if (length == 0) text_append_string(text, "\\ufffd");
        else text_append_bytes(text, (const char *)byte, (size_t)length);
        byte += length > 0 ? length : 1;
    }
    text_append_bytes(text, "\"", 1);
}

static void append_separator(Text *text) {
    if (text->length > 0) text_append_string(text, ",\n");
}

/* Nanoseconds as microseconds. */
static void append_time(Text *text, const char *key, long long nanoseconds) {
    text_append(text, ",\"%s\":%s%lld.%03lld", key, nanoseconds < 0 ? "-" : "",
                (nanoseconds < 0 ? -nanoseconds : nanoseconds) / 1000,
                (nanoseconds < 0 ? -nanoseconds : nanoseconds) % 1000);
}

static void append_notes(Text *text, const TraceNote *notes, int32_t count) {
    for (int32_t k = 0; k < count; k++) {
        text_append_string(text, k == 0 ? ",\"args\":{" : ",");
        append_string(text, notes[k].key);
        text_append_bytes(text, ":", 1);
        if (notes[k].text) append_string(text, notes[k].text);
        else if (isfinite(notes[k].number)) text_append_double(text, notes[k].number);
        else text_append_string(text, "null");
    }
    text_append_string(text, count > 0 ? "}}" : "}");
}

void trace_append_slice(Text *text, const TraceSlice *slice) {
    long long start = llround(slice->start * 1e9), end = llround(slice->end * 1e9);
    append_separator(text);
    text_append_string(text, "{\"ph\":\"X\",\"name\":");
    append_string(text, slice->name);
    if (slice->category && slice->category[0]) {
        text_append_string(text, ",\"cat\":");
        append_string(text, slice->category);
    }
    text_append(text, ",\"pid\":%d,\"tid\":%d", slice->device,
                (int)slice->stream + slice->lane * TRACE_STREAMS);
    append_time(text, "ts", start);
    append_time(text, "dur", end > start ? end - start : 0);
    append_notes(text, slice->notes, slice->note_count);
}

void trace_append_flow(Text *text, const TraceSlice *slice, int64_t number, bool is_end) {
    append_separator(text);
    text_append(text, "{\"ph\":\"%s\",\"name\":\"transfer\",\"cat\":\"transfer\",\"id\":\"%lld\"",
                is_end ? "f\",\"bp\":\"e" : "s", (long long)number);
    text_append(text, ",\"pid\":%d,\"tid\":%d", slice->device,
                (int)slice->stream + slice->lane * TRACE_STREAMS);
    append_time(text, "ts", llround((is_end ? (slice->start + slice->end) / 2 : slice->start) * 1e9));
    text_append_string(text, "}");
}

void trace_append_counter(Text *text, int32_t device, const char *name, double seconds,
                          const TraceNote *notes, int32_t note_count) {
    append_separator(text);
    text_append_string(text, "{\"ph\":\"C\",\"name\":");
    append_string(text, name);
    text_append(text, ",\"pid\":%d", device);
    append_time(text, "ts", llround(seconds * 1e9));
    append_notes(text, notes, note_count);
}

/* Appends a metadata event of a device, or of one of its streams. */
static void append_metadata(Text *text, const char *what, int32_t device, int32_t stream) {
    append_separator(text);
    text_append(text, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d", what, device);
    if (stream >= 0) text_append(text, ",\"tid\":%d", stream);
    text_append_string(text, ",\"args\":{");
}

void trace_append_device(Text *text, int32_t device, const char *name, uint32_t streams) {
    append_metadata(text, "process_name", device, -1);
    text_append_string(text, "\"name\":");
    append_string(text, name);
    text_append_string(text, "}}");
    append_metadata(text, "process_sort_index", device, -1);
    text_append(text, "\"sort_index\":%d}}", device);
    for (int32_t k = 0; k < TRACE_STREAMS * TRACE_LANES; k++) {
        TraceStream stream = (TraceStream)(k / TRACE_LANES);
        int32_t lane = k % TRACE_LANES, thread = (int32_t)stream + lane * TRACE_STREAMS;
        if (!(streams & trace_bit(stream, lane))) continue;
        append_metadata(text, "thread_name", device, thread);
        text_append(text, "\"name\":\"%s", stream_names[stream]);
        if (lane > 0) text_append(text, " %d", lane + 1);
        text_append_string(text, "\"}}");
        append_metadata(text, "thread_sort_index", device, thread);
        text_append(text, "\"sort_index\":%d}}", k);
    }
}

AmStatus trace_begin(Trace *trace, const char *path, const char *source, AmError *error) {
    char head[128];
    int length =
        snprintf(head, sizeof head,
                 "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"source\":\"%s\"},\"traceEvents\":[\n", source);
    *trace = (Trace){0};
    TRY(file_writer_begin(&trace->writer, path, error));
    return file_writer_add(&trace->writer, head, (size_t)length, error);
}

AmStatus trace_add(Trace *trace, const char *events, size_t length, AmError *error) {
    if (length == 0) return AM_OK;
    if (trace->has_events) TRY(file_writer_add(&trace->writer, ",\n", 2, error));
    trace->has_events = true;
    return file_writer_add(&trace->writer, events, length, error);
}

AmStatus trace_end(Trace *trace, AmError *error) {
    TRY(file_writer_add(&trace->writer, "\n]}\n", 4, error));
    AmStatus status = file_writer_commit(&trace->writer, error);
    trace_abandon(trace);
    return status;
}

void trace_abandon(Trace *trace) {
    file_writer_abandon(&trace->writer);
}
