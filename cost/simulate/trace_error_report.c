/* The report of errors of a simulated timeline: text and JSON.
 *
 * The text has the step times, both errors, a line for each stage with its worst pass, and a line for each
 * device.
 */
#include "cost/simulate/trace_error.h"

static json_t *devices_to_json(const TraceError *self) {
    json_t *rows = json_array();
    for (int32_t d = 0; d < self->device_count; d++) {
        const DeviceError *row = &self->devices[d];
        json_array_append_new(rows, json_pack("{s:i, s:s, s:i, s:I, s:I, s:f, s:f, s:f, s:f}", "rank", d,
                                              "name", row->name, "stage", row->stage, "operators",
                                              (json_int_t)row->operators, "unmatched",
                                              (json_int_t)row->unmatched, "error", row->error, "clock_error",
                                              row->clock_error, "compute_predicted", row->compute_predicted,
                                              "compute_measured", row->compute_measured));
    }
    return rows;
}

static json_t *stages_to_json(const TraceError *self) {
    json_t *rows = json_array();
    for (int32_t s = 0; s < self->stage_count; s++) {
        const StageError *row = &self->stages[s];
        json_array_append_new(rows, json_pack("{s:i, s:i, s:f, s:f, s:f}", "stage", s, "devices",
                                              row->devices, "error", row->error, "clock_error",
                                              row->clock_error, "largest_pass", row->largest_pass));
    }
    return rows;
}

static json_t *passes_to_json(const TraceError *self) {
    json_t *rows = json_array();
    for (int32_t p = 0; p < self->pass_count; p++) {
        const PassError *row = &self->passes[p];
        json_t *number = row->micro_batch < 0 ? json_null() : json_integer(row->micro_batch);
        json_array_append_new(rows,
                              json_pack("{s:i, s:o, s:s, s:f}", "stage", row->stage, "micro_batch", number,
                                        "phase", ir_phase_name(row->phase), "error", row->error));
    }
    return rows;
}

json_t *trace_error_to_json(const TraceError *self, const char *module, const char *cluster) {
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:{s:f, s:f}, s:f, s:f, s:o, s:o, s:o}", "format",
                     "automap-comparison-1", "module", module, "cluster", cluster, "trace", self->source,
                     "steps", self->steps, "step_seconds", "predicted", self->predicted_seconds, "measured",
                     self->measured_seconds, "error", self->error, "clock_error", self->clock_error,
                     "devices", devices_to_json(self), "stages", stages_to_json(self), "passes",
                     passes_to_json(self));
}

static void append_percent(Text *rows, double fraction) {
    text_append(rows, "%.2f %%", 100 * fraction);
}

static void append_rows(Text *text, Text *rows) {
    text_append_string(text, "\n");
    text_append_table(text, rows->data);
    text_free(rows);
    *rows = (Text){0};
}

void trace_error_print(Text *text, const TraceError *self, const char *module, const char *cluster) {
    text_append(text, "%s on cluster %s, beside %s: %d step%s of %d rank%s\n", module, cluster, self->source,
                self->steps, self->steps == 1 ? "" : "s", self->device_count,
                self->device_count == 1 ? "" : "s");
    text_append_string(text, "step   ");
    text_append_seconds(text, self->predicted_seconds);
    text_append_string(text, " predicted, ");
    text_append_seconds(text, self->measured_seconds);
    text_append(text, " measured (%+.1f %%)\n", 100 * (self->predicted_seconds / self->measured_seconds - 1));
    text_append(text, "error  %.2f %% of the step: operators begin and end so far from the prediction\n",
                100 * self->error);
    text_append(text, "       %.2f %% by the clock, which includes the error of the step\n",
                100 * self->clock_error);
    Text rows = {0};
    text_append_string(&rows, "stage\tdevices\terror\tby the clock\tlargest pass\n");
    for (int32_t s = 0; s < self->stage_count; s++) {
        const StageError *row = &self->stages[s];
        text_append(&rows, "%d\t%d\t", s, row->devices);
        append_percent(&rows, row->error);
        text_append_string(&rows, "\t");
        append_percent(&rows, row->clock_error);
        text_append_string(&rows, "\t");
        append_percent(&rows, row->largest_pass);
        text_append_string(&rows, "\n");
    }
    append_rows(text, &rows);
    text_append_string(
        &rows, "rank\tdevice\tstage\toperators\tunmatched\terror\tby the clock\tpredicted\tmeasured\n");
    for (int32_t d = 0; d < self->device_count; d++) {
        const DeviceError *row = &self->devices[d];
        text_append(&rows, "%d\t%s\t%d\t%lld\t%lld\t", d, row->name, row->stage, (long long)row->operators,
                    (long long)row->unmatched);
        append_percent(&rows, row->error);
        text_append_string(&rows, "\t");
        append_percent(&rows, row->clock_error);
        text_append_string(&rows, "\t");
        text_append_seconds(&rows, row->compute_predicted);
        text_append_string(&rows, "\t");
        text_append_seconds(&rows, row->compute_measured);
        text_append_string(&rows, "\n");
    }
    append_rows(text, &rows);
}
