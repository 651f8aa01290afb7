/* The observers of a run: each receives every step, in the leading thread of process 0. An observer
 * that fails receives no further steps. The run continues, since its result is worth more than the
 * log, and the failure is reported at its end. */
#ifndef CLI_RUN_RUN_WATCH_H
#define CLI_RUN_RUN_WATCH_H

#include "automap.h"
#include "base/files/event_file.h"
#include "cli/run/run_log.h"
#include "cli/run/run_progress.h"
#include "cli/run/run_stream.h"

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

/* Opens --json, -o, --log, --tensorboard before the run of `module`, so that unwritable files are reported at
 * once. */
AmStatus run_watch_open(RunWatch *watch, const Cli *cli, const AmModule *module, AmError *error);
int run_watch_step(void *watch, const AmStep *step);                   /* AmCallbacks.on_step */
void run_watch_message(void *watch, AmMessage kind, const char *text); /* AmCallbacks.on_message */
/* Ends the display after the run: nothing is drawn any more. */
void run_watch_end(RunWatch *watch);
/* Renames the stream to its file; returns the first failure of any observer. */
AmStatus run_watch_commit(RunWatch *watch, AmError *error);
/* Closes after commit, or without it; drops uncommitted output. */
void run_watch_close(RunWatch *watch);

#endif
