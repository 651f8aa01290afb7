/* Fused attention by cuDNN, where the region is plain attention of 16-bit operands (softmax_form.h).
 *
 * cuDNN takes arrays [batch, head, row or key, width] with one stride each. The labels of units are divided
 * among batch and heads so that cuDNN reads most arrays in place; the others are packed, and so are results
 * of another type. A region of gradients has no output of the forward pass, which cuDNN needs:
 *
 *     log-sum-exp = maximum + log(sum)        the saved statistics
 *     o, own = forward pass                   own: its log-sum-exp
 *     o = o exp(own - log-sum-exp)            where the statistics are of other scores, so are the weights
 *     dq, dk, dv = backward pass
 *
 * The scratch memory has packed arrays, o and the statistics: linear in rows and in keys. For a shape without
 * an engine in cuDNN, the generated kernels of source_region.h run.
 */
#include <stdio.h>
#include <string.h>

#include "base/cuda/dnn_attention.h"
#include "executor/attention/softmax_form.h"
#include "executor/cuda/codegen/source_text.h"
#include "executor/cuda/cuda.h"

/* One array of cuDNN: an operand or result of the call as it lies, or an array in the scratch memory. */
typedef struct Placed {
    int32_t array; /* of the call: operands, then results; -1: it is in the scratch memory */
    int64_t at;    /* there: its first byte */
} Placed;

typedef struct AttentionKernel {
    CudaAttention *forward, *backward; /* backward NULL: a forward region */
    Placed placed[2][ATTENTION_ARRAY_COUNT];
    KernelCall before, between, after; /* generated kernels that pack; no launches: nothing to do */
    int64_t workspace_at;
} AttentionKernel;

typedef struct Planner {
    const KernelCall *call;
    Arena *arena;
    AttentionKernel *kernel;
    SoftmaxForm form;
    CudaAttentionShape shape;
    int32_t unit_count, head_first; /* units of keys; from that one on they are heads */
    int32_t *units;                 /* labels: those of keys, then the groups of queries */
    int32_t all_units;
    int64_t scratch_bytes;
    CudaSource before, between, after;
} Planner;

static const Program *region_of(const Planner *self) {
    return self->call->instruction->regions.programs[0];
}

static const IrShape *shape_of(const Planner *self, int32_t value) {
    return &region_of(self)->values[value].shape;
}

static int64_t size_of(const Planner *self, int32_t label) {
    return self->form.blocks.labels.sizes[label];
}

/* Returns the stride of a label in an array of the value's shape. */
static int64_t stride_of(const Planner *self, int32_t value, int32_t label) {
    const ValueLabels *labels = &self->form.blocks.labels.values[value];
    int64_t stride = 1;
    for (int32_t k = labels->count - 1; k >= 0 && labels->list[k] != label; k--)
        stride *= size_of(self, labels->list[k]);
    return stride;
}

static bool has(const Planner *self, int32_t value, int32_t label) {
    return region_labels_has(&self->form.blocks.labels, value, label);
}

/* Finds batch and heads: units of keys before `head_first`, and the others. */
static void find_units(Planner *self) {
    const Program *region = region_of(self);
    int32_t keys = region->parameters[self->form.keys], queries = region->parameters[self->form.queries];
    const ValueLabels *of_keys = &self->form.blocks.labels.values[keys];
    const ValueLabels *of_queries = &self->form.blocks.labels.values[queries];
    int32_t scores = self->form.blocks.scores->first_result;
    for (int32_t k = 0; k < of_keys->count; k++)
        if (of_keys->list[k] != self->form.key && has(self, scores, of_keys->list[k]))
            self->units[self->unit_count++] = of_keys->list[k];
    self->all_units = self->unit_count;
    for (int32_t k = 0; k < of_queries->count; k++)
        if (of_queries->list[k] != self->form.row && has(self, scores, of_queries->list[k]) &&
            !has(self, keys, of_queries->list[k]))
            self->units[self->all_units++] = of_queries->list[k];
}

/* Finds one size and stride for a run of labels, the last one innermost; false: there is none. Labels that
 * the value lacks must be all or none. */
