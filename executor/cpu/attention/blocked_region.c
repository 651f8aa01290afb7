/* Fused attention: a region with products runs block of rows by block of rows.
 *
 * region_blocks.h divides the region, and makes ordinary programs for one block. Their steps are the kernels
 * of the other operators, prepared once for one thread. A member of the team takes units (batch indices, or
 * blocks of rows of one where no gradient sums over rows) with scratch memory of its own: the values of a
 * block, which stay in a cache, accumulators, and copies of the parts of parameters that are not contiguous.
 * Copies of keys serve all blocks of a unit. A block under a causal mask leaves out keys after its rows. The
 * memory is linear in the number of keys. Blocks of a unit follow one another in a fixed order, so that the
 * result does not depend on the team.
 */
#include "base/integers.h"
#include "executor/array/scalar64.h"
#include "executor/cpu/attention/region_kernel.h"
#include "executor/cpu/team.h"

enum { BLOCK_BYTES = 512 << 10, LEAST_BLOCKS = 8, LEAST_ROWS = 32, MOST_ROWS = 128 };

static AmStatus prepare_array(RegionKernel *kernel, BlockArray *array, Arena *arena, const PartProgram *of,
                              const RegionLink *link, int32_t size, AmError *error) {
    const ValueLabels *labels = &kernel->blocks.labels.values[link->value];
    const int64_t *extents = of->part.extents;
    const int64_t *whole = link->place == REGION_MADE_BEFORE   ? kernel->before.part.extents
                           : link->place == REGION_ACCUMULATOR ? kernel->after[size].part.extents
                                                               : kernel->blocks.labels.sizes;
    int32_t first = link->dimension > 0 ? labels->ends[link->dimension - 1] : 0;
    int32_t end = link->dimension >= 0 ? labels->ends[link->dimension] : labels->count, rank = end - first;
    int64_t *lists = ARENA_ARRAY(arena, int64_t, 4 * rank + 1), elements = 1, stride = 1;
    const IrShape *shape = &of->part.program->values[link->own].shape;
    if (!lists) return am_fail_memory(error, rank * 32);
    *array = (BlockArray){.link = *link,
                          .element_bytes = dtype_bytes(shape->type),
                          .bytes = ir_shape_bytes(shape),
                          .rank = rank,
                          .dimensions = lists,
                          .array_strides = lists + rank,
                          .packed_strides = lists + 2 * rank,
                          .label_strides = lists + 3 * rank,
                          .labels = labels->list + first,
                          .in_place = true};
    for (int32_t d = rank - 1; d >= 0; d--) {
        int32_t label = array->labels[d];
        bool is_divided = kernel->blocks.is_divided[label];
        array->dimensions[d] = extents[label];
        array->packed_strides[d] = elements;
        array->array_strides[d] = stride;
        array->label_strides[d] = whole[label] == kernel->blocks.labels.sizes[label] ? stride : 0;
        if (extents[label] > 1 && stride != elements) array->in_place = false;
        if (is_divided && (label == kernel->blocks.row || kernel->blocks.is_summed[label]) &&
            extents[label] != kernel->blocks.labels.sizes[label])
            array->differs_by_block = true;
        elements *= extents[label];
        stride *= whole[label];
    }
    if (link->place != REGION_INDICES) return AM_OK;
    int64_t bytes = dtype_bytes(shape->type);
    char *indices = arena_alloc(arena, (size_t)(stride * bytes));
    if (!indices) return am_fail_memory(error, stride * bytes);
    for (int64_t k = 0; k < stride; k++) {
        Scalar64 number = {.as_signed = k};
        scalar64_store(indices + k * bytes, shape->type, &number, SCALAR64_SIGNED, 1, 1);
    }
    array->indices = indices;
    return AM_OK;
}

