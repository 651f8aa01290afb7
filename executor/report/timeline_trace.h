/* The timelines of all ranks as one Chrome trace (base/files/trace.h).
 *
 * Each rank is a device of the trace; operators have the user's names: op_name, source line and
 * phase. All slices name their stage, and those inside a loop over micro-batches the micro-batch. Process 0
 * writes, the others send it their events as text, rank by rank. The clocks of different machines differ:
 * every process counts from the moment at which the first of its ranks began the first shown step, which all
 * ranks begin together.
 */
#ifndef EXECUTOR_REPORT_TIMELINE_TRACE_H
#define EXECUTOR_REPORT_TIMELINE_TRACE_H

#include "executor/comm/channel.h"
#include "executor/processes/process_group.h"
#include "executor/program/rank.h"
#include "executor/program/timeline.h"
#include "propagation/plan/plan.h"

typedef struct TimelineTrace {
    const char *path;
    int64_t steps;    /* the last so many are shown */
    const Plan *plan; /* or NULL: one device */
    const PlanContext *context;
    const Rank *ranks; /* [rank_count], those of this process, with their timelines */
    int32_t rank_count;
    const ChannelSet *channels; /* between stages, or NULL */
    ProcessGroup *processes;    /* NULL: one process */
    AmWarnings *warnings;       /* warns if the rings were too small; or NULL */
} TimelineTrace;

/* Writes the trace when no rank runs any more; all processes together, each with as many ranks. */
AmStatus timeline_write_trace(const TimelineTrace *trace, AmError *error);

#endif
