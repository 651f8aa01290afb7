/* The operators of a timeline, from a simulation or from a Chrome trace.
 *
 * trace_events_add() takes slices of a simulation. trace_events_read() parses the file of `automap run
 * --trace` in one pass over its bytes, without a tree of values. Loops, conditionals and calls are left out:
 * the slices inside them count.
 */
#include "cost/simulate/trace_events.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/files/file.h"
#include "base/files/json_scan.h"
#include "base/hash.h"

enum { MOST_DEVICE = 1 << 24, NAME_BYTES = 128 };

/* The parts of an event. */
typedef struct TraceFields {
    char name[NAME_BYTES]; /* the beginning of it */
    uint64_t name_hash, instruction_hash;
    double start, duration;            /* seconds; NAN: none */
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

static AmStatus add_event(TraceEvents *events, const TraceFields *fields, AmError *error) {
    int32_t stream = (int32_t)fields->kind % TRACE_STREAMS;
    bool is_step = stream == TRACE_STEPS && strncmp(fields->name, "step", 4) == 0;
    /* A loop, conditional or call encloses the slices of its computations. */
    bool encloses = strcmp(fields->name, "while") == 0 || strcmp(fields->name, "conditional") == 0 ||
                    strcmp(fields->name, "call") == 0;
    bool computes = stream == TRACE_COMPUTE && fields->has_instruction && !encloses;
    if (!is_step && !computes) return AM_OK;
    ARENA_RESERVE(events->arena, events->list, events->count, events->capacity);
    if (events->arena->failed) return am_fail_memory(error, (int64_t)sizeof(TraceEvent) * events->capacity);
    uint64_t hash = hash_combine(fields->name_hash, fields->instruction_hash) | 1;
    events->list[events->count++] = (TraceEvent){.name_hash = is_step ? 0 : hash,
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
    return add_event(events, &fields, error);
}

/* ---- reading a file ---- */

static bool is_key(const JsonString *key, const char *name) {
    return (size_t)key->length == strlen(name) && memcmp(key->text, name, (size_t)key->length) == 0;
}

/* Fails at byte `at` of valid JSON. */
static AmStatus fail_at(const JsonScanner *scanner, int64_t at, const char *problem) {
    AmError *error = scanner->error;
    bool is_first = error && error->code == AM_OK;
    am_fail_at(error, AM_ERROR_INPUT, scanner->source, scanner->text, scanner->length, at, "%s", problem);
    if (is_first) error->excerpt[0] = '\0'; /* a line of a trace may be the whole file */
    return AM_ERROR_INPUT;
}

/* Fails unless the next value, if there is one, begins with the mark of an object, array or string. */
static AmStatus expect_value(JsonScanner *scanner, char mark, const char *expected) {
    char next = json_scan_peek(scanner);
    return next == mark || next == '\0' ? AM_OK : fail_at(scanner, scanner->at, expected);
}

/* Reads a number from 0 to `most`. */
static AmStatus read_number(JsonScanner *scanner, const char *key, double most, double *value) {
    JsonNumber number = {0};
    char next = json_scan_peek(scanner), expected[80];
    int64_t at = scanner->at;
    bool is_number = next == '-' || (next >= '0' && next <= '9');
    if (is_number || next == '\0') TRY(json_scan_number(scanner, &number));
    *value = number.real;
    if (is_number && *value >= 0 && *value <= most) return AM_OK;
    snprintf(expected, sizeof expected, "an event's \"%s\": expected a number from 0 to %.0f", key, most);
    return fail_at(scanner, at, expected);
}

static AmStatus read_notes(JsonScanner *scanner, TraceFields *fields) {
    JsonString key, text;
    if (!json_scan_accept(scanner, '{')) return json_scan_skip(scanner);
    if (json_scan_accept(scanner, '}')) return AM_OK;
    do {
        TRY(json_scan_key(scanner, &key));
        if (is_key(&key, "stage")) TRY(read_number(scanner, "stage", MOST_DEVICE, &fields->stage));
        else if (is_key(&key, "micro_batch"))
            TRY(read_number(scanner, "micro_batch", MOST_DEVICE, &fields->micro_batch));
        else if (is_key(&key, "instruction") && json_scan_peek(scanner) == '"') {
            TRY(json_scan_string(scanner, &text));
            fields->has_instruction = true;
            fields->instruction_hash = hash_bytes(text.text, (size_t)text.length, 0);
        } else TRY(json_scan_skip(scanner));
    } while (json_scan_accept(scanner, ','));
    return json_scan_expect(scanner, '}');
}

/* Reads a member of an event, after its key. */
static AmStatus read_member(JsonScanner *scanner, const JsonString *key, TraceFields *fields) {
    static const double microsecond = 1e-6, longest = 1e15;
    JsonString text;
    if (is_key(key, "args")) return read_notes(scanner, fields);
    if (is_key(key, "pid") && json_scan_peek(scanner) != '"')
        return read_number(scanner, "pid", MOST_DEVICE, &fields->device);
    if (is_key(key, "tid") && json_scan_peek(scanner) != '"')
        return read_number(scanner, "tid", MOST_DEVICE, &fields->kind);
    if (is_key(key, "ts") || is_key(key, "dur")) {
        bool is_start = is_key(key, "ts");
        double *value = is_start ? &fields->start : &fields->duration;
        TRY(read_number(scanner, is_start ? "ts" : "dur", longest, value));
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

/* Fails unless a slice has what `automap run` writes of each; `at` is its beginning. */
static AmStatus check_slice(const JsonScanner *scanner, int64_t at, const TraceFields *fields) {
    const char *missing = fields->device < 0        ? "\"pid\""
                          : fields->stage < 0       ? "a \"stage\" in \"args\""
                          : isnan(fields->start)    ? "\"ts\""
                          : isnan(fields->duration) ? "\"dur\""
                                                    : NULL;
    char problem[80];
    if (!missing) return AM_OK;
    snprintf(problem, sizeof problem, "a slice without %s (expected a trace of automap run)", missing);
    return fail_at(scanner, at, problem);
}

static AmStatus read_event(JsonScanner *scanner, TraceEvents *events) {
    TraceFields fields = {
        .start = NAN, .duration = NAN, .device = -1, .stage = -1, .micro_batch = -1, .phase = IR_PHASE_OTHER};
    JsonString key;
    json_scan_peek(scanner);
    int64_t at = scanner->at;
    TRY(expect_value(scanner, '{', "\"traceEvents\": expected objects, the events"));
    TRY(json_scan_expect(scanner, '{'));
    if (json_scan_accept(scanner, '}')) return AM_OK;
    do {
        TRY(json_scan_key(scanner, &key));
        TRY(read_member(scanner, &key, &fields));
    } while (json_scan_accept(scanner, ','));
    TRY(json_scan_expect(scanner, '}'));
    if (!fields.is_slice) return AM_OK;
    TRY(check_slice(scanner, at, &fields));
    return add_event(events, &fields, scanner->error);
}

static AmStatus read_events(JsonScanner *scanner, TraceEvents *events) {
    TRY(expect_value(scanner, '[', "\"traceEvents\": expected an array of events"));
    TRY(json_scan_expect(scanner, '['));
    if (json_scan_accept(scanner, ']')) return AM_OK;
    do TRY(read_event(scanner, events));
    while (json_scan_accept(scanner, ','));
    return json_scan_expect(scanner, ']');
}

/* Reads "otherData", which names the program that wrote the trace. */
static AmStatus read_origin(JsonScanner *scanner) {
    JsonString key, text;
    if (!json_scan_accept(scanner, '{')) return json_scan_skip(scanner);
    if (json_scan_accept(scanner, '}')) return AM_OK;
    do {
        TRY(json_scan_key(scanner, &key));
        bool is_source = is_key(&key, "source") && json_scan_peek(scanner) == '"';
        int64_t at = scanner->at;
        if (!is_source) {
            TRY(json_scan_skip(scanner));
            continue;
        }
        TRY(json_scan_string(scanner, &text));
        if (is_key(&text, TRACE_OF_SIMULATION))
            return fail_at(scanner, at, "a simulated trace (expected a trace of automap run)");
    } while (json_scan_accept(scanner, ','));
    return json_scan_expect(scanner, '}');
}

AmStatus trace_events_read(TraceEvents *events, const char *path, AmError *error) {
    FileBytes bytes;
    TRY(file_read(&bytes, path, error));
    JsonScanner scanner = {.source = bytes.name, .text = bytes.data, .length = bytes.length, .error = error};
    AmStatus status = AM_OK;
    bool is_there = false;
    JsonString key;
    TRY_OR_FAIL(
        expect_value(&scanner, '{', "expected an object with \"traceEvents\", a trace of automap run"));
    TRY_OR_FAIL(json_scan_expect(&scanner, '{'));
    bool goes_on = !json_scan_accept(&scanner, '}');
    while (goes_on) {
        TRY_OR_FAIL(json_scan_key(&scanner, &key));
        bool is_events = is_key(&key, "traceEvents");
        if (is_events) TRY_OR_FAIL(read_events(&scanner, events));
        else if (is_key(&key, "otherData")) TRY_OR_FAIL(read_origin(&scanner));
        else TRY_OR_FAIL(json_scan_skip(&scanner));
        is_there |= is_events;
        goes_on = json_scan_accept(&scanner, ',');
        if (!goes_on) TRY_OR_FAIL(json_scan_expect(&scanner, '}'));
    }
    if (json_scan_peek(&scanner) != '\0')
        TRY_OR_FAIL(json_scan_fail(&scanner, scanner.at, "text after the trace"));
    if (is_there) goto fail;
    status = am_fail(scanner.error, AM_ERROR_INPUT, scanner.source,
                     "no \"traceEvents\": expected a trace of automap run");
fail:
    text_free(&scanner.decoded);
    file_release(&bytes);
    return status;
}
