/* gather: one thread for each word of the result, by the rules of executor/cpu/move/gather.c. Indices are
 * clamped so that the window lies inside the whole operand; elements outside the shard are 0. A word
 * is an element, or neighbours along the last dimension of the window if no index moves that.
 */
#include "executor/cuda/codegen/move/source_index.h"

void cuda_append_component(Text *out, const IndexMap *map, int32_t k) {
    Text place = {0};
    cuda_append_dot(&place, "p", map->index_strides, map->position_rank);
    text_append(&place, " + %lldll", (long long)(k * map->component_stride));
    cuda_append_index_load(out, map->index_type, 1, place.failed ? "" : place.data);
    out->failed = out->failed || place.failed;
    text_free(&place);
}

int64_t cuda_most_index(const IndexMap *map, int32_t k) {
    int64_t whole = map->global[map->map_dimension[k]];
    return whole - (map->map_full[k] ? whole : map->map_size[k]);
}

/* Returns whether pairs along the last dimension of the window are aligned in the operand and in the
 * slices. */
static bool has_pairs(const IndexMap *map) {
    int32_t last = map->window_rank - 1;
    if (last < 0 || map->window_operand_strides[last] != 1 || map->window_slice_strides[last] != 1 ||
        map->window[last] % 2 != 0)
        return false;
    for (int32_t w = 0; w < last; w++)
        if (map->window_operand_strides[w] % 2 != 0 || map->window_slice_strides[w] % 2 != 0) return false;
    for (int32_t n = 0; n < map->position_rank; n++)
        if (map->slice_strides[n] % 2 != 0 || map->batch_strides[n] % 2 != 0) return false;
    for (int32_t k = 0; k < map->map_count; k++)
        if (!map->map_full[k] &&
            (map->map_window[k] == last || map->operand_strides[map->map_dimension[k]] % 2 != 0))
            return false;
    return true;
}

/* Replaces elements of `bytes` by words of up to 16 bytes. Returns the bytes of a word. */
static int64_t join_words(IndexMap *map, int64_t bytes) {
    int32_t last = map->window_rank - 1;
    for (; bytes < 16 && has_pairs(map); bytes *= 2) {
        map->window[last] /= 2;
        for (int32_t w = 0; w < last; w++) {
            map->window_operand_strides[w] /= 2;
            map->window_slice_strides[w] /= 2;
        }
        for (int32_t n = 0; n < map->position_rank; n++) {
            map->slice_strides[n] /= 2;
            map->batch_strides[n] /= 2;
        }
        for (int32_t k = 0; k < map->map_count; k++)
            if (!map->map_full[k]) map->operand_strides[map->map_dimension[k]] /= 2;
    }
    return bytes;
}

AmStatus cuda_source_gather(CudaSource *source, const KernelCall *call, AmError *error) {
    IndexMap map;
    Text body = {0};
    int64_t elements = ir_shape_elements(call->result_shapes[0]), strides[IR_MAX_RANK];
    int64_t bytes = dtype_bytes(call->result_shapes[0]->type);
    int32_t moved = 0; /* components that move the window */
    TRY(cuda_index_map(&map, call, call->result_shapes[0], error));
    if (elements == 0) return AM_OK;
    int64_t word = join_words(&map, bytes);
    elements /= word / bytes;
    const char *type = cuda_word(word);
    cuda_append_signature(&body, call, source, NULL, false);
    cuda_append_guard(&body, elements);
    /* Defines p0, ... and w0, ... of thread i of the slices' `elements`. */
    for (int32_t n = 0; n < map.position_rank; n++)
        cuda_append_coordinate(&body, "p", n, elements, map.slice_strides[n], map.positions[n]);
    for (int32_t w = 0; w < map.window_rank; w++)
        cuda_append_coordinate(&body, "w", w, elements, map.window_slice_strides[w], map.window[w]);
    for (int32_t k = 0; k < map.map_count; k++)
        if (!map.map_full[k]) {
            /* "const s64 at0 = ...;": where the window starts in the shard along component k's dimension. */
            text_append(&body, "    const s64 at%d = clamped_index(", k);
            cuda_append_component(&body, &map, k);
            text_append(&body, ", %lldll) - %lldll;\n", (long long)cuda_most_index(&map, k),
                        (long long)map.start[map.map_dimension[k]]);
        }
    text_append_string(&body, "    const bool inside = true");
    for (int32_t k = 0; k < map.map_count; k++) {
        int64_t d = map.map_dimension[k];
        if (map.map_full[k] || (!call->instruction->compute.shard && map.map_size[k] <= map.local[d]))
            continue;
        /* " && at0 + w1 >= 0 && at0 + w1 < 7ll": inside the shard along component k's dimension. */
        char place[64];
        long long size = (long long)map.local[map.map_dimension[k]];
        if (map.map_window[k] < 0) snprintf(place, sizeof place, "at%d", k);
        else snprintf(place, sizeof place, "at%d + w%d", k, map.map_window[k]);
        text_append(&body, " && %s >= 0 && %s < %lldll", place, place, size);
    }
    text_append_string(&body, ";\n    const s64 place = ");
    cuda_append_dot(&body, "w", map.window_operand_strides, map.window_rank);
    text_append_string(&body, " + ");
    cuda_append_dot(&body, "p", map.batch_strides, map.position_rank);
    for (int32_t k = 0; k < map.map_count; k++) {
        strides[k] = map.map_full[k] ? 0 : map.operand_strides[map.map_dimension[k]];
        moved += strides[k] != 0;
    }
    if (moved > 0) {
        text_append_string(&body, " + ");
        cuda_append_dot(&body, "at", strides, map.map_count);
    }
    text_append(&body,
                ";\n    const %s nothing = {};\n"
                "    ((%s *)out0)[i] = inside ? ((const %s *)in0)[place] : nothing;\n}\n",
                type, type, type);
    return cuda_source_launch(source, "gather", &body, cuda_blocks(elements), CUDA_THREADS, error);
}

AmStatus cuda_index_map(IndexMap *map, const KernelCall *call, const IrShape *slices, AmError *error) {
    if (!index_map_describe(map, call->attributes->gather, call->operand_shapes[0], call->operand_shapes[1],
                            slices, call->instruction->compute.shard))
        return kernel_call_refuse(call, "its dimension numbers do not fit its shapes", error);
    if (!cuda_has_arithmetic(map->index_type))
        return kernel_call_refuse(call, "not with these indices", error);
    return AM_OK;
}
