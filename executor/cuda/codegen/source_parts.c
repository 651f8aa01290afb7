/* Common parts of the families of kernels: the guard of one thread per element, coordinates in an
 * array, sums of coordinates times strides, and a computation (to_apply) as a function object
 * inside a kernel.
 *
 * Numbers of elements are divided in 32 bits where they fit, which a GPU does several times faster
 * than in 64; the result is 64-bit.
 */
#include "executor/cuda/codegen/source_text.h"

static bool is_narrow(int64_t elements) {
    return elements < INT32_MAX - CUDA_THREADS;
}

void cuda_append_guard(Text *out, int64_t elements) {
    const char *type = is_narrow(elements) ? "u32" : "s64", *suffix = is_narrow(elements) ? "u" : "ll";
    text_append(out, "    const %s i = (%s)blockIdx.x * %d%s + threadIdx.x;\n", type, type, CUDA_THREADS,
                suffix);
    text_append(out, "    if (i >= %lld%s) return;\n", (long long)elements, suffix);
}

void cuda_append_coordinate(Text *out, const char *name, int32_t n, int64_t elements, int64_t stride,
                            int64_t size) {
    const char *suffix = is_narrow(elements) ? "u" : "ll";
    text_append(out, "    const s64 %s%d = ", name, n);
    if (size == 1) {
        text_append_string(out, "0;\n");
        return;
    }
    text_append_string(out, "i");
    if (stride != 1) text_append(out, " / %lld%s", (long long)stride, suffix);
    if (stride * size != elements) text_append(out, " %% %lld%s", (long long)size, suffix);
    text_append_string(out, ";\n");
}

void cuda_append_coordinates(Text *out, const char *name, const int64_t *dimensions, int32_t rank) {
    int64_t elements = 1, stride;
    for (int32_t d = 0; d < rank; d++) elements *= dimensions[d];
    stride = elements;
    for (int32_t d = 0; d < rank; d++) {
        stride /= dimensions[d];
        cuda_append_coordinate(out, name, d, elements, stride, dimensions[d]);
    }
}

void cuda_append_dot(Text *out, const char *name, const int64_t *strides, int32_t rank) {
    bool empty = true;
    for (int32_t d = 0; d < rank; d++) {
        if (strides[d] == 0) continue;
        text_append(out, "%s%s%d", empty ? "" : " + ", name, d);
        if (strides[d] != 1) text_append(out, " * %lldll", (long long)strides[d]);
        empty = false;
    }
    if (empty) text_append_string(out, "0");
}

void cuda_append_index_load(Text *out, Dtype type, int32_t operand, const char *place) {
    const char *function = type == DTYPE_U64 ? "index_of_u64" : "(s64)";
    text_append(out, "%s%sin%d[%s]%s", function, type == DTYPE_U64 ? "(" : "", operand, place,
                type == DTYPE_U64 ? ")" : "");
}

void cuda_append_element(Text *out, Dtype type, const char *array, const char *place) {
    Text element = {0};
    text_append(&element, "%s[%s]", array, place);
    cuda_append_load(out, type, element.failed ? "" : element.data);
    out->failed = out->failed || element.failed;
    text_free(&element);
}

AmStatus cuda_computation_read(ElementComputation *computation, Arena *arena, const KernelCall *call,
                               int32_t index, const Dtype *inputs, int32_t input_count, Dtype output,
                               AmError *error) {
    TRY(element_computation_read(computation, arena, call->program->module, index, error));
    bool fits = computation->input_count == input_count && computation->output_count == 1;
    for (int32_t k = 0; k < input_count && fits; k++)
        fits = computation->input_types[k] == inputs[k] && cuda_has_operators(inputs[k]);
    if (!fits) return kernel_call_refuse(call, "its computation has other operands", error);
    int32_t slot = computation->output_slots[0];
    Dtype type = slot < input_count ? inputs[slot] : computation->ops[slot - input_count].type;
    return type == output ? AM_OK : kernel_call_refuse(call, "its computation has another result", error);
}

AmStatus cuda_append_computation(Text *out, Arena *arena, const KernelCall *call, const char *name,
                                 const ElementComputation *computation, AmError *error) {
    int32_t inputs = computation->input_count, slot = computation->output_slots[0];
    Dtype *types = ARENA_ARRAY(arena, Dtype, inputs + computation->op_count + 1);
    if (!types) return am_fail_memory(error, (int64_t)computation->op_count * 4);
    text_append(out, "    const auto %s = [](", name);
    for (int32_t k = 0; k < inputs; k++) {
        types[k] = computation->input_types[k];
        text_append(out, "%sconst %s v%d", k > 0 ? ", " : "", cuda_value_type(types[k]), k);
    }
    Dtype type = slot < inputs ? types[slot] : computation->ops[slot - inputs].type;
    text_append(out, ") -> %s {\n", cuda_value_type(type));
    for (int32_t k = 0; k < computation->op_count; k++) {
        text_append_string(out, "        ");
        if (!cuda_append_operator(out, &computation->ops[k], inputs + k, types, NULL))
            return kernel_call_refuse(call, "its computation has an operator without a kernel", error);
    }
    text_append(out, "        return v%d;\n    };\n", slot);
    return AM_OK;
}
