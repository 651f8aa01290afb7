/* The order in which a dot's result has its dimensions, as matrices.
 *
 * The natural order is [batch, left free, right free]. The library writes another
 * order directly if the free dimensions of each operand step through the result
 * as one and the columns lie close. Any other order, and one that the library
 * refuses, is written in slices: each product goes to the scratch memory in the
 * natural order and is copied from there. A slice fixes batch dimensions that
 * come first in the result, so the scratch memory holds a part of the result.
 */
#ifndef EXECUTOR_CUDA_LIBRARY_CUBLAS_DOT_ORDER_H
#define EXECUTOR_CUDA_LIBRARY_CUBLAS_DOT_ORDER_H

#include "executor/cuda/codegen/move/pack.h"

typedef struct CudaDotOrder {
    int32_t rows_of;              /* the operand whose free dimensions are the rows */
    int32_t free[2][IR_MAX_RANK]; /* of each operand: its free dimensions, outermost first */
    int64_t row_stride;           /* elements between rows of the matrix that the library writes */
    int64_t batch_strides[IR_MAX_RANK];
    bool fixed[IR_MAX_RANK]; /* batch dimensions that a slice fixes */
    bool sliced;             /* the rest is for slices */
    int32_t fixed_count;
    int32_t fixed_batch[IR_MAX_RANK];   /* the fixed ones, outermost of the result first */
    int64_t fixed_strides[IR_MAX_RANK]; /* elements of the result between slices */
    CudaPack copy;                      /* from a slice to its place in the result */
} CudaDotOrder;

/* Returns the result's own order; false: the library cannot write it. */
bool cuda_dot_order(CudaDotOrder *order, const KernelCall *call);
/* Slices of the result; false: its order is the natural one, and slices would not differ from it. */
bool cuda_dot_slices(CudaDotOrder *order, const KernelCall *call);

/* Returns the one stride with which dimensions are stepped through in order, or -1. */
int64_t cuda_joint_stride(const int64_t *sizes, const int64_t *strides, int32_t rank);

#endif
