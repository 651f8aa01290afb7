/* Classes of operators measured by the kernels that run them: "operators" of a cluster file. */
#ifndef EXECUTOR_PROBE_OPERATORS_H
#define EXECUTOR_PROBE_OPERATORS_H

#include <jansson.h>

#include "base/status.h"

/* Told how much is done, from 0 to 1, in the caller's thread; `progress` may be NULL. */
typedef void ProbeProgress(void *user, double done);

/* The object, which the caller owns: the CPU's kernels, as run by `ranks` ranks of `threads` threads each
 * that all work at once. After `end` (clock_seconds()) what is left is measured hastily, and 8 s later left
 * out. AM_ERROR_RUNTIME: a thread cannot be started. */
AmStatus probe_operators(json_t **operators, int32_t ranks, int32_t threads, double end,
                         ProbeProgress *progress, void *user, AmError *error);

#endif
