/* Progress of a run on a terminal: one line of stderr, drawn anew.
 *
 *   step 120 of 1000   loss 2.31481   1.2 k examples/s   3 min left
 *
 * At most ten times a second. It is shown where stderr is a terminal and the
 * steps' own lines go elsewhere; the last line is wiped out. */
#ifndef CLI_RUN_RUN_PROGRESS_H
#define CLI_RUN_RUN_PROGRESS_H

#include "automap.h"
#include "cli/terminal.h"

typedef struct RunProgress {
    TerminalLine line;
    int64_t steps, done, first_step; /* of the run, drawn, the number of the first */
    double started;                  /* clock_seconds() at the end of the first step */
} RunProgress;

/* Begins the progress line. `end`: the step at which the run is over. */
void run_progress_open(RunProgress *progress, const Cli *cli, int64_t end);
void run_progress_step(RunProgress *progress, const AmStep *step);
/* Wipes the line out, before something else is written to the terminal. */
void run_progress_clear(RunProgress *progress);

#endif