static bool join(const Planner *self, int32_t value, const int32_t *labels, int32_t count, int64_t *size,
                 int64_t *stride) {
    int32_t present = 0;
    *size = *stride = 1;
    for (int32_t k = count - 1; k >= 0; k--) {
        if (!has(self, value, labels[k])) continue;
        int64_t own = stride_of(self, value, labels[k]);
        if (present++ == 0) *stride = own;
        else if (own != *stride * *size) return false;
        *size *= size_of(self, labels[k]);
    }
    return present == 0 || present == count;
}

/* Sizes and strides of an array as it lies; false: cuDNN cannot read it. */
static bool lay_out(const Planner *self, int32_t value, int32_t line, int32_t width, int64_t sizes[DNN_RANK],
                    int64_t strides[DNN_RANK]) {
    int32_t units = has(self, value, self->form.key) && !has(self, value, self->form.row) ? self->unit_count
                                                                                          : self->all_units;
    if (!join(self, value, self->units, self->head_first, &sizes[0], &strides[0]) ||
        !join(self, value, self->units + self->head_first, units - self->head_first, &sizes[1],
              &strides[1]) ||
        !join(self, value, &line, 1, &sizes[2], &strides[2]))
        return false;
    sizes[3] = width >= 0 ? size_of(self, width) : 1;
    strides[3] = width >= 0 ? stride_of(self, value, width) : 1;
    if (strides[3] != 1) return false;
    for (int32_t d = 2; d >= 0; d--) /* a dimension of size 1 steps over all others */
        if (sizes[d] == 1) strides[d] = strides[d + 1] * sizes[d + 1];
    return true;
}

/* Labels of an array in the order in which cuDNN gets it if it is packed. */
static int32_t list_packed(const Planner *self, int32_t list[REGION_MOST_LABELS], bool is_key, int32_t line,
                           int32_t width) {
    int32_t count = 0;
    for (int32_t k = 0; k < (is_key ? self->unit_count : self->all_units); k++)
        list[count++] = self->units[k];
    list[count++] = line;
    if (width >= 0) list[count++] = width;
    return count;
}

static int64_t reserve(Planner *self, int64_t bytes) {
    int64_t at = self->scratch_bytes;
    self->scratch_bytes += kernel_align(bytes);
    return at;
}

/* Sets the row-major strides of a packed array, and returns its elements. */
static int64_t pack_strides(const Planner *self, bool is_key, bool is_row, int64_t strides[DNN_RANK]) {
    const CudaAttentionShape *shape = &self->shape;
    int64_t lines = is_key ? shape->keys : shape->rows, width = is_row ? 1 : shape->width;
    strides[3] = 1;
    strides[2] = width;
    strides[1] = lines * width;
    strides[0] = (is_key ? shape->key_heads : shape->heads) * lines * width;
    return shape->batch * strides[0];
}

/* Begins a kernel with a thread for each element of an array with these labels; "d0", "d1" are its place. */
static int64_t begin_copy(Planner *self, CudaSource *source, Text *body, const int32_t *list, int32_t count) {
    int64_t dimensions[REGION_MOST_LABELS], elements = 1;
    for (int32_t k = 0; k < count; k++) elements *= dimensions[k] = size_of(self, list[k]);
    cuda_append_signature(body, self->call, source, "u8", false);
    cuda_append_guard(body, elements);
    cuda_append_coordinates(body, "d", dimensions, count);
    return elements;
}

/* Appends the place of an element in an array of the value's shape. */
static void append_place(const Planner *self, Text *body, const int32_t *list, int32_t count, int32_t value) {
    int64_t strides[REGION_MOST_LABELS];
    for (int32_t k = 0; k < count; k++)
        strides[k] = has(self, value, list[k]) ? stride_of(self, value, list[k]) : 0;
    cuda_append_dot(body, "d", strides, count);
}

static AmStatus launch(CudaSource *source, Text *body, int64_t elements, AmError *error) {
    text_append_string(body, "}\n");
    return cuda_source_launch(source, "attention", body, cuda_blocks(elements), CUDA_THREADS, error);
}

