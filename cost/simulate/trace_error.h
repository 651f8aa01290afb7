/* The error of a simulated timeline beside a measured one, for each device, stage and pass (DistSim, sections
 * 5.3 and 5.4).
 *
 * Operator k of a device has a beginning and an end in both timelines. Its error is the mean of both
 * differences, as fractions of the step. Two clocks are used: in `error` each timeline counts by its own
 * step, so that the speed of the machine has no influence; in `clock_error` both count in seconds from the
 * beginning of the step, over the measured step. With a step of 10 ms in both, an operator from 2 to 3 ms
 * that was predicted from 2.2 to 3.2 ms has 2 % of each.
 */
#ifndef COST_SIMULATE_TRACE_ERROR_H
#define COST_SIMULATE_TRACE_ERROR_H

#include <jansson.h>

#include "base/text.h"
#include "cost/simulate/trace_events.h"

typedef struct DeviceError {
    const char *name; /* the device's in the cluster; the caller sets it */
    int32_t stage;
    int64_t operators; /* of a step that both timelines have, a loop's each time where both show it so */
    int64_t unmatched; /* of a step, in one of them alone */
    double error, clock_error;                  /* means over operators and steps */
    double compute_predicted, compute_measured; /* seconds of these operators in a step */
} DeviceError;

/* The forward or backward passes of a micro-batch on a stage. */
typedef struct PassError {
    int32_t stage, micro_batch; /* -1: the step has no micro-batches */
    IrPhase phase;
    double error; /* median over the steps, mean over the devices */
} PassError;

typedef struct StageError {
    int32_t devices;
    double error, clock_error; /* means over the devices */
    double largest_pass;
} StageError;

typedef struct TraceError {
    const char *source;                         /* of the measured timeline */
    int32_t steps;                              /* that it has */
    double predicted_seconds, measured_seconds; /* of a step; the measured one is a mean */
    double error, clock_error;                  /* means over the devices */
    DeviceError *devices;
    int32_t device_count;
    StageError *stages;
    int32_t stage_count;
    PassError *passes;
    int32_t pass_count;
} TraceError;

/* Sorts both lists. All memory is the arena's. AM_ERROR_INPUT: `measured`, whose name is `source`, is of
 * another plan. */
AmStatus trace_error_find(TraceError **result, Arena *arena, const TraceEvents *predicted,
                          const TraceEvents *measured, const char *source, AmError *error);

/* Returns "automap-comparison-1"; the caller's reference, NULL without memory. */
json_t *trace_error_to_json(const TraceError *self, const char *module, const char *cluster);
void trace_error_print(Text *text, const TraceError *self, const char *module, const char *cluster);

#endif
