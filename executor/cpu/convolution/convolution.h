/* Convolutions on the CPU: one description, several ways to compute it.
 *
 *   out[b, o, f] = sum over k, i of in[b, p / base_dilation, i] * weights[k, i, f]
 *              p = o * stride + k * window_dilation - padding_low
 *
 * where the quotient is an integer and inside; o and k have one index for each spatial
 * dimension. Strides come from the dimension labels. So a forward pass and the
 * gradients to the input and to the weights differ in numbers only: a gradient to the
 * weights has the input features as its batch and the examples as its features. The
 * table in convolution.c chooses the first algorithm that fits.
 */
#ifndef EXECUTOR_CPU_CONVOLUTION_CONVOLUTION_H
#define EXECUTOR_CPU_CONVOLUTION_CONVOLUTION_H

#include "executor/cpu/cpu.h"

typedef struct ConvolutionAlgorithm ConvolutionAlgorithm;

/* Spatial dimensions have one order in all arrays. Strides are in elements. */
typedef struct ConvolutionKernel {
    const IrConvolution *form;
    int32_t spatial_count;
    IrWindowDimension window[IR_MAX_RANK];
    int64_t input_sizes[IR_MAX_RANK], input_strides[IR_MAX_RANK], batch_stride, feature_stride;
    int64_t cell_strides[IR_MAX_RANK], weights_feature_stride, weights_output_stride; /* of the weights */
    int64_t output_sizes[IR_MAX_RANK], output_strides[IR_MAX_RANK], output_batch_stride,
        output_feature_stride;
    int64_t batch, features,
        outputs;         /* sizes: output batch, features that are added up, features of all groups */
    int64_t rows, depth; /* output positions, products that are added up for each */
    int64_t groups, group_features, group_input_step; /* group g reads from g * group_input_step on */
    Dtype input_type, weights_type, output_type;
    int64_t f32_input_at, f32_weights_at, f32_output_at; /* scratch offsets of arrays converted to f32 */
    const ConvolutionAlgorithm *algorithm;
    const void *plan; /* the algorithm's own, in the call's arena */
} ConvolutionKernel;

/* One way to compute a convolution of f32. */
struct ConvolutionAlgorithm {
    const char *name;
    bool (*fits)(const ConvolutionKernel *kernel);
    /* Sets kernel->plan and adds its need to call->scratch_bytes. */
    AmStatus (*prepare)(ConvolutionKernel *kernel, KernelCall *call, Arena *arena, AmError *error);
    void (*run)(const KernelCall *call, const float *in, const float *weights, float *out);
};

extern const ConvolutionAlgorithm convolution_indirect; /* convolution_indirect.c */
extern const ConvolutionAlgorithm convolution_weights;  /* convolution_weights.c */
extern const ConvolutionAlgorithm convolution_columns;  /* convolution_columns.c */

/* Runs the plain definition, for all types (convolution_plain.c). */
void convolution_run_plain(const KernelCall *call);

/* The algorithms in the order in which they are tried. */
extern const ConvolutionAlgorithm *const convolution_algorithms[];
extern const int32_t convolution_algorithm_count;
/* Prepares a call with that algorithm, or, where it is NULL, with the first that fits. */
AmStatus convolution_prepare_with(KernelCall *call, const ConvolutionAlgorithm *algorithm, Arena *arena,
                                  AmError *error);

/* Reserves `bytes` in the call's scratch memory; returns their offset. */
int64_t convolution_reserve(KernelCall *call, int64_t bytes);

/* Returns whether output index o of a spatial dimension with kernel index k reads the input at *at, if it is
 * inside. */
static inline bool convolution_reads(const ConvolutionKernel *kernel, int32_t spatial, int64_t o, int64_t k,
                                     int64_t *at) {
    const IrWindowDimension *window = &kernel->window[spatial];
    int64_t position = o * window->stride +
                       (window->reversal ? window->size - 1 - k : k) * window->window_dilation -
                       window->padding_low;
    *at = position / window->base_dilation;
    return position >= 0 && position % window->base_dilation == 0 && *at < kernel->input_sizes[spatial];
}

#endif