static AmStatus prepare_part(RegionKernel *kernel, PartProgram *part, Arena *arena, int32_t size,
                             AmError *error) {
    const Program *program = part->part.program;
    part->calls = ARENA_ARRAY(arena, KernelCall *, program->execution.step_count + 1);
    part->inputs = ARENA_ARRAY(arena, BlockArray, part->part.input_count + 1);
    part->outputs = ARENA_ARRAY(arena, BlockArray, part->part.output_count + 1);
    part->is_empty = part->part.output_count + program->execution.update_count == 0;
    if (arena->failed) return am_fail_memory(error, program->execution.step_count * 8);
    for (int32_t s = 0; s < program->execution.step_count; s++)
        TRY(kernel_prepare(&part->calls[s], arena, &kernel_device_cpu, program, &program->execution.steps[s],
                           error));
    for (int32_t k = 0; k < part->part.input_count; k++)
        TRY(prepare_array(kernel, &part->inputs[k], arena, part, &part->part.inputs[k], size, error));
    for (int32_t k = 0; k < part->part.output_count; k++)
        TRY(prepare_array(kernel, &part->outputs[k], arena, part, &part->part.outputs[k], size, error));
    return AM_OK;
}

/* Returns whether the packed elements of one input begin with those of another, for all of a unit's
 * blocks. */
static bool begins_with(const BlockArray *wide, const BlockArray *narrow) {
    bool is_alike = wide->link.place == narrow->link.place && wide->link.index == narrow->link.index &&
                    wide->link.value == narrow->link.value &&
                    wide->link.dimension == narrow->link.dimension && wide->rank == narrow->rank &&
                    !wide->in_place && !narrow->differs_by_block;
    for (int32_t d = 0; d < narrow->rank && is_alike; d++)
        is_alike = narrow->dimensions[d] <= wide->dimensions[d] &&
                   (narrow->dimensions[d] == 1 || narrow->packed_strides[d] == wide->packed_strides[d]);
    return is_alike;
}

/* Returns whether a block can use the copies of the one with all keys. */
static bool shares_copies(const PartProgram *wide, const PartProgram *part) {
    if (part->part.input_count != wide->part.input_count) return false;
    for (int32_t k = 0; k < part->part.input_count; k++) {
        const BlockArray *own = &part->inputs[k], *other = &wide->inputs[k];
        if (own->differs_by_block != other->differs_by_block) return false;
        if (!own->differs_by_block && !own->in_place && !begins_with(other, own)) return false;
    }
    return true;
}

/* Places the copies of a program from `at` on, those that it shares excepted; returns their end. */
static int64_t place_copies(PartProgram *part, int64_t at) {
    for (int32_t k = 0; k < part->part.input_count; k++) {
        BlockArray *array = &part->inputs[k];
        bool is_shared = part->owner != part && !array->differs_by_block;
        array->packed_at = is_shared ? part->owner->inputs[k].packed_at : at;
        if (!is_shared && !array->in_place) at += kernel_align(array->bytes);
    }
    return at;
}

/* Plans the scratch memory of one thread: arrays, packed copies, values, kernels and tables. */
static void plan_memory(RegionKernel *kernel) {
    PartProgram *parts[REGION_MOST_PREFIXES + 1 + SIZES + 1] = {&kernel->before, &kernel->after[FULL_BLOCK],
                                                                &kernel->after[LAST_BLOCK]};
    for (int32_t k = 0; k <= kernel->prefix_count; k++) parts[k + 1 + SIZES] = &kernel->block[k];
    int64_t end = 0, copies = 0, values = 0, kernels = 0, places = 0;
    for (int32_t v = 0; v < kernel->blocks.region->value_count; v++) {
        kernel->array_at[v] = end;
        end += kernel_align(kernel->array_bytes[v]);
    }
    PartProgram *wide = &kernel->block[kernel->prefix_count - 1];
    wide->owner = wide;
    int64_t end_of_wide = place_copies(wide, end);
    copies = end_of_wide - end;
    /* One program's copies of what all blocks read stay while another runs. */
    for (int32_t p = 0; p < kernel->prefix_count + 2 + SIZES; p++) {
        const Program *program = parts[p]->part.program;
        bool is_shared = p > SIZES && shares_copies(wide, parts[p]);
        parts[p]->owner = is_shared ? wide : parts[p];
        if (parts[p] != wide)
            copies = larger_integer(copies, place_copies(parts[p], is_shared ? end_of_wide : end) - end);
        values = larger_integer(values, program->allocation.bytes - program->allocation.parameter_bytes);
        kernel->most_values = (int32_t)larger_integer(kernel->most_values, program->value_count);
        for (int32_t s = 0; s < program->execution.step_count; s++) {
            kernels = larger_integer(kernels, parts[p]->calls[s]->scratch_bytes);
            places =
                larger_integer(places, parts[p]->calls[s]->operand_count + parts[p]->calls[s]->result_count);
        }
    }
    kernel->values_at = end + copies;
    kernel->kernels_at = kernel->values_at + kernel_align(values);
    kernel->addresses_at = kernel->kernels_at + kernel_align(kernels);
    kernel->worker_bytes =
        kernel->addresses_at + kernel_align((kernel->most_values + places) * (int64_t)sizeof(void *));
}

