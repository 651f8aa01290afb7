/* scatter: updates combined in the order of their positions, as on the CPU,
 * whatever the timing.
 *
 * Where windows of different positions either coincide or do not meet (every
 * index names one element of its dimension, as in the gradient of an embedding),
 * a position's window begins at one place of the result. `starts` finds that
 * place for every position, or -1; `links` finds for every position the next one
 * with the same place; then there is a thread for every element of the updates
 * of a position that no other links to, which follows the links and combines.
 * Else, and for few positions, there is a thread for every element of the
 * result, which goes through all positions in order.
 */
#include "executor/cuda/source_index.h"

enum { FEW_POSITIONS = 2 };

static bool windows_coincide(const IndexMap *map) {
    for (int32_t k = 0; k < map->map_count; k++)
        if (map->map_size[k] != 1 && map->map_size[k] != map->local[map->map_dimension[k]]) return false;
    return true;
}

/* "const s64 index0 = ...;" and the test that all indices are inside the whole, into `inside`. */
static void append_indices(Text *out, const IndexMap *map, const char *indent) {
    for (int32_t k = 0; k < map->map_count; k++) {
        text_append(out, "%sconst s64 index%d = ", indent, k);
        cuda_append_component(out, map, k);
        text_append(out, ", at%d = index%d - %lldll;\n", k, k,
                    map->map_full[k] ? 0 : (long long)map->start[map->map_dimension[k]]);
    }
    text_append(out, "%sbool inside = true", indent);
    for (int32_t k = 0; k < map->map_count; k++)
        text_append(out, " && index%d >= 0 && index%d <= %lldll", k, k, (long long)cuda_most_index(map, k));
    text_append_string(out, ";\n");
}

/* Position number `number` as coordinates p0, ... */
static void append_position(Text *out, const IndexMap *map, const char *number, const char *indent) {
    int64_t stride = map->position_count;
    for (int32_t n = 0; n < map->position_rank; n++) {
        stride /= map->positions[n];
        text_append(out, "%sconst s64 p%d = %s", indent, n, number);
        if (stride != 1) text_append(out, " / %lldll", (long long)stride);
        if (n > 0) text_append(out, " %% %lldll", (long long)map->positions[n]);
        text_append_string(out, ";\n");
    }
}

/* One thread per position. The scratch memory holds, for each, its place, the next position with the same
 * place (or -1), and whether another links to it. */
static AmStatus launch_starts(CudaSource *source, Arena *arena, const KernelCall *call, const IndexMap *map,
                              AmError *error) {
    long long count = (long long)map->position_count;
    Text body = {0};
    cuda_append_signature(&body, call, source, "s64", false);
    cuda_append_guard(&body, map->position_count);
    append_position(&body, map, "i", "    ");
    append_indices(&body, map, "    ");
    text_append_string(&body, "    const s64 place = ");
    cuda_append_dot(&body, "p", map->batch_strides, map->position_rank);
    for (int32_t k = 0; k < map->map_count; k++) {
        int64_t d = map->map_dimension[k];
        if (map->map_full[k]) continue;
        text_append(&body, " + at%d * %lldll", k, (long long)map->operand_strides[d]);
    }
    text_append_string(&body, ";\n");
    for (int32_t k = 0; k < map->map_count; k++)
        if (map->map_size[k] == 1 && !map->map_full[k])
            text_append(&body, "    inside = inside && at%d >= 0 && at%d < %lldll;\n", k, k,
                        (long long)map->local[map->map_dimension[k]]);
    text_append(&body, "    scratch[i] = inside ? place : -1;\n    scratch[%lldll + i] = 0;\n}\n", 2 * count);
    return cuda_source_launch(source, arena, "scatter_starts", &body, cuda_blocks(map->position_count),
                              CUDA_THREADS, error);
}

