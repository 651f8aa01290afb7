/* Moves whose source is not a strided box: pad and concatenate, constants, the
 * dynamic slices, and bitcast-convert between widths. One thread per word of the
 * result finds where it comes from; dynamic-update-slice copies its operand
 * (where the result has memory of its own), then has one thread per word of the
 * update. A word is an element, or neighbours of up to 16 bytes that stay
 * neighbours.
 */
#include "executor/array/strided.h"
#include "executor/cuda/codegen/source_text.h"

static void append_start(Text *out, const KernelCall *call, const CudaSource *source, int64_t elements) {
    cuda_append_signature(out, call, source, NULL, false);
    cuda_append_guard(out, elements);
}

static AmStatus launch(CudaSource *source, const char *kind, Text *body, int64_t elements, AmError *error) {
    return cuda_source_launch(source, kind, body, cuda_blocks(elements), CUDA_THREADS, error);
}

/* Writes the kernel of a pad: operand element p is at low + p * (interior + 1), all else is operand 1. A
 * thread writes a group of neighbours, either all of the operand or all of the border. */
AmStatus cuda_source_pad(CudaSource *source, const KernelCall *call, AmError *error) {
    const IrShape *shape = call->result_shapes[0], *operand = call->operand_shapes[0];
    const IrPadding *padding = call->attributes->padding;
    const char *type = cuda_word(dtype_bytes(shape->type));
    int64_t dimensions[IR_MAX_RANK], sizes[IR_MAX_RANK], strides[IR_MAX_RANK], low[IR_MAX_RANK], group = 1;
    int32_t last = shape->rank - 1;
    Text body = {0};
    if (ir_shape_elements(shape) == 0) return AM_OK;
    for (int32_t d = 0; d < shape->rank; d++) {
        dimensions[d] = shape->dimensions[d];
        sizes[d] = operand->dimensions[d];
        low[d] = padding[d].low;
    }
    while (last >= 0 && group * dtype_bytes(shape->type) < 16 && padding[last].interior == 0 &&
           dimensions[last] % 2 == 0 && sizes[last] % 2 == 0 && low[last] % 2 == 0) {
        dimensions[last] /= 2;
        sizes[last] /= 2;
        low[last] /= 2;
        group *= 2;
    }
    int64_t groups = ir_shape_elements(shape) / group;
    strided_row_major(strides, sizes, operand->rank);
    append_start(&body, call, source, groups);
    cuda_append_coordinates(&body, "d", dimensions, shape->rank);
    for (int32_t d = 0; d < shape->rank; d++)
        text_append(&body, "    const s64 p%d = d%d - (%lldll);\n", d, d, (long long)low[d]);
    text_append_string(&body, "    const bool inside = true");
    for (int32_t d = 0; d < shape->rank; d++) {
        long long step = (long long)padding[d].interior + 1;
        text_append(&body, " && p%d >= 0", d);
        if (step > 1) text_append(&body, " && p%d %% %lldll == 0", d, step);
        text_append(&body, " && p%d < %lldll", d, (long long)sizes[d] * step);
    }
    text_append(&body,
                ";\n    Group<%s, %lld> group;\n"
                "    if (inside) group = ((const Group<%s, %lld> *)in0)[0",
                type, (long long)group, type, (long long)group);
    for (int32_t d = 0; d < shape->rank; d++)
        text_append(&body, " + p%d / %lldll * %lldll", d, (long long)padding[d].interior + 1,
                    (long long)strides[d]);
    text_append(&body,
                "];\n    else\n#pragma unroll\n"
                "        for (u32 k = 0; k < %lld; k++) group.at[k] = ((const %s *)in1)[0];\n"
                "    ((Group<%s, %lld> *)out0)[i] = group;\n}\n",
                (long long)group, type, type, (long long)group);
    return launch(source, "pad", &body, groups, error);
}

