/* scatter: updates are combined in the order of their positions, as on the CPU.
 *
 * An entry is a position together with a cell: an element of the window along the dimensions that
 * indices move. An entry addresses one row of the result, whose columns are the rest of the window.
 * Its key is the offset of the row, then the number of the entry. Blocks sort TILE keys each in shared
 * memory, and merges double the sorted length. After that the entries of a row are adjacent, in the
 * order of their positions. One thread for each column of a row combines the updates sequentially and
 * loads some of them ahead. E entries take O(E log^2 E) steps.
 *
 * With few positions, or a result with few rows, one thread for each element of the result evaluates
 * all positions in order.
 */
#include "executor/cuda/codegen/move/source_index.h"

enum { FEW_POSITIONS = 2, FEW_ROWS = 8, TILE = 2048, CHUNK = 8, AT_ONCE = 16 };

/* The entries that are sorted. */
typedef struct Entries {
    const IndexMap *map;
    int64_t cells;   /* elements of a window along the dimensions that indices move */
    int64_t columns; /* elements of a window along the other dimensions */
    int64_t count;   /* positions times cells */
    int32_t bits;    /* of the number of an entry in a key; the other bits are the offset of its row */
    bool expanded[IR_MAX_RANK]; /* [window dimension]: it belongs to the cells */
} Entries;

/* Appends "const s64 index0 = ...;" and the test that all indices are inside the whole, into `inside`. */
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

/* Appends "const s64 p1 = entry / 12u % 7u;" for the name "p" and n 1. `count`: number of all entries. */
static void append_part(Text *out, const char *indent, const char *name, int32_t n, int64_t count,
                        int64_t stride, int64_t size) {
    const char *suffix = count <= INT32_MAX ? "u" : "ll";
    text_append(out, "%sconst s64 %s%d = entry", indent, name, n);
    if (stride != 1) text_append(out, " / %lld%s", (long long)stride, suffix);
    if (stride * size != count) text_append(out, " %% %lld%s", (long long)size, suffix);
    text_append_string(out, ";\n");
}

/* Appends p0, ..., the position of entry "entry", and c0, ..., its cell. */
static void append_entry(Text *out, const Entries *entries, const char *indent) {
    const IndexMap *map = entries->map;
    int64_t stride = entries->count;
    for (int32_t n = 0; n < map->position_rank; n++) {
        stride /= map->positions[n];
        append_part(out, indent, "p", n, entries->count, stride, map->positions[n]);
    }
    stride = entries->cells;
    for (int32_t w = 0; w < map->window_rank; w++) {
        if (!entries->expanded[w]) continue;
        stride /= map->window[w];
        append_part(out, indent, "c", w, entries->count, stride, map->window[w]);
    }
}

/* Appends "const u32 entry = VALUE;". */
static void append_number(Text *out, const Entries *entries, const char *indent, const char *value) {
    const char *type = entries->count <= INT32_MAX ? "u32" : "s64";
    text_append(out, "%sconst %s entry = (%s)(%s);\n", indent, type, type, value);
}

/* Appends the assignment of the key of entry "entry" to `key`, which stays all ones outside the shard. */
static void append_key(Text *out, const Entries *entries) {
    const IndexMap *map = entries->map;
    static const char indent[] = "            ";
    append_entry(out, entries, indent);
    append_indices(out, map, indent);
    text_append(out, "%su64 place = ", indent);
    cuda_append_dot(out, "p", map->batch_strides, map->position_rank);
    text_append_string(out, ";\n");
    for (int32_t k = 0; k < map->map_count; k++) {
        int64_t d = map->map_dimension[k];
        int32_t w = map->map_window[k];
        if (map->map_full[k]) continue;
        text_append(out, "%sconst s64 to%d = at%d", indent, k, k);
        if (w >= 0 && entries->expanded[w]) text_append(out, " + c%d", w);
        text_append(out, ";\n%sinside = inside && to%d >= 0 && to%d < %lldll;\n", indent, k, k,
                    (long long)map->local[d]);
        text_append(out, "%splace += (u64)to%d * %lldull;\n", indent, k, (long long)map->operand_strides[d]);
    }
    text_append(out, "%sif (inside) key = place << %d | entry;\n", indent, entries->bits);
}

/* Adds the launch that writes sorted tiles of keys to the scratch memory, by a bitonic network for each
 * block. */
