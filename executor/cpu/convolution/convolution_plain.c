/* convolution by its definition, one output element at a time, for any type.
 *
 * Types without a faster algorithm run here, with sums in 64-bit scalars. The tests use it as the
 * reference for the faster algorithms.
 */
#include "executor/array/scalar64.h"
#include "executor/array/strided.h"
#include "executor/cpu/convolution/convolution.h"

/* The sum of one output element: a scalar, or the parts of complex ones. */
typedef struct Sum {
    Scalar64 scalar;
    double real, imaginary;
} Sum;

static double part_of(const void *data, Dtype type, int64_t at) {
    Scalar64 value;
    scalar64_load(&value, (const char *)data + at * dtype_bytes(type), type, 1, 1);
    return value.floating;
}

/* Computes sum += input[at] * weights[cell]. */
static void add_product(Sum *sum, const KernelCall *call, int64_t at, int64_t cell) {
    const ConvolutionKernel *kernel = call->compiled;
    const void *in = call->operands[0], *weights = call->operands[1];
    if (dtype_is_complex(kernel->output_type)) {
        Dtype part = dtype_real_part(kernel->output_type);
        double a = part_of(in, part, 2 * at), b = part_of(in, part, 2 * at + 1);
        double c = part_of(weights, part, 2 * cell), d = part_of(weights, part, 2 * cell + 1);
        sum->real += a * c - b * d;
        sum->imaginary += a * d + b * c;
        return;
    }
    Scalar64 x, y;
    Scalar64Kind kind = scalar64_kind(kernel->output_type);
    scalar64_load(&x, (const char *)in + at * dtype_bytes(kernel->input_type), kernel->input_type, 1, 1);
    scalar64_load(&y, (const char *)weights + cell * dtype_bytes(kernel->weights_type), kernel->weights_type,
                  1, 1);
    scalar64_fold(&x, &y, kind, SBP_MULTIPLY, 1);
    scalar64_fold(&sum->scalar, &x, kind, SBP_ADD, 1);
}

static void store_sum(const KernelCall *call, int64_t at, const Sum *sum) {
    Dtype type = ((const ConvolutionKernel *)call->compiled)->output_type, part = dtype_real_part(type);
    char *out = (char *)call->results[0] + at * dtype_bytes(type);
    const Scalar64 parts[2] = {{.floating = sum->real}, {.floating = sum->imaginary}};
    if (part != type) scalar64_store(out, part, parts, SCALAR64_FLOATING, 2, 1);
    else scalar64_store(out, type, &sum->scalar, scalar64_kind(type), 1, 1);
}

/* Adds up the window of one output position for output feature f. `base`: where batch and group begin. */
static void sum_window(Sum *sum, const KernelCall *call, const int64_t *position, int64_t base, int64_t f) {
    const ConvolutionKernel *kernel = call->compiled;
    int64_t cell[IR_MAX_RANK] = {0}, sizes[IR_MAX_RANK];
    for (int32_t s = 0; s < kernel->spatial_count; s++) sizes[s] = kernel->window[s].size;
    do {
        int64_t at = base, weights_at = f * kernel->weights_output_stride, place;
        bool is_inside = true;
        for (int32_t s = 0; s < kernel->spatial_count && is_inside; s++) {
            is_inside = convolution_reads(kernel, s, position[s], cell[s], &place);
            at += place * kernel->input_strides[s];
            weights_at += cell[s] * kernel->cell_strides[s];
        }
        for (int64_t i = 0; is_inside && i < kernel->features; i++)
            add_product(sum, call, at + i * kernel->feature_stride,
                        weights_at + i * kernel->weights_feature_stride);
    } while (strided_next(cell, sizes, kernel->spatial_count));
}

void convolution_run_plain(const KernelCall *call) {
    const ConvolutionKernel *kernel = call->compiled;
    bool is_empty = kernel->depth == 0;
    if (kernel->rows == 0 || kernel->outputs == 0) return;
    for (int64_t b = 0; b < kernel->batch; b++) {
        int64_t position[IR_MAX_RANK] = {0};
        do {
            int64_t out = b * kernel->output_batch_stride;
            for (int32_t s = 0; s < kernel->spatial_count; s++)
                out += position[s] * kernel->output_strides[s];
            for (int64_t f = 0; f < kernel->outputs; f++) {
                Sum sum = {.scalar = {.as_unsigned = 0}};
                int64_t group = f / kernel->group_features;
                int64_t base = b * kernel->batch_stride + group * kernel->group_input_step;
                if (!is_empty) sum_window(&sum, call, position, base, f);
                store_sum(call, out + f * kernel->output_feature_stride, &sum);
            }
        } while (strided_next(position, kernel->output_sizes, kernel->spatial_count));
    }
}
