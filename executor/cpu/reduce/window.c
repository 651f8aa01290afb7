/* reduce-window and select-and-scatter: pooling and its gradient.
 *
 * Trailing dimensions that the window does not touch (the channels) are worked
 * on together, up to ELEMENT_TILE at a time, by element programs made from the
 * operator's computations; the window moves over the other dimensions. A
 * reduce-window may have several inputs of equal sizes. In it padding has the initial value;
 * select-and-scatter never selects it. The pooling of neural networks goes in vectors (pool.c).
 */
#include <string.h>

#include "executor/array/strided.h"
#include "executor/cpu/cpu.h"
#include "executor/cpu/element.h"
#include "executor/cpu/reduce/pool.h"

enum { MOST_ELEMENT_BYTES = 16 };

typedef struct WindowKernel {
    int32_t outer_rank;                                           /* dimensions that the window moves over */
    int64_t run;                                                  /* elements of the trailing ones */
    int64_t positions[IR_MAX_RANK];                               /* sizes of the side that is stepped over */
    int64_t cells[IR_MAX_RANK];                                   /* window sizes */
    int64_t input_sizes[IR_MAX_RANK], input_strides[IR_MAX_RANK]; /* in elements */
    const IrWindowDimension *window;
    int64_t position_count, element_bytes;
    ElementProgram *combine, *select;
    Pool *pool; /* what runs it instead, or NULL */
    int64_t select_at, combine_at, best_at, current_at, chosen_at, offsets_at,
        addresses_at; /* in the scratch memory */
} WindowKernel;

static bool is_untouched(const IrWindowDimension *window) {
    return window->size == 1 && window->stride == 1 && window->padding_low == 0 &&
           window->padding_high == 0 && window->base_dilation <= 1;
}

/* Returns the offset of the window's cell at a position, or -1 for padding. */
static int64_t cell_offset(const WindowKernel *kernel, const int64_t *position, const int64_t *cell) {
    int64_t at = 0;
    for (int32_t d = 0; d < kernel->outer_rank; d++) {
        const IrWindowDimension *window = &kernel->window[d];
        int64_t dilation = window->window_dilation > 1 ? window->window_dilation : 1;
        int64_t base = window->base_dilation > 1 ? window->base_dilation : 1;
        int64_t p = position[d] * window->stride + cell[d] * dilation - window->padding_low;
        if (p < 0 || p % base != 0 || p / base >= kernel->input_sizes[d]) return -1;
        at += p / base * kernel->input_strides[d];
    }
    return at;
}

static void describe_windows(WindowKernel *kernel, const KernelCall *call, const IrShape *input,
                             const IrShape *stepped) {
    kernel->window = call->attributes->window;
    kernel->element_bytes = dtype_bytes(input->type);
    strided_row_major(kernel->input_strides, input->dimensions, input->rank);
    kernel->outer_rank = input->rank;
    kernel->run = 1;
    while (kernel->outer_rank > 0 && is_untouched(&kernel->window[kernel->outer_rank - 1]))
        kernel->run *= input->dimensions[--kernel->outer_rank];
    for (int32_t d = 0; d < kernel->outer_rank; d++) {
        kernel->positions[d] = stepped->dimensions[d];
        kernel->cells[d] = kernel->window[d].size;
        kernel->input_sizes[d] = input->dimensions[d];
    }
    kernel->position_count = strided_elements(kernel->positions, kernel->outer_rank);
}

/* Builds a computation of two scalars of `type`. */
static AmStatus build_pair(ElementProgram **program, KernelCall *call, Arena *arena, int32_t computation,
                           Dtype type, Dtype result, AmError *error) {
    TRY(element_program_from_computation(program, arena, call->program->module, computation, error));
    if (element_program_inputs(*program) != 2 || element_program_outputs(*program) != 1 ||
        element_program_input_type(*program, 0) != type || element_program_input_type(*program, 1) != type ||
        element_program_output_type(*program, 0) != result)
        return kernel_call_refuse(call, "its computation is not of two elements", error);
    return AM_OK;
}