/* Writes the kernel of a concatenate. An operand is a run along the dimension and those after it; a thread
 * copies one word of a run. */
AmStatus cuda_source_concatenate(CudaSource *source, const KernelCall *call, AmError *error) {
    const IrShape *shape = call->result_shapes[0];
    int32_t dimension = (int32_t)call->attributes->dimensions[0];
    int64_t strides[IR_MAX_RANK], start = 0, word = dtype_bytes(shape->type), odd = 0;
    Text body = {0};
    if (ir_shape_elements(shape) == 0) return AM_OK;
    strided_row_major(strides, shape->dimensions, shape->rank);
    for (int32_t k = 0; k < call->operand_count; k++)
        odd |= call->operand_shapes[k]->dimensions[dimension] * strides[dimension];
    int64_t factor = 1; /* elements of a word */
    for (; word < 16 && odd % 2 == 0; word *= 2, odd /= 2) factor *= 2;
    int64_t words = ir_shape_elements(shape) / factor;
    int64_t run = shape->dimensions[dimension] * strides[dimension] / factor;
    append_start(&body, call, source, words);
    cuda_append_coordinate(&body, "outer", 0, words, run, words / run);
    cuda_append_coordinate(&body, "d", 0, words, 1, run);
    for (int32_t k = 0; k < call->operand_count; k++) {
        int64_t part = call->operand_shapes[k]->dimensions[dimension] * strides[dimension] / factor;
        text_append(&body, "    %s", k > 0 ? "else " : "");
        if (k + 1 < call->operand_count) text_append(&body, "if (d0 < %lldll) ", (long long)(start + part));
        text_append(&body, "((%s *)out0)[i] = ((const %s *)in%d)[outer0 * %lldll + d0 - %lldll];\n",
                    cuda_word(word), cuda_word(word), k, (long long)part, (long long)start);
        start += part;
    }
    text_append_string(&body, "}\n");
    return launch(source, "concatenate", &body, words, error);
}

/* Writes a constant. The literal's bytes are uploaded: a program's constants have one kernel per type and
 * size. */
AmStatus cuda_source_constant(CudaSource *source, const KernelCall *call, AmError *error) {
    const IrLiteral *literal = call->instruction->compute.literal;
    int64_t elements = ir_shape_elements(call->result_shapes[0]);
    const char *type = cuda_memory_type(call->result_shapes[0]->type);
    Text body = {0};
    if (!literal || !literal->data || literal->bytes < ir_shape_bytes(call->result_shapes[0]))
        return kernel_call_refuse(call, "the constant's value is not in the file (written {...})", error);
    if (elements == 0) return AM_OK;
    source->upload = literal->data;
    source->upload_bytes = ir_shape_bytes(call->result_shapes[0]);
    append_start(&body, call, source, elements);
    text_append(&body, "    out0[i] = ((const %s *)upload)[i];\n}\n", type);
    return launch(source, "constant", &body, elements, error);
}

/* Adds the launch that copies operand 0 to result 0: one thread for each word of up to 16 bytes. */
static AmStatus launch_bytes(CudaSource *source, const KernelCall *call, const char *kind, int64_t bytes,
                             AmError *error) {
    int64_t width = 16;
    while (bytes % width != 0) width /= 2;
    Text body = {0};
    append_start(&body, call, source, bytes / width);
    text_append(&body, "    ((%s *)out0)[i] = ((const %s *)in0)[i];\n}\n", cuda_word(width),
                cuda_word(width));
    return launch(source, kind, &body, bytes / width, error);
}

/* Writes a bitcast-convert. Between widths the smaller type has one more dimension, the innermost: the bytes
 * do not move. */
