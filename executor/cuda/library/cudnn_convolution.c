/* Runs an HLO convolution as a kernel of cuDNN, if it has one of cuDNN's three forms.
 *
 * Names: x input, w filter, y output; along each spatial dimension window size k, stride s, dilations b of
 * the base and d of the window, and padding l at the low end. The first case that applies counts:
 *
 *   condition                                     kernel
 *   1  no cuDNN; other types; b > 1 with s > 1    generated (source_convolution.c)
 *      or with groups of the batch; groups of
 *      both kinds; only some dimensions reversed
 *   2  b > 1                                      input gradient: y = lhs, w = rhs, x = result, stride b,
 *                                                 dilation d, padding (k - 1) d - l, the filter reversed
 *   3  groups of the batch (not reversed, or      filter gradient: x = lhs, y = rhs, w = result, stride d,
 *      generated); or, without groups and         dilation s, padding l; the sum is over HLO's feature
 *      reversal, a window larger than the result
 *   4  others                                     forward: x = lhs, w = rhs, y = result, stride s,
 *                                                 dilation d, padding l
 *   5  2 to 4, if cuDNN has no kernel        the same with all operands packed, features first; then
 *                                                 the generated kernel
 *
 * cuDNN pads both sides of x by the same number. If HLO's paddings differ, x is padded or cropped by a pack,
 * and the padding is 0. A filter is packed unless its strides are those that cuDNN takes.
 */
#include <string.h>

#include "base/cuda/dnn.h"
#include "executor/array/strided.h"
#include "executor/cuda/codegen/move/pack.h"
#include "executor/cuda/cuda.h"

#define MOST_RANK (3 + CUDA_MOST_SPATIAL) /* a filter in groups has one more */

enum { LHS, RHS, RESULT, ARRAY_COUNT };

/* One of x, w, y: dimensions [batch or output feature, feature, spatial...], of a filter whose groups
 * are apart [group, output feature, feature, spatial...]. */
typedef struct Tensor {
    int32_t array, rank;
    int64_t sizes[MOST_RANK];   /* as cuDNN sees it */
    int64_t limits[MOST_RANK];  /* in the HLO array */
    int64_t low[MOST_RANK];     /* what cuDNN sees begins so far before the array */
    int64_t strides[MOST_RANK]; /* in the HLO array */
    int64_t packed_strides[MOST_RANK];
    bool packed;
} Tensor;

typedef struct Form {
    CudaConvolutionShape shape;
    Tensor x, w, y;
} Form;

typedef struct ConvolutionKernel {
    CudaConvolution *convolution;
    KernelCall packs[ARRAY_COUNT];
    bool packed[ARRAY_COUNT];
    int64_t packed_at[ARRAY_COUNT], workspace_at; /* in the scratch memory */
    int32_t x, w, y;                              /* arrays */
    CudaSpare *spare;                             /* NULL: the convolution has been tried */
} ConvolutionKernel;

static int64_t at_least_one(int64_t value) {
    return value < 1 ? 1 : value;
}

/* Dimensions of an HLO array in the order in which cuDNN counts them. */
static Tensor describe_tensor(const KernelCall *call, int32_t array, int64_t first, int64_t feature,
                              const int64_t *spatial, int32_t spatial_count) {
    const IrShape *shape = array == RESULT ? call->result_shapes[0] : call->operand_shapes[array];
    Tensor tensor = {.array = array, .rank = 2 + spatial_count};
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, shape->dimensions, shape->rank);
    for (int32_t d = 0; d < tensor.rank; d++) {
        int64_t from = d == 0 ? first : d == 1 ? feature : spatial[d - 2];
        tensor.sizes[d] = tensor.limits[d] = shape->dimensions[from];
        tensor.strides[d] = strides[from];
    }
    return tensor;
}

