/* The operators of a timeline, of a simulation or of a Chrome trace. */
#include "cost/simulate/trace_events.h"

#include <math.h>
#include <string.h>

#include "base/files/file.h"
#include "base/files/json_scan.h"
#include "base/hash.h"

enum { MOST_DEVICE = 1 << 24, NAME_BYTES = 128 };

/* What an event is made of. */
typedef struct TraceFields {
    char name[NAME_BYTES]; /* the beginning of it */
    uint64_t name_hash, instruction_hash;
    double start, duration;            /* seconds */
    double kind;                       /* stream and lane, as a thread of the trace */
    double device, stage, micro_batch; /* -1: none */
    IrPhase phase;
    bool is_slice, has_instruction;
} TraceFields;

static IrPhase phase_of(const char *name, size_t length) {
    for (IrPhase phase = IR_PHASE_FORWARD; phase < IR_PHASE_OTHER; phase++)
        if (strlen(ir_phase_name(phase)) == length && memcmp(ir_phase_name(phase), name, length) == 0)
            return phase;
    return IR_PHASE_OTHER;
}

/* Loops, conditionals and calls enclose the slices of what they run. */
static bool encloses(const char *name) {
    return strcmp(name, "while") == 0 || strcmp(name, "conditional") == 0 || strcmp(name, "call") == 0;
}

static AmStatus add(TraceEvents *events, const TraceFields *fields, AmError *error) {
    int32_t stream = (int32_t)fields->kind % TRACE_STREAMS;
    bool is_step = stream == TRACE_STEPS && strncmp(fields->name, "step", 4) == 0;
    bool computes = stream == TRACE_COMPUTE && fields->has_instruction && !encloses(fields->name);
    if (!is_step && !computes) return AM_OK;
    ARENA_RESERVE(events->arena, events->list, events->count, events->capacity);
    if (events->arena->failed) return am_fail_memory(error, (int64_t)sizeof(TraceEvent) * events->capacity);
    uint64_t hash = hash_combine(fields->name_hash, fields->instruction_hash) | 1;
    events->list[events->count++] = (TraceEvent){.operator= is_step ? 0 : hash,
                                                 .start = fields->start,
                                                 .end = fields->start + fields->duration,
                                                 .device = (int32_t)fields->device,
                                                 .stage = (int32_t)fields->stage,
                                                 .micro_batch = (int32_t)fields->micro_batch,
                                                 .phase = fields->phase};
    return AM_OK;
}

static void set_name(TraceFields *fields, const char *text, size_t length) {
    size_t kept = length < NAME_BYTES ? length : NAME_BYTES - 1;
    memcpy(fields->name, text, kept);
    fields->name[kept] = '\0';
    fields->name_hash = hash_bytes(text, length, 0);
}

AmStatus trace_events_add(TraceEvents *events, const TraceSlice *slice, AmError *error) {
    TraceFields fields = {.start = slice->start,
                          .duration = fmax(slice->end - slice->start, 0),
                          .kind = slice->stream,
                          .device = slice->device,
                          .micro_batch = -1};
    set_name(&fields, slice->name, strlen(slice->name));
    fields.phase = slice->category ? phase_of(slice->category, strlen(slice->category)) : IR_PHASE_OTHER;
    for (int32_t k = 0; k < slice->note_count; k++) {
        const TraceNote *note = &slice->notes[k];
        if (strcmp(note->key, "stage") == 0) fields.stage = note->number;
        if (strcmp(note->key, "micro_batch") == 0) fields.micro_batch = note->number;
        if (strcmp(note->key, "instruction") != 0) continue;
        fields.has_instruction = true;
        fields.instruction_hash = hash_bytes(note->text, strlen(note->text), 0);
    }
    return add(events, &fields, error);
}

/* ---- reading a file ---- */

static bool is_key(const JsonString *key, const char *name) {
    return (size_t)key->length == strlen(name) && memcmp(key->text, name, (size_t)key->length) == 0;
}

/* A number from `least` to `most`. */
static AmStatus read_number(JsonScanner *scanner, double least, double most, double *value) {
    JsonNumber number;
    json_scan_peek(scanner);
    int64_t at = scanner->at;
    TRY(json_scan_number(scanner, &number));
    *value = number.real;
    if (*value >= least && *value <= most) return AM_OK;
    return json_scan_fail(scanner, at, "a number out of range in an event of the trace");
}

