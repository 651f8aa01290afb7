/* Classes of operators measured by the kernels that run them: "operators" of a cluster file.
 *
 * For each class of cost/cluster/operator_classes.def, modules of one operator in several sizes
 * (calibration_modules.h) are run by as many ranks as share the host. Their median seconds become the points
 * of a curve.
 */
#ifndef EXECUTOR_CALIBRATE_PROBE_OPERATORS_H
#define EXECUTOR_CALIBRATE_PROBE_OPERATORS_H

#include <jansson.h>

#include "base/status.h"
#include "executor/calibrate/probe_pace.h"
#include "lowering/program/program.h"

/* The listener of a probe, called in the caller's thread; each function may be NULL. */
typedef struct ProbeListener {
    void (*progress)(void *user, double done); /* how much is done, from 0 to 1 */
    /* The time of step `step` of a program on a device of this type; an event if step_event()
     * returns true. */
    AmStatus (*on_operator)(void *user, const char *type, const Program *program, int32_t step,
                            double seconds, AmError *error);
    /* A collective of so many bytes among so many ranks. */
    AmStatus (*collective)(void *user, const char *type, ProgramCollectiveKind kind, int32_t ranks,
                           double bytes, double seconds, AmError *error);
    void *user;
    AmWarnings *warnings; /* what could not be measured, and why; or NULL */
    /* The probe's to set: */
    const char *type;  /* of the device that is measured */
    double from, part; /* the current measurement: its start within the whole, and its fraction of it */
} ProbeListener;

/* Reports the finished fraction of the current measurement, from 0 to 1. */
void probe_progress(const ProbeListener *listener, double done);

/* Measures operators into an object, which the caller owns: the CPU's kernels, as run by `ranks` ranks of
 * `threads` threads each that all work at once. After `end` (clock_seconds()) the rest is measured hastily;
 * classes that are not complete when the pace's late_seconds are over are left out. AM_ERROR_RUNTIME: a
 * thread cannot be started. */
AmStatus probe_operators(json_t **operators, int32_t ranks, int32_t threads, double end,
                         const ProbePace *pace, const ProbeListener *listener, AmError *error);

/* Reports a product side x side by side x side that was measured by other means. */
AmStatus probe_report_product(const ProbeListener *listener, Dtype type, int64_t side, double seconds,
                              AmError *error);

#endif
