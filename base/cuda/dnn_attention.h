/* Fused attention by cuDNN: softmax(scale q k^T + bias, masked) v and its gradients, as one prepared object.
 *
 * Arrays have the dimensions [batch, head, row or key, width] and any strides whose last one is 1; statistics
 * have [batch, head, row, 1]. Each key head serves heads / key_heads query heads, which follow one another.
 * The forward pass writes the output and, of each row of scores, the log-sum-exp or the maximum and the sum
 * of exponentials. The backward pass reads the output and the log-sum-exp. Scores are in no memory; equal
 * runs give equal bits.
 */
#ifndef BASE_CUDA_DNN_ATTENTION_H
#define BASE_CUDA_DNN_ATTENTION_H

#include "base/cuda/dnn.h"
#include "base/cuda/dnn_graph.h"

typedef enum CudaAttentionArray {
    ATTENTION_QUERIES,
    ATTENTION_KEYS,
    ATTENTION_VALUES,
    ATTENTION_BIAS, /* optional; dimensions of size 1 are broadcast */
    ATTENTION_OUTPUT,
    ATTENTION_LOG_SUM, /* f32, as the next two; optional forward */
    ATTENTION_MAXIMUM, /* optional, together with the sum */
    ATTENTION_SUM,
    ATTENTION_OUTPUT_GRADIENT, /* backward, as all that follow */
    ATTENTION_QUERY_GRADIENT,
    ATTENTION_KEY_GRADIENT,
    ATTENTION_VALUE_GRADIENT,
    ATTENTION_ARRAY_COUNT
} CudaAttentionArray;

typedef struct CudaAttentionShape {
    bool is_backward;
    bool uses[ATTENTION_ARRAY_COUNT];
    Dtype type; /* bf16 or f16: of all arrays but bias and statistics */
    Dtype bias_type;
    int64_t batch, heads, key_heads, rows, keys, width;
    int64_t bias_sizes[DNN_RANK];
    int64_t strides[ATTENTION_ARRAY_COUNT][DNN_RANK]; /* elements */
    double scale;
    bool has_last, has_first; /* a row sees no key after row + last, and none before row - first */
    int64_t last, first;
} CudaAttentionShape;

typedef struct CudaAttention CudaAttention; /* owned by its handle */

/* Creates the attention of this shape, with a plan; the handle keeps it and gives it out again for an equal
 * shape. A new one is run once, on memory of its own. AM_ERROR_INPUT: cuDNN does not support the shape or
 * refuses to run it, or there is no memory to try it; AM_ERROR_RUNTIME: the library failed. */
AmStatus cuda_attention_make(CudaAttention **attention, CudaDnn *dnn, const CudaAttentionShape *shape,
                             AmError *error);
void cuda_attention_close(CudaAttention *list);                   /* with all that follow; NULL is allowed */
int64_t cuda_attention_workspace(const CudaAttention *attention); /* bytes, of any alignment */
/* Enqueues it. `arrays` [ATTENTION_ARRAY_COUNT]: addresses, aligned to 16 bytes. */
AmStatus cuda_attention_run(CudaAttention *attention, CUstream stream, void *const *arrays, void *workspace,
                            AmError *error);

/* Finds out whether cuDNN has an engine for the shape on a device that `properties` describes, as JSON text
 * of cuDNN, without that device. AM_ERROR_INPUT: it has none. */
AmStatus cuda_attention_check(const CudaAttentionShape *shape, const char *properties, AmError *error);

#endif