/* Copies an operand to the scratch memory in the order of the labels. */
static AmStatus pack(Planner *self, int32_t operand, int64_t at, const int32_t *list, int32_t count,
                     AmError *error) {
    Text body = {0};
    int32_t value = region_of(self)->parameters[operand];
    int64_t elements = begin_copy(self, &self->before, &body, list, count);
    text_append(&body, "((%s *)(scratch + %lldull))[i] = in%d[",
                cuda_memory_type(shape_of(self, value)->type), (long long)at, operand);
    append_place(self, &body, list, count, value);
    text_append_string(&body, "];\n");
    return launch(&self->before, &body, elements, error);
}

/* Copies a packed array of `type` to a result, and converts it. */
static AmStatus unpack(Planner *self, int32_t output, Dtype type, int64_t at, const int32_t *list,
                       int32_t count, AmError *error) {
    Text body = {0}, load = {0}, converted = {0};
    char element[96];
    int32_t value = region_of(self)->outputs[output];
    Dtype to = shape_of(self, value)->type;
    int64_t elements = begin_copy(self, &self->after, &body, list, count);
    snprintf(element, sizeof element, "((const %s *)(scratch + %lldull))[i]", cuda_memory_type(type),
             (long long)at);
    cuda_append_load(&load, type, element);
    cuda_append_convert(&converted, type, to, load.failed ? "" : load.data);
    text_append(&body, "const %s v = %s;\nout%d[", cuda_value_type(to),
                converted.failed ? "" : converted.data, output);
    append_place(self, &body, list, count, value);
    text_append_string(&body, "] = ");
    cuda_append_store(&body, to, "v");
    text_append_string(&body, ";\n");
    body.failed |= load.failed || converted.failed;
    text_free(&load);
    text_free(&converted);
    return launch(&self->after, &body, elements, error);
}

static void place(Planner *self, CudaAttentionArray array, Placed placed) {
    self->kernel->placed[0][array] = self->kernel->placed[1][array] = placed;
    self->shape.uses[array] = true;
}

static bool is_of_keys(CudaAttentionArray array) {
    return array == ATTENTION_KEYS || array == ATTENTION_VALUES || array == ATTENTION_KEY_GRADIENT ||
           array == ATTENTION_VALUE_GRADIENT;
}

/* Places an operand, packed if it does not fit as it lies. */
static AmStatus place_operand(Planner *self, CudaAttentionArray array, int32_t operand, AmError *error) {
    int32_t value = region_of(self)->parameters[operand], list[REGION_MOST_LABELS];
    int32_t line = is_of_keys(array) ? self->form.key : self->form.row;
    int32_t width = softmax_form_width(&self->form, value);
    int64_t sizes[DNN_RANK];
    Placed placed = {.array = operand};
    if (width < 0 || !has(self, value, line)) return region_refuse("an operand has other dimensions", error);
    if (!lay_out(self, value, line, width, sizes, self->shape.strides[array])) {
        int64_t elements = pack_strides(self, is_of_keys(array), false, self->shape.strides[array]);
        placed = (Placed){.array = -1, .at = reserve(self, elements * dtype_bytes(self->shape.type))};
        int32_t count = list_packed(self, list, is_of_keys(array), line, width);
        TRY(pack(self, operand, placed.at, list, count, error));
    }
    place(self, array, placed);
    return AM_OK;
}

static AmStatus place_bias(Planner *self, AmError *error) {
    if (self->form.bias < 0) return AM_OK;
    int32_t value = region_of(self)->parameters[self->form.bias];
    int64_t *sizes = self->shape.bias_sizes, *strides = self->shape.strides[ATTENTION_BIAS];
    if (!join(self, value, self->units, self->head_first, &sizes[0], &strides[0]) ||
        !join(self, value, self->units + self->head_first, self->all_units - self->head_first, &sizes[1],
              &strides[1]) ||
        !join(self, value, &self->form.row, 1, &sizes[2], &strides[2]) ||
        stride_of(self, value, self->form.key) != 1)
        return region_refuse("its bias lies in another way", error);
    sizes[3] = self->shape.keys;
    strides[3] = 1;
    for (int32_t d = 2; d >= 0; d--)
        if (sizes[d] == 1) strides[d] = strides[d + 1] * sizes[d + 1];
    self->shape.bias_type = shape_of(self, value)->type;
    if (self->shape.bias_type != self->shape.type && self->shape.bias_type != DTYPE_F32)
        return region_refuse("its bias has another type", error);
    place(self, ATTENTION_BIAS, (Placed){.array = self->form.bias});
    return AM_OK;
}

