/* Packing: copies an operand to a layout that a library can read, or a result from the layout that
 * a library wrote. */
#ifndef EXECUTOR_CUDA_CODEGEN_MOVE_PACK_H
#define EXECUTOR_CUDA_CODEGEN_MOVE_PACK_H

#include "executor/cuda/codegen/source.h"

#define CUDA_PACK_RANK (IR_MAX_RANK + 2)

/* A dense array [sizes], row-major, made of another: element i is the element at
 * `offset` plus the sum of (i_d - low_d) strides_d where every i_d - low_d is in
 * [0, limits_d), and 0 elsewhere. Transposes, slices, pads, crops. Strides are not
 * negative. */
typedef struct CudaPack {
    int32_t rank;
    int64_t sizes[CUDA_PACK_RANK], strides[CUDA_PACK_RANK];
    int64_t low[CUDA_PACK_RANK], limits[CUDA_PACK_RANK];
    int64_t offset;
} CudaPack;

/* Appends a dimension that is read unchanged. */
void cuda_pack_add(CudaPack *pack, int64_t size, int64_t stride);
int64_t cuda_pack_elements(const CudaPack *pack);

/* Writes the kernel of a pack of elements of `type`; its parameters are the addresses of the array and of the
 * packed one, both aligned to 16 bytes and apart. */
AmStatus cuda_source_pack(CudaSource *source, Arena *arena, const CudaPack *pack, Dtype type, AmError *error);
/* Adds the kernel of a pack, with names that begin with `kind`, to the source of a call with one operand
 * and one result. */
AmStatus cuda_source_move(CudaSource *source, const char *kind, const CudaPack *pack, Dtype type,
                          AmError *error);

/* Prepares a pack of elements of `type` as a call of its own, which a call with a pack among its steps
 * runs when it is run. Its operands[0] and results[0] are addresses that the caller sets in bind(). */
AmStatus cuda_prepare_pack(KernelCall *pack, Arena *arena, const KernelCall *call, const CudaPack *shape,
                           Dtype type, AmError *error);

#endif
