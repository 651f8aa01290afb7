/* Times collectives and transfers between ranks as `automap run` runs them: with its kernels'
 * devices, its communicators, and a thread for each rank. The caller chooses the cases and sizes
 * (probe_collectives.h); this file defines the method.
 *
 * On a synchronous back end (the CPU) every rank computes a little before each collective, as in a
 * training step: it rewrites its operand and reads other memory. A collective lasts from the
 * arrival of the last rank of a group until the last one has ended it,
 *
 *   seconds = median over iterations (latest end - latest begin),
 *
 * which is the additional time of a step with synchronous ranks; waiting for a rank that computes
 * longer belongs to computing. If ranks share processors, even the last one waits until the others
 * are scheduled; the time is then the rest of an iteration without the computing of all ranks on
 * the processor,
 *
 *   seconds = mean(iteration) - sharing * mean(computing).
 *
 * An asynchronous device (a GPU) runs a sequence of them, recorded as in a step, between two
 * readings of a stopwatch in its queue; the time of one is its share, on the rank of a group that
 * was busy for the shortest time, which is the one that arrived last. The minimum over several
 * series counts.
 */
#ifndef EXECUTOR_CALIBRATE_CALIBRATION_THREADS_H
#define EXECUTOR_CALIBRATE_CALIBRATION_THREADS_H

#include "executor/comm/comm.h"

enum { PROBE_MOST_RANKS = 64 };

/* Reads the time in a device's queue: after all work issued before. Functions other than open()
 * record failures on the device, except read(), which is called after the device has been
 * synchronized. */
typedef struct ProbeStopwatch {
    AmStatus (*open)(void **watch, KernelDevice *device, AmError *error);
    void (*begin)(void *watch);
    void (*end)(void *watch);
    AmStatus (*read)(void *watch, double *seconds, AmError *error);
    void (*close)(void *watch); /* NULL is fine */
} ProbeStopwatch;

/* The ranks of a measurement, their kernels and their communicator. */
typedef struct ProbeRanks {
    const KernelBackEnd *kernels;
    const CommBackEnd *comm;
    const ProbeStopwatch *stopwatch; /* of asynchronous devices; NULL: the host's clock is used */
    int32_t count;                   /* at most PROBE_MOST_RANKS */
    double sharing;                  /* ranks of a processor of the host; 1: each has its own */
    const int64_t *sizes;            /* bytes of global tensors, ascending, 0 after the last */
    int64_t most_bytes;              /* of memory, that one measurement may allocate on a rank's device */
    double patience;                 /* seconds for one case; 0: those of a full probe */
} ProbeRanks;

/* One thing to time. */
typedef struct ProbeCase {
    bool is_transfer; /* from the first rank of each group to its second one; else a collective of `kind` */
    ProgramCollectiveKind kind;
    int64_t bytes; /* of the global tensor, a vector of f32 cut along its only dimension; an all_to_all cuts a
                      square of about as many */
    double seconds; /* found; below 0: there was no time for it */
} ProbeCase;

/* Receives the number of finished cases after each case. */
typedef struct ProbeCaseListener {
    void (*on_case)(void *user, int32_t done);
    void *user;
} ProbeCaseListener;

/* Times the cases one after the other, by all ranks in groups of `group_size`, which divides their
 * number. No case begins after `end` (clock_seconds()), and cases share the time until then.
 * `listener` may be NULL. AM_ERROR_RUNTIME: the ranks cannot communicate, or a thread cannot be started. */
AmStatus probe_time_cases(const ProbeRanks *ranks, int32_t group_size, ProbeCase *cases, int32_t count,
                          double end, const ProbeCaseListener *listener, AmError *error);

#endif
