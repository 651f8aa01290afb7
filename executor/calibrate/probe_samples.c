/* Common helpers of probes of kernels and of collectives: the median of samples, and caches in the state
 * that other steps of a program leave. */
#include "executor/calibrate/probe_samples.h"

#include <stdlib.h>

#include "base/compare.h"

enum { WALKED_BYTES = 1 << 22 };

double probe_ranked(double *samples, int32_t count, int32_t rank) {
    qsort(samples, (size_t)count, sizeof *samples, compare_doubles);
    return samples[rank];
}

AmStatus probe_walk_open(ProbeWalk *walk, AmError *error) {
    *walk = (ProbeWalk){.bytes = calloc(1, WALKED_BYTES)};
    return walk->bytes ? AM_OK : am_fail_memory(error, WALKED_BYTES);
}

void probe_walk_close(ProbeWalk *walk) {
    free(walk->bytes);
    *walk = (ProbeWalk){0};
}

void probe_walk(ProbeWalk *walk, int64_t bytes) {
    for (int64_t k = 0; k < bytes; k += PROBE_CACHE_LINE) {
        walk->bytes[walk->at]++;
        walk->at = (walk->at + PROBE_CACHE_LINE) % WALKED_BYTES;
    }
}
