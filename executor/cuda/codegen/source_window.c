/* reduce-window and select-and-scatter: pooling and its gradient.
 *
 * reduce-window has one thread per element of the result, which goes through the window's cells in row-major
 * order. Padding has the initial value. If the windows are the prefixes of lines, as in a cumulative sum, one
 * thread for each line combines every element with the result before it.
 *
 * select-and-scatter has two kernels. The first has one thread per element of the source: it finds the
 * element that its window selects, which is never padding, and writes its place to the scratch memory. The
 * second has one thread per element of the result: it goes through the windows that contain the element, in
 * row-major order, and combines the elements that are scattered to it. Both orders are those of
 * executor/cpu/reduce/window.c.
 */
#include <stdio.h>

#include "executor/array/strided.h"
#include "executor/cuda/codegen/source_text.h"

enum { SHORTEST_SCAN = 32, AT_ONCE = 16 };

static long long dilation_of(int64_t dilation) {
    return dilation > 1 ? dilation : 1;
}

/* Loops c0, c1, ... over the cells and, in each, "place" and whether it is "inside" the input. */
static void append_cells(Text *out, const IrWindowDimension *window, const IrShape *input) {
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, input->dimensions, input->rank);
    for (int32_t d = 0; d < input->rank; d++)
        if (window[d].size != 1)
            text_append(out, "    for (s64 c%d = 0; c%d < %lldll; c%d++)\n", d, d, (long long)window[d].size,
                        d);
    text_append_string(out, "    {\n");
    for (int32_t d = 0; d < input->rank; d++) {
        text_append(out, "        const s64 x%d = d%d * %lldll - (%lldll)", d, d, (long long)window[d].stride,
                    (long long)window[d].padding_low);
        if (window[d].size != 1)
            text_append(out, " + c%d * %lldll", d, dilation_of(window[d].window_dilation));
        text_append_string(out, ";\n");
    }
    text_append_string(out, "        const bool inside = true");
    for (int32_t d = 0; d < input->rank; d++) {
        long long base = dilation_of(window[d].base_dilation);
        text_append(out, " && x%d >= 0 && x%d < %lldll", d, d, (long long)input->dimensions[d] * base);
        if (base > 1) text_append(out, " && x%d %% %lldll == 0", d, base);
    }
    text_append_string(out, ";\n        const s64 place = 0");
    for (int32_t d = 0; d < input->rank; d++) {
        text_append(out, " + x%d", d);
        if (dilation_of(window[d].base_dilation) > 1)
            text_append(out, " / %lldll", dilation_of(window[d].base_dilation));
        text_append(out, " * %lldll", (long long)strides[d]);
    }
    text_append_string(out, ";\n");
}

/* Begins a kernel with a thread per element of `shape` at d0, ... that begins with `computation` as
 * "NAME". */
static AmStatus begin(Text *body, const KernelCall *call, const CudaSource *source, const IrShape *shape,
                      const char *name, const ElementComputation *computation, AmError *error) {
    cuda_append_signature(body, call, source, "s64", false);
    cuda_append_guard(body, ir_shape_elements(shape));
    AmStatus status = cuda_append_computation(body, source->arena, call, name, computation, error);
    if (status != AM_OK) {
        text_free(body);
        return status;
    }
    cuda_append_coordinates(body, "d", shape->dimensions, shape->rank);
    return AM_OK;
}

/* A reduce-window whose windows are all prefixes, or all suffixes, of the lines along one dimension. */
typedef struct WindowScan {
    int64_t length, inner, lines; /* line l starts at element l / inner * length * inner + l % inner */
    bool reverse;
} WindowScan;

/* Returns whether a reduce-window is a scan with the same results as on the CPU. A prefix follows from the
 * one before it, for any type. A suffix is combined from its end, which is exact for integers only. */
