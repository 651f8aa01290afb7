/* convolution: its description, and the table of algorithms.
 *
 * Floats of 32 bits use the first suitable algorithm of the table; narrower floating types are
 * widened to f32, computed in the same way and rounded once; all others run by the definition
 * (convolution_plain.c).
 */
#include "executor/cpu/convolution/convolution.h"

#include <string.h>

#include "executor/array/scalar64.h"
#include "executor/array/strided.h"
#include "executor/cpu/team.h"

enum { CONVERSION_GRAIN = 4096 }; /* elements that are converted by one member of the team */

const ConvolutionAlgorithm *const convolution_algorithms[] = {
    &convolution_indirect, /* contiguous features: forward passes and gradients to the input */
    &convolution_weights,  /* contiguous batch: gradients to the weights */
    &convolution_columns,  /* any layout */
};
const int32_t convolution_algorithm_count = sizeof convolution_algorithms / sizeof *convolution_algorithms;

int64_t convolution_reserve(KernelCall *call, int64_t bytes) {
    int64_t at = kernel_align(call->scratch_bytes);
    call->scratch_bytes = at + kernel_align(bytes);
    return at;
}

static bool is_empty(const ConvolutionKernel *kernel) {
    return kernel->rows == 0 || kernel->outputs == 0 || kernel->depth == 0;
}

static void compute_convolution(const KernelCall *call, const void *in, const void *weights, float *out) {
    const ConvolutionKernel *kernel = call->compiled;
    if (!is_empty(kernel)) kernel->algorithm->run(call, in, weights, out);
    else memset(out, 0, sizeof(float) * (size_t)ir_shape_elements(call->result_shapes[0]));
}

static void run_single(const KernelCall *call) {
    compute_convolution(call, call->operands[0], call->operands[1], call->results[0]);
}

/* One array on its way to or from f32. */
typedef struct Conversion {
    void *out;
    const void *in;
    Dtype to, from;
    int64_t elements;
} Conversion;

static void convert_part(void *user, int32_t part, int32_t parts) {
    const Conversion *conversion = user;
    Scalar64 run[SCALAR64_RUN];
    int64_t first, end;
    team_stretch(conversion->elements, SCALAR64_RUN, part, parts, &first, &end);
    for (int64_t at = first; at < end; at += SCALAR64_RUN) {
        int64_t n = end - at < SCALAR64_RUN ? end - at : SCALAR64_RUN;
        scalar64_load(run, (const char *)conversion->in + at * dtype_bytes(conversion->from),
                      conversion->from, n, 1);
        scalar64_store((char *)conversion->out + at * dtype_bytes(conversion->to), conversion->to, run,
                       SCALAR64_FLOATING, n, 1);
    }
}

static void convert_elements(const KernelCall *call, void *out, Dtype to, const void *in, Dtype from,
                             const IrShape *shape) {
    Conversion conversion = {out, in, to, from, ir_shape_elements(shape)};
    int32_t parts = conversion.elements > CONVERSION_GRAIN ? team_size(call->device) : 1;
    team_run(call->device, convert_part, &conversion, parts);
}

/* Types below 32 bits: the same on f32 copies. */
static void run_widened(const KernelCall *call) {
    const ConvolutionKernel *kernel = call->compiled;
    char *in = (char *)call->scratch + kernel->f32_input_at;
    char *weights = (char *)call->scratch + kernel->f32_weights_at;
    float *out = (float *)((char *)call->scratch + kernel->f32_output_at);
    convert_elements(call, in, DTYPE_F32, call->operands[0], kernel->input_type, call->operand_shapes[0]);
    convert_elements(call, weights, DTYPE_F32, call->operands[1], kernel->weights_type,
                     call->operand_shapes[1]);
    compute_convolution(call, in, weights, out);
    convert_elements(call, call->results[0], kernel->output_type, out, DTYPE_F32, call->result_shapes[0]);
}

static bool is_at_most_single(Dtype type) {
    return dtype_is_floating(type) && dtype_bits(type) <= 32;
}

