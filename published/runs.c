/* Reads published training runs: rows of a CSV file with model, machine, strategy and measurements.
 *
 * The first line names the columns, in any order; a column without a value is unknown. Errors name the line
 * and the column.
 */
#include "published/runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_COLUMNS = 256 };

typedef enum ColumnKind { COLUMN_TEXT, COLUMN_INTEGER, COLUMN_NUMBER, COLUMN_YES_NO } ColumnKind;

typedef struct Column {
    const char *name;
    ColumnKind kind;
    size_t offset; /* in PublishedRun */
    double least;  /* of numbers */
    bool is_required;
} Column;

#define TEXT(name, field, required) \
    { name, COLUMN_TEXT, offsetof(PublishedRun, field), 0, required }
#define INTEGER(name, field, least, required) \
    { name, COLUMN_INTEGER, offsetof(PublishedRun, field), least, required }
#define NUMBER(name, field) \
    { name, COLUMN_NUMBER, offsetof(PublishedRun, field), 0, false }

static const Column columns[] = {
    TEXT("source", source, true),
    TEXT("group", group, false),
    TEXT("row", row, false),
    TEXT("model", model, true),
    TEXT("dtype", type, false),
    TEXT("device", device, true),
    TEXT("schedule", schedule, false),
    TEXT("recompute", recompute, false),
    TEXT("attention", attention, false),
    TEXT("kernels", kernels, false),
    TEXT("norms", norms, false),
    TEXT("eager", eager, false),
    TEXT("dropout", dropout, false),
    TEXT("gradients", gradients, false),
    TEXT("reductions", reductions, false),
    TEXT("gradient_sum", gradient_sum, false),
    TEXT("cuts", cuts, false),
    TEXT("logits", logits, false),
    TEXT("outputs", outputs, false),
    TEXT("head", head, false),
    TEXT("lengths", lengths, false),
    TEXT("loss", loss, false),
    TEXT("qkv", qkv, false),
    TEXT("overlap", overlap, false),
    TEXT("note", note, false),
    TEXT("outcome", outcome, false),
    TEXT("optimizer", optimizer, false),
    INTEGER("layers", layers, 1, true),
    INTEGER("hidden", hidden, 1, true),
    INTEGER("heads", heads, 1, true),
    INTEGER("kv_heads", kv_heads, 1, false),
    INTEGER("ffn", ffn, 1, false),
    INTEGER("vocab", vocabulary, 1, true),
    INTEGER("sequence", sequence, 1, true),
    INTEGER("devices", devices, 1, true),
    INTEGER("per_server", per_server, 1, false),
    INTEGER("global_batch", global_batch, 1, true),
    INTEGER("micro_batch", micro_batch, 1, false),
    INTEGER("data", data, 1, false),
    INTEGER("tensor", tensor, 1, false),
    INTEGER("pipeline", pipeline, 1, false),
    INTEGER("chunks", chunks, 1, false),
    INTEGER("context", context, 1, false),
    INTEGER("expert", expert, 1, false),
    INTEGER("zero", zero, 0, false),
    {"sequence_parallel", COLUMN_YES_NO, offsetof(PublishedRun, splits_sequence), 0, false},
    NUMBER("network_gbit_per_device", network_gbit_per_device),
    NUMBER("step_seconds", step_seconds),
    NUMBER("peak_gib", peak_gib),
};
enum { COLUMN_COUNT = sizeof columns / sizeof *columns };

typedef struct RunReader {
    Arena *arena;
    const char *source, *text;
    int64_t length, at, line;
    AmError *error;
    int32_t field_count;
    const char *fields[MOST_COLUMNS];
    int64_t places[MOST_COLUMNS]; /* bytes at which they begin */
    int32_t column_count;
    int32_t columns[MOST_COLUMNS]; /* the field's column, or -1 */
} RunReader;

#define REFUSE(self, place, ...)                                                                   \
    am_fail_at((self)->error, AM_ERROR_INPUT, (self)->source, (self)->text, (self)->length, place, \
               __VA_ARGS__)

/* Reads a field from `at` to the comma or the end of the line after it. */
static AmStatus read_field(RunReader *self, const char **field) {
    const char *text = self->text;
    int64_t start = self->at, end = start, used = 0;
    if (start >= self->length || text[start] != '"') {
        while (end < self->length && text[end] != ',' && text[end] != '\n' && text[end] != '\r') end++;
        self->at = end;
        while (start < end && text[start] == ' ') start++;
        while (end > start && text[end - 1] == ' ') end--;
        *field = arena_copy_bytes(self->arena, text + start, (size_t)(end - start));
        return *field ? AM_OK : am_fail_memory(self->error, end - start);
    }
    for (end = start + 1; end < self->length; end++)
        if (text[end] == '"' && (end + 1 >= self->length || text[end + 1] != '"')) break;
        else if (text[end] == '"') end++;
    if (end >= self->length) return REFUSE(self, start, "expected a closing quote of this field");
    char *copy = arena_copy_bytes(self->arena, text + start + 1, (size_t)(end - start - 1));
    if (!copy) return am_fail_memory(self->error, end - start);
    for (int64_t k = 0; k < end - start - 1; k++) {
        copy[used++] = copy[k];
        if (copy[k] == '"') k++;
        if (text[start + 1 + k] == '\n') self->line++;
    }
    copy[used] = '\0';
    *field = copy;
    self->at = end + 1;
    bool is_end = self->at >= self->length || strchr(",\r\n", text[self->at]);
    return is_end ? AM_OK : REFUSE(self, self->at, "expected a comma or the end of the line after a quote");
}