/* A filter [in / groups, out] of a gradient is [out / groups, in] to the forward pass: groups come apart. */
static void split_groups(Tensor *filter, int64_t groups) {
    if (groups == 1) return;
    for (int32_t d = filter->rank; d > 0; d--) {
        filter->sizes[d] = filter->sizes[d - 1];
        filter->strides[d] = filter->strides[d - 1];
    }
    filter->rank++;
    filter->sizes[0] = groups;
    filter->sizes[2] /= groups;
    filter->strides[0] = filter->sizes[2] * filter->strides[2];
    memcpy(filter->limits, filter->sizes, sizeof filter->limits);
}

static void describe_forward(Form *form, const KernelCall *call, const IrConvolution *hlo) {
    const IrAttributes *attributes = call->attributes;
    form->shape.kind = CUDA_CONVOLUTION_FORWARD;
    form->shape.groups = hlo->feature_group_count;
    form->x = describe_tensor(call, LHS, hlo->input_batch, hlo->input_feature, hlo->input_spatial,
                              hlo->spatial_count);
    form->w = describe_tensor(call, RHS, hlo->kernel_output_feature, hlo->kernel_input_feature,
                              hlo->kernel_spatial, hlo->spatial_count);
    form->y = describe_tensor(call, RESULT, hlo->output_batch, hlo->output_feature, hlo->output_spatial,
                              hlo->spatial_count);
    for (int32_t s = 0; s < hlo->spatial_count; s++) {
        const IrWindowDimension *window = &attributes->window[s];
        form->shape.stride[s] = at_least_one(window->stride);
        form->shape.dilation[s] = at_least_one(window->window_dilation);
        form->shape.padding[s] = window->padding_low;
        form->shape.flipped |= window->reversal && window->size > 1;
    }
}

static void describe_input_gradient(Form *form, const KernelCall *call, const IrConvolution *hlo) {
    const IrAttributes *attributes = call->attributes;
    form->shape.kind = CUDA_CONVOLUTION_INPUT_GRADIENT;
    form->shape.groups = hlo->feature_group_count;
    form->x = describe_tensor(call, RESULT, hlo->output_batch, hlo->output_feature, hlo->output_spatial,
                              hlo->spatial_count);
    form->w = describe_tensor(call, RHS, hlo->kernel_input_feature, hlo->kernel_output_feature,
                              hlo->kernel_spatial, hlo->spatial_count);
    form->y = describe_tensor(call, LHS, hlo->input_batch, hlo->input_feature, hlo->input_spatial,
                              hlo->spatial_count);
    split_groups(&form->w, form->shape.groups);
    form->shape.flipped = true;
    for (int32_t s = 0; s < hlo->spatial_count; s++) {
        const IrWindowDimension *window = &attributes->window[s];
        form->shape.stride[s] = at_least_one(window->base_dilation);
        form->shape.dilation[s] = at_least_one(window->window_dilation);
        form->shape.padding[s] = (window->size - 1) * form->shape.dilation[s] - window->padding_low;
        if (window->reversal && window->size > 1) form->shape.flipped = false;
    }
}

static void describe_filter_gradient(Form *form, const KernelCall *call, const IrConvolution *hlo) {
    const IrAttributes *attributes = call->attributes;
    form->shape.kind = CUDA_CONVOLUTION_FILTER_GRADIENT;
    form->shape.groups = hlo->batch_group_count;
    form->x = describe_tensor(call, LHS, hlo->input_feature, hlo->input_batch, hlo->input_spatial,
                              hlo->spatial_count);
    form->w = describe_tensor(call, RESULT, hlo->output_feature, hlo->output_batch, hlo->output_spatial,
                              hlo->spatial_count);
    form->y = describe_tensor(call, RHS, hlo->kernel_input_feature, hlo->kernel_output_feature,
                              hlo->kernel_spatial, hlo->spatial_count);
    for (int32_t s = 0; s < hlo->spatial_count; s++) {
        const IrWindowDimension *window = &attributes->window[s];
        form->shape.stride[s] = at_least_one(window->window_dilation);
        form->shape.dilation[s] = at_least_one(window->stride);
        form->shape.padding[s] = window->padding_low;
    }
}

/* The properties for the choice of a form, over all spatial dimensions. */
typedef struct Windows {
    bool strided, base_dilated, reversed, mixed; /* mixed: reversed in some only */
    int64_t size, result;                        /* products */
} Windows;

