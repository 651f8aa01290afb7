/* The team of a CPU rank: the threads that share the work of its kernels.
 *
 * A rank's own thread is a member. team_run() distributes the parts of one piece of work. Every
 * member begins with adjacent parts of its own, so that the same thread finds the same rows in its
 * cache from kernel to kernel. It then takes unclaimed parts of others. A kernel
 * divides its results, never a sum, or adds fixed chunks in order: its result does not depend on
 * the size of the team or on timing. Work of less than about 20 us is not worth dividing.
 */
#ifndef EXECUTOR_CPU_TEAM_H
#define EXECUTOR_CPU_TEAM_H

#include "executor/kernels.h"

/* Creates a rank's device with a team of options->threads threads (0: the processors of this machine over
 * options->ranks_here); they start with team_start(). Memory is the C heap's. */
AmStatus team_open(KernelDevice **device, const KernelOptions *options, AmError *error);
/* Starts in the rank's own thread, before the first step. Pins the members, one to a processor, where the
 * teams of all ranks here fill the processors exactly. Threads that cannot be had are done without. */
AmStatus team_start(KernelDevice *device, AmError *error);
/* Ends the threads; unpins the caller if team_start() pinned it. */
void team_close(KernelDevice *device);

/* Threads of the device, from 1 on; the shared kernel_device_cpu has one. */
int32_t team_size(const KernelDevice *device);

/* Runs work(user, part, parts) for every part in [0, parts), each once, and returns when all are
 * done; allocates nothing. Called by the rank's own thread; inside a part it runs the parts one by
 * one. */
void team_run(KernelDevice *device, void (*work)(void *user, int32_t part, int32_t parts), void *user,
              int32_t parts);

/* Finds the stretch of part `part` when `count` elements are divided among `parts`: neighbours differ by one
 * unit of `grain` elements at most. */
static inline void team_stretch(int64_t count, int64_t grain, int32_t part, int32_t parts, int64_t *first,
                                int64_t *end) {
    int64_t units = (count + grain - 1) / grain;
    *first = units * part / parts * grain;
    *end = units * (part + 1) / parts * grain;
    if (*first > count) *first = count;
    if (*end > count) *end = count;
}

/* Returns how many parts pay for work of `nanoseconds` on one thread: 1, or up to the team's size. */
int32_t team_parts(const KernelDevice *device, double nanoseconds);

#endif
