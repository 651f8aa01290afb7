/* Overlap: which steps of a program wait for which collectives, and which stretches
 * of steps a device may record.
 *
 * A collective is issued as soon as its operands are (the device orders it after
 * everything issued before) and the host goes on. A later kernel must wait if it
 * reads what the collective writes, or writes what the collective reads or
 * writes; the memory of values is shared over time, so the question is put to
 * addresses and not to values. Control flow has memory and collectives of its
 * own: it waits for all that is under way. Collectives of one rank take place
 * one after the other: waiting for one is waiting for all before it.
 */
#ifndef EXECUTOR_OVERLAP_H
#define EXECUTOR_OVERLAP_H

#include "executor/comm.h"

/* One step: a kernel, a collective, a transfer with slots or control flow. */
typedef struct ReadyStep {
    KernelCall *kernel;
    CommCall *collective;
    struct Stream *stream;
    struct Control *control;
    const CommCall *wait; /* to be waited for first; or NULL */
} ReadyStep;

/* steps[first, end). */
typedef struct ReadyStretch {
    int32_t first, end;
    bool recordable;
    void *record; /* the device's */
} ReadyStretch;

/* Sets `wait` of all steps, which are bound, and what is left to wait for after
 * the last. Time: steps x collectives under way x operands. */
AmStatus overlap_find_waits(ReadyStep *steps, int32_t count, const CommCall **last, AmError *error);

/* Cuts the steps where the host waits: at control flow that reads results and, if
 * `meets_on_host`, at collectives. In the arena. */
AmStatus overlap_find_stretches(ReadyStretch **stretches, int32_t *stretch_count, Arena *arena,
                                const ReadyStep *steps, int32_t count, bool meets_on_host, AmError *error);

#endif