static bool find_scan(WindowScan *scan, const KernelCall *call) {
    const IrWindowDimension *window = call->attributes->window;
    const IrShape *input = call->operand_shapes[0];
    int32_t dimension = -1;
    for (int32_t d = 0; d < input->rank; d++) {
        const IrWindowDimension *w = &window[d];
        if (w->stride != 1 || dilation_of(w->base_dilation) != 1 || dilation_of(w->window_dilation) != 1)
            return false;
        if (w->size == 1 && w->padding_low == 0 && w->padding_high == 0) continue;
        if (dimension >= 0 || w->size != input->dimensions[d] || w->size < SHORTEST_SCAN) return false;
        dimension = d;
    }
    if (dimension < 0) return false;
    const IrWindowDimension *w = &window[dimension];
    bool integers =
        dtype_is_integer(input->type) &&
        sbp_reduction_of(ir_computation_operator(call->program->module, call->instruction->compute.called)) !=
            SBP_REDUCTION_COUNT;
    *scan = (WindowScan){.length = w->size, .reverse = w->padding_low == 0};
    scan->inner = strided_elements(input->dimensions + dimension + 1, input->rank - dimension - 1);
    scan->lines = ir_shape_elements(input) / scan->length;
    return scan->reverse ? integers && w->padding_high == w->size - 1
                         : w->padding_low == w->size - 1 && w->padding_high == 0;
}

/* Adds the launch of a scan: one thread for each line loads AT_ONCE elements, then combines them
 * sequentially. If the initial value combined with itself changes, padding matters, and every window is
 * combined anew. */
static AmStatus launch_scan(CudaSource *source, const KernelCall *call, const WindowScan *scan,
                            const ElementComputation *combine, AmError *error) {
    Dtype type = call->operand_shapes[0]->type;
    const char *value = cuda_value_type(type), *bits = dtype_bytes(type) == 8 ? "u64" : "u32";
    long long length = (long long)scan->length, inner = (long long)scan->inner;
    Text body = {0};
    cuda_append_signature(&body, call, source, NULL, false);
    cuda_append_guard(&body, scan->lines);
    AmStatus status = cuda_append_computation(&body, source->arena, call, "combine", combine, error);
    if (status != AM_OK) {
        text_free(&body);
        return status;
    }
    cuda_append_coordinate(&body, "outer", 0, scan->lines, inner, scan->lines / inner);
    cuda_append_coordinate(&body, "inner", 0, scan->lines, 1, inner);
    text_append(&body, "    const s64 length = %lldll, last = %lldll, step = %lldll;\n", length, length - 1,
                inner);
    text_append(&body,
                "    const s64 base = outer0 * %lldll + inner0;\n    const %s initial = ", length * inner,
                value);
    cuda_append_element(&body, type, "in1", "0");
    text_append(&body, ";\n    const auto element = [&](const s64 k) -> %s { return ", value);
    cuda_append_element(&body, type, "in0", scan->reverse ? "base + (last - k) * step" : "base + k * step");
    text_append(&body, "; };\n    const auto store = [&](const s64 k, const %s result) { out0[", value);
    text_append_string(&body, scan->reverse ? "base + (last - k) * step] = " : "base + k * step] = ");
    cuda_append_store(&body, type, "result");
    text_append_string(&body, "; };\n    const ");
    text_append(&body, "%s twice = combine(initial, initial);\n", value);
    if (dtype_is_floating(type))
        text_append(&body, "    if (bits_as<%s>(twice) != bits_as<%s>(initial)) {\n", bits, bits);
    else text_append_string(&body, "    if (twice != initial) {\n");
    text_append_string(&body, "        for (s64 end = 0; end < length; end++) {\n");
    text_append(&body, "            %s result = initial;\n", value);
    text_append_string(
        &body, scan->reverse
                   ? "            for (s64 k = end; k >= 0; k--) result = combine(result, element(k));\n"
                     "            for (s64 k = end; k < last; k++) result = combine(result, initial);\n"
                   : "            for (s64 k = end; k < last; k++) result = combine(result, initial);\n"
                     "            for (s64 k = 0; k <= end; k++) result = combine(result, element(k));\n");
    text_append(
        &body,
        "            store(end, result);\n        }\n        return;\n    }\n"
        "    %s result = initial;\n"
        "    for (s64 first = 0; first < length; first += %d) {\n"
        "        %s next[%d];\n"
        "#pragma unroll\n"
        "        for (u32 k = 0; k < %d; k++) next[k] = first + k < length ? element(first + k) : initial;\n"
        "#pragma unroll\n"
        "        for (u32 k = 0; k < %d; k++) {\n"
        "            if (first + k < length) {\n"
        "                result = combine(result, next[k]);\n"
        "                store(first + k, result);\n"
        "            }\n        }\n    }\n}\n",
        value, AT_ONCE, value, AT_ONCE, AT_ONCE, AT_ONCE);
    return cuda_source_launch(source, "scan", &body, cuda_blocks(scan->lines), CUDA_THREADS, error);
}