static AmStatus launch_tiles(CudaSource *source, const KernelCall *call, const Entries *entries, int32_t tile,
                             AmError *error) {
    Text body = {0};
    cuda_append_signature(&body, call, source, "u64", false);
    text_append(&body,
                "    __shared__ u64 keys[%d];\n"
                "    const s64 first = (s64)blockIdx.x * %d;\n"
                "    for (u32 k = threadIdx.x; k < %d; k += %d) {\n"
                "        u64 key = ~0ull;\n"
                "        if (first + k < %lldll) {\n",
                tile, tile, tile, CUDA_THREADS, (long long)entries->count);
    append_number(&body, entries, "            ", "first + k");
    append_key(&body, entries);
    text_append(&body,
                "        }\n"
                "        keys[k] = key;\n"
                "    }\n"
                "    __syncthreads();\n"
                "    for (u32 size = 2; size <= %d; size *= 2)\n"
                "        for (u32 stride = size / 2; stride > 0; stride /= 2) {\n"
                "            for (u32 k = threadIdx.x; k < %d; k += %d) {\n"
                "                const u32 low = 2 * k - (k & (stride - 1));\n"
                "                const u64 a = keys[low], b = keys[low + stride];\n"
                "                if ((a > b) == ((low & size) == 0)) {\n"
                "                    keys[low] = b;\n"
                "                    keys[low + stride] = a;\n"
                "                }\n"
                "            }\n"
                "            __syncthreads();\n"
                "        }\n"
                "    for (u32 k = threadIdx.x; k < %d; k += %d)\n"
                "        if (first + k < %lldll) scratch[first + k] = keys[k];\n"
                "}\n",
                tile, tile / 2, CUDA_THREADS, tile, CUDA_THREADS, (long long)entries->count);
    return cuda_source_launch(source, "scatter_tiles", &body,
                              entries->count / tile + (entries->count % tile > 0), CUDA_THREADS, error);
}

/* Adds the launches that merge pairs of runs between the halves of the scratch memory; a thread writes CHUNK
 * keys. The number of a launch is the length of its runs, plus 1 if they are in the second half. *half: the
 * half that holds the result. */
static AmStatus launch_merges(CudaSource *source, const KernelCall *call, const Entries *entries,
                              int32_t *half, AmError *error) {
    long long count = (long long)entries->count;
    Text body = {0};
    *half = 0;
    if (count <= TILE) return AM_OK;
    cuda_append_signature(&body, call, source, "u64", true);
    cuda_append_guard(&body, count / CHUNK + (count % CHUNK > 0));
    text_append(&body,
                "    const u64 *keys = scratch + (number & 1) * %lldll;\n"
                "    u64 *sorted = scratch + (1 - (number & 1)) * %lldll;\n"
                "    const s64 run = number & ~1ll, at = (s64)i * %d, end = least_of(at + %d, %lldll);\n"
                "    const s64 first = at & ~(2 * run - 1), middle = least_of(first + run, %lldll);\n"
                "    const s64 last = least_of(middle + run, %lldll), before = at - first;\n",
                count, count, CHUNK, CHUNK, count, count, count);
    text_append_string(
        &body,
        "    s64 low = greatest_of(before - (last - middle), 0ll);\n"
        "    s64 high = least_of(before, middle - first);\n"
        "    while (low < high) {\n"
        "        const s64 mean = (low + high) / 2;\n"
        "        if (keys[middle + before - 1 - mean] < keys[first + mean]) high = mean;\n"
        "        else low = mean + 1;\n"
        "    }\n"
        "    s64 left = first + low, right = middle + before - low;\n"
        "    for (s64 k = at; k < end; k++) {\n"
        "        const bool takes_right = left == middle || (right < last && keys[right] < keys[left]);\n"
        "        sorted[k] = keys[takes_right ? right++ : left++];\n"
        "    }\n"
        "}\n");
    TRY(cuda_source_launch(source, "scatter_merge", &body, cuda_blocks(count / CHUNK + (count % CHUNK > 0)),
                           CUDA_THREADS, error));
    CudaLaunch *first = &source->launches[source->launch_count - 1];
    first->numbered = true;
    first->number = TILE;
    *half = 1;
    for (int64_t run = 2 * TILE; run < count; run *= 2, *half = 1 - *half) {
        CudaLaunch next = source->launches[source->launch_count - 1];
        next.number = run + *half;
        TRY(cuda_source_add(source, &next, error));
    }
    return AM_OK;
}

