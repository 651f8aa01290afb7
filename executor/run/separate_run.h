/* Steps of a plan in a process of their own, to measure them.
 *
 * The child is a fork of the caller, so that module and plan need no file. It trains from random values and
 * writes the seconds of every step into a pipe. A step that takes too long, lacks memory or crashes ends the
 * child alone.
 */
#ifndef EXECUTOR_RUN_SEPARATE_RUN_H
#define EXECUTOR_RUN_SEPARATE_RUN_H

#include "executor/program/run_options.h"

typedef struct SeparateRun {
    int32_t least_steps, most_steps; /* after one that warms up */
    double enough_seconds;           /* of these steps: no further one than the least */
    double patience_seconds;         /* of the child, from its start; what it has by then counts */
    uint64_t seed;
    const volatile sig_atomic_t *interrupted; /* or NULL */
} SeparateRun;

/* Runs the plan; seconds[0..*count), of most_steps places, are those of the steps after the first.
 * AM_INTERRUPTED: the flag was set. AM_ERROR_RUNTIME: no step was timed; the text has the reason. */
AmStatus separate_run(double *seconds, int32_t *count, const SeparateRun *settings,
                      const PlanContext *context, const Plan *plan, AmError *error);

#endif