static AmStatus read_notes(JsonScanner *scanner, TraceFields *fields) {
    JsonString key, text;
    if (!json_scan_accept(scanner, '{')) return json_scan_skip(scanner);
    if (json_scan_accept(scanner, '}')) return AM_OK;
    do {
        TRY(json_scan_key(scanner, &key));
        if (is_key(&key, "stage")) TRY(read_number(scanner, 0, MOST_DEVICE, &fields->stage));
        else if (is_key(&key, "micro_batch")) TRY(read_number(scanner, 0, MOST_DEVICE, &fields->micro_batch));
        else if (is_key(&key, "instruction") && json_scan_peek(scanner) == '"') {
            TRY(json_scan_string(scanner, &text));
            fields->has_instruction = true;
            fields->instruction_hash = hash_bytes(text.text, (size_t)text.length, 0);
        } else TRY(json_scan_skip(scanner));
    } while (json_scan_accept(scanner, ','));
    return json_scan_expect(scanner, '}');
}

/* A member of an event, after its key. */
static AmStatus read_member(JsonScanner *scanner, const JsonString *key, TraceFields *fields) {
    static const double microsecond = 1e-6, longest = 1e15;
    JsonString text;
    if (is_key(key, "args")) return read_notes(scanner, fields);
    if (is_key(key, "pid") && json_scan_peek(scanner) != '"')
        return read_number(scanner, 0, MOST_DEVICE, &fields->device);
    if (is_key(key, "tid") && json_scan_peek(scanner) != '"')
        return read_number(scanner, 0, MOST_DEVICE, &fields->kind);
    if (is_key(key, "ts") || is_key(key, "dur")) {
        double *value = is_key(key, "ts") ? &fields->start : &fields->duration;
        TRY(read_number(scanner, -longest, longest, value));
        *value *= microsecond;
        return AM_OK;
    }
    if (json_scan_peek(scanner) != '"') return json_scan_skip(scanner);
    bool is_phase = is_key(key, "ph"), is_name = is_key(key, "name"), is_category = is_key(key, "cat");
    TRY(json_scan_string(scanner, &text));
    if (is_phase) fields->is_slice = is_key(&text, "X");
    if (is_name) set_name(fields, text.text, (size_t)text.length);
    if (is_category) fields->phase = phase_of(text.text, (size_t)text.length);
    return AM_OK;
}

static AmStatus read_event(JsonScanner *scanner, TraceEvents *events) {
    TraceFields fields = {.device = -1, .stage = -1, .micro_batch = -1, .phase = IR_PHASE_OTHER};
    JsonString key;
    json_scan_peek(scanner);
    int64_t at = scanner->at;
    TRY(json_scan_expect(scanner, '{'));
    if (json_scan_accept(scanner, '}')) return AM_OK;
    do {
        TRY(json_scan_key(scanner, &key));
        TRY(read_member(scanner, &key, &fields));
    } while (json_scan_accept(scanner, ','));
    TRY(json_scan_expect(scanner, '}'));
    if (!fields.is_slice) return AM_OK;
    if (fields.device < 0 || fields.stage < 0)
        return json_scan_fail(scanner, at,
                              "a slice without a device or stage (expected a trace of automap run)");
    return add(events, &fields, scanner->error);
}

static AmStatus read_events(JsonScanner *scanner, TraceEvents *events) {
    TRY(json_scan_expect(scanner, '['));
    if (json_scan_accept(scanner, ']')) return AM_OK;
    do TRY(read_event(scanner, events));
    while (json_scan_accept(scanner, ','));
    return json_scan_expect(scanner, ']');
}

/* An object with "traceEvents". */
static AmStatus read_trace(JsonScanner *scanner, TraceEvents *events) {
    bool is_there = false;
    JsonString key;
    TRY(json_scan_expect(scanner, '{'));
    bool goes_on = !json_scan_accept(scanner, '}');
    while (goes_on) {
        TRY(json_scan_key(scanner, &key));
        bool is_events = is_key(&key, "traceEvents");
        if (is_events) TRY(read_events(scanner, events));
        else TRY(json_scan_skip(scanner));
        is_there |= is_events;
        goes_on = json_scan_accept(scanner, ',');
        if (!goes_on) TRY(json_scan_expect(scanner, '}'));
    }
    if (json_scan_peek(scanner) != '\0') return json_scan_fail(scanner, scanner->at, "text after the trace");
    if (is_there) return AM_OK;
    return am_fail(scanner->error, AM_ERROR_INPUT, scanner->source,
                   "no \"traceEvents\": expected a trace of automap run");
}

AmStatus trace_events_read(TraceEvents *events, const char *path, AmError *error) {
    FileBytes bytes;
    TRY(file_read(&bytes, path, error));
    JsonScanner scanner = {.source = bytes.name, .text = bytes.data, .length = bytes.length, .error = error};
    AmStatus status = read_trace(&scanner, events);
    text_free(&scanner.decoded);
    file_release(&bytes);
    return status;
}
