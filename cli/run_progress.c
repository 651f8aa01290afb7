/* The progress line of a run; see run_progress.h. */
#define _DEFAULT_SOURCE
#include "cli/run_progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

static const double SECONDS_BETWEEN_DRAWINGS = 0.1;

void run_progress_open(RunProgress *progress, const Cli *cli, int64_t end) {
    const char *out = cli_text(cli, "-o");
    bool on_stdout = !out || strcmp(out, "-") == 0;
    *progress = (RunProgress){.steps = end};
    progress->is_shown = isatty(2) && !(on_stdout && isatty(1)) && !cli_has(cli, "--quiet");
}

void run_progress_clear(RunProgress *progress) {
    if (!progress->is_drawn) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    progress->is_drawn = false;
}

/* "3 h 05 min", "3 min", "12 s". */
static void append_time_left(Text *text, double seconds) {
    if (!(seconds < 1e9)) return;
    int64_t minutes = (int64_t)(seconds / 60);
    if (minutes >= 60)
        text_append(text, "   %lld h %02lld min left", (long long)minutes / 60, (long long)minutes % 60);
    else if (minutes > 0) text_append(text, "   %lld min left", (long long)minutes);
    else text_append(text, "   %.0f s left", ceil(seconds));
}

static void draw(const RunProgress *progress, const AmRunStep *step, double now) {
    struct winsize size;
    Text text = {0};
    int64_t after_first = step->step - progress->first_step;
    double seconds = after_first > 0 ? (now - progress->started) / (double)after_first : step->seconds;
    text_append(&text, "step %lld of %lld", (long long)step->step + 1, (long long)progress->steps);
    if (!isnan(step->loss)) text_append(&text, "   loss %.6g", step->loss);
    text_append_string(&text, "   ");
    int64_t count = step->tokens > 0 ? step->tokens : step->examples;
    text_append_count(&text, (count > 0 ? (double)count : 1) / (seconds > 1e-9 ? seconds : 1e-9));
    text_append_string(&text, step->tokens > 0 ? " tokens/s" : count > 0 ? " examples/s" : " steps/s");
    append_time_left(&text, seconds * (double)(progress->steps - step->step - 1));
    /* A line that is wider than the terminal could not be wiped out. */
    if (ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && text.length >= size.ws_col)
        text.length = size.ws_col - 1u;
    if (!text.failed) fprintf(stderr, "\r%.*s\033[K", (int)text.length, text.data);
    fflush(stderr);
    text_free(&text);
}

void run_progress_step(RunProgress *progress, const AmRunStep *step) {
    if (!progress->is_shown) return;
    double now = clock_seconds();
    if (progress->done++ == 0) {
        progress->first_step = step->step;
        progress->started = now;
    } else if (now - progress->drawn < SECONDS_BETWEEN_DRAWINGS) {
        return;
    }
    progress->drawn = now;
    progress->is_drawn = true;
    draw(progress, step, now);
}
