/* Collectives of ranks as threads, measured by count of ranks and size: "collectives" of a link. */
#ifndef EXECUTOR_PROBE_COLLECTIVES_H
#define EXECUTOR_PROBE_COLLECTIVES_H

#include "executor/probe_operators.h"

/* The object, which the caller owns: seconds over [ranks of a group, bytes of the whole tensor] for every
 * kind. All `ranks` take part, in as many groups as there are. AM_ERROR_RUNTIME: a thread cannot be started.
 */
AmStatus probe_collectives(json_t **collectives, int32_t ranks, int32_t processors,
                           const ProbeListener *listener, AmError *error);

#endif
