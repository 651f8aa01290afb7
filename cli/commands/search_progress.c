/* The line of progress, drawn by callbacks of the API, or by a thread that waits for the end of the work and
 * draws each time that it waits in vain. */
#define _POSIX_C_SOURCE 200809L
#include "cli/commands/search_progress.h"

#include <math.h>
#include <signal.h>
#include <time.h>

#include "base/system/clock.h"

static const struct {
    const char *name, *unit;
    bool has_phases, has_plans;
} kinds[] = {[PROGRESS_SEARCH] = {"search", "evaluations", true, true},
             [PROGRESS_SWEEP] = {"sweep", "strategies", false, true},
             [PROGRESS_EXPLANATION] = {"explain", "changes", false, false},
             [PROGRESS_TRAINING] = {"training", "episodes", false, false}};

static void draw(SearchProgressLine *self, const AmProgress *now) {
    double clock = clock_seconds(), elapsed = clock - self->started, left = now->seconds_left;
    Text text = {0};
    if (!isnan(now->best_seconds) && !self->cli->notes->is_released) {
        terminal_line_clear(&self->line); /* a plan fits: the command will not be refused */
        cli_release_notes(self->cli);
    }
    text_append(&text, "%s ", kinds[self->kind].name);
    terminal_append_time(&text, floor(elapsed));
    if (kinds[self->kind].has_phases) text_append(&text, "   %s", now->phase);
    if (kinds[self->kind].has_plans && isnan(now->best_seconds)) {
        text_append_string(&text, "   no plan yet");
    } else if (kinds[self->kind].has_plans) {
        text_append_string(&text, "   best ");
        text_append_seconds(&text, now->best_seconds);
    }
    text_append(&text, "   %lld", (long long)now->evaluations);
    if (now->limit >= now->evaluations && now->limit > 0)
        text_append(&text, " of %lld", (long long)now->limit);
    text_append(&text, " %s", kinds[self->kind].unit);
    if (now->bound_seconds > 0 && !isnan(now->best_seconds))
        text_append(&text, "   gap %.2f %%", 100 * (now->best_seconds / now->bound_seconds - 1));
    if (self->seconds > 0) left = fmin(isnan(left) ? self->seconds : left, fmax(0, self->seconds - elapsed));
    if (left < 1e7) {
        text_append_string(&text, "   ");
        terminal_append_time(&text, left);
        text_append_string(&text, " left");
    }
    if (!text.failed) terminal_line_draw(&self->line, text.data, clock);
    text_free(&text);
}

int search_progress_show(void *line, const AmProgress *progress) {
    SearchProgressLine *self = line;
    pthread_mutex_lock(&self->mutex);
    if (!progress->is_last) draw(self, progress);
    pthread_mutex_unlock(&self->mutex);
    return 0;
}

bool search_progress_open(SearchProgressLine *self, const Cli *cli, ProgressKind kind, double seconds) {
    *self = (SearchProgressLine){.cli = cli, .kind = kind, .started = clock_seconds(), .seconds = seconds};
    pthread_mutex_init(&self->mutex, NULL);
    terminal_line_open(&self->line, cli);
    return self->line.is_shown;
}

void search_progress_close(SearchProgressLine *self) {
    terminal_line_clear(&self->line);
    pthread_mutex_destroy(&self->mutex);
}

void search_progress_hold(SearchProgressLine *self) {
    pthread_mutex_lock(&self->mutex);
    terminal_line_clear(&self->line);
}

void search_progress_release(SearchProgressLine *self) {
    pthread_mutex_unlock(&self->mutex);
}
