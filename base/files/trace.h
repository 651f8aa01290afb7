/* Chrome traces: the activities of several devices over time, as JSON for Perfetto
 * (https://ui.perfetto.dev) and chrome://tracing.
 *
 * A device is a process of the trace, a stream of it a thread. Slices ("ph":"X") of one stream may
 * be nested but not overlap otherwise: concurrent slices use adjacent lanes. Times are seconds from
 * any origin and are rounded to whole nanoseconds at both ends, so that nested slices stay nested.
 * Each event is written at once: memory does not grow with their number. A measured and a
 * predicted trace have the same form, for comparison.
 */
#ifndef BASE_FILES_TRACE_H
#define BASE_FILES_TRACE_H

#include "base/files/file.h"
#include "base/text.h"

typedef enum TraceStream {
    TRACE_STEPS,   /* whole steps */
    TRACE_COMPUTE, /* kernels, and loops around them */
    TRACE_COLLECTIVES,
    TRACE_SEND, /* transfers to other stages */
    TRACE_RECEIVE,
    TRACE_STREAMS
} TraceStream;

/* Lanes of a stream; in most there is only lane 0. */
#define TRACE_LANES 6
static inline uint32_t trace_bit(TraceStream stream, int32_t lane) {
    return 1u << ((int32_t)stream + lane * TRACE_STREAMS);
}

/* A line of a slice's details: a text, or a number where `text` is NULL. */
typedef struct TraceNote {
    const char *key, *text;
    double number;
} TraceNote;

typedef struct TraceSlice {
    int32_t device;
    TraceStream stream;
    int32_t lane;                /* lane among concurrent slices, below TRACE_LANES */
    const char *name, *category; /* category: NULL or "" if it has none */
    double start, end;           /* seconds */
    const TraceNote *notes;
    int32_t note_count;
} TraceSlice;

/* Append events as text, to be given to trace_add(); any bytes may be in names and notes. */
void trace_append_slice(Text *text, const TraceSlice *slice);
/* Appends one end of an arrow between slices of two devices: a beginning and an end have the same number.
 * Arrows end in the middle of a slice, so that they end after they begin. */
void trace_append_flow(Text *text, const TraceSlice *slice, int64_t number, bool is_end);
/* Appends a stacked counter of the device ("ph":"C"): each note is a number, valid from `seconds` on. */
void trace_append_counter(Text *text, int32_t device, const char *name, double seconds,
                          const TraceNote *notes, int32_t note_count);
/* Appends the device's name, order and streams: the bits of trace_bit() of those that it has. */
void trace_append_device(Text *text, int32_t device, const char *name, uint32_t streams);

/* Programs that write traces, in "otherData": {"source": ...}. */
#define TRACE_OF_SIMULATION "automap simulate"
#define TRACE_OF_RUN        "automap run"

typedef struct Trace {
    FileWriter writer;
    bool has_events;
} Trace;

/* Begins a trace; `source` is one of the programs above. AM_ERROR_USAGE: the file cannot be written;
 * AM_ERROR_RUNTIME: writing failed. The file is there after trace_end(); abandon after end does nothing. */
AmStatus trace_begin(Trace *trace, const char *path, const char *source, AmError *error);
/* Adds events that were made by trace_append_*(), any number of them. */
AmStatus trace_add(Trace *trace, const char *events, size_t length, AmError *error);
AmStatus trace_end(Trace *trace, AmError *error);
void trace_abandon(Trace *trace);

#endif
