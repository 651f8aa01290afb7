/* The differences of two plans of one module: predictions, decisions, parameters and collectives, with the
 * cost of each decision. */
#include <math.h>

#include "lowering/plan_file/plan_parts.h"
#include "planners/explain/plan_difference.h"

/* Rows of parameters in text; JSON has all. */
enum { MOST_PARAMETER_ROWS = 16 };

/* ---- JSON ---- */

static json_t *figures_to_json(const PlanDifference *self) {
    json_t *rows = json_array();
    for (int32_t k = 0; k < self->figure_count; k++) {
        const DifferenceFigure *row = &self->figures[k];
        json_array_append_new(rows, json_pack("{s:s, s:s, s:[f, f]}", "name", row->name, "unit",
                                              row->unit == DIFFERENCE_SECONDS ? "seconds" : "bytes", "values",
                                              row->values[0], row->values[1]));
    }
    return rows;
}

static json_t *decisions_to_json(const PlanDifference *self) {
    json_t *rows = json_array();
    for (int32_t k = 0; k < self->decision_count; k++) {
        const DifferenceDecision *row = &self->decisions[k];
        json_t *change =
            row->change.is_known
                ? json_pack("{s:f, s:I, s:b}", "step_seconds", row->change.seconds, "peak_bytes",
                            (json_int_t)row->change.peak_bytes, "fits", (int)row->change.fits)
                : json_pack("{s:n, s:o}", "step_seconds", "reason", plan_string_to_json(row->change.reason));
        json_array_append_new(rows, json_pack("{s:s, s:[o, o], s:o}", "name", row->name, "values",
                                              plan_string_to_json(row->values[0]),
                                              plan_string_to_json(row->values[1]), "alone", change));
    }
    return rows;
}

static json_t *parameters_to_json(const PlanDifference *self) {
    json_t *rows = json_array();
    for (int32_t k = 0; k < self->parameter_count; k++) {
        const DifferenceParameters *row = &self->parameters[k];
        json_array_append_new(rows, json_pack("{s:o, s:s, s:i, s:I, s:[s, s]}", "path",
                                              plan_string_to_json(row->path), "role", row->role, "count",
                                              row->count, "bytes", (json_int_t)row->bytes, "values",
                                              row->values[0], row->values[1]));
    }
    return rows;
}

static json_t *collectives_to_json(const PlanDifference *self) {
    json_t *rows = json_array();
    for (int32_t k = 0; k < self->collective_count; k++) {
        const DifferenceCollectives *row = &self->collectives[k];
        json_array_append_new(rows, json_pack("{s:s, s:s, s:[I, I], s:[f, f], s:[f, f]}", "kind", row->kind,
                                              "axes", row->axes, "counts", (json_int_t)row->counts[0],
                                              (json_int_t)row->counts[1], "bytes", row->bytes[0],
                                              row->bytes[1], "seconds", row->seconds[0], row->seconds[1]));
    }
    return rows;
}

json_t *plan_difference_to_json(const PlanDifference *self) {
    return json_pack("{s:s, s:o, s:[o, o], s:[b, b], s:o, s:o, s:o, s:o}", "format", "automap-difference-1",
                     "module", plan_string_to_json(self->module), "plans",
                     plan_string_to_json(self->names[0]), plan_string_to_json(self->names[1]), "fits",
                     (int)self->fits[0], (int)self->fits[1], "figures", figures_to_json(self), "decisions",
                     decisions_to_json(self), "parameters", parameters_to_json(self), "collectives",
                     collectives_to_json(self));
}

/* ---- text ---- */

static void append_value(Text *rows, DifferenceUnit unit, double value) {
    if (unit == DIFFERENCE_SECONDS) text_append_seconds(rows, value);
    else text_append_bytes_size(rows, value);
}

/* Appends "+1.2 ms (+3.4 %)", or "equal". */
static void append_change(Text *rows, DifferenceUnit unit, double before, double after) {
    if (before == after) {
        text_append_string(rows, "equal");
        return;
    }
    text_append_string(rows, after > before ? "+" : "-");
    append_value(rows, unit, fabs(after - before));
    if (before > 0) text_append(rows, " (%+.1f %%)", 100 * (after / before - 1));
}

