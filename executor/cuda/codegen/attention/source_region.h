/* Generated kernels of fused attention regions: the fallback of cuDNN, for every form that the CPU divides.
 *
 * A phase of a region (region_plan.h) is a kernel. Its blocks have a tile of rows, of keys or of both each,
 * and go through the tiles of the other dimension in order, so that results depend on values alone:
 *
 *     out = 0                                          for the rows of a block
 *     for each tile of keys not after a causal mask
 *         s = q k^T                                    in registers, 16 widths at a time in shared memory
 *         p = exp(s - max) / sum                       element by element; into shared memory
 *         out += p v
 *
 * A maximum, a sum and a product that depend on one another are three phases, each of which computes the
 * scores again. Memory: the sums, linear in rows and in keys.
 */
#ifndef EXECUTOR_CUDA_CODEGEN_ATTENTION_SOURCE_REGION_H
#define EXECUTOR_CUDA_CODEGEN_ATTENTION_SOURCE_REGION_H

#include "executor/cuda/codegen/source.h"

/* Writes the kernels of a fusion of products (ProgramRegions.in_blocks). AM_ERROR_INPUT as
 * kernel_call_refuse(). */
AmStatus cuda_source_region(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error);

#endif
