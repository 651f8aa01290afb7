/* Convolutions on a GPU: cuDNN as one prepared object.
 *
 * A CudaConvolution relates an input x [batch, features, spatial...], a filter
 * w [output features, input features / groups, spatial...] and an output
 * y [batch, output features, spatial...]:
 *
 *     y[n,f,o] = sum over c, k of x[n, c, o stride + k dilation - padding] w[f,c,k]
 *
 * (a cross-correlation; `flipped` turns the filter around in all spatial
 * dimensions) and computes one of the three from the other two: y forward, or
 * the gradient of x from dy and w, or the gradient of w from x and dy. One
 * spatial dimension is computed as two. The algorithm is chosen by cuDNN's
 * heuristic once per shape, among those that give equal bits in equal runs; f32
 * is multiplied in f32 and by the definition (no transform of Winograd or
 * Fourier) unless tf32 is requested; f16 and bf16 accumulate in f32. A run only
 * enqueues and can be captured in a graph. The library is opened at run time.
 */
#ifndef BASE_CUDA_DNN_H
#define BASE_CUDA_DNN_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

#define CUDA_MOST_SPATIAL 3

typedef struct CudaDnn CudaDnn;                 /* a handle; used by one thread at a time */
typedef struct CudaConvolution CudaConvolution; /* owned by its handle */

typedef enum CudaConvolutionKind {
    CUDA_CONVOLUTION_FORWARD,         /* y from x and w */
    CUDA_CONVOLUTION_INPUT_GRADIENT,  /* x from y and w */
    CUDA_CONVOLUTION_FILTER_GRADIENT, /* w from x and y */
    CUDA_CONVOLUTION_KIND_COUNT
} CudaConvolutionKind;

/* Strides count elements, in the order [batch, feature, spatial...]. The filter
 * lies close, as [out, in, spatial...] or, features_last, [out, spatial..., in]. */
typedef struct CudaConvolutionShape {
    CudaConvolutionKind kind;
    Dtype type;            /* of all three: f32, f64, bf16, f16 */
    bool tf32;             /* multiply f32 in tf32 */
    bool flipped;          /* a convolution in the mathematical sense */
    bool features_last;    /* of the filter */
    int32_t spatial_count; /* 1 to 3 */
    int64_t batch, input_features, output_features, groups;
    int64_t input_sizes[CUDA_MOST_SPATIAL], filter_sizes[CUDA_MOST_SPATIAL], output_sizes[CUDA_MOST_SPATIAL];
    int64_t stride[CUDA_MOST_SPATIAL], dilation[CUDA_MOST_SPATIAL];
    int64_t padding[CUDA_MOST_SPATIAL]; /* on both sides */
    int64_t input_strides[2 + CUDA_MOST_SPATIAL], output_strides[2 + CUDA_MOST_SPATIAL];
    int64_t workspace_limit; /* bytes; 0: 256 MiB */
} CudaConvolutionShape;

/* One of the three is written, as the kind says. */
typedef struct CudaConvolutionBuffers {
    void *input, *filter, *output;
    void *workspace; /* cuda_convolution_workspace() bytes; scratch, any alignment */
} CudaConvolutionBuffers;

/* Opens the library and makes a handle for the context that is current.
 * AM_ERROR_RUNTIME in one line where the library is missing or unusable. */
AmStatus cuda_dnn_open(CudaDnn **dnn, AmError *error);
void cuda_dnn_close(CudaDnn *dnn); /* with all its convolutions; NULL is allowed */
/* Returns the library's handle, a cudnnHandle_t, and the list of the attentions (dnn_attention.h) that it
 * keeps. */
void *cuda_dnn_handle(CudaDnn *dnn);
struct CudaAttention **cuda_dnn_attentions(CudaDnn *dnn);
/* Returns the version of the library, 10000 major + 100 minor + patch; 0: not found. */
int32_t cuda_dnn_version(void);

/* Creates the convolution of this shape; the handle keeps it and gives it out again for an equal shape. A new
 * one is run once, on memory of its own, by the first algorithm of cuDNN's order that runs. Without memory
 * for that, the first cuda_convolution_run() chooses the algorithm in this way. AM_ERROR_INPUT: cuDNN has no
 * algorithm for it or refuses to run all of them, or the sizes do not fit each other (the caller may do
 * without); AM_ERROR_RUNTIME: the library failed. */
AmStatus cuda_convolution_make(CudaConvolution **convolution, CudaDnn *dnn, const CudaConvolutionShape *shape,
                               AmError *error);
bool cuda_convolution_is_tried(const CudaConvolution *convolution); /* its algorithm has run */
/* Returns the first run found that no algorithm runs. */
bool cuda_convolution_is_refused(const CudaConvolution *convolution);
int64_t cuda_convolution_workspace(const CudaConvolution *convolution); /* bytes */
/* Enqueues it on a stream of the handle's context. The first run is in no graph. AM_ERROR_INPUT: nothing was
 * enqueued, as cuDNN refuses all algorithms before the first of them has run. */
AmStatus cuda_convolution_run(CudaConvolution *convolution, CUstream stream,
                              const CudaConvolutionBuffers *buffers, AmError *error);

#endif
