/* Common helpers of probes of kernels and of collectives: the median of samples, and caches in the
 * state that other steps of a program leave. */
#ifndef EXECUTOR_CALIBRATE_PROBE_SAMPLES_H
#define EXECUTOR_CALIBRATE_PROBE_SAMPLES_H

#include <stdint.h>

#include "base/status.h"

enum { PROBE_CACHE_LINE = 64 };

/* Returns the sample of that rank, 0 the least; sorts the samples. */
double probe_ranked(double *samples, int32_t count, int32_t rank);
/* Returns the upper one of two in the middle. */
static inline double probe_median(double *samples, int32_t count) {
    return probe_ranked(samples, count, count / 2);
}

/* Memory larger than the caches, and where the next walk through it begins. */
typedef struct ProbeWalk {
    char *bytes; /* owned; NULL: none */
    int64_t at;
} ProbeWalk;

AmStatus probe_walk_open(ProbeWalk *walk, AmError *error); /* AM_ERROR_INTERNAL without memory */
void probe_walk_close(ProbeWalk *walk);
/* Writes to every cache line of the next `bytes`, around and around. */
void probe_walk(ProbeWalk *walk, int64_t bytes);

#endif
