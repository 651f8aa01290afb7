/* Matrix products on a GPU: cuBLASLt as one prepared object.
 *
 * A CudaProduct computes
 *
 *     D = epilogue(alpha A B + beta C)     A [rows, depth], B [depth, columns], C and D [rows, columns]
 *
 * for `batch` matrices at constant distances. All matrices are row-major, as
 * everywhere in automap; cuBLASLt, which has column-major matrices, computes the
 * transposed product D' = B' A'. Layout, types and algorithm are settled when
 * the product is made (by its heuristic, once per shape), so that a run
 * only enqueues and can be captured in a graph. f32 is multiplied in f32, with
 * tf32 only on request; f16 and bf16 accumulate in f32. Sums that
 * are split among blocks are joined in the type of the accumulator in a fixed
 * order, so equal runs give equal bits. The library is opened at run time.
 */
#ifndef BASE_CUDA_BLAS_H
#define BASE_CUDA_BLAS_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

typedef struct CudaBlas CudaBlas;       /* a handle; used by one thread at a time */
typedef struct CudaProduct CudaProduct; /* owned by its handle */

/* The epilogue applied to x = alpha A B + beta C before it is stored in D. `bias` has D's type and
 * an address that is a multiple of 16, `mask` is one bit for each element of D:
 * cuda_product_mask_bytes(). All but NONE need batch 1. */
typedef enum CudaEpilogue {
    CUDA_EPILOGUE_NONE,           /* D = x */
    CUDA_EPILOGUE_BIAS,           /* D = x + bias[columns] */
    CUDA_EPILOGUE_RELU,           /* D = max(x, 0) */
    CUDA_EPILOGUE_RELU_BIAS,      /* D = max(x + bias[columns], 0) */
    CUDA_EPILOGUE_RELU_BIAS_MASK, /* the same, and mask = where D is positive */
    CUDA_EPILOGUE_RELU_GRADIENT,  /* D = x where mask, else 0 */
    /* the same, and bias[columns] = sums of D over its rows */
    CUDA_EPILOGUE_RELU_GRADIENT_BIAS,
    /* D = x and bias[rows] = sums of A over the depth; for D = dY' X */
    CUDA_EPILOGUE_SUM_A,
    /* D = x and bias[columns] = sums of B over the depth; for D = X' dY */
    CUDA_EPILOGUE_SUM_B,
    CUDA_EPILOGUE_COUNT
} CudaEpilogue;

typedef struct CudaMatrix {
    Dtype type;           /* f32, f64, bf16, f16 */
    bool transposed;      /* stored as its transpose: A as [depth, rows]; not for D */
    int64_t leading;      /* elements from one row in memory to the next; 0: rows lie close */
    int64_t batch_stride; /* elements from one matrix to the next; 0: one for all (not for D) */
    int32_t alignment;    /* its addresses are multiples of so many bytes; 0: 16 */
} CudaMatrix;

/* A and B have one type; D has the same, or f32 where that is f16 or bf16. C is like D. */
typedef struct CudaProductShape {
    int64_t batch, rows, columns, depth; /* at least 1 */
    CudaMatrix a, b, d;
    CudaEpilogue epilogue;
    bool tf32;               /* multiply f32 in tf32 */
    double alpha, beta;      /* beta 0: C is not read */
    int64_t workspace_limit; /* bytes; 0: 32 MiB */
} CudaProductShape;

typedef struct CudaProductBuffers {
    const void *a, *b;
    const void *c; /* NULL: D's old content, in place */
    void *d, *bias, *mask;
    void *workspace; /* cuda_product_workspace() bytes; scratch, any alignment */
} CudaProductBuffers;

/* Opens the library and makes a handle for the context that is current.
 * AM_ERROR_RUNTIME in one line where the library is missing or unusable. */
AmStatus cuda_blas_open(CudaBlas **blas, AmError *error);
void cuda_blas_close(CudaBlas *blas); /* with all its products; NULL is allowed */
/* Returns the version of the library, 10000 major + 100 minor + patch; 0: not found. */
int32_t cuda_blas_version(void);

/* Creates the product of this shape; the handle keeps it and gives it out again for an equal shape. A new one
 * is run once, on memory of its own, by the first algorithm of cuBLASLt's order that runs. Without memory for
 * that, the first cuda_product_run() chooses the algorithm in this way. AM_ERROR_INPUT: cuBLASLt has no
 * algorithm for it on this device or refuses to run all of them, or the shape contradicts itself (the caller
 * may do without); AM_ERROR_RUNTIME: the library failed. */
AmStatus cuda_product_make(CudaProduct **product, CudaBlas *blas, const CudaProductShape *shape,
                           AmError *error);
bool cuda_product_is_tried(const CudaProduct *product);     /* its algorithm has run */
bool cuda_product_is_refused(const CudaProduct *product);   /* the first run found that no algorithm runs */
int64_t cuda_product_workspace(const CudaProduct *product); /* bytes */
/* Enqueues it on a stream of the handle's context. The first run is in no graph. AM_ERROR_INPUT: nothing was
 * enqueued, as cuBLASLt refuses all algorithms before the first of them has run. */
AmStatus cuda_product_run(CudaProduct *product, CUstream stream, const CudaProductBuffers *buffers,
                          AmError *error);

/* Returns the bytes of the mask of an output [rows, columns]; the same for the product that writes it and the
 * one that reads it. Its address is a multiple of 16. */
int64_t cuda_product_mask_bytes(int64_t rows, int64_t columns);

#endif