static Windows describe_windows(const KernelCall *call, const IrConvolution *hlo) {
    const IrAttributes *attributes = call->attributes;
    Windows seen = {.size = 1, .result = 1};
    bool straight = false;
    for (int32_t s = 0; s < hlo->spatial_count; s++) {
        const IrWindowDimension *window = &attributes->window[s];
        seen.strided |= window->stride > 1;
        seen.base_dilated |= window->base_dilation > 1;
        seen.reversed |= window->reversal && window->size > 1;
        straight |= !window->reversal && window->size > 1;
        seen.size *= window->size;
        seen.result *= call->result_shapes[0]->dimensions[hlo->output_spatial[s]];
    }
    seen.mixed = seen.reversed && straight;
    return seen;
}

/* Chooses one of the three forms; false if none applies. */
static bool choose_form(Form *form, const KernelCall *call, const IrConvolution *hlo) {
    Windows seen = describe_windows(call, hlo);
    bool in_batches = hlo->batch_group_count > 1, in_features = hlo->feature_group_count > 1;
    if (hlo->spatial_count < 1 || hlo->spatial_count > CUDA_MOST_SPATIAL || seen.mixed ||
        (in_batches && in_features))
        return false;
    if (seen.base_dilated) {
        if (seen.strided || in_batches) return false;
        describe_input_gradient(form, call, hlo);
    } else if (in_batches || (!in_features && !seen.reversed && seen.result < seen.size)) {
        if (seen.reversed) return false;
        describe_filter_gradient(form, call, hlo);
    } else {
        describe_forward(form, call, hlo);
    }
    return true;
}

/* If symmetric padding does not give the sizes, x is exactly the elements covered by the windows,
 * and its pack does the padding. */
static void settle_padding(Form *form) {
    CudaConvolutionShape *shape = &form->shape;
    int32_t first = form->w.rank - shape->spatial_count;
    bool fits = true;
    for (int32_t s = 0; s < shape->spatial_count; s++) {
        int64_t room = form->x.sizes[2 + s] + 2 * shape->padding[s] -
                       ((form->w.sizes[first + s] - 1) * shape->dilation[s] + 1);
        fits &= shape->padding[s] >= 0 && room >= 0 && room / shape->stride[s] + 1 == form->y.sizes[2 + s];
    }
    for (int32_t s = 0; s < shape->spatial_count && !fits; s++) {
        form->x.low[2 + s] = shape->padding[s];
        form->x.sizes[2 + s] = (form->y.sizes[2 + s] - 1) * shape->stride[s] +
                               (form->w.sizes[first + s] - 1) * shape->dilation[s] + 1;
        shape->padding[s] = 0;
    }
    form->x.packed |= !fits;
}

/* Strides of a dense array with the spatial dimensions after all others, or before the feature. */
static void lay_densely(Tensor *tensor, int32_t spatial_count, bool features_last) {
    int32_t feature = tensor->rank - spatial_count - 1;
    int64_t stride = 1;
    if (features_last) {
        tensor->packed_strides[feature] = 1;
        stride = tensor->sizes[feature];
    }
    for (int32_t d = tensor->rank - 1; d >= 0; d--) {
        if (features_last && d == feature) continue;
        tensor->packed_strides[d] = stride;
        stride *= tensor->sizes[d];
    }
}

static bool lies_densely(const Tensor *tensor) {
    for (int32_t d = 0; d < tensor->rank; d++)
        if (tensor->sizes[d] > 1 && tensor->strides[d] != tensor->packed_strides[d]) return false;
    return true;
}