/* Rows of a block whose scores take about BLOCK_BYTES. */
static int64_t choose_rows(const RegionBlocks *blocks) {
    int64_t most = 1;
    for (int32_t v = 0; v < blocks->region->value_count; v++) {
        int64_t bytes = 4;
        if (!region_labels_has(&blocks->labels, v, blocks->row)) continue;
        const ValueLabels *labels = &blocks->labels.values[v];
        for (int32_t k = 0; k < labels->count; k++)
            if (!blocks->is_divided[labels->list[k]]) bytes *= blocks->labels.sizes[labels->list[k]];
        most = larger_integer(most, bytes);
    }
    int64_t rows = BLOCK_BYTES / most / 8 * 8, all = blocks->labels.sizes[blocks->row];
    if (blocks->has_whole_rows) {
        rows = (all + LEAST_BLOCKS - 1) / LEAST_BLOCKS;
        if (rows > REGION_JOINED_BYTES / most) rows = REGION_JOINED_BYTES / most;
        return rows < 1 ? 1 : rows;
    }
    rows = rows < LEAST_ROWS ? LEAST_ROWS : rows > MOST_ROWS ? MOST_ROWS : rows;
    return rows < all ? rows : all;
}

/* Returns the extents of a stage's programs, by label. */
static int64_t *extents_of(const RegionKernel *kernel, Arena *arena, RegionStage stage, int64_t rows) {
    const RegionBlocks *blocks = &kernel->blocks;
    int64_t *extents = ARENA_ARRAY(arena, int64_t, blocks->labels.count + 1);
    for (int32_t l = 0; extents && l < blocks->labels.count; l++) {
        bool is_whole = !blocks->is_divided[l] || (stage == REGION_AFTER && blocks->is_summed[l]);
        extents[l] = is_whole ? blocks->labels.sizes[l] : l == blocks->row ? rows : 1;
    }
    return extents;
}

static AmStatus build_parts(RegionKernel *kernel, Arena *arena, AmError *error) {
    int64_t rest = kernel->rows % kernel->row_block;
    for (int32_t k = 0; k <= kernel->prefix_count; k++) {
        bool is_last = k == kernel->prefix_count;
        int64_t *block =
            extents_of(kernel, arena, REGION_BLOCK, is_last && rest > 0 ? rest : kernel->row_block);
        if (!block) return am_fail_memory(error, 64);
        if (kernel->mask.key >= 0 && !is_last && (k + 1) * kernel->prefix_keys < block[kernel->mask.key])
            block[kernel->mask.key] = (k + 1) * kernel->prefix_keys;
        TRY(region_part_build(&kernel->block[k].part, arena, &kernel->blocks, REGION_BLOCK, block, error));
    }
    for (int32_t size = 0; size < SIZES; size++) {
        int64_t rows = size == LAST_BLOCK && rest > 0 ? rest : kernel->row_block;
        int64_t *after = extents_of(kernel, arena, REGION_AFTER, rows);
        if (!after) return am_fail_memory(error, 64);
        TRY(region_part_build(&kernel->after[size].part, arena, &kernel->blocks, REGION_AFTER, after, error));
    }
    int64_t *before = extents_of(kernel, arena, REGION_BEFORE, 1);
    if (arena->failed) return am_fail_memory(error, 64);
    TRY(region_part_build(&kernel->before.part, arena, &kernel->blocks, REGION_BEFORE, before, error));
    TRY(prepare_part(kernel, &kernel->before, arena, FULL_BLOCK, error));
    for (int32_t size = 0; size < SIZES; size++)
        TRY(prepare_part(kernel, &kernel->after[size], arena, size, error));
    for (int32_t k = 0; k <= kernel->prefix_count; k++)
        TRY(prepare_part(kernel, &kernel->block[k], arena,
                         k == kernel->prefix_count ? LAST_BLOCK : FULL_BLOCK, error));
    return AM_OK;
}