/* Reads the fields of one line and goes to the next. */
static AmStatus read_line(RunReader *self) {
    self->field_count = 0;
    for (;;) {
        if (self->field_count == MOST_COLUMNS)
            return REFUSE(self, self->at, "expected at most %d fields in a line", MOST_COLUMNS);
        self->places[self->field_count] = self->at;
        TRY(read_field(self, &self->fields[self->field_count]));
        if (strlen(self->fields[self->field_count]) > 4096)
            return REFUSE(self, self->places[self->field_count], "expected fields of at most 4096 bytes");
        self->field_count++;
        if (self->at >= self->length || self->text[self->at] != ',') break;
        self->at++;
    }
    if (self->at < self->length && self->text[self->at] == '\r') self->at++;
    if (self->at < self->length && self->text[self->at] == '\n') self->at++;
    return AM_OK;
}

static AmStatus read_head(RunReader *self) {
    TRY(read_line(self));
    self->column_count = self->field_count;
    for (int32_t f = 0; f < self->field_count; f++) {
        self->columns[f] = -1;
        for (int32_t c = 0; c < COLUMN_COUNT; c++)
            if (strcmp(self->fields[f], columns[c].name) == 0) self->columns[f] = c;
        for (int32_t g = 0; g < f; g++)
            if (self->columns[f] >= 0 && self->columns[g] == self->columns[f])
                return REFUSE(self, self->places[f], "column %s is named twice", self->fields[f]);
    }
    for (int32_t c = 0; c < COLUMN_COUNT; c++) {
        bool found = !columns[c].is_required;
        for (int32_t f = 0; f < self->column_count; f++) found = found || self->columns[f] == c;
        if (!found) return REFUSE(self, 0, "expected a column %s in the first line", columns[c].name);
    }
    return AM_OK;
}

static AmStatus read_number(RunReader *self, PublishedRun *run, const Column *column, int32_t field) {
    const char *text = self->fields[field];
    int64_t place = self->places[field];
    char *at = (char *)run + column->offset, *end;
    bool is_integer = column->kind == COLUMN_INTEGER;
    double value = strtod(text, &end);
    bool is_number = *end == '\0' && isfinite(value) && strspn(text, "0123456789.eE+-") == strlen(text);
    if (is_integer && (!is_number || value != floor(value) || value < column->least || value > 1e9))
        return REFUSE(self, place, "%s: expected an integer from %g to 1e9, got %.60s", column->name,
                      column->least, text);
    if (!is_integer && (!is_number || value <= 0))
        return REFUSE(self, place, "%s: expected a number above 0, got %.60s", column->name, text);
    if (is_integer) *(int64_t *)(void *)at = (int64_t)value;
    else *(double *)(void *)at = value;
    return AM_OK;
}

static AmStatus read_run(RunReader *self, PublishedRun *run) {
    run->missing = NULL;
    for (int32_t c = 0; c < COLUMN_COUNT; c++) {
        char *at = (char *)run + columns[c].offset;
        if (columns[c].kind == COLUMN_TEXT) *(const char **)(void *)at = "";
        else if (columns[c].kind == COLUMN_NUMBER) *(double *)(void *)at = NAN;
        else *(int64_t *)(void *)at = -1;
    }
    for (int32_t f = 0; f < self->field_count; f++) {
        if (self->columns[f] < 0) continue;
        const Column *column = &columns[self->columns[f]];
        const char *text = self->fields[f];
        char *at = (char *)run + column->offset;
        if (!*text) {
            if (column->is_required && !run->missing) run->missing = column->name;
        } else if (column->kind == COLUMN_TEXT) {
            *(const char **)(void *)at = text;
        } else if (column->kind == COLUMN_YES_NO) {
            if (strcmp(text, "yes") != 0 && strcmp(text, "no") != 0)
                return REFUSE(self, self->places[f], "%s: expected yes, no or nothing, got %.60s",
                              column->name, text);
            *(int64_t *)(void *)at = *text == 'y';
        } else {
            TRY(read_number(self, run, column, f));
        }
    }
    return AM_OK;
}

AmStatus published_read(PublishedRun **runs, int32_t *count, Arena *arena, const char *source,
                        const char *text, int64_t length, AmError *error) {
    RunReader *self = ARENA_ARRAY(arena, RunReader, 1);
    int32_t capacity = 0;
    *runs = NULL;
    *count = 0;
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (RunReader){.arena = arena, .source = source, .text = text, .length = length, .error = error};
    if (memchr(text, '\0', (size_t)length))
        return am_fail(error, AM_ERROR_INPUT, source, "expected a CSV file, got bytes that are no text");
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) self->at = 3;
    self->line = 1;
    TRY(read_head(self));
    for (self->line = 2; self->at < length; self->line++) {
        int64_t line = self->line, place = self->at;
        TRY(read_line(self));
        if (self->field_count == 1 && !self->fields[0][0]) continue; /* an empty line */
        if (self->field_count != self->column_count)
            return REFUSE(self, place, "expected %d fields as in the first line, got %d",
                          (int)self->column_count, (int)self->field_count);
        ARENA_RESERVE(arena, *runs, *count, capacity);
        if (!*runs) return am_fail_memory(error, capacity);
        PublishedRun *run = &(*runs)[(*count)++];
        TRY(read_run(self, run));
        run->line = line;
    }
    return arena->failed ? am_fail_memory(error, length) : AM_OK;
}