static void append_rows(Text *text, Text *rows) {
    text_append_string(text, "\n");
    text_append_table(text, rows->data ? rows->data : NULL);
    text_free(rows);
    *rows = (Text){0};
}

/* Figures that are zero in both plans are left out. */
static void print_figures(Text *text, const PlanDifference *self) {
    Text rows = {0};
    text_append_string(&rows, "\tA\tB\tdifference\n");
    for (int32_t k = 0; k < self->figure_count; k++) {
        const DifferenceFigure *row = &self->figures[k];
        if (row->values[0] == 0 && row->values[1] == 0) continue;
        text_append(&rows, "%s\t", row->name);
        append_value(&rows, row->unit, row->values[0]);
        text_append_string(&rows, "\t");
        append_value(&rows, row->unit, row->values[1]);
        text_append_string(&rows, "\t");
        append_change(&rows, row->unit, row->values[0], row->values[1]);
        text_append_string(&rows, "\n");
    }
    append_rows(text, &rows);
}

static void print_decisions(Text *text, const PlanDifference *self) {
    Text rows = {0};
    double step = self->figures[0].values[0];
    if (self->decision_count == 0) return;
    text_append_string(&rows, "decision\tA\tB\tA with this of B\n");
    for (int32_t k = 0; k < self->decision_count; k++) {
        const DifferenceDecision *row = &self->decisions[k];
        text_append(&rows, "%s\t%s\t%s\t", row->name, row->values[0], row->values[1]);
        if (row->change.is_known) append_change(&rows, DIFFERENCE_SECONDS, step, row->change.seconds);
        else text_append_string(&rows, row->change.reason);
        if (row->change.is_known && !row->change.fits) text_append_string(&rows, ", DOES NOT FIT");
        text_append_string(&rows, "\n");
    }
    append_rows(text, &rows);
}

static void print_parameters(Text *text, const PlanDifference *self) {
    Text rows = {0};
    int32_t left_out = self->parameter_total;
    if (self->parameter_count == 0) return;
    text_append_string(&rows, "parameters\tcount\tbytes\trole\tA\tB\n");
    for (int32_t k = 0; k < self->parameter_count && k < MOST_PARAMETER_ROWS; k++) {
        const DifferenceParameters *row = &self->parameters[k];
        text_append(&rows, "%s\t%d\t", row->path, row->count);
        text_append_bytes_size(&rows, (double)row->bytes);
        text_append(&rows, "\t%s\t%s\t%s\n", row->role, row->values[0], row->values[1]);
        left_out -= row->count;
    }
    append_rows(text, &rows);
    if (left_out > 0) text_append(text, "%d more parameters differ; --json lists them\n", left_out);
}

static void print_collectives(Text *text, const PlanDifference *self) {
    Text rows = {0};
    if (self->collective_count == 0) return;
    text_append_string(&rows, "collectives\taxes\tcount A\tcount B\ttensors A\ttensors B\ttime A\ttime B\n");
    for (int32_t k = 0; k < self->collective_count; k++) {
        const DifferenceCollectives *row = &self->collectives[k];
        text_append(&rows, "%s\t%s\t%lld\t%lld\t", row->kind, row->axes, (long long)row->counts[0],
                    (long long)row->counts[1]);
        text_append_bytes_size(&rows, row->bytes[0]);
        text_append_string(&rows, "\t");
        text_append_bytes_size(&rows, row->bytes[1]);
        text_append_string(&rows, "\t");
        text_append_seconds(&rows, row->seconds[0]);
        text_append_string(&rows, "\t");
        text_append_seconds(&rows, row->seconds[1]);
        text_append_string(&rows, "\n");
    }
    append_rows(text, &rows);
}

void plan_difference_print(Text *text, const PlanDifference *self) {
    static const char *const verdicts[] = {": DOES NOT FIT", ""};
    text_append(text, "%s\nA = %s%s\nB = %s%s\n", self->module, self->names[0], verdicts[self->fits[0]],
                self->names[1], verdicts[self->fits[1]]);
    if (self->decision_count == 0 && self->parameter_count == 0)
        text_append_string(text, "the plans have the same decisions\n");
    print_figures(text, self);
    print_decisions(text, self);
    print_parameters(text, self);
    print_collectives(text, self);
}