/* Checks that a computation takes values and elements of all inputs and gives new values. */
static bool combines_inputs(const ElementComputation *body, const KernelCall *call) {
    int32_t count = call->result_count;
    if (body->input_count != 2 * count || body->output_count != count || call->operand_count != 2 * count)
        return false;
    for (int32_t k = 0; k < count; k++) {
        Dtype type = call->operand_shapes[k]->type;
        int32_t slot = body->output_slots[k];
        Dtype made = slot < 2 * count ? body->input_types[slot] : body->ops[slot - 2 * count].type;
        if (!cuda_has_operators(type) || body->input_types[k] != type ||
            body->input_types[count + k] != type || call->operand_shapes[count + k]->type != type ||
            call->result_shapes[k]->type != type || made != type)
            return false;
    }
    return true;
}

/* Appends one cell: values v0, ... are those so far, then those of the cell; padding has the initial
 * value. */
static bool append_cell(Text *out, Arena *arena, const KernelCall *call, const ElementComputation *body) {
    int32_t count = call->result_count;
    Dtype *types = ARENA_ARRAY(arena, Dtype, 2 * count + body->op_count + 1);
    if (!types) return false;
    for (int32_t slot = 0; slot < 2 * count; slot++) {
        char array[32];
        types[slot] = body->input_types[slot];
        text_append(out, "        const %s v%d = ", cuda_value_type(types[slot]), slot);
        snprintf(array, sizeof array, "in%d", slot - count);
        if (slot < count) {
            text_append(out, "value%d;\n", slot);
            continue;
        }
        text_append_string(out, "inside ? ");
        cuda_append_element(out, types[slot], array, "place");
        text_append(out, " : initial%d;\n", slot - count);
    }
    for (int32_t k = 0; k < body->op_count; k++) {
        text_append_string(out, "        ");
        if (!cuda_append_operator(out, &body->ops[k], 2 * count + k, types, NULL)) return false;
    }
    for (int32_t k = 0; k < count; k++)
        text_append(out, "        value%d = v%d;\n", k, body->output_slots[k]);
    return true;
}

AmStatus cuda_source_reduce_window(CudaSource *source, const KernelCall *call, AmError *error) {
    const IrAttributes *attributes = call->attributes;
    const IrShape *input = call->operand_shapes[0], *result = call->result_shapes[0];
    ElementComputation combine;
    WindowScan scan;
    Text body = {0};
    char array[32], value[32];
    if (attributes->window_count != input->rank)
        return kernel_call_refuse(call, "only with a window over all dimensions", error);
    TRY(element_computation_read(&combine, source->arena, call->program->module,
                                 call->instruction->compute.called, error));
    if (!combines_inputs(&combine, call))
        return kernel_call_refuse(call, "its computation has other operands", error);
    if (ir_shape_elements(result) == 0) return AM_OK;
    if (call->result_count == 1 && find_scan(&scan, call))
        return launch_scan(source, call, &scan, &combine, error);
    cuda_append_signature(&body, call, source, NULL, false);
    cuda_append_guard(&body, ir_shape_elements(result));
    cuda_append_coordinates(&body, "d", result->dimensions, result->rank);
    for (int32_t k = 0; k < call->result_count; k++) {
        Dtype type = call->operand_shapes[k]->type;
        snprintf(array, sizeof array, "in%d", call->result_count + k);
        text_append(&body, "    const %s initial%d = ", cuda_value_type(type), k);
        cuda_append_element(&body, type, array, "0");
        text_append(&body, ";\n    %s value%d = initial%d;\n", cuda_value_type(type), k, k);
    }
    append_cells(&body, attributes->window, input);
    if (!append_cell(&body, source->arena, call, &combine)) {
        text_free(&body);
        return kernel_call_refuse(call, "its computation has an operator without a kernel", error);
    }
    text_append_string(&body, "    }\n");
    for (int32_t k = 0; k < call->result_count; k++) {
        snprintf(value, sizeof value, "value%d", k);
        text_append(&body, "    out%d[i] = ", k);
        cuda_append_store(&body, call->result_shapes[k]->type, value);
        text_append_string(&body, ";\n");
    }
    text_append_string(&body, "}\n");
    return cuda_source_launch(source, "reduce_window", &body, cuda_blocks(ir_shape_elements(result)),
                              CUDA_THREADS, error);
}

