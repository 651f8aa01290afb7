/* The progress line of `automap run` on a terminal, drawn at most ten times a second. */
#include "cli/run/run_progress.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/system/clock.h"

void run_progress_open(RunProgress *progress, const Cli *cli, int64_t end) {
    const char *out = cli_text(cli, "-o");
    bool on_stdout = !out || strcmp(out, "-") == 0;
    *progress = (RunProgress){.steps = end};
    terminal_line_open(&progress->line, cli);
    /* The lines of the steps show the progress on a terminal. */
    progress->line.is_shown &= !(on_stdout && isatty(1));
}

void run_progress_clear(RunProgress *progress) {
    terminal_line_clear(&progress->line);
}

void run_progress_step(RunProgress *progress, const AmStep *step) {
    double now = clock_seconds();
    if (!terminal_line_is_due(&progress->line, now) && progress->done > 0) return;
    if (progress->done++ == 0) {
        progress->first_step = step->step;
        progress->started = now;
    }
    Text text = {0};
    int64_t after_first = step->step - progress->first_step;
    double seconds = after_first > 0 ? (now - progress->started) / (double)after_first : step->seconds;
    text_append(&text, "step %lld of %lld", (long long)step->step + 1, (long long)progress->steps);
    if (!isnan(step->loss)) text_append(&text, "   loss %.6g", step->loss);
    text_append_string(&text, "   ");
    int64_t count = step->tokens > 0 ? step->tokens : step->examples;
    text_append_count(&text, (count > 0 ? (double)count : 1) / (seconds > 1e-9 ? seconds : 1e-9));
    text_append_string(&text, step->tokens > 0 ? " tokens/s" : count > 0 ? " examples/s" : " steps/s");
    double left = seconds * (double)(progress->steps - step->step - 1);
    if (left < 1e9) {
        text_append_string(&text, "   ");
        terminal_append_time(&text, left);
        text_append_string(&text, " left");
    }
    if (!text.failed) terminal_line_draw(&progress->line, text.data, now);
    text_free(&text);
}
