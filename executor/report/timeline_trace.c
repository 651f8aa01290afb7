/* The timelines of all ranks as one Chrome trace, a device for each rank.
 *
 * Process 0 writes the file: rank by rank, each process sends the text of its part, so that memory is that
 * of one rank.
 */
#include "executor/report/timeline_trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/files/trace.h"
#include "lowering/program/memory_counter.h"
#include "lowering/program/program_trace.h"

/* Text that a process sends at once. */
#define MOST_TEXT ((int64_t)1 << 30)

/* The records of a rank that are still there are numbers first .. count - 1. */
typedef struct Span {
    int64_t first, count;
    double start; /* of the first step to be shown */
    bool is_cut;  /* records of that step are gone */
} Span;

static const TimelineRecord *record_at(const Timeline *timeline, int64_t k) {
    return &timeline->records[k & (timeline->capacity - 1)];
}

static Span find_span(const Timeline *timeline, int64_t steps) {
    Span span = {.count = atomic_load(&timeline->count)};
    int64_t found = 0;
    if (span.count > timeline->capacity) span.first = span.count - timeline->capacity;
    for (int64_t k = span.count - 1; k >= span.first && found < steps; k--) {
        const TimelineRecord *record = record_at(timeline, k);
        if (record->kind != TIMELINE_STEP) continue;
        span.start = record->start;
        found++;
    }
    /* Overwritten records are older than the remaining ones, except enclosing ones. */
    span.is_cut =
        span.first > 0 && span.count > span.first && record_at(timeline, span.first)->start > span.start;
    return span;
}

static void append_record(Text *text, const TimelineTrace *trace, int32_t rank, const TimelineRecord *record,
                          double origin) {
    static const struct {
        const char *name;
        TraceStream stream;
    } kinds[] = {
        [TIMELINE_STEP] = {"step", TRACE_STEPS},       [TIMELINE_FEED] = {"feed", TRACE_COMPUTE},
        [TIMELINE_OPERATOR] = {"", TRACE_COMPUTE},     [TIMELINE_ITERATION] = {"iteration", TRACE_COMPUTE},
        [TIMELINE_UPDATE] = {"update", TRACE_COMPUTE}, [TIMELINE_OTHER] = {"", TRACE_STEPS},
    };
    const Plan *plan = trace->plan;
    int32_t stage = 0, rank_of_stage = rank;
    for (; plan && stage + 1 < plan->stage_count; stage++) {
        if (rank_of_stage < plan->stages[stage].mesh.device_count) break;
        rank_of_stage -= plan->stages[stage].mesh.device_count;
    }
    TraceNote notes[3] = {{"stage", NULL, stage}};
    char name[64];
    TraceSlice slice = {.device = rank,
                        .stream = kinds[record->kind].stream,
                        .name = name,
                        .start = record->start - origin,
                        .end = record->end - origin,
                        .notes = notes,
                        .note_count = 1};
    if (record->micro_batch > 0)
        notes[slice.note_count++] = (TraceNote){"micro_batch", NULL, record->micro_batch - 1};
    if (record->kind == TIMELINE_OPERATOR) {
        program_trace_append(text, &slice, trace->context, record->program, record->step, 1);
        return;
    }
    notes[slice.note_count++] = (TraceNote){"number", NULL, (double)record->number};
    if (record->kind == TIMELINE_OTHER) slice.name = record->name;
    else snprintf(name, sizeof name, "%s %lld", kinds[record->kind].name, (long long)record->number);
    trace_append_slice(text, &slice);
}

/* Appends one rank's part of the file. */
static void append_rank(Text *text, const TimelineTrace *trace, const Rank *rank, MemoryCounter *memory,
                        double origin) {
    const Timeline *timeline = rank->timeline;
    Span span = find_span(timeline, trace->steps);
    uint32_t streams = trace_bit(TRACE_STEPS, 0) | trace_bit(TRACE_COMPUTE, 0);
    char name[64];
    for (int64_t k = span.first; k < span.count; k++) {
        const TimelineRecord *record = record_at(timeline, k);
        if (record->start < span.start) continue;
        append_record(text, trace, rank->comm->rank, record, origin);
        if (record->kind == TIMELINE_OPERATOR)
            memory_counter_append(text, memory, rank->comm->rank, record->program, record->step,
                                  record->start - origin);
        else if (record->kind == TIMELINE_STEP)
            memory_counter_end(text, memory, rank->comm->rank, record->end - origin);
        if (record->kind == TIMELINE_OPERATOR)
            streams |= trace_bit(program_trace_stream(record->program, record->step), 0);
    }
    snprintf(name, sizeof name, "rank %d", rank->comm->rank);
    trace_append_device(text, rank->comm->rank, name, streams);
    if (span.is_cut)
        am_warn(trace->warnings,
                "the trace lacks the beginning of the oldest step of rank %d: show fewer steps",
                rank->comm->rank);
}

/* Writes the records of all processes' rank number r to the file; `text` is this process's. */
static AmStatus add_all(const TimelineTrace *trace, Trace *file, const Text *text, ProcessPart *parts,
                        AmError *error) {
    ProcessGroup *processes = trace->processes;
    if (!processes) return trace_add(file, text->data, text->length, error);
    AmStatus status =
        process_group_gather(processes, text->data, (int64_t)text->length, MOST_TEXT, parts, error);
    if (status != AM_OK || processes->process != 0) return status;
    for (int32_t p = 0; p < processes->count && status == AM_OK; p++)
        status = trace_add(file, parts[p].bytes, (size_t)parts[p].count, error);
    process_group_release_parts(processes, parts);
    return status;
}

AmStatus timeline_write_trace(const TimelineTrace *trace, AmError *error) {
    bool writes = !trace->processes || trace->processes->process == 0;
    ProcessPart *parts = calloc(trace->processes ? (size_t)trace->processes->count : 1, sizeof *parts);
    Trace file = {0};
    double origin = INFINITY; /* nothing is shown at a time before 0 */
    AmStatus status = AM_OK;
    if (!parts) TRY_OR_FAIL(am_fail_memory(error, (int64_t)sizeof *parts));
    if (writes) TRY_OR_FAIL(trace_begin(&file, trace->path, TRACE_OF_RUN, error));
    for (int32_t r = 0; r < trace->rank_count; r++)
        origin = fmin(origin, find_span(trace->ranks[r].timeline, trace->steps).start);
    for (int32_t r = 0; r < trace->rank_count && status == AM_OK; r++) {
        const Rank *rank = &trace->ranks[r];
        Arena arena = {0};
        Text text = {0};
        MemoryCounter memory;
        const ChannelSet *channels = trace->channels;
        int64_t received = 0; /* bytes of the slots of values that the rank receives */
        for (int32_t k = 0; channels && k < channels->count; k++)
            if (channels->channels[k]->receiver == rank->comm->rank)
                received += channels->channels[k]->quota * channels->channels[k]->slot_bytes;
        status = memory_counter_open(&memory, &arena, rank->program, received, error);
        if (status == AM_OK) append_rank(&text, trace, rank, &memory, origin);
        if (text.failed || (int64_t)text.length > MOST_TEXT) status = am_fail_memory(error, MOST_TEXT);
        if (status == AM_OK) status = add_all(trace, &file, &text, parts, error);
        text_free(&text);
        arena_free(&arena);
    }
    if (status == AM_OK && writes) status = trace_end(&file, error);
fail:
    trace_abandon(&file);
    free(parts);
    return status;
}
