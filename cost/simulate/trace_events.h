/* The operators of a timeline, of a simulation or of a Chrome trace that `automap run --trace` wrote.
 *
 * An event is a slice of computation, without the loops and conditionals around others, or a whole step.
 * Operators have the same number in every timeline of one plan: a hash of the slice's name and instruction.
 */
#ifndef COST_SIMULATE_TRACE_EVENTS_H
#define COST_SIMULATE_TRACE_EVENTS_H

#include "base/arena.h"
#include "base/files/trace.h"
#include "ir/analysis/roles.h"

typedef struct TraceEvent {
    uint64_t name_hash; /* 0: a step */
    double start, end;  /* seconds */
    int32_t device, stage;
    int32_t micro_batch; /* -1: outside of loops over micro-batches */
    IrPhase phase;
} TraceEvent;

/* Zeroed before use, but for the arena. */
typedef struct TraceEvents {
    Arena *arena;
    TraceEvent *list;
    int32_t count, capacity;
} TraceEvents;

/* Adds a slice if it is such an event. */
AmStatus trace_events_add(TraceEvents *events, const TraceSlice *slice, AmError *error);
/* Adds the slices of a file, "-" being stdin. AM_ERROR_INPUT: it is no trace, or a simulated
 * one, or its slices lack a stage or time. */
AmStatus trace_events_read(TraceEvents *events, const char *path, AmError *error);

#endif
