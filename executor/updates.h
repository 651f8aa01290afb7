/* Updates: how parameters take over their new values after a program has run.
 * The same for a training step's state and for a loop's carried values. */
#ifndef EXECUTOR_UPDATES_H
#define EXECUTOR_UPDATES_H

#include "executor/kernels.h"

/* A parameter's new value that the program left elsewhere. */
typedef struct Update {
    void *to;
    const void *from;
    int64_t bytes;
    void *staging; /* where another update would overwrite `from` first; else NULL */
} Update;

typedef struct Updates {
    Update *list;
    int32_t count;
    int64_t staging_bytes; /* memory that updates_bind() wants */
} Updates;

/* Lists the updates of `program` that need a copy; in the arena. */
AmStatus updates_prepare(Updates *updates, Arena *arena, const Program *program, AmError *error);
/* Sets the addresses in the allocation at `base`. */
void updates_bind(Updates *updates, const Program *program, char *base, char *staging);
void updates_apply(const Updates *updates, KernelDevice *device);

#endif
