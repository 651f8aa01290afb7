/* The image of a rank's file of a checkpoint: lays it out, fills it and describes it.
 *
 * Types that safetensors does not have are stored as U8, an element's bytes being a last
 * dimension; the manifest has the type.
 */
#include "executor/checkpoint/checkpoint_image.h"

#include <stdlib.h>
#include <string.h>

#include "base/files/array_file.h"

void checkpoint_part_of(const PlanContext *context, const Rank *rank, int32_t k, int64_t *start,
                        int64_t *extent, int64_t *blocks) {
    const Program *program = rank->program;
    const ProgramValue *value = &program->values[rank->parameters[k].value];
    const IrShape *global = &program->module->instructions[program->roles->parameters[k].instruction].shape;
    int64_t elements = ir_shape_elements(global);
    IrLayerPart part = plan_source_parameter(context, k);
    if (part.layer >= 0) { /* one layer of a stack */
        *start++ = elements > 0 ? part.first / elements : part.layer;
        *extent++ = 1;
        *blocks++ = 1;
    }
    for (int32_t d = 0; d < global->rank; d++) {
        sbp_shard(program->mesh, value->state, program->device, d, global->dimensions[d], &start[d],
                  &extent[d]);
        blocks[d] = sbp_blocks(value->state, d);
    }
}

/* Returns the part as an array of its file; `dimensions` has room for one more than the rank. */
static ArrayToWrite array_of(const Rank *rank, int32_t k, int64_t *dimensions) {
    const IrShape *shape = &rank->program->values[rank->parameters[k].value].shape;
    ArrayToWrite array = {.name = rank->program->roles->parameters[k].path,
                          .type = shape->type,
                          .rank = shape->rank,
                          .dimensions = dimensions};
    for (int32_t d = 0; d < shape->rank; d++) dimensions[d] = shape->dimensions[d];
    if (array_file_names(shape->type)) return array;
    dimensions[array.rank++] = dtype_bytes(shape->type);
    array.type = DTYPE_U8;
    return array;
}

static AmStatus allocate(CheckpointImage *image, const ArrayToWrite *arrays, AmError *error) {
    static const char *const metadata[] = {"format", CHECKPOINT_FORMAT, NULL};
    Text header = {0};
    AmStatus status = array_file_header(&header, arrays, image->slice_count, metadata, "checkpoint", error);
    if (status == AM_OK) {
        image->header_bytes = (int64_t)header.length;
        image->byte_count += image->header_bytes;
        for (int32_t s = 0; s < image->slice_count; s++) image->slices[s].offset += image->header_bytes;
        image->bytes = malloc((size_t)image->byte_count);
        if (!image->bytes) status = am_fail_memory(error, image->byte_count);
    }
    if (status == AM_OK) {
        /* The pages are made now and not in the first step that is saved. */
        memset(image->bytes, 0, (size_t)image->byte_count);
        memcpy(image->bytes, header.data, header.length);
    }
    text_free(&header);
    return status;
}

AmStatus checkpoint_image_open(CheckpointImage *image, Arena *arena, const PlanContext *context, Rank *rank,
                               const int32_t *tensors, AmError *error) {
    int32_t count = rank->program->roles->parameter_count;
    *image = (CheckpointImage){.rank = rank, .context = context};
    image->slices = ARENA_ARRAY(arena, CheckpointSlice, count + 1);
    ArrayToWrite *arrays = ARENA_ARRAY(arena, ArrayToWrite, count + 1);
    int64_t *dimensions = ARENA_ARRAY(arena, int64_t, (int64_t)count * (IR_MAX_RANK + 1) + 1);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof *arrays * count);
    for (int32_t k = 0; k < count; k++) {
        const RankShard *shard = &rank->parameters[k];
        bool is_kept = tensors[k] >= 0 && shard->value >= 0 && shard->writes_part &&
                       ir_shape_bytes(&rank->program->values[shard->value].shape) > 0;
        if (!is_kept) continue;
        int64_t bytes = ir_shape_bytes(&rank->program->values[rank->parameters[k].value].shape);
        int32_t s = image->slice_count++;
        arrays[s] = array_of(rank, k, dimensions + (int64_t)s * (IR_MAX_RANK + 1));
        image->slices[s] = (CheckpointSlice){k, tensors[k], image->byte_count, bytes};
        image->byte_count += bytes;
    }
    return image->slice_count > 0 ? allocate(image, arrays, error) : AM_OK;
}

void checkpoint_image_close(CheckpointImage *image) {
    free(image->bytes);
    *image = (CheckpointImage){0};
}

void checkpoint_image_take(CheckpointImage *image) {
    Rank *rank = image->rank;
    for (int32_t s = 0; s < image->slice_count; s++) {
        const CheckpointSlice *slice = &image->slices[s];
        rank_read_value(rank, rank->parameters[slice->parameter].value, image->bytes + slice->offset);
    }
}

/* Adds a shard of a tensor; its extents are contiguous in memory. */
static CheckpointPart *add_part(CheckpointTensor *tensor, Arena *arena) {
    CheckpointPart *parts = arena_grow(arena, tensor->parts, sizeof *parts * (size_t)tensor->part_count,
                                       sizeof *parts * ((size_t)tensor->part_count + 1));
    int64_t *places = ARENA_ARRAY(arena, int64_t, 3 * tensor->rank + 1);
    if (!parts || !places) return NULL;
    tensor->parts = parts;
    CheckpointPart *part = &parts[tensor->part_count++];
    *part = (CheckpointPart){
        .start = places, .extent = places + tensor->rank, .blocks = places + 2 * (int64_t)tensor->rank};
    return part;
}

AmStatus checkpoint_image_describe(const CheckpointImage *image, CheckpointManifest *manifest, Arena *arena,
                                   const char *name, AmError *error) {
    size_t files = (size_t)manifest->file_count;
    CheckpointFile *list =
        arena_grow(arena, manifest->files, sizeof *list * files, sizeof *list * (files + 1));
    if (!list) return am_fail_memory(error, (int64_t)sizeof *list);
    manifest->files = list;
    CheckpointFile *file = &list[manifest->file_count++];
    *file = (CheckpointFile){.name = arena_copy_string(arena, name),
                             .bytes = image->byte_count,
                             .header_bytes = image->header_bytes};
    digest_bytes(file->digest, image->bytes, (size_t)image->header_bytes);
    for (int32_t s = 0; s < image->slice_count; s++) {
        const CheckpointSlice *slice = &image->slices[s];
        CheckpointPart *part = add_part(&manifest->tensors[slice->tensor], arena);
        if (!part) return am_fail_memory(error, (int64_t)sizeof *part);
        part->file = manifest->file_count - 1;
        part->offset = slice->offset;
        part->bytes = slice->bytes;
        checkpoint_part_of(image->context, image->rank, slice->parameter, part->start, part->extent,
                           part->blocks);
        digest_bytes(part->digest, image->bytes + slice->offset, (size_t)slice->bytes);
    }
    return arena->failed ? am_fail_memory(error, 0) : AM_OK;
}
