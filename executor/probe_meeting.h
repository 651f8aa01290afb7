/* Collectives and transfers between ranks, timed as `automap run` runs them: its kernels' devices, its
 * communicators, a thread for each rank. What is timed of which sizes is the
 * caller's (probe_collectives.h), how is this file's.
 *
 * Where run() has done it all when it returns (the CPU) every rank computes a little before each collective,
 * as in a training step: it writes its operand anew and goes through other memory. A collective's time is
 * from when the last one of a group has come to it until the last one has ended it,
 *
 *   seconds = median over turns (latest end - latest begin),
 *
 * so it is what a step takes longer where ranks are in step; what one waits for another that computes longer
 * is the computing's. Where ranks share processors even the last one waits, until the others are given
 * theirs; then it is what is left of a turn when the computing of all who share a processor is taken off,
 *
 *   seconds = mean(turn) - sharing * mean(computing).
 *
 * A device that works by itself (a GPU) gets some in a row, recorded as in a step, between two readings of a
 * stopwatch in its queue; the time of one is its part of them, on the rank of a group that was busy with them
 * the shortest, which is the one that came last. The least of some series counts.
 */
#ifndef EXECUTOR_PROBE_MEETING_H
#define EXECUTOR_PROBE_MEETING_H

#include "executor/comm.h"

enum { PROBE_MOST_RANKS = 64 };

/* Reads the time in a device's queue: after what was issued to it before. All but open() note failures on the
 * device, but for read(), which is called when the device has been synchronized. */
typedef struct ProbeStopwatch {
    AmStatus (*open)(void **watch, KernelDevice *device, AmError *error);
    void (*begin)(void *watch);
    void (*end)(void *watch);
    AmStatus (*read)(void *watch, double *seconds, AmError *error);
    void (*close)(void *watch); /* NULL is fine */
} ProbeStopwatch;

/* The ranks that meet, and what joins them. */
typedef struct ProbeRanks {
    const KernelBackEnd *kernels;
    const CommBackEnd *comm;
    const ProbeStopwatch *stopwatch; /* of devices that work by themselves; NULL: the host's clock tells */
    int32_t count;                   /* at most PROBE_MOST_RANKS */
    double sharing;                  /* ranks of a processor of the host; 1: each has its own */
    const int64_t *sizes;            /* bytes of whole tensors, ascending, 0 behind the last */
    int64_t most_bytes;              /* of memory, that one measurement may allocate on a rank's device */
    double patience;                 /* seconds for one case; 0: those of a full probe */
} ProbeRanks;

/* One thing to time. */
typedef struct ProbeCase {
    bool is_transfer; /* from the first rank of each group to its second one; else a collective of `kind` */
    ProgramCollectiveKind kind;
    int64_t bytes;  /* of the whole tensor, a vector of f32 cut along its only dimension; an all_to_all cuts a
                       square of about as many */
    double seconds; /* found; below 0: there was no time for it */
} ProbeCase;

/* Times the cases one after the other, by all ranks in groups of `group_size`, which divides their number.
 * `end` (clock_seconds()): none is begun later, and until then they share the time. `told` is called in
 * between with how many are done; NULL: nobody is told. AM_ERROR_RUNTIME: the ranks cannot meet, or a thread
 * cannot be started. */
AmStatus probe_meet(const ProbeRanks *ranks, int32_t group_size, ProbeCase *cases, int32_t count, double end,
                    void (*told)(void *user, int32_t done), void *user, AmError *error);

#endif
