/* The observers of a run: output, log, TensorBoard events and the progress line.
 *
 * run_watch_step() passes each step to all of them. A failure of the log or of the events is kept, and
 * run_watch_commit() reports it after the run.
 */
#include "cli/run/run_watch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

AmStatus run_watch_open(RunWatch *watch, const Cli *cli, const AmModule *module, AmError *error) {
    const char *out = cli_text(cli, "-o"), *log = cli_text(cli, "--log");
    const char *events = cli_text(cli, "--tensorboard"), *on_nan = cli_text(cli, "--on-nan");
    int64_t steps = 1;
    TRY(cli_integer(cli, "--steps", 1, INT64_MAX, &steps, error));
    watch->cli = cli;
    watch->warns_of_nan = on_nan && strcmp(on_nan, "warn") == 0;
    watch->stream = (RunStream){
        .is_json = cli_has(cli, "--json"), .has_loss = am_module_loss(module) >= 0, .error = &watch->error};
    if (log) TRY(run_log_open(&watch->log, log, cli_has(cli, "--resume"), error));
    if (events) TRY(event_file_open(&watch->events, events, error));
    run_progress_open(&watch->progress, cli, steps);
    return file_writer_begin(&watch->stream.writer, out ? out : "-", error);
}

static AmStatus write_events(RunWatch *watch, const AmStep *step) {
    EventScalar scalars[4];
    int32_t count = 0;
    if (!watch->events.file) return AM_OK;
    if (watch->steps_seen == 0) TRY(event_file_start(&watch->events, step->step, &watch->error));
    if (watch->stream.has_loss) scalars[count++] = (EventScalar){"loss", step->loss};
    scalars[count++] = (EventScalar){"step_seconds", step->seconds};
    if (step->examples > 0 && step->seconds > 0)
        scalars[count++] = (EventScalar){"examples_per_second", (double)step->examples / step->seconds};
    if (step->tokens > 0 && step->seconds > 0)
        scalars[count++] = (EventScalar){"tokens_per_second", (double)step->tokens / step->seconds};
    TRY(event_file_scalars(&watch->events, step->step, scalars, count, &watch->error));
    for (int32_t k = 0; k < step->validated_count; k++) {
        char name[32], tag[40];
        run_validated_name(name, &step->validated[k]);
        snprintf(tag, sizeof tag, "eval/%s", name);
        const EventScalar scalar = {tag, step->validated[k].values[0]};
        TRY(event_file_scalars(&watch->events, step->step, &scalar, 1, &watch->error));
    }
    return AM_OK;
}

int run_watch_step(void *user, const AmStep *step) {
    RunWatch *watch = user;
    if (watch->steps_seen == 0) cli_release_notes(watch->cli);
    run_stream_step(&watch->stream, step);
    if (watch->status == AM_OK) watch->status = run_log_step(&watch->log, step, &watch->error);
    if (watch->status == AM_OK) watch->status = write_events(watch, step);
    bool is_bad = watch->warns_of_nan && watch->stream.has_loss && !isfinite(step->loss);
    if (is_bad && watch->not_finite++ == 0) {
        run_progress_clear(&watch->progress);
        cli_note(watch->cli, "warning: the loss of step %lld is %s", (long long)step->step,
                 isnan(step->loss) ? "not a number" : "infinite");
    }
    run_progress_step(&watch->progress, step);
    watch->steps_seen++;
    return 0;
}

void run_watch_message(void *user, AmMessage kind, const char *text) {
    RunWatch *watch = user;
    run_progress_clear(&watch->progress);
    cli_note(watch->cli, "%s%s", kind == AM_WARNING ? "warning: " : "", text);
}

void run_watch_end(RunWatch *watch) {
    run_progress_clear(&watch->progress);
}

AmStatus run_watch_commit(RunWatch *watch, AmError *error) {
    AmStatus status = watch->status;
    if (status == AM_OK) status = run_log_close(&watch->log, &watch->error);
    if (status == AM_OK) status = event_file_close(&watch->events, &watch->error);
    if (status == AM_OK) status = watch->stream.status;
    if (status == AM_OK) status = file_writer_commit(&watch->stream.writer, &watch->error);
    if (status != AM_OK) *error = watch->error;
    return status;
}

void run_watch_close(RunWatch *watch) {
    run_progress_clear(&watch->progress);
    run_log_close(&watch->log, NULL);
    event_file_close(&watch->events, NULL);
    file_writer_abandon(&watch->stream.writer);
}