/* Elements first .. first + n of the run at `out_at`, with those at `at`, or with padding where it is -1. */
static void combine_cell(const KernelCall *call, int64_t out_at, int64_t at, int64_t n) {
    const WindowKernel *kernel = call->compiled;
    int32_t count = call->result_count;
    const char *padding = (const char *)call->scratch + kernel->current_at;
    const void **inputs = (const void **)(void *)((char *)call->scratch + kernel->addresses_at);
    void **outputs = (void **)(inputs + 2 * count);
    for (int32_t k = 0; k < count; k++) {
        int64_t bytes = dtype_bytes(call->operand_shapes[k]->type);
        outputs[k] = (char *)call->results[k] + out_at * bytes;
        inputs[k] = outputs[k];
        inputs[count + k] = at < 0 ? padding + k * ELEMENT_TILE * MOST_ELEMENT_BYTES
                                   : (const char *)call->operands[k] + at * bytes;
    }
    element_program_run(kernel->combine, inputs, outputs, n, NULL, call->scratch);
}

static void run_reduce_window(const KernelCall *call) {
    const WindowKernel *kernel = call->compiled;
    int64_t position[IR_MAX_RANK] = {0}, elements = ir_shape_elements(call->result_shapes[0]);
    int32_t count = call->result_count;
    char *padding = (char *)call->scratch + kernel->current_at;
    if (kernel->pool && pool_reduce(kernel->pool, call)) return;
    element_program_begin(kernel->combine, ELEMENT_TILE, call->scratch);
    for (int32_t k = 0; k < count; k++) {
        int64_t bytes = dtype_bytes(call->operand_shapes[k]->type);
        strided_fill(padding + k * ELEMENT_TILE * MOST_ELEMENT_BYTES, call->operands[count + k], ELEMENT_TILE,
                     bytes);
        strided_fill(call->results[k], call->operands[count + k], elements, bytes);
    }
    for (int64_t p = 0; p < kernel->position_count; p++) {
        int64_t cell[IR_MAX_RANK] = {0};
        do {
            int64_t at = cell_offset(kernel, position, cell);
            for (int64_t first = 0; first < kernel->run; first += ELEMENT_TILE) {
                int64_t n = kernel->run - first < ELEMENT_TILE ? kernel->run - first : ELEMENT_TILE;
                combine_cell(call, p * kernel->run + first, at < 0 ? -1 : at + first, n);
            }
        } while (strided_next(cell, kernel->cells, kernel->outer_rank));
        strided_next(position, kernel->positions, kernel->outer_rank);
    }
}