static AmStatus launch_links(CudaSource *source, Arena *arena, const KernelCall *call, const IndexMap *map,
                             AmError *error) {
    long long count = (long long)map->position_count;
    Text body = {0};
    cuda_append_signature(&body, call, source, "s64", false);
    cuda_append_guard(&body, map->position_count);
    text_append(&body,
                "    const s64 place = scratch[i];\n"
                "    s64 next = (s64)i + 1;\n"
                "    while (next < %lldll && scratch[next] != place) next++;\n"
                "    const bool found = place >= 0 && next < %lldll;\n"
                "    scratch[%lldll + i] = found ? next : -1;\n"
                "    if (found) scratch[%lldll + next] = 1;\n"
                "}\n",
                count, count, count, 2 * count);
    return cuda_source_launch(source, arena, "scatter_links", &body, cuda_blocks(map->position_count),
                              CUDA_THREADS, error);
}

static AmStatus launch_chains(CudaSource *source, Arena *arena, const KernelCall *call, const IndexMap *map,
                              const ElementComputation *combine, AmError *error) {
    const IrShape *updates = call->operand_shapes[2];
    int64_t elements = ir_shape_elements(updates), number[IR_MAX_RANK];
    long long count = (long long)map->position_count;
    Text body = {0};
    cuda_append_signature(&body, call, source, "s64", false);
    cuda_append_guard(&body, elements);
    AmStatus status = cuda_append_computation(&body, arena, call, "combine", combine, error);
    if (status != AM_OK) {
        text_free(&body);
        return status;
    }
    cuda_append_slice_coordinates(&body, map, elements);
    int64_t stride = map->position_count;
    for (int32_t n = 0; n < map->position_rank; n++) number[n] = stride /= map->positions[n];
    text_append_string(&body, "    const s64 first = ");
    cuda_append_dot(&body, "p", number, map->position_rank);
    text_append(&body, ";\n    if (scratch[first] < 0 || scratch[%lldll + first] != 0) return;\n", 2 * count);
    text_append_string(&body, "    const s64 place = scratch[first] + ");
    cuda_append_dot(&body, "w", map->window_operand_strides, map->window_rank);
    text_append_string(&body, ", in_window = ");
    cuda_append_dot(&body, "w", map->window_slice_strides, map->window_rank);
    text_append(&body, ";\n    %s value = ", cuda_value_type(updates->type));
    cuda_append_element(&body, updates->type, "out0", "place");
    text_append(&body,
                ";\n    for (s64 position = first; position >= 0; position = scratch[%lldll + position]) {\n",
                count);
    append_position(&body, map, "position", "        ");
    text_append_string(&body, "        const s64 update = in_window + ");
    cuda_append_dot(&body, "p", map->slice_strides, map->position_rank);
    text_append_string(&body, ";\n        value = combine(value, ");
    cuda_append_element(&body, updates->type, "in2", "update");
    text_append_string(&body, ");\n    }\n    out0[place] = ");
    cuda_append_store(&body, updates->type, "value");
    text_append_string(&body, ";\n}\n");
    return cuda_source_launch(source, arena, "scatter", &body, cuda_blocks(elements), CUDA_THREADS, error);
}

/* The dimension of the operand along which window dimension w lies. */
static int32_t window_dimension(const IrGather *form, int32_t w) {
    int32_t d = 0, seen = -1;
    for (;; d++) {
        bool skipped = false;
        for (int32_t k = 0; k < form->collapsed_count; k++) skipped |= form->collapsed_dimensions[k] == d;
        for (int32_t k = 0; k < form->batching_count; k++) skipped |= form->operand_batching[k] == d;
        if (!skipped && ++seen == w) return d;
    }
}

/* " && ...": whether element d0, ... of the result is in the window, where it stands at w0, ... */
static void append_membership(Text *out, const IndexMap *map, const IrGather *form) {
    for (int32_t w = 0; w < map->window_rank; w++)
        text_append(out, " && w%d >= 0 && w%d < %lldll", w, w, (long long)map->window[w]);
    for (int32_t k = 0; k < form->collapsed_count; k++) {
        int64_t d = form->collapsed_dimensions[k];
        text_append(out, " && d%lld == 0", (long long)d);
        for (int32_t c = 0; c < map->map_count; c++)
            if (map->map_dimension[c] == d) text_append(out, " + at%d", c);
    }
    for (int32_t k = 0; k < form->batching_count; k++) {
        int64_t d = form->indices_batching[k];
        text_append(out, " && d%lld == p%lld", (long long)form->operand_batching[k],
                    (long long)(d > form->index_vector_dimension ? d - 1 : d));
    }
}