static const CudaAttentionArray array_of_role[] = {
    [SOFTMAX_OUTPUT] = ATTENTION_OUTPUT,
    [SOFTMAX_MAXIMUM] = ATTENTION_MAXIMUM,
    [SOFTMAX_SUM] = ATTENTION_SUM,
    [SOFTMAX_LOG_SUM] = ATTENTION_LOG_SUM,
    [SOFTMAX_QUERY_GRADIENT] = ATTENTION_QUERY_GRADIENT,
    [SOFTMAX_KEY_GRADIENT] = ATTENTION_KEY_GRADIENT,
    [SOFTMAX_VALUE_GRADIENT] = ATTENTION_VALUE_GRADIENT,
};

static bool is_statistic(CudaAttentionArray array) {
    return array == ATTENTION_MAXIMUM || array == ATTENTION_SUM || array == ATTENTION_LOG_SUM;
}

/* Places an array that cuDNN writes, in the scratch memory. */
static void place_scratch(Planner *self, CudaAttentionArray array) {
    int64_t elements = pack_strides(self, is_of_keys(array), is_statistic(array), self->shape.strides[array]);
    int64_t bytes = is_statistic(array) ? 4 : dtype_bytes(self->shape.type);
    place(self, array, (Placed){.array = -1, .at = reserve(self, elements * bytes)});
}

/* Places the results: the first of each role where it belongs if that fits, others by copies. */
static AmStatus place_results(Planner *self, AmError *error) {
    const Program *region = region_of(self);
    for (int32_t k = 0; k < region->roles->output_count; k++) {
        CudaAttentionArray array = array_of_role[self->form.roles[k]];
        int32_t value = region->outputs[k], list[REGION_MOST_LABELS];
        int32_t line = is_of_keys(array) ? self->form.key : self->form.row;
        int32_t width = is_statistic(array) ? -1 : softmax_form_width(&self->form, value);
        Dtype type = is_statistic(array) ? DTYPE_F32 : self->shape.type;
        int64_t sizes[DNN_RANK], strides[DNN_RANK];
        bool is_direct = !self->shape.uses[array] && shape_of(self, value)->type == type &&
                         lay_out(self, value, line, width, sizes, strides);
        if (is_direct && is_statistic(array)) {
            int64_t packed[DNN_RANK];
            pack_strides(self, false, true, packed);
            is_direct = memcmp(packed, strides, sizeof packed) == 0;
        }
        if (is_direct) {
            memcpy(self->shape.strides[array], strides, sizeof strides);
            place(self, array, (Placed){.array = self->call->operand_count + k});
            continue;
        }
        if (!self->shape.uses[array]) place_scratch(self, array);
        Placed *placed = &self->kernel->placed[0][array];
        if (placed->array >= 0) return region_refuse("it has one result twice", error);
        int32_t count = list_packed(self, list, is_of_keys(array), line, width);
        TRY(unpack(self, k, type, placed->at, list, count, error));
    }
    return AM_OK;
}

/* Writes "log-sum-exp = maximum + log(sum)" of saved statistics, in f32 and packed. */
static AmStatus write_log_sums(Planner *self, int64_t at, AmError *error) {
    const Program *region = region_of(self);
    int32_t list[REGION_MOST_LABELS], count = list_packed(self, list, false, self->form.row, -1);
    int32_t maximum = region->parameters[self->form.maximum];
    Text body = {0};
    int64_t elements = begin_copy(self, &self->before, &body, list, count);
    text_append(&body, "((f32 *)(scratch + %lldull))[i] = in%d[", (long long)at, self->form.maximum);
    append_place(self, &body, list, count, maximum);
    text_append_string(&body, "]");
    if (self->form.sum >= 0) {
        text_append(&body, " + logf(in%d[", self->form.sum);
        append_place(self, &body, list, count, region->parameters[self->form.sum]);
        text_append_string(&body, "])");
    }
    text_append_string(&body, ";\n");
    return launch(&self->before, &body, elements, error);
}