AmStatus cpu_prepare_reduce_window(KernelCall *call, Arena *arena, AmError *error) {
    const IrAttributes *attributes = call->attributes;
    const IrShape *input = call->operand_shapes[0];
    WindowKernel *kernel = ARENA_ARRAY(arena, WindowKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    if (attributes->window_count != input->rank || call->operand_count != 2 * call->result_count)
        return kernel_call_refuse(call, "only with a window over all dimensions", error);
    describe_windows(kernel, call, input, call->result_shapes[0]);
    /* The operator of a variadic reduce-window takes current values of all inputs, then the window's
     * elements. */
    static const char reason[] = "its computation is not of two elements of every input";
    int32_t count = call->result_count;
    TRY(element_program_from_computation(&kernel->combine, arena, call->program->module,
                                         call->instruction->compute.called, error));
    if (element_program_inputs(kernel->combine) != 2 * count ||
        element_program_outputs(kernel->combine) != count)
        return kernel_call_refuse(call, reason, error);
    for (int32_t k = 0; k < count; k++) {
        Dtype type = call->operand_shapes[k]->type;
        if (element_program_input_type(kernel->combine, k) != type ||
            element_program_input_type(kernel->combine, count + k) != type ||
            element_program_output_type(kernel->combine, k) != type)
            return kernel_call_refuse(call, reason, error);
    }
    kernel->addresses_at = kernel_align(element_program_scratch(kernel->combine));
    kernel->current_at =
        kernel->addresses_at + kernel_align(3 * (int64_t)sizeof(void *) * call->result_count);
    call->scratch_bytes =
        kernel->current_at + (int64_t)call->result_count * ELEMENT_TILE * MOST_ELEMENT_BYTES;
    call->compiled = kernel;
    call->run = run_reduce_window;
    return pool_prepare(&kernel->pool, call, false, arena, error);
}

/* Moves `best` and `offsets` to a cell wherever the computation does not select the current one. */
static void select_cell(const KernelCall *call, const char *candidate, int64_t at, int64_t count) {
    const WindowKernel *kernel = call->compiled;
    char *scratch = call->scratch, *best = scratch + kernel->best_at;
    uint8_t *chosen = (uint8_t *)(scratch + kernel->chosen_at);
    int64_t *offsets = (int64_t *)(scratch + kernel->offsets_at), bytes = kernel->element_bytes;
    const void *inputs[2] = {best, candidate};
    void *output = chosen;
    element_program_run(kernel->select, inputs, &output, count, NULL, scratch + kernel->select_at);
    for (int64_t i = 0; i < count; i++) {
        if (chosen[i]) continue;
        offsets[i] = at + i;
        memcpy(best + i * bytes, candidate + i * bytes, (size_t)bytes);
    }
}

/* Adds `count` source elements to the cells chosen for them. */
static void scatter_run(const KernelCall *call, const char *source, int64_t count) {
    const WindowKernel *kernel = call->compiled;
    char *scratch = call->scratch, *current = scratch + kernel->current_at, *out = call->results[0];
    const int64_t *offsets = (const int64_t *)(scratch + kernel->offsets_at);
    int64_t bytes = kernel->element_bytes;
    for (int64_t i = 0; i < count; i++) memcpy(current + i * bytes, out + offsets[i] * bytes, (size_t)bytes);
    const void *inputs[2] = {current, source};
    void *output = current;
    element_program_run(kernel->combine, inputs, &output, count, NULL, scratch + kernel->combine_at);
    for (int64_t i = 0; i < count; i++) memcpy(out + offsets[i] * bytes, current + i * bytes, (size_t)bytes);
}

static void run_select_and_scatter(const KernelCall *call) {
    const WindowKernel *kernel = call->compiled;
    char *scratch = call->scratch;
    int64_t position[IR_MAX_RANK] = {0}, bytes = kernel->element_bytes;
    int64_t *offsets = (int64_t *)(scratch + kernel->offsets_at);
    const char *in = call->operands[0], *source = call->operands[1];
    if (kernel->pool) {
        pool_select_and_scatter(kernel->pool, call);
        return;
    }
    strided_fill(call->results[0], call->operands[2], ir_shape_elements(call->result_shapes[0]), bytes);
    element_program_begin(kernel->select, ELEMENT_TILE, scratch + kernel->select_at);
    element_program_begin(kernel->combine, ELEMENT_TILE, scratch + kernel->combine_at);
    for (int64_t p = 0; p < kernel->position_count; p++) {
        for (int64_t first = 0; first < kernel->run; first += ELEMENT_TILE) {
            int64_t n = kernel->run - first < ELEMENT_TILE ? kernel->run - first : ELEMENT_TILE;
            int64_t cell[IR_MAX_RANK] = {0};
            bool found = false;
            do {
                int64_t at = cell_offset(kernel, position, cell);
                if (at < 0) continue;
                const char *candidate = in + (at + first) * bytes;
                if (found) {
                    select_cell(call, candidate, at + first, n);
                } else {
                    found = true;
                    memcpy(scratch + kernel->best_at, candidate, (size_t)(n * bytes));
                    for (int64_t i = 0; i < n; i++) offsets[i] = at + first + i;
                }
            } while (strided_next(cell, kernel->cells, kernel->outer_rank));
            if (found) scatter_run(call, source + (p * kernel->run + first) * bytes, n);
        }
        strided_next(position, kernel->positions, kernel->outer_rank);
    }
}

AmStatus cpu_prepare_select_and_scatter(KernelCall *call, Arena *arena, AmError *error) {
    const IrShape *input = call->operand_shapes[0], *source = call->operand_shapes[1];
    WindowKernel *kernel = ARENA_ARRAY(arena, WindowKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    if (call->attributes->window_count != input->rank)
        return kernel_call_refuse(call, "only with a window over all dimensions", error);
    describe_windows(kernel, call, input, source);
    Dtype type = input->type;
    TRY(build_pair(&kernel->select, call, arena, call->instruction->compute.called, type, DTYPE_PRED, error));
    TRY(build_pair(&kernel->combine, call, arena, call->instruction->compute.called_second, type, type,
                   error));
    kernel->combine_at = kernel_align(element_program_scratch(kernel->select));
    kernel->best_at = kernel->combine_at + kernel_align(element_program_scratch(kernel->combine));
    kernel->current_at = kernel->best_at + ELEMENT_TILE * MOST_ELEMENT_BYTES;
    kernel->chosen_at = kernel->current_at + ELEMENT_TILE * MOST_ELEMENT_BYTES;
    kernel->offsets_at = kernel->chosen_at + ELEMENT_TILE;
    call->scratch_bytes = kernel->offsets_at + ELEMENT_TILE * 8;
    call->compiled = kernel;
    call->run = run_select_and_scatter;
    return pool_prepare(&kernel->pool, call, true, arena, error);
}