/* Decides on the packed operands, and completes cuDNN's description. */
static void lay_out(Form *form, bool pack_all) {
    CudaConvolutionShape *shape = &form->shape;
    int32_t count = shape->spatial_count, first = form->w.rank - count;
    shape->features_last = !pack_all && form->x.strides[1] == 1;
    lay_densely(&form->x, count, shape->features_last);
    lay_densely(&form->w, count, shape->features_last);
    lay_densely(&form->y, count, shape->features_last);
    form->x.packed |= pack_all && !lies_densely(&form->x);
    form->y.packed = pack_all && !lies_densely(&form->y);
    form->w.packed = !lies_densely(&form->w);
    shape->batch = form->x.sizes[0];
    shape->input_features = form->x.sizes[1];
    shape->output_features = form->y.sizes[1];
    for (int32_t d = 0; d < 2 + count; d++) {
        shape->input_strides[d] = form->x.packed ? form->x.packed_strides[d] : form->x.strides[d];
        shape->output_strides[d] = form->y.packed ? form->y.packed_strides[d] : form->y.strides[d];
    }
    for (int32_t s = 0; s < count; s++) {
        shape->input_sizes[s] = form->x.sizes[2 + s];
        shape->filter_sizes[s] = form->w.sizes[first + s];
        shape->output_sizes[s] = form->y.sizes[2 + s];
    }
}

/* Describes the pack from the array to cuDNN's operand or, for the result, from cuDNN's output to the array.
 * Dimensions have the order of the destination. */
static CudaPack describe_pack(const Tensor *tensor) {
    bool back = tensor->array == RESULT;
    const int64_t *written = back ? tensor->strides : tensor->packed_strides;
    const int64_t *read = back ? tensor->packed_strides : tensor->strides;
    CudaPack pack = {0};
    bool taken[MOST_RANK] = {false};
    for (int32_t n = 0; n < tensor->rank; n++) {
        int32_t next = -1;
        for (int32_t d = 0; d < tensor->rank; d++)
            if (!taken[d] && (next < 0 || written[d] > written[next])) next = d;
        taken[next] = true;
        cuda_pack_add(&pack, back ? tensor->limits[next] : tensor->sizes[next], read[next]);
        pack.low[n] = back ? -tensor->low[next] : tensor->low[next];
        pack.limits[n] = back ? tensor->sizes[next] : tensor->limits[next];
    }
    return pack;
}

static void bind_convolution(const KernelCall *call) {
    const ConvolutionKernel *kernel = call->compiled;
    for (int32_t k = 0; k < ARRAY_COUNT; k++) {
        if (!kernel->packed[k]) continue;
        void *array = k == RESULT ? call->results[0] : call->operands[k];
        void *packed = (char *)call->scratch + kernel->packed_at[k];
        kernel->packs[k].operands[0] = k == RESULT ? packed : array;
        kernel->packs[k].results[0] = k == RESULT ? array : packed;
    }
}

static void *array_of(const KernelCall *call, int32_t array) {
    const ConvolutionKernel *kernel = call->compiled;
    if (kernel->packed[array]) return (char *)call->scratch + kernel->packed_at[array];
    return array == RESULT ? call->results[0] : call->operands[array];
}

static void run_convolution(const KernelCall *call) {
    const ConvolutionKernel *kernel = call->compiled;
    CudaKernelDevice *device = cuda_device_of(call->device);
    CudaConvolutionBuffers buffers = {.input = array_of(call, kernel->x),
                                      .filter = array_of(call, kernel->w),
                                      .output = array_of(call, kernel->y),
                                      .workspace = (char *)call->scratch + kernel->workspace_at};
    AmError failure = {0};
    if (kernel->spare && cuda_convolution_is_refused(kernel->convolution)) {
        cuda_run_spare(kernel->spare, call, NULL);
        return;
    }
    for (int32_t k = 0; k < RESULT; k++)
        if (kernel->packed[k]) kernel->packs[k].run(&kernel->packs[k]);
    AmStatus status = cuda_convolution_run(kernel->convolution, device->compute, &buffers, &failure);
    if (status == AM_ERROR_INPUT && kernel->spare) {
        cuda_run_spare(kernel->spare, call, &failure);
        return;
    }
    if (status != AM_OK) cuda_note_failure(device, &failure);
    if (kernel->packed[RESULT]) kernel->packs[RESULT].run(&kernel->packs[RESULT]);
}

