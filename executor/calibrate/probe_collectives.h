/* Measures collectives of ranks by kind, count of ranks and size: "collectives" of a link; and
 * transfers from one rank to another by size, which determine the link's rate. */
#ifndef EXECUTOR_CALIBRATE_PROBE_COLLECTIVES_H
#define EXECUTOR_CALIBRATE_PROBE_COLLECTIVES_H

#include "executor/calibrate/calibration_threads.h"
#include "executor/calibrate/probe_operators.h"

enum { PROBE_MOST_COLLECTIVE_SIZES = 16 };

/* Returns an object owned by the caller: seconds over [ranks of a group, bytes of the global tensor]
 * for every kind. All ranks take part, in as many groups as possible: groups of 2, 4 and so on that
 * divide their number, up to all. Sizes that take more than ranks->most_bytes are omitted, and after
 * `end` (clock_seconds()) the remaining groups, or, for the first group, sizes; the object is empty
 * if nothing was measured. For one kind and count no size costs more than a larger one.
 * AM_ERROR_RUNTIME: the ranks cannot communicate. */
AmStatus probe_collectives(json_t **collectives, const ProbeRanks *ranks, double end,
                           const ProbeListener *listener, AmError *error);

/* Measures the seconds of transfers from the first rank to the second, of the sizes [*count] that there was
 * time for. */
AmStatus probe_transfers(double *sizes, double *seconds, int32_t *count, const ProbeRanks *ranks, double end,
                         AmError *error);

/* Returns whether two of these ranks can communicate, by one short collective. */
AmStatus probe_try_ranks(const ProbeRanks *ranks, AmError *error);

#endif