/* Writes "o = o exp(own - log-sum-exp)". */
static AmStatus write_correction(Planner *self, int64_t output, int64_t own, int64_t log_sums,
                                 AmError *error) {
    Text body = {0}, load = {0};
    int64_t elements = self->shape.batch * self->shape.heads * self->shape.rows * self->shape.width;
    cuda_append_signature(&body, self->call, &self->between, "u8", false);
    cuda_append_guard(&body, elements);
    text_append(&body,
                "const s64 row = (s64)i / %lldll;\nconst f32 by = expf(((f32 *)(scratch + %lldull))[row] - "
                "((f32 *)(scratch + %lldull))[row]);\n%s *o = (%s *)(scratch + %lldull);\n",
                (long long)self->shape.width, (long long)own, (long long)log_sums,
                cuda_memory_type(self->shape.type), cuda_memory_type(self->shape.type), (long long)output);
    cuda_append_load(&load, self->shape.type, "o[i]");
    text_append(&body, "const f32 v = %s * by;\no[i] = ", load.failed ? "" : load.data);
    cuda_append_store(&body, self->shape.type, "v");
    text_append_string(&body, ";\n");
    body.failed |= load.failed;
    text_free(&load);
    return launch(&self->between, &body, elements, error);
}

/* Plans the forward pass of a region of gradients, and the statistics of the backward one. */
static AmStatus plan_backward(Planner *self, AmError *error) {
    const Program *region = region_of(self);
    Placed(*placed)[ATTENTION_ARRAY_COUNT] = self->kernel->placed;
    TRY(place_operand(self, ATTENTION_OUTPUT_GRADIENT, self->form.output_gradient, error));
    TRY(place_results(self, error));
    for (int32_t array = ATTENTION_QUERY_GRADIENT; array <= ATTENTION_VALUE_GRADIENT; array++)
        if (!self->shape.uses[array]) place_scratch(self, (CudaAttentionArray)array);
    if (self->shape.uses[ATTENTION_OUTPUT] || self->shape.uses[ATTENTION_MAXIMUM] ||
        self->shape.uses[ATTENTION_SUM] || self->shape.uses[ATTENTION_LOG_SUM])
        return region_refuse("it has results of both passes", error);
    place_scratch(self, ATTENTION_OUTPUT);
    place_scratch(self, ATTENTION_LOG_SUM);
    if (self->form.maximum < 0) return AM_OK;
    for (int32_t k = 0; k < 2; k++) {
        int32_t parameter = k == 0 ? self->form.maximum : self->form.sum;
        if (parameter >= 0 && shape_of(self, region->parameters[parameter])->type != DTYPE_F32)
            return region_refuse("its statistics are not f32", error);
    }
    int64_t bytes = self->shape.batch * self->shape.heads * self->shape.rows * 4;
    placed[1][ATTENTION_LOG_SUM] = (Placed){.array = -1, .at = reserve(self, bytes)};
    TRY(write_log_sums(self, placed[1][ATTENTION_LOG_SUM].at, error));
    return write_correction(self, placed[0][ATTENTION_OUTPUT].at, placed[0][ATTENTION_LOG_SUM].at,
                            placed[1][ATTENTION_LOG_SUM].at, error);
}

/* Plans the forward pass. cuDNN gives the maximum and the sum together, or the log-sum-exp. */
static AmStatus plan_forward(Planner *self, AmError *error) {
    TRY(place_results(self, error));
    if (!self->shape.uses[ATTENTION_OUTPUT]) return region_refuse("it has no output", error);
    bool *uses = self->shape.uses;
    if (uses[ATTENTION_LOG_SUM] && (uses[ATTENTION_MAXIMUM] || uses[ATTENTION_SUM]))
        return region_refuse("it has statistics of both kinds", error);
    if (uses[ATTENTION_MAXIMUM] && !uses[ATTENTION_SUM]) place_scratch(self, ATTENTION_SUM);
    if (uses[ATTENTION_SUM] && !uses[ATTENTION_MAXIMUM]) place_scratch(self, ATTENTION_MAXIMUM);
    return AM_OK;
}

