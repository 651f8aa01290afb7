/* Updates: how parameters take over their new values after a program has run.
 * The same for a training step's state and for a loop's carried values. */
#ifndef EXECUTOR_PROGRAM_UPDATES_H
#define EXECUTOR_PROGRAM_UPDATES_H

#include "executor/kernels.h"

/* A parameter's new value that the program left elsewhere. */
typedef struct Update {
    const ProgramUpdate *update;
    void *to;
    const void *from;
    int64_t bytes;
    void *staging; /* where another update would overwrite `from` first; else NULL */
} Update;

typedef struct Updates {
    Update *list;
    int32_t count;
} Updates;

/* Lists the updates of `program` that need a copy; in the arena. */
AmStatus updates_prepare(Updates *updates, Arena *arena, const Program *program, AmError *error);
/* Sets the addresses of one of them: those of the values, and of its staging place if it has one. */
void updates_bind(Update *update, const Program *program, void *const *addresses, void *staging);
void updates_apply(const Updates *updates, KernelDevice *device);

#endif