/* Sizes and strides by spatial dimension, from the labels. */
static void describe_sizes(ConvolutionKernel *kernel, const IrConvolution *form, const KernelCall *call) {
    const IrShape *input = call->operand_shapes[0], *weights = call->operand_shapes[1];
    const IrShape *output = call->result_shapes[0];
    int64_t in[IR_MAX_RANK], of_weights[IR_MAX_RANK], out[IR_MAX_RANK];
    strided_row_major(in, input->dimensions, input->rank);
    strided_row_major(of_weights, weights->dimensions, weights->rank);
    strided_row_major(out, output->dimensions, output->rank);
    kernel->batch_stride = in[form->input_batch];
    kernel->feature_stride = in[form->input_feature];
    kernel->weights_feature_stride = of_weights[form->kernel_input_feature];
    kernel->weights_output_stride = of_weights[form->kernel_output_feature];
    kernel->output_batch_stride = out[form->output_batch];
    kernel->output_feature_stride = out[form->output_feature];
    kernel->batch = output->dimensions[form->output_batch];
    kernel->features = weights->dimensions[form->kernel_input_feature];
    kernel->outputs = output->dimensions[form->output_feature];
    kernel->rows = kernel->batch;
    kernel->depth = kernel->features;
    for (int32_t s = 0; s < form->spatial_count; s++) {
        kernel->input_sizes[s] = input->dimensions[form->input_spatial[s]];
        kernel->input_strides[s] = in[form->input_spatial[s]];
        kernel->cell_strides[s] = of_weights[form->kernel_spatial[s]];
        kernel->output_sizes[s] = output->dimensions[form->output_spatial[s]];
        kernel->output_strides[s] = out[form->output_spatial[s]];
        kernel->rows *= kernel->output_sizes[s];
        kernel->depth *= kernel->window[s].size;
    }
}

AmStatus convolution_prepare_with(KernelCall *call, const ConvolutionAlgorithm *algorithm, Arena *arena,
                                  AmError *error) {
    const IrAttributes *attributes = call->attributes;
    const IrConvolution *form = attributes->convolution;
    ConvolutionKernel *kernel = ARENA_ARRAY(arena, ConvolutionKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    if (!form || attributes->window_count != form->spatial_count)
        return kernel_call_refuse(call, "its window does not fit its dimensions", error);
    kernel->form = form;
    kernel->spatial_count = form->spatial_count;
    for (int32_t s = 0; s < form->spatial_count; s++) {
        kernel->window[s] = attributes->window[s];
        if (kernel->window[s].base_dilation < 1) kernel->window[s].base_dilation = 1;
        if (kernel->window[s].window_dilation < 1) kernel->window[s].window_dilation = 1;
    }
    describe_sizes(kernel, form, call);
    bool by_batch = form->batch_group_count > 1;
    kernel->groups = by_batch ? form->batch_group_count : form->feature_group_count;
    if (kernel->groups < 1 || kernel->outputs % kernel->groups != 0)
        return kernel_call_refuse(call, "its groups do not divide the features", error);
    kernel->group_features = kernel->outputs / kernel->groups;
    kernel->group_input_step =
        by_batch ? kernel->batch * kernel->batch_stride : kernel->features * kernel->feature_stride;
    kernel->input_type = call->operand_shapes[0]->type;
    kernel->weights_type = call->operand_shapes[1]->type;
    kernel->output_type = call->result_shapes[0]->type;
    call->compiled = kernel;
    bool single = kernel->input_type == DTYPE_F32 && kernel->weights_type == DTYPE_F32 &&
                  kernel->output_type == DTYPE_F32;
    bool widened = !single && is_at_most_single(kernel->input_type) &&
                   is_at_most_single(kernel->weights_type) && is_at_most_single(kernel->output_type);
    if (!single && !widened) {
        Dtype input = kernel->input_type, weights = kernel->weights_type, output = kernel->output_type;
        bool same_kind = scalar64_supports(input) && scalar64_supports(weights) &&
                         scalar64_supports(output) && dtype_is_floating(input) == dtype_is_floating(output) &&
                         dtype_is_floating(weights) == dtype_is_floating(output);
        if (dtype_is_complex(output) ? input != output || weights != output : !same_kind)
            return kernel_call_refuse(call, "not on these types", error);
        call->run = convolution_run_plain;
        return AM_OK;
    }
    call->run = widened ? run_widened : run_single;
    call->scratch_bytes = 0;
    /* The first algorithm that fits, unless one is given. */
    for (int32_t k = 0; !algorithm && k < convolution_algorithm_count; k++)
        if (convolution_algorithms[k]->fits(kernel)) algorithm = convolution_algorithms[k];
    if (!algorithm || !algorithm->fits(kernel))
        return kernel_call_refuse(call, "a dimension is above 2^31", error);
    kernel->algorithm = algorithm;
    if (!is_empty(kernel)) TRY(algorithm->prepare(kernel, call, arena, error));
    if (!widened) return AM_OK;
    const int64_t word = (int64_t)sizeof(float);
    kernel->f32_input_at = convolution_reserve(call, ir_shape_elements(call->operand_shapes[0]) * word);
    kernel->f32_weights_at = convolution_reserve(call, ir_shape_elements(call->operand_shapes[1]) * word);
    kernel->f32_output_at = convolution_reserve(call, ir_shape_elements(call->result_shapes[0]) * word);
    return AM_OK;
}

AmStatus cpu_prepare_convolution(KernelCall *call, Arena *arena, AmError *error) {
    return convolution_prepare_with(call, NULL, arena, error);
}
