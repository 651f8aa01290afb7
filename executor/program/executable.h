/* A program prepared to run on one device: the work of a rank in a training step, and of a loop,
 * conditional or call inside it.
 *
 * Every step of the program is a kernel, a collective or control flow, prepared once. executable_bind()
 * sets the addresses of values: the parameters of a region are at the caller's values, so that only
 * values computed in the region need memory. Kernels run one after the other, and collectives too:
 * nested programs share the scratch memory of both.
 */
#ifndef EXECUTOR_PROGRAM_EXECUTABLE_H
#define EXECUTOR_PROGRAM_EXECUTABLE_H

#include "executor/program/overlap.h"
#include "executor/program/red_zones.h"
#include "executor/program/timeline.h"
#include "executor/program/updates.h"

typedef struct Executable {
    KernelDevice *device;
    Comm *comm; /* of the rank; NULL: there are no collectives */
    const Program *program;
    bool repeats;          /* a run ends with the updates */
    ExecutableStep *steps; /* [program->execution.step_count] */
    CaptureRegion *capture_regions;
    int32_t capture_region_count;
    const CommCall *last_wait; /* after the last step; or NULL */
    Updates updates;
    void **addresses;                          /* [value], bound; NULL: it has no memory */
    int64_t scratch_bytes, comm_scratch_bytes; /* of kernels, of collectives */
    int64_t
        *scratch_at;    /* [value]: of values inside row groups that run step by step; NULL: there are none */
    bool waits_on_host; /* a step of it does, so it cannot be recorded as one */
    Arena *arena;       /* in which it is */
    RedZones *zones;    /* checked after every step; NULL: none */
    Timeline *timeline; /* of the rank; NULL: nothing is measured */
    int64_t iteration;  /* of a loop's body: set by who runs it, before it does */
    /* The iteration of the loop over micro-batches that this is the body of, or inside of; or NULL. Set by
     * executable_watch(). */
    const int64_t *micro_batch;
} Executable;

/* Memory of the device, each part aligned to 64. */
typedef struct ExecutableMemory {
    void *const *parameters; /* [parameter]: their places; NULL: in `values` */
    void *const *outputs;    /* [output]: the places of those that are made outside of `values`; or NULL */
    char *values;            /* program->allocation.bytes, less parameter_bytes if they lie elsewhere */
    char *scratch, *comm_scratch;
    char *host; /* program->allocation.host_bytes of the host's memory; NULL: none */
} ExecutableMemory;

/* Prepares all steps, and all programs that they run. `comm`: NULL where the
 * program has no collectives. `repeats`: a run leaves output k in parameter k.
 * Everything lives in the arena. AM_ERROR_INPUT: an operator has no kernel. */
AmStatus executable_prepare(Executable **ready, Arena *arena, KernelDevice *device, Comm *comm,
                            const Program *program, bool repeats, AmError *error);
/* Binds the executable once, before the first run. */
AmStatus executable_bind(Executable *ready, const ExecutableMemory *memory, AmError *error);
/* Allocates memory for a program with its parameters (allocation, scratch, comm_scratch) and binds
 * it; the caller releases it through the device. `host`: its memory in the host, likewise, NULL where it
 * needs none; may be NULL for such programs. */
AmStatus executable_allocate(Executable *ready, char **memory, char **host, AmError *error);
/* Records from now on every step of it and of the programs inside. A device that works by itself is then
 * waited for after each, so that its times are those of single operators, without overlap. Loops of
 * `micro_batches` iterations are those over micro-batches; 1: there are none. */
void executable_watch(Executable *ready, Timeline *timeline, int32_t micro_batches);
/* Records the end of an iteration of the loop whose body this is. */
void executable_mark_iteration(const Executable *body, double start);
/* Returns the memory at an offset of the buffer plan, which is no parameter's where those lie elsewhere. */
char *executable_place(const Program *program, const ExecutableMemory *memory, int64_t offset);

static inline void *executable_parameter(const Executable *ready, int32_t k) {
    return ready->addresses[ready->program->parameters[k]];
}

static inline void *executable_output(const Executable *ready, int32_t k) {
    return ready->addresses[ready->program->outputs[k]];
}

/* Runs it once, in capture regions that the device may record and replay. On failure,
 * which only collectives report here, the rank is to stop. */
AmStatus executable_run(Executable *ready, AmError *error);
/* Runs steps first .. end - 1 of it; the updates come after the last one. For who takes the steps apart
 * (actor_schedule.h): joined loops are run by their iterations, and so not by this. */
AmStatus executable_run_steps(const Executable *ready, int32_t first, int32_t end, AmError *error);
/* Issues all steps inside of a recording, without waiting on the host. */
AmStatus executable_issue(const Executable *ready, AmError *error);

#endif