static AmStatus prepare_region(KernelCall *call, RegionKernel *kernel, Arena *arena, AmError *error) {
    const Program *region = call->instruction->regions.programs[0];
    RegionBlocks *blocks = &kernel->blocks;
    double elements = 0;
    TRY(region_blocks_find(blocks, arena, region, true, error));
    if (blocks->labels.count > REGION_MOST_LABELS)
        return am_fail(error, AM_ERROR_INPUT, "", "too many dimensions");
    kernel->rows = blocks->labels.sizes[blocks->row];
    kernel->row_block = choose_rows(blocks);
    kernel->row_blocks = (kernel->rows + kernel->row_block - 1) / kernel->row_block;
    TRY(region_blocks_find_causal(&kernel->mask, arena, blocks, error));
    /* Blocks under a causal mask have one of a few numbers of keys. */
    int64_t keys = kernel->mask.key >= 0 ? kernel->blocks.labels.sizes[kernel->mask.key] : 1;
    int64_t least = (keys + REGION_MOST_PREFIXES - 1) / REGION_MOST_PREFIXES;
    kernel->prefix_keys = (least + kernel->row_block - 1) / kernel->row_block * kernel->row_block;
    kernel->prefix_count = (int32_t)((keys + kernel->prefix_keys - 1) / kernel->prefix_keys);
    kernel->work_items = blocks->is_summed[blocks->row] ? 1 : kernel->row_blocks;
    for (int32_t l = 0; l < blocks->labels.count; l++) {
        if (!blocks->is_divided[l] || l == blocks->row) continue;
        if (blocks->is_summed[l]) kernel->summed[kernel->summed_count++] = l;
        else kernel->units[kernel->unit_count++] = l;
        if (!blocks->is_summed[l]) kernel->work_items *= blocks->labels.sizes[l];
    }
    kernel->array_at = ARENA_ARRAY(arena, int64_t, region->value_count + 1);
    kernel->array_bytes = ARENA_ARRAY(arena, int64_t, region->value_count + 1);
    if (arena->failed) return am_fail_memory(error, region->value_count * 16);
    TRY(build_parts(kernel, arena, error));
    /* The bytes of accumulators, and of values that are computed before the blocks. */
    const PartProgram *const programs[] = {&kernel->before, &kernel->after[FULL_BLOCK]};
    for (size_t p = 0; p < 2; p++) {
        const RegionPart *part = &programs[p]->part;
        const RegionLink *links = p == 0 ? part->outputs : part->inputs;
        for (int32_t k = 0; k < (p == 0 ? part->output_count : part->input_count); k++)
            if (links[k].place == (p == 0 ? REGION_MADE_BEFORE : REGION_ACCUMULATOR))
                kernel->array_bytes[links[k].value] =
                    ir_shape_bytes(&part->program->values[links[k].own].shape);
    }
    plan_memory(kernel);
    for (int32_t v = 0; v < region->value_count; v++)
        elements += (double)ir_shape_elements(&region->values[v].shape);
    int32_t parts = team_parts(call->device, elements);
    kernel->worker_count = parts < kernel->work_items ? parts : (int32_t)kernel->work_items;
    call->scratch_bytes = kernel->worker_count * kernel->worker_bytes;
    call->compiled = kernel;
    call->run = region_kernel_run;
    return AM_OK;
}

AmStatus cpu_prepare_blocked_region(KernelCall *call, Arena *arena, AmError *error) {
    AmError reason = {0};
    RegionKernel *kernel = ARENA_ARRAY(arena, RegionKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    if (call->instruction->regions.count != 1)
        return kernel_call_refuse(call, "it lacks its computation", error);
    AmStatus status = prepare_region(call, kernel, arena, &reason);
    if (status == AM_ERROR_INPUT) return kernel_call_refuse(call, reason.text, error);
    if (status != AM_OK) return am_fail(error, status, "", "%s", reason.text);
    return AM_OK;
}