/* Launches scratch[i] = the place that window i selects, or -1 if all of it is padding. */
static AmStatus launch_selection(CudaSource *source, const KernelCall *call, const ElementComputation *select,
                                 AmError *error) {
    const IrShape *input = call->operand_shapes[0], *windows = call->operand_shapes[1];
    const char *type = cuda_value_type(input->type);
    Text body = {0};
    TRY(begin(&body, call, source, windows, "selects", select, error));
    text_append(&body, "    s64 best = -1;\n    %s value = {};\n", type);
    append_cells(&body, call->attributes->window, input);
    text_append(&body, "        if (inside) {\n            const %s candidate = ", type);
    cuda_append_element(&body, input->type, "in0", "place");
    text_append_string(&body, ";\n"
                              "            if (best < 0 || !selects(value, candidate)) {\n"
                              "                best = place;\n"
                              "                value = candidate;\n"
                              "            }\n"
                              "        }\n"
                              "    }\n"
                              "    scratch[i] = best;\n}\n");
    return cuda_source_launch(source, "select", &body, cuda_blocks(ir_shape_elements(windows)), CUDA_THREADS,
                              error);
}

static AmStatus launch_combination(CudaSource *source, const KernelCall *call,
                                   const ElementComputation *combine, AmError *error) {
    const IrShape *windows = call->operand_shapes[1], *result = call->result_shapes[0];
    int64_t strides[IR_MAX_RANK];
    Text body = {0};
    TRY(begin(&body, call, source, result, "combine", combine, error));
    text_append(&body, "    %s value = ", cuda_value_type(result->type));
    cuda_append_element(&body, result->type, "in2", "0");
    text_append_string(&body, ";\n");
    /* Loops p0, p1, ... over the windows that may hold element d0, ...: along a dimension those that begin no
     * more than a window before it and not after it. */
    for (int32_t d = 0; d < windows->rank; d++) {
        const IrWindowDimension *w = &call->attributes->window[d];
        long long reach = (long long)(w->size - 1) * dilation_of(w->window_dilation);
        text_append(&body, "    const s64 x%d = d%d * %lldll + (%lldll);\n", d, d,
                    dilation_of(w->base_dilation), (long long)w->padding_low);
        text_append(&body, "    const s64 first%d = x%d <= %lldll ? 0 : (x%d - %lldll) / %lldll;\n", d, d,
                    reach, d, reach - (long long)w->stride + 1, (long long)w->stride);
        text_append(&body, "    const s64 last%d = x%d < 0 ? -1 : least_of(x%d / %lldll, %lldll);\n", d, d, d,
                    (long long)w->stride, (long long)windows->dimensions[d] - 1);
    }
    for (int32_t d = 0; d < windows->rank; d++)
        text_append(&body, "    for (s64 p%d = first%d; p%d <= last%d; p%d++)\n", d, d, d, d, d);
    strided_row_major(strides, windows->dimensions, windows->rank);
    text_append_string(&body, "    {\n        const s64 window = ");
    cuda_append_dot(&body, "p", strides, windows->rank);
    text_append_string(&body, ";\n        if (scratch[window] == (s64)i) value = combine(value, ");
    cuda_append_element(&body, windows->type, "in1", "window");
    text_append_string(&body, ");\n    }\n    out0[i] = ");
    cuda_append_store(&body, result->type, "value");
    text_append_string(&body, ";\n}\n");
    return cuda_source_launch(source, "select_and_scatter", &body, cuda_blocks(ir_shape_elements(result)),
                              CUDA_THREADS, error);
}

AmStatus cuda_source_select_and_scatter(CudaSource *source, const KernelCall *call, AmError *error) {
    const IrAttributes *attributes = call->attributes;
    const IrShape *input = call->operand_shapes[0], *windows = call->operand_shapes[1];
    Dtype type = input->type;
    ElementComputation select, combine;
    if (attributes->window_count != input->rank)
        return kernel_call_refuse(call, "only with a window over all dimensions", error);
    TRY(cuda_computation_read(&select, source->arena, call, call->instruction->compute.called,
                              (Dtype[]){type, type}, 2, DTYPE_PRED, error));
    TRY(cuda_computation_read(&combine, source->arena, call, call->instruction->compute.called_second,
                              (Dtype[]){type, type}, 2, type, error));
    if (ir_shape_elements(input) == 0) return AM_OK;
    source->scratch_bytes = ir_shape_elements(windows) * (int64_t)sizeof(int64_t);
    if (source->scratch_bytes == 0) source->scratch_bytes = (int64_t)sizeof(int64_t);
    if (ir_shape_elements(windows) > 0) TRY(launch_selection(source, call, &select, error));
    return launch_combination(source, call, &combine, error);
}
