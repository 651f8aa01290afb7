/* The option "trace" of am_simulate(): the predicted timeline as a Chrome trace, in the form of am_run(), so
 * that the two can be laid side by side. am_compare() takes the same slices as events. */
#ifndef API_SIMULATE_TRACE_H
#define API_SIMULATE_TRACE_H

#include "automap.h"
#include "base/files/trace.h"
#include "cost/simulate/simulate.h"
#include "cost/simulate/trace_events.h"

typedef struct SimulateTrace {
    Trace file;
    TraceEvents *events; /* which get the slices in place of the file; or NULL */
    Text text;           /* of one slice */
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

/* Begins a trace. `context`: the context of the plan's names. `path` NULL: the slices go to `events`. */
AmStatus simulate_trace_open(SimulateTrace *trace, Arena *arena, const char *path, TraceEvents *events,
                             const PlanContext *context, const Plan *plan, AmError *error);
void simulate_trace_slice(void *trace, const SimulatedSlice *slice); /* SimulationObserver.on_slice */
/* Names the devices and puts the file in place. */
AmStatus simulate_trace_end(SimulateTrace *trace, const Simulation *simulation);
void simulate_trace_close(SimulateTrace *trace);

/* The outputs of a simulation besides its result. */
typedef struct SimulateOutput {
    const char *path;    /* of a trace; or NULL */
    TraceEvents *events; /* that get its slices; or NULL */
    bool derives;        /* how collectives are priced */
} SimulateOutput;

struct AmSimulation;
/* Does the work of am_simulate() without its checks; `self` is empty, and ends with api_close_simulation().
 * The options are those of any command that simulates. */
AmStatus api_simulate(struct AmSimulation *self, const AmPlan *plan, const AmCluster *cluster,
                      const AmOptions *options, const SimulateOutput *output, const AmCallbacks *callbacks,
                      AmError *error);
void api_close_simulation(struct AmSimulation *self);

#endif
