/* scatter: updates combined into windows of the operand.
 *
 * A window that is not inside the global operand is skipped, and elements outside this device's
 * shard too. The operator's own computation combines updates, one after the other, in the order of
 * their positions. Its arguments are the current values of all operands, then the updates. So
 * repeated indices accumulate, and the result does not depend on timing.
 */
#include <string.h>

#include "executor/array/strided.h"
#include "executor/cpu/element.h"
#include "executor/cpu/move/index_map.h"

enum { MOST_OPERANDS = 16 };

/* An operand and its updates. */
typedef struct Scattered {
    int64_t element_bytes, operand_bytes;
    /* Offsets in the scratch memory, behind that of the element program. */
    int64_t current_at; /* current values of the operand */
    int64_t update_at;
    int64_t
        made_at; /* new values, where several operands have them: each may depend on the old ones of all */
} Scattered;

typedef struct ScatterKernel {
    IndexMap map; /* the same for all operands */
    int32_t count;
    Scattered operands[MOST_OPERANDS];
    ElementProgram *combine; /* of the current values, then the updates */
} ScatterKernel;

static void combine_window(const KernelCall *call, const IndexedWindow *window) {
    const ScatterKernel *kernel = call->compiled;
    const IndexMap *map = &kernel->map;
    int64_t sizes[IR_MAX_RANK], to[IR_MAX_RANK], from[IR_MAX_RANK];
    char *scratch = call->scratch;
    int64_t elements = strided_elements(window->dimensions, map->window_rank);
    memcpy(sizes, window->dimensions, sizeof sizes);
    memcpy(to, map->window_operand_strides, sizeof to);
    memcpy(from, map->window_slice_strides, sizeof from);
    int32_t rank = strided_coalesce(sizes, to, from, map->window_rank), count = kernel->count;
    bool packed = rank == 0 || (rank == 1 && to[0] == 1 && from[0] == 1);
    for (int64_t first = 0; first < elements; first += ELEMENT_TILE) {
        int64_t n = elements - first < ELEMENT_TILE ? elements - first : ELEMENT_TILE;
        const void *inputs[2 * MOST_OPERANDS];
        void *outputs[MOST_OPERANDS];
        for (int32_t k = 0; k < count; k++) {
            const Scattered *scattered = &kernel->operands[k];
            int64_t bytes = scattered->element_bytes;
            char *out = (char *)call->results[k] + window->operand_at * bytes;
            const char *update = (const char *)call->operands[count + 1 + k] + window->slice_at * bytes;
            char *current = packed ? out + first * bytes : scratch + scattered->current_at;
            if (!packed) {
                strided_load(current, out, to, sizes, rank, first, n, bytes);
                strided_load(scratch + scattered->update_at, update, from, sizes, rank, first, n, bytes);
            }
            inputs[k] = current;
            outputs[k] = count == 1 ? current : scratch + scattered->made_at;
            inputs[count + k] = packed ? update + first * bytes : scratch + scattered->update_at;
        }
        element_program_run(kernel->combine, inputs, outputs, n, NULL, scratch);
        for (int32_t k = 0; k < count; k++) {
            int64_t bytes = kernel->operands[k].element_bytes;
            char *out = (char *)call->results[k] + window->operand_at * bytes;
            if (!packed) strided_store(out, outputs[k], to, sizes, rank, first, n, bytes);
            else if (count > 1) memcpy(out + first * bytes, outputs[k], (size_t)(n * bytes));
        }
    }
}

static void run_scatter(const KernelCall *call) {
    const ScatterKernel *kernel = call->compiled;
    int64_t position[IR_MAX_RANK] = {0};
    for (int32_t k = 0; k < kernel->count; k++)
        if (call->results[k] != call->operands[k])
            memcpy(call->results[k], call->operands[k], (size_t)kernel->operands[k].operand_bytes);
    element_program_begin(kernel->combine, ELEMENT_TILE, call->scratch);
    for (int64_t p = 0; p < kernel->map.position_count; p++) {
        IndexedWindow window;
        int64_t unclipped_at;
        index_map_window(&window, &kernel->map, position, call->operands[kernel->count], false,
                         &unclipped_at);
        if (!window.empty) combine_window(call, &window);
        strided_next(position, kernel->map.positions, kernel->map.position_rank);
    }
}

/* Returns whether arrays `k` of all kinds have one type, which the computation takes and gives. */
static bool fits(const KernelCall *call, const ScatterKernel *kernel, int32_t k) {
    Dtype type = call->operand_shapes[k]->type;
    int32_t count = kernel->count;
    return element_program_input_type(kernel->combine, k) == type &&
           element_program_input_type(kernel->combine, count + k) == type &&
           element_program_output_type(kernel->combine, k) == type &&
           call->operand_shapes[count + 1 + k]->type == type && call->result_shapes[k]->type == type;
}

AmStatus cpu_prepare_scatter(KernelCall *call, Arena *arena, AmError *error) {
    ScatterKernel *kernel = ARENA_ARRAY(arena, ScatterKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    int32_t count = kernel->count = call->result_count;
    if (call->operand_count != 2 * count + 1 || count < 1 || count > MOST_OPERANDS)
        return kernel_call_refuse(call, "not with these operands", error);
    if (!index_map_describe(&kernel->map, call->attributes->gather, call->operand_shapes[0],
                            call->operand_shapes[count], call->operand_shapes[count + 1],
                            call->instruction->compute.shard))
        return kernel_call_refuse(call, "its dimension numbers do not fit its shapes", error);
    TRY(element_program_from_computation(&kernel->combine, arena, call->program->module,
                                         call->instruction->compute.called, error));
    if (element_program_inputs(kernel->combine) != 2 * count ||
        element_program_outputs(kernel->combine) != count)
        return kernel_call_refuse(call, "its computation is not of two elements of each operand", error);
    int64_t at = kernel_align(element_program_scratch(kernel->combine));
    for (int32_t k = 0; k < count; k++) {
        Scattered *scattered = &kernel->operands[k];
        if (!fits(call, kernel, k))
            return kernel_call_refuse(call, "its computation is not of two elements of each operand", error);
        scattered->element_bytes = dtype_bytes(call->operand_shapes[k]->type);
        scattered->operand_bytes = ir_shape_bytes(call->operand_shapes[k]);
        scattered->current_at = at;
        scattered->update_at = at + kernel_align(ELEMENT_TILE * scattered->element_bytes);
        scattered->made_at = scattered->update_at + kernel_align(ELEMENT_TILE * scattered->element_bytes);
        at = scattered->made_at + kernel_align(ELEMENT_TILE * scattered->element_bytes);
    }
    call->scratch_bytes = at;
    call->compiled = kernel;
    call->run = run_scatter;
    return AM_OK;
}
