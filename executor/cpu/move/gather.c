/* gather: windows of the operand at positions given by indices.
 *
 * Indices are clamped so that the window is inside the global operand. If this device holds a shard
 * of it, elements outside the shard are 0, so that the sum over the shards is the global result.
 */
#include <string.h>

#include "executor/array/strided.h"
#include "executor/cpu/move/index_map.h"

typedef struct GatherKernel {
    IndexMap map;
    int64_t element_bytes;
} GatherKernel;

static void run_gather(const KernelCall *call) {
    const GatherKernel *kernel = call->compiled;
    const IndexMap *map = &kernel->map;
    static const uint64_t zero[2];
    static const int64_t still[IR_MAX_RANK];
    int64_t position[IR_MAX_RANK] = {0}, bytes = kernel->element_bytes;
    const char *in = call->operands[0];
    char *out = call->results[0];
    for (int64_t p = 0; p < map->position_count; p++) {
        IndexedWindow window;
        int64_t unclipped_at;
        index_map_window(&window, map, position, call->operands[1], true, &unclipped_at);
        if (window.empty || !window.is_inside)
            strided_copy(out + unclipped_at * bytes, map->window_slice_strides, zero, still, map->window,
                         map->window_rank, bytes);
        if (!window.empty)
            strided_copy(out + window.slice_at * bytes, map->window_slice_strides,
                         in + window.operand_at * bytes, map->window_operand_strides, window.dimensions,
                         map->window_rank, bytes);
        strided_next(position, map->positions, map->position_rank);
    }
}

AmStatus cpu_prepare_gather(KernelCall *call, Arena *arena, AmError *error) {
    GatherKernel *kernel = ARENA_ARRAY(arena, GatherKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    if (!index_map_describe(&kernel->map, call->attributes->gather, call->operand_shapes[0],
                            call->operand_shapes[1], call->result_shapes[0],
                            call->instruction->compute.shard))
        return kernel_call_refuse(call, "its dimension numbers do not fit its shapes", error);
    kernel->element_bytes = dtype_bytes(call->operand_shapes[0]->type);
    call->compiled = kernel;
    call->run = run_gather;
    return AM_OK;
}