/* Finds the sizes, and the division of units that leaves the fewest operands to pack. */
static AmStatus find_shape(Planner *self, AmError *error) {
    const Program *region = region_of(self);
    SoftmaxForm *form = &self->form;
    CudaAttentionShape *shape = &self->shape;
    int32_t operands[] = {form->queries, form->keys, form->values, form->output_gradient};
    int32_t fewest = 5, best = 0;
    shape->type = shape_of(self, region->parameters[form->queries])->type;
    for (int32_t k = 0; k < 4; k++)
        if (operands[k] >= 0 && shape_of(self, region->parameters[operands[k]])->type != shape->type)
            return region_refuse("its operands have different types", error);
    find_units(self);
    int32_t query_width = softmax_form_width(form, region->parameters[form->queries]);
    int32_t value_width = softmax_form_width(form, region->parameters[form->values]);
    if (query_width < 0 || value_width < 0 || size_of(self, query_width) != size_of(self, value_width))
        return region_refuse("its values have another head size", error);
    for (int32_t first = self->unit_count; first >= 0; first--) {
        int32_t packs = 0;
        bool is_usual = first == self->unit_count - 1;
        self->head_first = first;
        for (int32_t k = 0; k < 4; k++) {
            if (operands[k] < 0) continue;
            int32_t value = region->parameters[operands[k]];
            int64_t sizes[DNN_RANK], strides[DNN_RANK];
            packs += !lay_out(self, value, k == 1 || k == 2 ? form->key : form->row,
                              softmax_form_width(form, value), sizes, strides);
        }
        if (packs < fewest || (packs == fewest && is_usual)) fewest = packs, best = first;
    }
    self->head_first = best;
    shape->batch = shape->heads = shape->key_heads = 1;
    for (int32_t k = 0; k < self->all_units; k++) {
        int64_t size = size_of(self, self->units[k]);
        if (k < best) shape->batch *= size;
        else {
            shape->heads *= size;
            if (k < self->unit_count) shape->key_heads *= size;
        }
    }
    shape->rows = size_of(self, form->row);
    shape->keys = size_of(self, form->key);
    shape->width = size_of(self, query_width);
    shape->scale = form->scale;
    shape->has_last = form->mask.has_last && form->mask.last < shape->keys - 1;
    shape->has_first = form->mask.has_first && form->mask.first < shape->rows - 1;
    shape->last = shape->has_last ? form->mask.last : 0;
    shape->first = shape->has_first ? form->mask.first : 0;
    return AM_OK;
}

/* Fills the zeroed shape of one pass: the arrays that it uses. Equal shapes have equal bytes. */
static void describe_pass(const Planner *self, bool is_backward, CudaAttentionShape *shape) {
    memcpy(shape, &self->shape, sizeof *shape);
    shape->is_backward = is_backward;
    for (int32_t k = 0; k < ATTENTION_ARRAY_COUNT; k++) {
        if (!is_backward && k >= ATTENTION_OUTPUT_GRADIENT) shape->uses[k] = false;
        if (!shape->uses[k]) memset(shape->strides[k], 0, sizeof shape->strides[k]);
    }
}

static void run_passes(const KernelCall *call) {
    const AttentionKernel *kernel = call->compiled;
    CudaKernelDevice *device = cuda_device_of(call->device);
    AmError failure = {0};
    if (kernel->before.run) kernel->before.run(&kernel->before);
    for (int32_t pass = 0; pass < (kernel->backward ? 2 : 1); pass++) {
        void *arrays[ATTENTION_ARRAY_COUNT];
        for (int32_t k = 0; k < ATTENTION_ARRAY_COUNT; k++) {
            const Placed *placed = &kernel->placed[pass][k];
            arrays[k] = placed->array < 0 ? (char *)call->scratch + placed->at
                        : placed->array < call->operand_count
                            ? call->operands[placed->array]
                            : call->results[placed->array - call->operand_count];
        }
        if (pass == 1 && kernel->between.run) kernel->between.run(&kernel->between);
        AmStatus status = cuda_attention_run(pass == 0 ? kernel->forward : kernel->backward, device->compute,
                                             arrays, (char *)call->scratch + kernel->workspace_at, &failure);
        if (status != AM_OK) {
            cuda_note_failure(device, &failure);
            return;
        }
    }
    if (kernel->after.run) kernel->after.run(&kernel->after);
}

