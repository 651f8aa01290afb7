/* The option "trace" of am_simulate(): the predicted timeline as a Chrome trace, in the form of am_run(), so
 * that the two can be laid side by side. */
#ifndef API_SIMULATE_TRACE_H
#define API_SIMULATE_TRACE_H

#include "base/files/trace.h"
#include "cost/simulate/simulate.h"

typedef struct SimulateTrace {
    Trace file;
    Text text; /* of one slice */
    const PlanContext *context;
    struct SimulateLanes *lanes; /* [rank]; the arena's */
    int32_t rank_count, micro_batches;
    TraceSlice
        *ends[2]; /* senders and receivers of the value that travels, whose arrows are not yet written */
    int32_t end_counts[2];
    const ProgramTransfer *travelling;
    double travels_from;
    int64_t arrow_count; /* written */
    Arena *arena;        /* of the simulation, which releases memory of its run at its end */
    Arena memory;        /* of what remains until simulate_trace_close() */
    AmStatus status;     /* a failure to write is kept until the end */
    AmError *error;
} SimulateTrace;

/* `context`: the context of the plan's names. */
AmStatus simulate_trace_open(SimulateTrace *trace, Arena *arena, const char *path, const PlanContext *context,
                             const Plan *plan, AmError *error);
void simulate_trace_slice(void *trace, const SimulatedSlice *slice); /* SimulationObserver.on_slice */
/* Names the devices and puts the file in place. */
AmStatus simulate_trace_end(SimulateTrace *trace, const Simulation *simulation);
void simulate_trace_close(SimulateTrace *trace);

#endif
