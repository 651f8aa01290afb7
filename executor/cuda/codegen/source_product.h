/* Kernels of text that sum products: they stand in where the libraries have no
 * dot or convolution.
 *
 * There is one thread per element of the result, which sums its
 * products one after the other: right for every type, layout and window that
 * the CPU takes, and slow. They mean what executor/cpu means: operands are
 * converted to the type of the product, floating sums are carried in f64 and
 * rounded once, integers wrap in 64 bits.
 */
#ifndef EXECUTOR_CUDA_CODEGEN_SOURCE_PRODUCT_H
#define EXECUTOR_CUDA_CODEGEN_SOURCE_PRODUCT_H

#include "base/text.h"
#include "executor/cuda/codegen/source.h"

/* Writes the kernels of a dot and of a convolution by themselves. AM_ERROR_INPUT as kernel_refuse(). */
AmStatus cuda_source_dot(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error);
AmStatus cuda_source_convolution(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error);

/* Returns the type in which operands are multiplied: f32, f64, or s64 for integers; DTYPE_INVALID:
 * unsupported. */
Dtype cuda_product_type(Dtype left, Dtype right, Dtype result);
/* Appends the beginning of such a kernel: thread and bound, and the indices d0, d1, ... of its element. */
void cuda_append_result_index(Text *out, const KernelCall *call);
/* Appends "sum", declared, grown by in0[at0] in1[at1], and stored in out0[i]. */
void cuda_append_sum(Text *out, Dtype product);
void cuda_append_product(Text *out, const KernelCall *call, Dtype product);
void cuda_append_result(Text *out, const KernelCall *call, Dtype product);

#endif