/* Copies the strides of the columns; those of the cells become 0. */
static void column_strides(int64_t *of_columns, const Entries *entries, const int64_t *strides,
                           int32_t rank) {
    for (int32_t w = 0; w < rank; w++) of_columns[w] = entries->expanded[w] ? 0 : strides[w];
}

/* Appends "NEXT = UPDATE;", the load of the update of the entry with key KEY. */
static void append_update(Text *out, const KernelCall *call, const Entries *entries, const char *indent,
                          const char *key, const char *next) {
    const IndexMap *map = entries->map;
    char number[64];
    snprintf(number, sizeof number, "%s & %lluull", key, (1ull << entries->bits) - 1);
    append_number(out, entries, indent, number);
    append_entry(out, entries, indent);
    text_append(out, "%sconst s64 update = in_window + ", indent);
    cuda_append_dot(out, "p", map->slice_strides, map->position_rank);
    for (int32_t w = 0; w < map->window_rank; w++)
        if (entries->expanded[w])
            text_append(out, " + c%d * %lldll", w, (long long)map->window_slice_strides[w]);
    text_append(out, ";\n%s%s = ", indent, next);
    cuda_append_element(out, call->operand_shapes[2]->type, "in2", "update");
    text_append_string(out, ";\n");
}

/* Appends the combination of a row: its first update, then AT_ONCE updates at a time, whose keys and values
 * are loaded before they are combined. */
static void append_row(Text *out, const KernelCall *call, const Entries *entries) {
    const char *type = cuda_value_type(call->operand_shapes[2]->type);
    long long count = (long long)entries->count;
    text_append(out, "    {\n        %s next;\n", type);
    append_update(out, call, entries, "        ", "key", "next");
    text_append(out,
                "        value = combine(value, next);\n"
                "    }\n"
                "    for (s64 at = row0 + 1; at < %lldll && keys[at] >> %d == row; at += %d) {\n"
                "        u64 ahead[%d];\n"
                "        %s next[%d] = {};\n"
                "#pragma unroll\n"
                "        for (u32 k = 0; k < %d; k++) ahead[k] = at + k < %lldll ? keys[at + k] : ~0ull;\n"
                "#pragma unroll\n"
                "        for (u32 k = 0; k < %d; k++) {\n"
                "            if (ahead[k] >> %d != row) continue;\n",
                count, entries->bits, AT_ONCE, AT_ONCE, type, AT_ONCE, AT_ONCE, count, AT_ONCE,
                entries->bits);
    append_update(out, call, entries, "            ", "ahead[k]", "next[k]");
    text_append(out,
                "        }\n"
                "#pragma unroll\n"
                "        for (u32 k = 0; k < %d; k++)\n"
                "            if (ahead[k] >> %d == row) value = combine(value, next[k]);\n"
                "    }\n",
                AT_ONCE, entries->bits);
}

/* Adds the launch that combines the updates. The thread of the first entry of a row combines the whole
 * row. */
static AmStatus launch_rows(CudaSource *source, const KernelCall *call, const Entries *entries,
                            const ElementComputation *combine, int32_t half, AmError *error) {
    const IndexMap *map = entries->map;
    Dtype type = call->operand_shapes[2]->type;
    int64_t elements = entries->count * entries->columns, strides[IR_MAX_RANK], stride = entries->columns;
    Text body = {0};
    cuda_append_signature(&body, call, source, "u64", false);
    cuda_append_guard(&body, elements);
    AmStatus status = cuda_append_computation(&body, source->arena, call, "combine", combine, error);
    if (status != AM_OK) {
        text_free(&body);
        return status;
    }
    cuda_append_coordinate(&body, "row", 0, elements, entries->columns, entries->count);
    text_append(&body,
                "    const u64 *keys = scratch + %lldll;\n"
                "    const u64 key = keys[row0], row = key >> %d;\n"
                "    if (key == ~0ull || (row0 > 0 && keys[row0 - 1] >> %d == row)) return;\n",
                half ? (long long)entries->count : 0, entries->bits, entries->bits);
    for (int32_t w = 0; w < map->window_rank; w++) {
        if (entries->expanded[w]) continue;
        stride /= map->window[w];
        cuda_append_coordinate(&body, "w", w, elements, stride, map->window[w]);
    }
    text_append_string(&body, "    const s64 place = (s64)row + ");
    column_strides(strides, entries, map->window_operand_strides, map->window_rank);
    cuda_append_dot(&body, "w", strides, map->window_rank);
    text_append_string(&body, ", in_window = ");
    column_strides(strides, entries, map->window_slice_strides, map->window_rank);
    cuda_append_dot(&body, "w", strides, map->window_rank);
    text_append(&body, ";\n    %s value = ", cuda_value_type(type));
    cuda_append_element(&body, type, "out0", "place");
    text_append_string(&body, ";\n");
    append_row(&body, call, entries);
    text_append_string(&body, "    out0[place] = ");
    cuda_append_store(&body, type, "value");
    text_append_string(&body, ";\n}\n");
    return cuda_source_launch(source, "scatter_rows", &body, cuda_blocks(elements), CUDA_THREADS, error);
}