static void bind(const KernelCall *call) {
    AttentionKernel *kernel = (AttentionKernel *)(uintptr_t)call->compiled;
    kernel->before.scratch = kernel->between.scratch = kernel->after.scratch = call->scratch;
}

/* Prepares a call of generated kernels with the arrays of the whole call. */
static AmStatus prepare_part(const Planner *self, KernelCall *part, const CudaSource *source,
                             AmError *error) {
    if (source->launch_count == 0) return AM_OK;
    *part = *self->call;
    part->bind = NULL;
    return cuda_prepare_source(part, self->arena, source, error);
}

/* Recognises the form, and assigns the region's parameters and outputs to the arrays of cuDNN. */
static AmStatus plan(Planner *self, AmError *error) {
    TRY(softmax_form_find(&self->form, self->arena, region_of(self), error));
    self->units = ARENA_ARRAY(self->arena, int32_t, self->form.blocks.labels.count + 1);
    if (!self->units) return am_fail_memory(error, self->form.blocks.labels.count * 4);
    if (self->form.blocks.labels.count > REGION_MOST_LABELS - 2)
        return region_refuse("too many dimensions", error);
    TRY(find_shape(self, error));
    TRY(place_operand(self, ATTENTION_QUERIES, self->form.queries, error));
    TRY(place_operand(self, ATTENTION_KEYS, self->form.keys, error));
    TRY(place_operand(self, ATTENTION_VALUES, self->form.values, error));
    TRY(place_bias(self, error));
    return self->form.is_backward ? plan_backward(self, error) : plan_forward(self, error);
}

AmStatus cuda_prepare_attention(KernelCall *call, Arena *arena, AmError *error) {
    CudaKernelDevice *device = cuda_device_of(call->device);
    Planner *self = ARENA_ARRAY(arena, Planner, 1);
    AttentionKernel *kernel = ARENA_ARRAY(arena, AttentionKernel, 1);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof *self);
    if (call->instruction->regions.count != 1) return region_refuse("it lacks its computation", error);
    self->call = call;
    self->arena = arena;
    self->kernel = kernel;
    /* The scratch memory is an argument of all kernels. */
    self->before = self->between = self->after = (CudaSource){
        .arena = arena, .parameters = call->operand_count + call->result_count, .scratch_bytes = 1};
    if (self->before.parameters > CUDA_MOST_PARAMETERS) return region_refuse("it has too many arrays", error);
    TRY(plan(self, error));
    TRY(cuda_open_dnn(device, error));
    CudaAttentionShape *passes = ARENA_ARRAY(arena, CudaAttentionShape, 2);
    if (!passes) return am_fail_memory(error, 2 * (int64_t)sizeof *passes);
    describe_pass(self, false, &passes[0]);
    describe_pass(self, true, &passes[1]);
    TRY(cuda_attention_make(&kernel->forward, device->dnn, &passes[0], error));
    int64_t workspace = cuda_attention_workspace(kernel->forward);
    if (self->form.is_backward) {
        TRY(cuda_attention_make(&kernel->backward, device->dnn, &passes[1], error));
        if (cuda_attention_workspace(kernel->backward) > workspace)
            workspace = cuda_attention_workspace(kernel->backward);
    }
    TRY(prepare_part(self, &kernel->before, &self->before, error));
    TRY(prepare_part(self, &kernel->between, &self->between, error));
    TRY(prepare_part(self, &kernel->after, &self->after, error));
    kernel->workspace_at = reserve(self, workspace);
    call->scratch_bytes = self->scratch_bytes;
    call->compiled = kernel;
    call->bind = bind;
    call->run = run_passes;
    return AM_OK;
}
