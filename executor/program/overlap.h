/* Overlap: the collectives for which each step of a program waits, and the capture regions of steps that
 * a device may record.
 *
 * A collective is issued as soon as its operands are (the device orders it after everything issued
 * before) and the host continues. A later kernel must wait if it reads a result of the collective,
 * or writes its operands or results. Values share memory over time, so that addresses decide.
 * Control flow has memory and collectives of its own: it waits for all pending work. Collectives of
 * one rank run one after the other: waiting for one means waiting for all before it.
 */
#ifndef EXECUTOR_PROGRAM_OVERLAP_H
#define EXECUTOR_PROGRAM_OVERLAP_H

#include "executor/comm/comm.h"

/* An operand or result whose address the iteration chooses (lowering/passes/places.h). */
typedef struct PlacedAddress {
    void **address; /* in the call */
    char *array;    /* the array that it belongs to */
    const ProgramPlace *place;
    int64_t bytes; /* of the array */
} PlacedAddress;

/* One step: a kernel, a collective, a transfer with slots or control flow. */
typedef struct ExecutableStep {
    KernelCall *kernel;
    CommCall *collective;
    struct Stream *stream;
    struct Control *control;
    const CommCall *wait;  /* to be waited for first; or NULL */
    PlacedAddress *placed; /* [placed_count]: set before it runs */
    int32_t placed_count;
    int64_t scratch_at; /* of the kernel's scratch memory, after the values of its row group */
} ExecutableStep;

/* steps[first, end). */
typedef struct CaptureRegion {
    int32_t first, end;
    bool recordable;
    void **records;           /* the device's: one, or of each iteration whose addresses differ */
    const int32_t *record_of; /* [iteration]; NULL: all iterations are alike */
} CaptureRegion;

/* Sets `wait` of all steps, which are bound, and the remaining waits after the last. Time: steps x
 * pending collectives x operands. */
AmStatus overlap_find_waits(ExecutableStep *steps, int32_t count, const CommCall **last, AmError *error);

/* Cuts the steps where the host waits: at control flow that reads results and, if
 * `waits_on_ranks`, at collectives. A capture region whose addresses are too many is not recorded. In the
 * arena. */
AmStatus overlap_find_capture_regions(CaptureRegion **regions, int32_t *capture_region_count, Arena *arena,
                                      const ExecutableStep *steps, int32_t count, bool waits_on_ranks,
                                      AmError *error);

#endif
