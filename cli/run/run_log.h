/* run --log: one JSON object a step, in a file that others may read meanwhile.
 *
 * {"step", "loss", "seconds", "output[K]"..., "eval", "examples_per_second",
 * "tokens_per_second", "memory": {"resident_bytes", "planned_bytes"}, "time"}:
 * null where a rate or the loss is not known, time in seconds since 1970. A line
 * is written and flushed at once. A run begins its file anew; a resumed run goes on in the file of the one
 * before; what that one logged after the checkpoint, and a line that it could
 * not finish, is cut off, so that every step is there once.
 */
#ifndef CLI_RUN_RUN_LOG_H
#define CLI_RUN_RUN_LOG_H

#include <stdio.h>

#include "automap.h"
#include "base/status.h"
#include "base/text.h"

typedef struct RunLog {
    const char *path; /* the caller's */
    FILE *file;       /* NULL: no log */
    bool is_cut;      /* lines that do not belong to the run are removed */
} RunLog;

/* Opens the log. AM_ERROR_USAGE: the file cannot be written. */
AmStatus run_log_open(RunLog *log, const char *path, bool resumes, AmError *error);
AmStatus run_log_step(RunLog *log, const AmStep *step, AmError *error);
AmStatus run_log_close(RunLog *log, AmError *error);

#endif