AmStatus cuda_source_bitcast_convert(CudaSource *source, const KernelCall *call, AmError *error) {
    const IrShape *from = call->operand_shapes[0], *to = call->result_shapes[0];
    if (dtype_bits(from->type) == dtype_bits(to->type)) return cuda_source_elements(source, call, error);
    if (ir_shape_bytes(from) != ir_shape_bytes(to))
        return kernel_call_refuse(call, "operand and result differ in size", error);
    return ir_shape_bytes(to) > 0 ? launch_bytes(source, call, "bits", ir_shape_bytes(to), error) : AM_OK;
}

/* Returns whether there are scalar integers from operand `first` on, one per dimension of operand 0. */
static bool has_scalar_indices(const KernelCall *call, int32_t first) {
    if (call->operand_count - first != call->operand_shapes[0]->rank) return false;
    for (int32_t k = first; k < call->operand_count; k++)
        if (call->operand_shapes[k]->rank != 0 || !dtype_is_integer(call->operand_shapes[k]->type) ||
            !cuda_has_arithmetic(call->operand_shapes[k]->type))
            return false;
    return true;
}

/* Appends "at0", ...: the start of the window in this device's shard, by executor/cpu/move/dynamic_part.c,
 * in the dimensions that it does not span; then "inside": whether its element d0, ... is in the shard. */
static void append_part(Text *out, const KernelCall *call, int32_t first) {
    const ProgramShard *shard = call->instruction->compute.shard;
    const IrShape *held = call->operand_shapes[0];
    for (int32_t d = 0; d < held->rank; d++) {
        text_append(out, "    const s64 at%d = ", d);
        if (shard->window[d] == shard->global[d]) {
            text_append_string(out, "0;\n");
            continue;
        }
        text_append_string(out, "clamped_index(");
        cuda_append_index_load(out, call->operand_shapes[first + d]->type, first + d, "0");
        text_append(out, ", %lldll) - %lldll;\n", (long long)(shard->global[d] - shard->window[d]),
                    (long long)shard->start[d]);
    }
    text_append_string(out, "    const bool inside = true");
    for (int32_t d = 0; d < held->rank; d++)
        if (shard->window[d] < shard->global[d])
            text_append(out, " && at%d + d%d >= 0 && at%d + d%d < %lldll", d, d, d, d,
                        (long long)held->dimensions[d]);
    text_append_string(out, ";\n");
}

/* Appends "(at0 + d0) * 12ll + (at1 + d1) * 4ll": the place in the shard. */
static void append_part_place(Text *out, const IrShape *held) {
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, held->dimensions, held->rank);
    text_append_string(out, "0");
    for (int32_t d = 0; d < held->rank; d++)
        text_append(out, " + (at%d + d%d) * %lldll", d, d, (long long)strides[d]);
}

/* Appends "const s64 at = ...;", the place in `array` of the first element of a box of `sizes`. Its starts,
 * clamped so that the box is inside, are operands `first` and so on. */
static void append_offset(Text *out, const KernelCall *call, int32_t first, const IrShape *array,
                          const int64_t *sizes) {
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, array->dimensions, array->rank);
    text_append_string(out, "    const s64 at = 0");
    for (int32_t d = 0; d < array->rank; d++) {
        text_append_string(out, " + clamped_index(");
        cuda_append_index_load(out, call->operand_shapes[first + d]->type, first + d, "0");
        text_append(out, ", %lldll) * %lldll", (long long)(array->dimensions[d] - sizes[d]),
                    (long long)strides[d]);
    }
    text_append_string(out, ";\n");
}

/* An array and a box of it that spans its last dimension, in words. */
typedef struct Words {
    const char *type;
    IrShape array, box;
    int64_t sizes[2][IR_MAX_RANK];
} Words;

