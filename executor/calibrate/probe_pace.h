/* The time that a probe spends on each figure: a full probe takes half a minute, a short one a few seconds.
 * A short probe measures every other size of a class and repeats less. */
#ifndef EXECUTOR_CALIBRATE_PROBE_PACE_H
#define EXECUTOR_CALIBRATE_PROBE_PACE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ProbePace {
    /* Peaks: a figure is the best of `series` series of `series_seconds` each; sizes grow until one run takes
     * `long_seconds`. */
    int32_t series;
    double series_seconds, long_seconds;
    /* Operators: seconds to learn the undisturbed time, seconds and series for one figure, seconds after the
     * probe's end during which classes are still begun. */
    double learning_seconds, operator_seconds, late_seconds;
    int32_t least_series;
    bool is_sparse; /* every other size */
    /* Collectives: seconds for one figure. */
    double collective_seconds;
} ProbePace;

extern const ProbePace probe_full_pace, probe_short_pace;

#endif
