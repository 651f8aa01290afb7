/* Common text of the kernels of gather and scatter, which finds the window of a position. Names in
 * it: p0, p1, ... coordinates of the position, w0, ... coordinates in the window, at0, ... its
 * start in the shard along the dimension of each component of the index vector.
 */
#ifndef EXECUTOR_CUDA_CODEGEN_MOVE_SOURCE_INDEX_H
#define EXECUTOR_CUDA_CODEGEN_MOVE_SOURCE_INDEX_H

#include <stdio.h>

#include "executor/cpu/move/index_map.h"
#include "executor/cuda/codegen/source_text.h"

/* Describes the indices. `slices`: the gather's result or the scatter's updates. Refuses operators that the
 * CPU refuses. */
AmStatus cuda_index_map(IndexMap *map, const KernelCall *call, const IrShape *slices, AmError *error);

/* Appends component k of the index vector at p0, ..., as s64. */
void cuda_append_component(Text *out, const IndexMap *map, int32_t k);
/* Returns the greatest index of component k whose window lies inside the whole. */
int64_t cuda_most_index(const IndexMap *map, int32_t k);

#endif
