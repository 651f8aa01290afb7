/* Index vectors of gather and scatter to windows of the operand.
 *
 * index_map_describe() derives strides from the dimension numbers once; index_map_window() finds the window
 * of one position and clips it to the shard.
 */
#include "executor/cpu/move/index_map.h"

#include <string.h>

#include "base/int_list.h"
#include "executor/array/scalar64.h"
#include "executor/array/strided.h"

/* Describes the positions: the dimensions of the indices but the vector's, in order, which are the
 * dimensions of the slices that are not window dimensions, in order. */
static bool describe_positions(IndexMap *map, const IrGather *form, const IrShape *indices,
                               const IrShape *slices) {
    int64_t index_strides[IR_MAX_RANK], slice_strides[IR_MAX_RANK];
    int32_t of_slices[IR_MAX_RANK], count = 0;
    strided_row_major(index_strides, indices->dimensions, indices->rank);
    strided_row_major(slice_strides, slices->dimensions, slices->rank);
    for (int32_t d = 0; d < slices->rank; d++)
        if (int_list_place(form->offset_dimensions, form->offset_count, d) < 0) of_slices[count++] = d;
    map->component_stride =
        form->index_vector_dimension < indices->rank ? index_strides[form->index_vector_dimension] : 0;
    for (int32_t d = 0; d < indices->rank; d++) {
        if (d == form->index_vector_dimension) continue;
        int32_t n = map->position_rank++;
        if (n >= count || slices->dimensions[of_slices[n]] != indices->dimensions[d]) return false;
        map->positions[n] = indices->dimensions[d];
        map->index_strides[n] = index_strides[d];
        map->slice_strides[n] = slice_strides[of_slices[n]];
        int32_t batching = int_list_place(form->indices_batching, form->batching_count, d);
        map->batch_strides[n] = batching < 0 ? 0 : map->operand_strides[form->operand_batching[batching]];
    }
    map->position_count = strided_elements(map->positions, map->position_rank);
    return map->position_rank == count;
}

bool index_map_describe(IndexMap *map, const IrGather *form, const IrShape *operand, const IrShape *indices,
                        const IrShape *slices, const ProgramShard *shard) {
    int64_t slice_strides[IR_MAX_RANK];
    int32_t window_of[IR_MAX_RANK];
    memset(map, 0, sizeof *map);
    strided_row_major(map->operand_strides, operand->dimensions, operand->rank);
    strided_row_major(slice_strides, slices->dimensions, slices->rank);
    for (int32_t d = 0; d < operand->rank; d++) {
        map->local[d] = operand->dimensions[d];
        map->global[d] = shard ? shard->global[d] : operand->dimensions[d];
        map->start[d] = shard ? shard->start[d] : 0;
        window_of[d] = -1;
        if (int_list_place(form->collapsed_dimensions, form->collapsed_count, d) >= 0 ||
            int_list_place(form->operand_batching, form->batching_count, d) >= 0)
            continue;
        int32_t n = map->window_rank++;
        if (n >= form->offset_count) return false;
        window_of[d] = n;
        map->window[n] = slices->dimensions[form->offset_dimensions[n]];
        map->window_operand_strides[n] = map->operand_strides[d];
        map->window_slice_strides[n] = slice_strides[form->offset_dimensions[n]];
        if (map->window[n] > map->local[d] && !shard) return false;
    }
    if (map->window_rank != form->offset_count) return false;
    map->index_type = indices->type;
    map->map_count = form->index_map_count;
    for (int32_t k = 0; k < form->index_map_count; k++) {
        int64_t d = form->start_index_map[k];
        map->map_dimension[k] = d;
        map->map_window[k] = window_of[d];
        map->map_size[k] = window_of[d] >= 0 ? map->window[window_of[d]] : 1;
        bool spans =
            shard && shard->window ? shard->window[d] == map->global[d] : map->map_size[k] == map->local[d];
        map->map_full[k] = window_of[d] >= 0 && spans && map->local[d] < map->global[d];
    }
    return dtype_is_integer(indices->type) && describe_positions(map, form, indices, slices);
}

/* Clips the window along component k; `at` is where it starts in the global array. */
static void clip(IndexedWindow *window, const IndexMap *map, int32_t k, int64_t at) {
    int64_t d = map->map_dimension[k], size = map->map_size[k];
    int64_t local = at - map->start[d], first = local < 0 ? -local : 0;
    int64_t end = local + size > map->local[d] ? map->local[d] - local : size;
    if (first >= end) {
        window->empty = true;
        return;
    }
    window->operand_at += (local + first) * map->operand_strides[d];
    if (end - first == size) return;
    int32_t w = map->map_window[k];
    window->is_inside = false;
    window->dimensions[w] = end - first;
    window->slice_at += first * map->window_slice_strides[w];
}

void index_map_window(IndexedWindow *window, const IndexMap *map, const int64_t *position,
                      const void *indices, bool clamp, int64_t *unclipped_at) {
    int64_t index_at = 0;
    window->operand_at = window->slice_at = 0;
    window->is_inside = true;
    window->empty = false;
    for (int32_t d = 0; d < map->position_rank; d++) {
        index_at += position[d] * map->index_strides[d];
        window->slice_at += position[d] * map->slice_strides[d];
        window->operand_at += position[d] * map->batch_strides[d];
    }
    *unclipped_at = window->slice_at;
    for (int32_t w = 0; w < map->window_rank; w++) window->dimensions[w] = map->window[w];
    for (int32_t k = 0; k < map->map_count && !window->empty; k++) {
        int64_t d = map->map_dimension[k];
        int64_t at = scalar64_index(indices, map->index_type, index_at + k * map->component_stride);
        int64_t most = map->global[d] - (map->map_full[k] ? map->global[d] : map->map_size[k]);
        if (clamp) {
            if (at > most) at = most;
            if (at < 0) at = 0;
        } else if (at < 0 || at > most) {
            window->empty = true;
        }
        if (!map->map_full[k] && !window->empty) clip(window, map, k, at);
    }
}