/* Joins neighbours to words of up to 16 bytes. */
static void join_words(Words *self, const IrShape *array, const IrShape *box) {
    int64_t word = dtype_bytes(array->type);
    int32_t last = array->rank - 1;
    for (int32_t d = 0; d < array->rank; d++) {
        self->sizes[0][d] = array->dimensions[d];
        self->sizes[1][d] = box->dimensions[d];
    }
    bool spans = last >= 0 && self->sizes[0][last] == self->sizes[1][last];
    for (; spans && word < 16 && self->sizes[0][last] % 2 == 0; word *= 2)
        self->sizes[0][last] = self->sizes[1][last] /= 2;
    self->type = cuda_word(word);
    self->array = *array;
    self->array.dimensions = self->sizes[0];
    self->box = *box;
    self->box.dimensions = self->sizes[1];
}

AmStatus cuda_source_dynamic_slice(CudaSource *source, const KernelCall *call, AmError *error) {
    int64_t strides[IR_MAX_RANK];
    Words words;
    Text body = {0};
    if (!has_scalar_indices(call, 1)) return kernel_call_refuse(call, "not with these indices", error);
    if (ir_shape_elements(call->result_shapes[0]) == 0) return AM_OK;
    join_words(&words, call->operand_shapes[0], call->result_shapes[0]);
    int64_t elements = ir_shape_elements(&words.box);
    strided_row_major(strides, words.array.dimensions, words.array.rank);
    append_start(&body, call, source, elements);
    cuda_append_coordinates(&body, "d", words.box.dimensions, words.box.rank);
    if (call->instruction->compute.shard) {
        append_part(&body, call, 1);
        text_append(&body, "    const %s nothing = {};\n    ((%s *)out0)[i] = inside ? ((const %s *)in0)[",
                    words.type, words.type, words.type);
        append_part_place(&body, &words.array);
        text_append_string(&body, "] : nothing;\n}\n");
        return launch(source, "dynamic_slice_part", &body, elements, error);
    }
    append_offset(&body, call, 1, &words.array, words.box.dimensions);
    text_append(&body, "    ((%s *)out0)[i] = ((const %s *)in0)[at + ", words.type, words.type);
    cuda_append_dot(&body, "d", strides, words.array.rank);
    text_append_string(&body, "];\n}\n");
    return launch(source, "dynamic_slice", &body, elements, error);
}

AmStatus cuda_source_copy_operand(CudaSource *source, const KernelCall *call, AmError *error) {
    int64_t bytes = ir_shape_bytes(call->result_shapes[0]);
    if (bytes == 0) return AM_OK;
    TRY(launch_bytes(source, call, "copy", bytes, error));
    source->launches[source->launch_count - 1].copies = true;
    return AM_OK;
}

AmStatus cuda_source_dynamic_update_slice(CudaSource *source, const KernelCall *call, AmError *error) {
    int64_t strides[IR_MAX_RANK];
    Words words;
    Text body = {0};
    if (!has_scalar_indices(call, 2)) return kernel_call_refuse(call, "not with these indices", error);
    TRY(cuda_source_copy_operand(source, call, error));
    if (ir_shape_elements(call->operand_shapes[1]) == 0) return AM_OK;
    join_words(&words, call->result_shapes[0], call->operand_shapes[1]);
    int64_t elements = ir_shape_elements(&words.box);
    strided_row_major(strides, words.array.dimensions, words.array.rank);
    append_start(&body, call, source, elements);
    cuda_append_coordinates(&body, "d", words.box.dimensions, words.box.rank);
    if (call->instruction->compute.shard) {
        append_part(&body, call, 2);
        text_append(&body, "    if (inside) ((%s *)out0)[", words.type);
        append_part_place(&body, &words.array);
        text_append(&body, "] = ((const %s *)in1)[i];\n}\n", words.type);
        return launch(source, "dynamic_update_part", &body, elements, error);
    }
    append_offset(&body, call, 2, &words.array, words.box.dimensions);
    text_append(&body, "    ((%s *)out0)[at + ", words.type);
    cuda_append_dot(&body, "d", strides, words.array.rank);
    text_append(&body, "] = ((const %s *)in1)[i];\n}\n", words.type);
    return launch(source, "dynamic_update", &body, elements, error);
}
