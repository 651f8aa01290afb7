/* CUDA C text of generated kernels: element-wise fusions, moves, pads and reductions.
 *
 * One kernel serves one step of a lowered program. Shapes and strides are
 * numbers in its text, so its only arguments are the addresses of the operands
 * and then of the results. A kernel is named after the SHA-256 of its text:
 * equal steps share one kernel, and the text of a program is the same on every
 * machine. The operators mean exactly what they mean to executor/cpu (the
 * oracle of the tests): bf16 and f16 are computed in f32 and rounded after
 * every operator, reductions fold in f64 or in 64-bit integers. Nothing here
 * needs a CUDA header or a GPU.
 */
#ifndef EXECUTOR_CUDA_SOURCE_H
#define EXECUTOR_CUDA_SOURCE_H

#include "executor/kernels.h"

typedef struct CudaSource {
    const char *name;   /* of the kernel, an extern "C" function */
    const char *text;   /* its definition, without the types and helpers that it uses */
    int64_t blocks;     /* of the grid; 0: nothing to compute, no launch */
    int32_t threads;    /* per block, one-dimensional as the grid */
    int32_t parameters; /* addresses: operands, then results */
} CudaSource;

/* Whether cuda_source_make() has a kernel for this opcode (the types aside). */
bool cuda_source_covers(IrOpcode opcode);

/* The kernel of a call: a fusion, or an instruction that cuda_source_covers().
 * Text and name live in the arena. AM_ERROR_INPUT as kernel_refuse(). */
AmStatus cuda_source_make(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error);

/* One translation unit: types, the helpers that are used, then the kernels in
 * the given order, equal ones once. Compile it without contraction of products
 * and sums (NVRTC: --fmad=false), or results differ from the CPU's. */
AmStatus cuda_source_unit(const char **unit, Arena *arena, const CudaSource *sources, int32_t count,
                          AmError *error);

#endif
