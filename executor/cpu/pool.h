/* Pooling of f32 in vectors: what window.c leaves to it (pool.c). */
#ifndef EXECUTOR_CPU_POOL_H
#define EXECUTOR_CPU_POOL_H

#include "executor/cpu/cpu.h"

typedef struct Pool Pool;

/* *pool is NULL where the reduce-window, or, with `selects`, the select-and-scatter, is none of those
 * covered; else call->scratch_bytes grows by what it works in. */
AmStatus pool_prepare(Pool **pool, KernelCall *call, bool selects, Arena *arena, AmError *error);
/* False: nothing is done, as the padding would not leave the initial value as it is. */
bool pool_reduce(const Pool *pool, const KernelCall *call);
void pool_select_and_scatter(const Pool *pool, const KernelCall *call);

#endif
