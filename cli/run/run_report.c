/* The report of a run.
 *
 * The peak of a device is the size of its buffer plan, which the executor allocates in one piece:
 * measured and predicted peak are equal unless one of them is wrong. Scratch memory depends on the
 * kernels and is not predicted; resident memory is that of the whole process, with files and
 * threads. Both are reported after the table.
 */
#include "cli/run/run_report.h"

#include <math.h>

enum { EARLY_STEPS = 10 }; /* AmRunResult.early_resident_bytes */

/* Returns measured over predicted; NAN if one of them is not meaningful. */
static double ratio(double measured, double predicted) {
    return predicted > 0 ? measured / predicted : NAN;
}

static json_t *measured_to_json(const AmRunResult *report) {
    json_t *devices = json_array();
    for (int32_t d = 0; d < report->device_count; d++)
        json_array_append_new(devices,
                              json_pack("{s:I, s:I}", "peak_bytes", (json_int_t)report->device_peak_bytes[d],
                                        "scratch_bytes", (json_int_t)report->device_scratch_bytes[d]));
    json_t *measured = json_pack("{s:f, s:o}", "step_seconds", report->seconds_per_step, "devices", devices);
    if (report->compile_seconds > 0)
        json_object_set_new(measured, "kernels",
                            json_pack("{s:f, s:I, s:I}", "compile_seconds", report->compile_seconds, "graphs",
                                      (json_int_t)report->graphs, "graph_nodes",
                                      (json_int_t)report->graph_nodes));
    return measured;
}

static json_t *predicted_to_json(const AmRunResult *report) {
    json_t *devices = json_array();
    for (int32_t d = 0; d < report->device_count; d++)
        json_array_append_new(
            devices, json_pack("{s:I}", "peak_bytes", (json_int_t)report->device_predicted_bytes[d]));
    return json_pack("{s:f, s:o}", "step_seconds", report->predicted_seconds, "devices", devices);
}

static json_t *ratios_to_json(const AmRunResult *report) {
    json_t *devices = json_array();
    for (int32_t d = 0; d < report->device_count; d++)
        json_array_append_new(
            devices, json_pack("{s:o}", "peak_bytes",
                               run_number_or_null(ratio((double)report->device_peak_bytes[d],
                                                        (double)report->device_predicted_bytes[d]))));
    return json_pack("{s:o, s:o}", "step_seconds",
                     run_number_or_null(ratio(report->seconds_per_step, report->predicted_seconds)),
                     "devices", devices);
}

void run_report_json(RunStream *stream, const AmRunResult *report) {
    bool has_plan = report->device_predicted_bytes != NULL;
    json_t *memory = json_pack("{s:I, s:I, s:I, s:I}", "channel_bytes", (json_int_t)report->channel_bytes,
                               "resident_bytes_early", (json_int_t)report->early_resident_bytes,
                               "resident_bytes", (json_int_t)report->resident_bytes, "peak_resident_bytes",
                               (json_int_t)report->peak_resident_bytes);
    json_t *row = json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:I}", "format", "automap-run-1", "steps",
                            (json_int_t)report->steps, "measured", measured_to_json(report), "predicted",
                            has_plan ? predicted_to_json(report) : json_null(), "ratio",
                            has_plan ? ratios_to_json(report) : json_null(), "memory", memory,
                            "not_finite_steps", (json_int_t)report->not_finite_steps);
    if (report->carried_sha256)
        json_object_set_new(
            row, "carried_from",
            json_pack("{s:s, s:s}", "module", report->carried_module, "sha256", report->carried_sha256));
    run_stream_json(stream, row);
}

static void append_ratio(Text *rows, double measured, double predicted) {
    if (predicted > 0) text_append(rows, "\t%.4g", ratio(measured, predicted));
}

/* Appends the scratch memory. It depends on the kernels and is not predicted, so it follows the table. */
static void append_scratch(Text *text, const AmRunResult *report) {
    int64_t most = 0;
    for (int32_t d = 0; d < report->device_count; d++)
        if (report->device_scratch_bytes[d] > most) most = report->device_scratch_bytes[d];
    if (most == 0) return;
    text_append_string(text, "kernels took ");
    text_append_bytes_size(text, (double)most);
    text_append_string(text, report->device_count > 1
                                 ? " of scratch memory beside it, on the device that took most\n"
                                 : " of scratch memory beside it\n");
}

static void append_resident(Text *text, const AmRunResult *report) {
    if (report->resident_bytes <= 0) return;
    text_append_string(text, "the process held ");
    text_append_bytes_size(text, (double)report->resident_bytes);
    if (report->steps > EARLY_STEPS) {
        text_append_string(text, ", after its first steps ");
        text_append_bytes_size(text, (double)report->early_resident_bytes);
    }
    text_append_string(text, "\n");
}

void run_report_text(RunStream *stream, const AmRunResult *report) {
    Text text = {0}, rows = {0};
    bool has_plan = report->device_predicted_bytes != NULL;
    text_append_string(&rows,
                       has_plan ? "\tmeasured\tpredicted\tratio\nstep time\t" : "\tmeasured\nstep time\t");
    text_append_seconds(&rows, report->seconds_per_step);
    if (has_plan) {
        text_append_string(&rows, "\t");
        text_append_seconds(&rows, report->predicted_seconds);
        append_ratio(&rows, report->seconds_per_step, report->predicted_seconds);
    }
    text_append_string(&rows, "\n");
    for (int32_t d = 0; d < report->device_count; d++) {
        text_append(&rows, "peak of device %d\t", d);
        text_append_bytes_size(&rows, (double)report->device_peak_bytes[d]);
        if (has_plan) {
            double predicted = (double)report->device_predicted_bytes[d];
            text_append_string(&rows, "\t");
            text_append_bytes_size(&rows, predicted);
            append_ratio(&rows, (double)report->device_peak_bytes[d], predicted);
        }
        text_append_string(&rows, "\n");
    }
    text_append_table(&text, rows.data);
    append_scratch(&text, report);
    if (report->channel_bytes > 0) { /* slots of values on their way between stages are the host's */
        text_append_string(&text, "transfers between stages took ");
        text_append_bytes_size(&text, (double)report->channel_bytes);
        text_append_string(&text, " of slots beside it\n");
    }
    append_resident(&text, report);
    if (report->not_finite_steps > 0)
        text_append(&text, "the loss was not finite in %lld of %lld steps, first in step %lld\n",
                    (long long)report->not_finite_steps, (long long)report->steps,
                    (long long)report->first_not_finite);
    run_stream_text(stream, &text);
    text_free(&rows);
    text_free(&text);
}
