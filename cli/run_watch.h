/* Everything that watches a run: each is told of every step, in the thread of
 * process 0 that leads. One that fails is told no more; the run goes on, as what
 * it computes is worth more than the watching, and the failure is reported at its end. */
#ifndef CLI_RUN_WATCH_H
#define CLI_RUN_WATCH_H

#include "base/event_file.h"
#include "cli/run_log.h"
#include "cli/run_progress.h"
#include "cli/run_stream.h"

typedef struct RunWatch {
    const Cli *cli;
    RunStream stream;
    RunLog log;
    EventFile events;
    RunProgress progress;
    int64_t steps_seen, not_finite;
    bool warns_of_nan;
    AmStatus status; /* of the log and the events */
    AmError error;
} RunWatch;

/* --json, -o, --log, --tensorboard; before the run, so that what cannot be written is told at once.
 * `options` are those of the run; `resumes`: it goes on with an earlier one. */
AmStatus run_watch_open(RunWatch *watch, const Cli *cli, const AmRunOptions *options, bool resumes,
                        AmError *error);
void run_watch_step(void *watch, const AmRunStep *step); /* AmRunOptions.on_step */
void run_watch_note(void *watch, const char *text);      /* AmRunOptions.on_note */
/* After the run: nothing is drawn any more. */
void run_watch_end(RunWatch *watch);
/* The stream becomes the file it was meant for; the first failure of any. */
AmStatus run_watch_commit(RunWatch *watch, AmError *error);
/* After commit, or without it; drops what was not committed. */
void run_watch_close(RunWatch *watch);

#endif
