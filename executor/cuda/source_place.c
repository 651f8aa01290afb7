/* Pad and concatenate: one thread per element of the result finds the operand
 * that it comes from, and the place there.
 */
#include "executor/cpu/strided.h"
#include "executor/cuda/source_text.h"

/* "i / 7ll % 5ll": the index along dimension d of a row-major shape. */
static void append_index(Text *out, const IrShape *shape, int32_t d, const int64_t *strides) {
    text_append_string(out, "i");
    if (strides[d] > 1) text_append(out, " / %lldll", (long long)strides[d]);
    if (d > 0) text_append(out, " %% %lldll", (long long)shape->dimensions[d]);
}

static void append_start(Text *out, const KernelCall *call, const CudaSource *source) {
    cuda_append_signature(out, call, source, NULL, false);
    text_append(out, "    const s64 i = (s64)blockIdx.x * %d + threadIdx.x;\n", CUDA_THREADS);
    text_append(out, "    if (i >= %lldll) return;\n", (long long)ir_shape_elements(call->result_shapes[0]));
}

/* Operand element p stands at low + p * (interior + 1); elsewhere is operand 1. */
AmStatus cuda_source_pad(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error) {
    const IrShape *shape = call->result_shapes[0], *operand = call->operand_shapes[0];
    int64_t strides[IR_MAX_RANK], operand_strides[IR_MAX_RANK], elements = ir_shape_elements(shape);
    Text body = {0};
    strided_row_major(strides, shape->dimensions, shape->rank);
    strided_row_major(operand_strides, operand->dimensions, operand->rank);
    append_start(&body, call, source);
    for (int32_t d = 0; d < shape->rank && elements > 0; d++) {
        text_append(&body, "    const s64 p%d = (", d);
        append_index(&body, shape, d, strides);
        text_append(&body, ") - (%lldll);\n", (long long)call->instruction->attributes->padding[d].low);
    }
    text_append_string(&body, "    const bool inside = true");
    for (int32_t d = 0; d < shape->rank && elements > 0; d++) {
        long long step = (long long)call->instruction->attributes->padding[d].interior + 1;
        text_append(&body, " && p%d >= 0", d);
        if (step > 1) text_append(&body, " && p%d %% %lldll == 0", d, step);
        text_append(&body, " && p%d < %lldll", d, (long long)operand->dimensions[d] * step);
    }
    text_append_string(&body, ";\n    out0[i] = inside ? in0[0");
    for (int32_t d = 0; d < shape->rank && elements > 0; d++)
        text_append(&body, " + p%d / %lldll * %lldll", d,
                    (long long)call->instruction->attributes->padding[d].interior + 1,
                    (long long)operand_strides[d]);
    text_append_string(&body, "] : in1[0];\n}\n");
    return cuda_source_launch(source, arena, "pad", &body, cuda_blocks(elements), CUDA_THREADS, error);
}

/* Along the dimension, operand k holds the elements that follow those of operand k - 1. */
AmStatus cuda_source_concatenate(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error) {
    const IrShape *shape = call->result_shapes[0];
    int32_t dimension = (int32_t)call->instruction->attributes->dimensions[0];
    int64_t strides[IR_MAX_RANK], start = 0, elements = ir_shape_elements(shape);
    Text body = {0};
    strided_row_major(strides, shape->dimensions, shape->rank);
    long long inner = (long long)strides[dimension], whole = (long long)shape->dimensions[dimension];
    append_start(&body, call, source);
    if (elements > 0) {
        text_append(&body, "    const s64 outer = i / %lldll, rest = i %% %lldll, d = ", inner * whole,
                    inner);
        append_index(&body, shape, dimension, strides);
        text_append_string(&body, ";\n");
    }
    for (int32_t k = 0; k < call->operand_count && elements > 0; k++) {
        int64_t size = call->operand_shapes[k]->dimensions[dimension];
        text_append(&body, "    %s", k > 0 ? "else " : "");
        if (k + 1 < call->operand_count) text_append(&body, "if (d < %lldll) ", (long long)(start + size));
        text_append(&body, "out0[i] = in%d[(outer * %lldll + d - %lldll) * %lldll + rest];\n", k,
                    (long long)size, (long long)start, inner);
        start += size;
    }
    text_append_string(&body, "}\n");
    return cuda_source_launch(source, arena, "concatenate", &body, cuda_blocks(elements), CUDA_THREADS,
                              error);
}
