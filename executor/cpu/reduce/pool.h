/* Pooling of f32 in vectors: what window.c leaves to it (pool.c). */
#ifndef EXECUTOR_CPU_REDUCE_POOL_H
#define EXECUTOR_CPU_REDUCE_POOL_H

#include "executor/cpu/cpu.h"

typedef struct Pool Pool;

/* Prepares a reduce-window, or, with `selects`, a select-and-scatter. *pool is NULL for unsupported
 * ones; otherwise call->scratch_bytes grows by the working memory. */
AmStatus pool_prepare(Pool **pool, KernelCall *call, bool selects, Arena *arena, AmError *error);
/* Returns false, without effect, if the padding would change the initial value. */
bool pool_reduce(const Pool *pool, const KernelCall *call);
void pool_select_and_scatter(const Pool *pool, const KernelCall *call);

#endif
