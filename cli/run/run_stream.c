/* The output of `automap run`: a line of text or JSON for each step, then the report.
 *
 * A step has its loss, seconds, and the outputs that --watch and --eval name.
 */
#include "cli/run/run_stream.h"

#include <math.h>
#include <stdio.h>

#include "cli/common.h"

void run_stream_text(RunStream *stream, const Text *text) {
    if (stream->status != AM_OK) return;
    stream->status = text->failed ? am_fail_memory(stream->error, 0)
                                  : file_writer_add(&stream->writer, text->data, text->length, stream->error);
    if (stream->status == AM_OK && !file_writer_flush(&stream->writer)) cli_interrupt();
}

json_t *run_number_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *watched_to_json(const AmOutput *watched) {
    if (watched->count == 1) return run_number_or_null(watched->values[0]);
    json_t *values = json_array();
    for (int64_t k = 0; k < watched->count; k++)
        json_array_append_new(values, run_number_or_null(watched->values[k]));
    return values;
}

void run_stream_json(RunStream *stream, json_t *object) {
    Text text = {0};
    if (object) json_write(&text, object, JSON_STYLE_COMPACT);
    else text.failed = true;
    json_decref(object);
    text_append_string(&text, "\n");
    run_stream_text(stream, &text);
    text_free(&text);
}

void run_validated_name(char name[32], const AmOutput *output) {
    snprintf(name, 32, output->is_loss ? "loss" : "output[%d]", output->number);
}

static json_t *validated_to_json(const AmStep *step) {
    json_t *object = json_object();
    for (int32_t k = 0; k < step->validated_count; k++) {
        const AmOutput *output = &step->validated[k];
        double value = output->values[0];
        char name[32];
        run_validated_name(name, output);
        bool is_exact = output->is_integer && fabs(value) < 0x1p53;
        json_object_set_new(object, name,
                            is_exact ? json_integer((json_int_t)value) : run_number_or_null(value));
    }
    json_object_set_new(object, "batches", json_integer((json_int_t)step->validated_batches));
    json_object_set_new(object, "seconds", json_real(step->validated_seconds));
    return object;
}

json_t *run_step_to_json(const AmStep *step) {
    json_t *object =
        json_pack("{s:s, s:I, s:o, s:f}", "format", "automap-step-1", "step", (json_int_t)step->step, "loss",
                  run_number_or_null(step->loss), "seconds", step->seconds);
    for (int32_t k = 0; k < step->watched_count; k++) {
        char name[32];
        snprintf(name, sizeof name, "output[%d]", step->watched[k].number);
        json_object_set_new(object, name, watched_to_json(&step->watched[k]));
    }
    if (step->validated_count > 0) json_object_set_new(object, "eval", validated_to_json(step));
    return object;
}

void run_stream_step(RunStream *stream, const AmStep *step) {
    if (stream->is_json) {
        run_stream_json(stream, run_step_to_json(step));
        return;
    }
    Text text = {0};
    text_append(&text, "step %6lld", (long long)step->step);
    if (stream->has_loss) text_append(&text, "   loss %-14.9g", isnan(step->loss) ? NAN : step->loss);
    text_append_string(&text, "   ");
    text_append_seconds(&text, step->seconds);
    for (int32_t k = 0; k < step->watched_count; k++) {
        text_append(&text, "   output[%d]", step->watched[k].number);
        for (int64_t i = 0; i < step->watched[k].count && i < 8; i++)
            text_append(&text, " %.9g", step->watched[k].values[i]);
        if (step->watched[k].count > 8) text_append_string(&text, " ...");
    }
    if (step->validated_count > 0) text_append_string(&text, "   eval");
    for (int32_t k = 0; k < step->validated_count; k++) {
        char name[32];
        run_validated_name(name, &step->validated[k]);
        text_append(&text, "%s %s %.9g", k > 0 ? "," : "", name, step->validated[k].values[0]);
    }
    text_append_string(&text, "\n");
    run_stream_text(stream, &text);
    text_free(&text);
}
