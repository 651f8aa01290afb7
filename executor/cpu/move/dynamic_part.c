/* dynamic-slice and dynamic-update-slice of a shard of operand 0.
 *
 * The window starts where the indices, clamped in the whole, say; a shard has to
 * do with the part of the window that falls into it. A slice gives that part and
 * zeros for the rest, so that the sum over the shards is the slice; an update
 * takes that part and leaves the rest. In a dimension that the window spans it is
 * the shard's own extent, from its start.
 */
#include <string.h>

#include "executor/array/scalar64.h"
#include "executor/array/strided.h"
#include "executor/cpu/cpu.h"

/* The intersection of the window with the shard. */
typedef struct Overlap {
    int64_t window_at, shard_at; /* offsets in elements */
    int64_t dimensions[IR_MAX_RANK];
    int64_t window_strides[IR_MAX_RANK], shard_strides[IR_MAX_RANK];
} Overlap;

/* `first`: the operand of the first index; `local`: the local window. */
static void find_overlap(Overlap *overlap, const KernelCall *call, int32_t first, const IrShape *local) {
    const ProgramShard *shard = call->instruction->compute.shard;
    const IrShape *held = call->operand_shapes[0];
    overlap->window_at = overlap->shard_at = 0;
    strided_row_major(overlap->window_strides, local->dimensions, local->rank);
    strided_row_major(overlap->shard_strides, held->dimensions, held->rank);
    for (int32_t d = 0; d < held->rank; d++) {
        overlap->dimensions[d] = local->dimensions[d];
        if (shard->window[d] == shard->global[d]) continue;
        int64_t start = scalar64_index(call->operands[first + d], call->operand_shapes[first + d]->type, 0);
        int64_t most = shard->global[d] - shard->window[d];
        if (start > most) start = most;
        if (start < 0) start = 0;
        start -= shard->start[d];
        int64_t from = start < 0 ? 0 : start, end = start + local->dimensions[d];
        if (end > held->dimensions[d]) end = held->dimensions[d];
        overlap->dimensions[d] = end > from ? end - from : 0;
        overlap->window_at += (from - start) * overlap->window_strides[d];
        overlap->shard_at += from * overlap->shard_strides[d];
    }
}

static bool is_nothing(const Overlap *overlap, int32_t rank) {
    return strided_elements(overlap->dimensions, rank) == 0;
}

static void run_slice(const KernelCall *call) {
    const IrShape *window = call->result_shapes[0];
    int64_t bytes = dtype_bytes(window->type);
    Overlap overlap;
    find_overlap(&overlap, call, 1, window);
    memset(call->results[0], 0, (size_t)ir_shape_bytes(window));
    if (is_nothing(&overlap, window->rank)) return;
    strided_copy((char *)call->results[0] + overlap.window_at * bytes, overlap.window_strides,
                 (const char *)call->operands[0] + overlap.shard_at * bytes, overlap.shard_strides,
                 overlap.dimensions, window->rank, bytes);
}

static void run_update(const KernelCall *call) {
    const IrShape *window = call->operand_shapes[1];
    int64_t bytes = dtype_bytes(window->type);
    Overlap overlap;
    find_overlap(&overlap, call, 2, window);
    if (call->results[0] != call->operands[0])
        memcpy(call->results[0], call->operands[0], (size_t)ir_shape_bytes(call->result_shapes[0]));
    if (is_nothing(&overlap, window->rank)) return;
    strided_copy((char *)call->results[0] + overlap.shard_at * bytes, overlap.shard_strides,
                 (const char *)call->operands[1] + overlap.window_at * bytes, overlap.window_strides,
                 overlap.dimensions, window->rank, bytes);
}

AmStatus cpu_prepare_dynamic_part(KernelCall *call, Arena *arena, AmError *error) {
    (void)arena;
    if (!call->instruction->compute.shard->window)
        return kernel_call_refuse(call, "its shard lacks the size of the window", error);
    call->run = call->instruction->opcode == IR_DYNAMIC_SLICE ? run_slice : run_update;
    return AM_OK;
}
