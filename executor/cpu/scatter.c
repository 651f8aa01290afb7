/* scatter: updates combined into windows of the operand.
 *
 * A window that does not lie inside the whole operand is skipped, and so is
 * what falls outside this device's shard. Updates are combined in the order of
 * their positions, one after the other, by the operator's own computation
 * (argument 0 is the current value, argument 1 the update), so that repeated
 * indices accumulate and the result does not depend on timing.
 */
#include <string.h>

#include "executor/cpu/element.h"
#include "executor/cpu/index_map.h"
#include "executor/cpu/strided.h"

typedef struct ScatterKernel {
    IndexMap map;
    int64_t element_bytes, operand_bytes;
    ElementProgram *combine;
    int64_t current_at, update_at; /* in the scratch memory, after the program's */
} ScatterKernel;

static void combine_window(const KernelCall *call, const IndexedWindow *window) {
    const ScatterKernel *kernel = call->compiled;
    const IndexMap *map = &kernel->map;
    int64_t bytes = kernel->element_bytes, sizes[IR_MAX_RANK], to[IR_MAX_RANK], from[IR_MAX_RANK];
    char *scratch = call->scratch, *out = (char *)call->results[0] + window->operand_at * bytes;
    const char *update = (const char *)call->operands[2] + window->slice_at * bytes;
    int64_t elements = strided_elements(window->dimensions, map->window_rank);
    memcpy(sizes, window->dimensions, sizeof sizes);
    memcpy(to, map->window_operand_strides, sizeof to);
    memcpy(from, map->window_slice_strides, sizeof from);
    int32_t rank = strided_coalesce(sizes, to, from, map->window_rank);
    bool packed = rank == 0 || (rank == 1 && to[0] == 1 && from[0] == 1);
    for (int64_t first = 0; first < elements; first += ELEMENT_TILE) {
        int64_t n = elements - first < ELEMENT_TILE ? elements - first : ELEMENT_TILE;
        char *current = packed ? out + first * bytes : scratch + kernel->current_at;
        const char *values = packed ? update + first * bytes : scratch + kernel->update_at;
        if (!packed) {
            strided_load(current, out, to, sizes, rank, first, n, bytes);
            strided_load(scratch + kernel->update_at, update, from, sizes, rank, first, n, bytes);
        }
        const void *inputs[2] = {current, values};
        void *output = current;
        element_program_run(kernel->combine, inputs, &output, n, NULL, scratch);
        if (!packed) strided_store(out, current, to, sizes, rank, first, n, bytes);
    }
}

static void run_scatter(const KernelCall *call) {
    const ScatterKernel *kernel = call->compiled;
    int64_t position[IR_MAX_RANK] = {0};
    if (call->results[0] != call->operands[0])
        memcpy(call->results[0], call->operands[0], (size_t)kernel->operand_bytes);
    element_program_begin(kernel->combine, ELEMENT_TILE, call->scratch);
    for (int64_t p = 0; p < kernel->map.position_count; p++) {
        IndexedWindow window;
        int64_t whole_at;
        index_map_window(&window, &kernel->map, position, call->operands[1], false, &whole_at);
        if (!window.empty) combine_window(call, &window);
        strided_next(position, kernel->map.positions, kernel->map.position_rank);
    }
}

AmStatus cpu_prepare_scatter(KernelCall *call, Arena *arena, AmError *error) {
    ScatterKernel *kernel = ARENA_ARRAY(arena, ScatterKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    if (call->operand_count != 3 || call->result_count != 1)
        return kernel_call_refuse(call, "only with one operand", error);
    Dtype type = call->operand_shapes[0]->type;
    if (!index_map_describe(&kernel->map, call->instruction->attributes->gather, call->operand_shapes[0],
                            call->operand_shapes[1], call->operand_shapes[2], call->instruction->shard))
        return kernel_call_refuse(call, "its dimension numbers do not fit its shapes", error);
    TRY(element_program_from_computation(&kernel->combine, arena, call->program->module,
                                         call->instruction->called, error));
    if (element_program_inputs(kernel->combine) != 2 || element_program_outputs(kernel->combine) != 1 ||
        element_program_input_type(kernel->combine, 0) != type ||
        element_program_input_type(kernel->combine, 1) != type ||
        element_program_output_type(kernel->combine, 0) != type || call->operand_shapes[2]->type != type)
        return kernel_call_refuse(call, "its computation is not of two elements", error);
    kernel->element_bytes = dtype_bytes(type);
    kernel->operand_bytes = ir_shape_bytes(call->operand_shapes[0]);
    kernel->current_at = kernel_align(element_program_scratch(kernel->combine));
    kernel->update_at = kernel->current_at + kernel_align(ELEMENT_TILE * kernel->element_bytes);
    call->scratch_bytes = kernel->update_at + kernel_align(ELEMENT_TILE * kernel->element_bytes);
    call->compiled = kernel;
    call->run = run_scatter;
    return AM_OK;
}
