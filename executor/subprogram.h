/* A called computation, prepared to run inside a kernel: a loop's body or
 * condition, a branch, a fusion as the file has it. */
#ifndef EXECUTOR_SUBPROGRAM_H
#define EXECUTOR_SUBPROGRAM_H

#include "executor/updates.h"

typedef struct Subprogram {
    KernelDevice *device;
    const Program *program;
    KernelCall **calls; /* [program->step_count] */
    Updates updates;
    int64_t value_bytes, scratch_bytes; /* memory that it wants, beside updates.staging_bytes */
    bool waits_on_host;                 /* a step of it does, see KernelCall */
    int32_t parameter_count, output_count;
    void **parameters, **outputs; /* addresses, bound */
    void *record;                 /* the device's, of subprogram_replay() */
} Subprogram;

/* Prepares a region of an instruction. The parameters' places in the memory
 * depend on their shapes only, so that regions which take the same ones may
 * share it. AM_ERROR_INPUT: an operator in it has no kernel. */
AmStatus subprogram_prepare(Subprogram **subprogram, Arena *arena, KernelDevice *device,
                            const Program *program, AmError *error);
/* Three areas of memory, aligned to 64: value_bytes, updates.staging_bytes, scratch_bytes. */
void subprogram_bind(Subprogram *subprogram, char *values, char *staging, char *scratch);
/* Runs it once on the parameters in its memory. */
void subprogram_run(const Subprogram *subprogram);
/* The same for one that runs many times, outside of what the device records: the
 * device may record it and replay it. */
void subprogram_replay(Subprogram *subprogram);

#endif