/* Appends position number `number` as coordinates p0, ... */
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

/* Returns the dimension of the operand along which window dimension w lies. */
static int32_t window_dimension(const IrGather *form, int32_t w) {
    int32_t d = 0, seen = -1;
    for (;; d++) {
        bool skipped = false;
        for (int32_t k = 0; k < form->collapsed_count; k++) skipped |= form->collapsed_dimensions[k] == d;
        for (int32_t k = 0; k < form->batching_count; k++) skipped |= form->operand_batching[k] == d;
        if (!skipped && ++seen == w) return d;
    }
}

/* Appends " && ...": whether element d0, ... of the result is in the window, at w0, ... */
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

static AmStatus launch_by_result(CudaSource *source, const KernelCall *call, const IndexMap *map,
                                 const ElementComputation *combine, AmError *error) {
    const IrShape *shape = call->result_shapes[0];
    const IrGather *form = call->attributes->gather;
    Text body = {0};
    cuda_append_signature(&body, call, source, NULL, false);
    cuda_append_guard(&body, ir_shape_elements(shape));
    AmStatus status = cuda_append_computation(&body, source->arena, call, "combine", combine, error);
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
    return cuda_source_launch(source, "scatter_all", &body, cuda_blocks(ir_shape_elements(shape)),
                              CUDA_THREADS, error);
}

AmStatus cuda_source_scatter(CudaSource *source, const KernelCall *call, AmError *error) {
    IndexMap map;
    ElementComputation combine;
    if (call->operand_count != 3 || call->result_count != 1)
        return kernel_call_refuse(call, "only with one operand", error);
    Dtype type = call->operand_shapes[0]->type;
    TRY(cuda_index_map(&map, call, call->operand_shapes[2], error));
    TRY(cuda_computation_read(&combine, source->arena, call, call->instruction->compute.called,
                              (Dtype[]){type, type}, 2, type, error));
    if (call->operand_shapes[2]->type != type)
        return kernel_call_refuse(call, "its computation is not of two elements", error);
    if (ir_shape_elements(call->operand_shapes[0]) == 0) return AM_OK;
    if (ir_shape_elements(call->operand_shapes[2]) == 0) return cuda_source_copy_operand(source, call, error);
    Entries entries = {.map = &map, .cells = 1, .columns = 1};
    for (int32_t k = 0; k < map.map_count; k++)
        if (map.map_window[k] >= 0 && map.map_size[k] != 1 && !map.map_full[k])
            entries.expanded[map.map_window[k]] = true;
    for (int32_t w = 0; w < map.window_rank; w++)
        *(entries.expanded[w] ? &entries.cells : &entries.columns) *= map.window[w];
    entries.count = map.position_count * entries.cells;
    while ((INT64_C(1) << entries.bits) < entries.count) entries.bits++;
    int64_t elements = ir_shape_elements(call->result_shapes[0]);
    if (map.position_count <= FEW_POSITIONS || elements <= FEW_ROWS * entries.cells ||
        elements > INT64_MAX >> entries.bits)
        return launch_by_result(source, call, &map, &combine, error);
    int32_t tile = 2, half;
    while (tile < TILE && tile < entries.count) tile *= 2;
    source->scratch_bytes = (entries.count > TILE ? 2 : 1) * (int64_t)sizeof(uint64_t) * entries.count;
    TRY(cuda_source_copy_operand(source, call, error));
    TRY(launch_tiles(source, call, &entries, tile, error));
    TRY(launch_merges(source, call, &entries, &half, error));
    return launch_rows(source, call, &entries, &combine, half, error);
}