/* AM_ERROR_INPUT: cuDNN does not support it. */
static AmStatus make_convolution(ConvolutionKernel *kernel, Form *form, const KernelCall *call,
                                 const IrConvolution *hlo, AmError *error) {
    CudaKernelDevice *device = cuda_device_of(call->device);
    AmStatus status = AM_ERROR_INPUT;
    for (int32_t attempt = 0; attempt < 2 && status == AM_ERROR_INPUT; attempt++) {
        AmError reason = {0};
        *form = (Form){.shape = {.type = call->result_shapes[0]->type,
                                 .tf32 = device->tf32,
                                 .spatial_count = hlo->spatial_count}};
        if (!choose_form(form, call, hlo))
            return am_fail(error, AM_ERROR_INPUT, "", "cuDNN does not support this convolution");
        settle_padding(form);
        lay_out(form, attempt > 0);
        status = cuda_convolution_make(&kernel->convolution, device->dnn, &form->shape, &reason);
        if (status != AM_OK && (attempt > 0 || status != AM_ERROR_INPUT))
            return am_fail(error, status, "", "%s", reason.text);
    }
    return status;
}

static AmStatus prepare_packs(ConvolutionKernel *kernel, KernelCall *call, Arena *arena, const Form *form,
                              AmError *error) {
    const Tensor *tensors[] = {&form->x, &form->w, &form->y};
    int64_t scratch = 0;
    for (int32_t k = 0; k < 3; k++) {
        const Tensor *tensor = tensors[k];
        if (!tensor->packed) continue;
        CudaPack pack = describe_pack(tensor);
        kernel->packed[tensor->array] = true;
        kernel->packed_at[tensor->array] = scratch;
        scratch +=
            kernel_align(strided_elements(tensor->sizes, tensor->rank) * dtype_bytes(form->shape.type));
        TRY(cuda_prepare_pack(&kernel->packs[tensor->array], arena, call, &pack, form->shape.type, error));
    }
    kernel->workspace_at = scratch;
    return AM_OK;
}

AmStatus cuda_prepare_convolution(KernelCall *call, Arena *arena, AmError *error) {
    const IrAttributes *attributes = call->attributes;
    const IrConvolution *hlo = attributes->convolution;
    CudaKernelDevice *device = cuda_device_of(call->device);
    AmError reason = {0};
    Form form;
    Dtype type = call->result_shapes[0]->type;
    bool is_convolved = (type == DTYPE_F32 || type == DTYPE_F64 || dtype_is_16bit_float(type)) &&
                        call->operand_shapes[0]->type == type && call->operand_shapes[1]->type == type &&
                        ir_shape_elements(call->operand_shapes[0]) > 0 &&
                        ir_shape_elements(call->operand_shapes[1]) > 0 &&
                        ir_shape_elements(call->result_shapes[0]) > 0;
    if (!hlo || attributes->window_count != hlo->spatial_count || !is_convolved)
        return cuda_prepare_plain(call, arena, error);
    if (cuda_open_dnn(device, &reason) != AM_OK)
        return cuda_prepare_without_dnn(call, arena, reason.text, error);
    ConvolutionKernel *kernel = ARENA_ARRAY(arena, ConvolutionKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    AmStatus status = make_convolution(kernel, &form, call, hlo, &reason);
    if (status == AM_ERROR_INPUT) return cuda_prepare_refused(call, arena, &reason, error);
    if (status != AM_OK) return am_fail(error, status, "", "%s", reason.text);
    TRY(prepare_packs(kernel, call, arena, &form, error));
    kernel->x = form.x.array;
    kernel->w = form.w.array;
    kernel->y = form.y.array;
    call->scratch_bytes = kernel->workspace_at + cuda_convolution_workspace(kernel->convolution);
    if (!cuda_convolution_is_tried(kernel->convolution)) {
        am_warn(device->warnings, "there is no memory to try cuDNN's algorithms of some convolutions "
                                  "beforehand: the first step does");
        TRY(cuda_prepare_spare(&kernel->spare, call, arena, error));
    }
    call->compiled = kernel;
    call->bind = bind_convolution;
    call->run = run_convolution;
    return AM_OK;
}
