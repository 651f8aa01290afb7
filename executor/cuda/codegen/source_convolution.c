/* convolution by itself: every window, dilation, padding, grouping and type.
 *
 * A thread finds batch, feature and position of its element of the result. The
 * window's place p in a dimension reads the input at
 *
 *     (o stride - padding_low + p' window_dilation) / base_dilation
 *
 * with p' = p, or size - 1 - p where the window is reversed, if that division
 * has no rest and the place exists. Feature groups split the input's features,
 * batch groups its batch: group f / (features per group) begins group_step
 * elements further.
 */
#include "executor/array/strided.h"
#include "executor/cuda/codegen/source_product.h"
#include "executor/cuda/codegen/source_text.h"

/* Appends the loop over a spatial dimension's window, with "continue" for padding. */
static void append_window(Text *out, int32_t s, const IrWindowDimension *window, int64_t output,
                          int64_t input_size) {
    int64_t stride = window->stride > 0 ? window->stride : 1;
    int64_t dilation = window->window_dilation > 0 ? window->window_dilation : 1;
    int64_t base = window->base_dilation > 0 ? window->base_dilation : 1;
    text_append(out, "    for (s64 w%d = 0; w%d < %lldll; w%d++) {\n", s, s, (long long)window->size, s);
    text_append(out, "    const s64 q%d = d%lld * %lldll - (%lldll) + ", s, (long long)output,
                (long long)stride, (long long)window->padding_low);
    if (window->reversal) text_append(out, "(%lldll - w%d)", (long long)window->size - 1, s);
    else text_append(out, "w%d", s);
    text_append(out, " * %lldll;\n", (long long)dilation);
    text_append(out, "    if (q%d < 0", s);
    if (base > 1) text_append(out, " || q%d %% %lldll != 0", s, (long long)base);
    text_append(out, ") continue;\n    const s64 p%d = q%d / %lldll;\n", s, s, (long long)base);
    text_append(out, "    if (p%d >= %lldll) continue;\n", s, (long long)input_size);
}

static void append_places(Text *out, const KernelCall *call, const IrConvolution *form) {
    const IrShape *input = call->operand_shapes[0], *weights = call->operand_shapes[1];
    int64_t strides[IR_MAX_RANK], weight_strides[IR_MAX_RANK];
    strided_row_major(strides, input->dimensions, input->rank);
    strided_row_major(weight_strides, weights->dimensions, weights->rank);
    text_append(out, "    const s64 at0 = base0 + c * %lldll", (long long)strides[form->input_feature]);
    for (int32_t s = 0; s < form->spatial_count; s++)
        text_append(out, " + p%d * %lldll", s, (long long)strides[form->input_spatial[s]]);
    text_append(out, ";\n    const s64 at1 = base1 + c * %lldll",
                (long long)weight_strides[form->kernel_input_feature]);
    for (int32_t s = 0; s < form->spatial_count; s++)
        text_append(out, " + w%d * %lldll", s, (long long)weight_strides[form->kernel_spatial[s]]);
    text_append_string(out, ";\n");
}

/* Appends the offsets of the input's batch (and group) and of the kernel's feature. */
static void append_bases(Text *out, const KernelCall *call, const IrConvolution *form, int64_t groups) {
    const IrShape *input = call->operand_shapes[0], *weights = call->operand_shapes[1];
    const IrShape *output = call->result_shapes[0];
    int64_t strides[IR_MAX_RANK], weight_strides[IR_MAX_RANK];
    strided_row_major(strides, input->dimensions, input->rank);
    strided_row_major(weight_strides, weights->dimensions, weights->rank);
    int64_t step = form->batch_group_count > 1
                       ? output->dimensions[form->output_batch] * strides[form->input_batch]
                       : weights->dimensions[form->kernel_input_feature] * strides[form->input_feature];
    text_append(out, "    const s64 base0 = d%lld * %lldll + d%lld / %lldll * %lldll;\n",
                (long long)form->output_batch, (long long)strides[form->input_batch],
                (long long)form->output_feature,
                (long long)(output->dimensions[form->output_feature] / groups), (long long)step);
    text_append(out, "    const s64 base1 = d%lld * %lldll;\n", (long long)form->output_feature,
                (long long)weight_strides[form->kernel_output_feature]);
}

AmStatus cuda_source_convolution(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error) {
    const IrAttributes *attributes = call->attributes;
    const IrConvolution *form = attributes->convolution;
    const IrShape *input = call->operand_shapes[0], *weights = call->operand_shapes[1];
    const IrShape *output = call->result_shapes[0];
    if (!form || attributes->window_count != form->spatial_count)
        return kernel_call_refuse(call, "its window does not fit its dimensions", error);
    Dtype product = cuda_product_type(input->type, weights->type, output->type);
    if (product == DTYPE_INVALID || dtype_is_floating(input->type) != dtype_is_floating(output->type))
        return kernel_call_refuse(call, "not on these types", error);
    int64_t groups = form->batch_group_count > 1 ? form->batch_group_count : form->feature_group_count;
    if (groups < 1 || output->dimensions[form->output_feature] % groups != 0)
        return kernel_call_refuse(call, "its groups do not divide the features", error);
    *source = (CudaSource){.arena = arena, .parameters = call->operand_count + call->result_count};
    int64_t elements = ir_shape_elements(output);
    Text body = {0};
    cuda_append_signature(&body, call, source, NULL, false);
    if (elements > 0) {
        cuda_append_result_index(&body, call);
        append_bases(&body, call, form, groups);
        cuda_append_sum(&body, product);
        for (int32_t s = 0; s < form->spatial_count; s++)
            append_window(&body, s, &attributes->window[s], form->output_spatial[s],
                          input->dimensions[form->input_spatial[s]]);
        text_append(&body, "    for (s64 c = 0; c < %lldll; c++) {\n",
                    (long long)weights->dimensions[form->kernel_input_feature]);
        append_places(&body, call, form);
        text_append_string(&body, "    ");
        cuda_append_product(&body, call, product);
        for (int32_t s = 0; s < form->spatial_count + 1; s++) text_append_string(&body, "    }\n");
        cuda_append_result(&body, call, product);
    }
    return cuda_source_launch(source, "convolution", &body, cuda_blocks(elements), CUDA_THREADS, error);
}