static AmStatus launch_by_result(CudaSource *source, Arena *arena, const KernelCall *call,
                                 const IndexMap *map, const ElementComputation *combine, AmError *error) {
    const IrShape *shape = call->result_shapes[0];
    const IrGather *form = call->instruction->attributes->gather;
    Text body = {0};
    cuda_append_signature(&body, call, source, NULL, false);
    cuda_append_guard(&body, ir_shape_elements(shape));
    AmStatus status = cuda_append_computation(&body, arena, call, "combine", combine, error);
    if (status != AM_OK) {
        text_free(&body);
        return status;
    }
    cuda_append_coordinates(&body, "d", shape->dimensions, shape->rank);
    text_append(&body, "    %s value = ", cuda_value_type(shape->type));
    cuda_append_element(&body, shape->type, "in0", "i");
    text_append(&body, ";\n    for (s64 position = 0; position < %lldll; position++) {\n",
                (long long)map->position_count);
    append_position(&body, map, "position", "        ");
    append_indices(&body, map, "        ");
    for (int32_t w = 0; w < map->window_rank; w++) {
        text_append(&body, "        const s64 w%d = d%d", w, window_dimension(form, w));
        for (int32_t k = 0; k < map->map_count; k++)
            if (map->map_window[k] == w && !map->map_full[k]) text_append(&body, " - at%d", k);
        text_append_string(&body, ";\n");
    }
    text_append_string(&body, "        if (inside");
    append_membership(&body, map, form);
    text_append_string(&body, ")\n            value = combine(value, ");
    Text place = {0};
    cuda_append_dot(&place, "p", map->slice_strides, map->position_rank);
    text_append_string(&place, " + ");
    cuda_append_dot(&place, "w", map->window_slice_strides, map->window_rank);
    cuda_append_element(&body, shape->type, "in2", place.failed ? "" : place.data);
    body.failed = body.failed || place.failed;
    text_free(&place);
    text_append_string(&body, ");\n    }\n    out0[i] = ");
    cuda_append_store(&body, shape->type, "value");
    text_append_string(&body, ";\n}\n");
    return cuda_source_launch(source, arena, "scatter_all", &body, cuda_blocks(ir_shape_elements(shape)),
                              CUDA_THREADS, error);
}

AmStatus cuda_source_scatter(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error) {
    IndexMap map;
    ElementComputation combine;
    if (call->operand_count != 3 || call->result_count != 1)
        return kernel_call_refuse(call, "only with one operand", error);
    Dtype type = call->operand_shapes[0]->type;
    TRY(cuda_index_map(&map, call, call->operand_shapes[2], error));
    TRY(cuda_computation_read(&combine, arena, call, call->instruction->called, (Dtype[]){type, type}, 2,
                              type, error));
    if (call->operand_shapes[2]->type != type)
        return kernel_call_refuse(call, "its computation is not of two elements", error);
    if (ir_shape_elements(call->operand_shapes[0]) == 0) return AM_OK;
    if (ir_shape_elements(call->operand_shapes[2]) == 0)
        return cuda_source_copy_operand(source, arena, call, error);
    if (map.position_count <= FEW_POSITIONS || !windows_coincide(&map))
        return launch_by_result(source, arena, call, &map, &combine, error);
    source->scratch_bytes = 3 * (int64_t)sizeof(int64_t) * map.position_count;
    TRY(cuda_source_copy_operand(source, arena, call, error));
    TRY(launch_starts(source, arena, call, &map, error));
    TRY(launch_links(source, arena, call, &map, error));
    return launch_chains(source, arena, call, &map, &combine, error);
}
