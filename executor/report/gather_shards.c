/* Gathers global arrays from the shards of ranks in any process.
 *
 * gathered_take() copies one rank's shard: into the array itself in process 0, or packed behind a header with
 * its place. gathered_gather() sends packed shards to process 0, which checks the headers and puts the shards
 * in place.
 */
#include "executor/report/gather_shards.h"

#include <stdlib.h>
#include <string.h>

#include "executor/array/strided.h"

/* The header of a part; its elements follow, packed up to a multiple of 64 bytes. */
typedef struct PartHeader {
    int64_t bytes;        /* with this header and the padding */
    int64_t start_offset; /* of the first element in the global array, in elements */
    int64_t rank;
    int64_t dimensions[IR_MAX_RANK], strides[IR_MAX_RANK]; /* in the global array */
} PartHeader;

static const RankShard *shard_of(const GatheredArray *array, int32_t r) {
    const Rank *rank = &array->owner->ranks[r];
    return array->is_parameter ? &rank->parameters[array->index] : &rank->outputs[array->index];
}

AmStatus gathered_open(GatheredArray *array, const ShardOwner *owner, const IrShape *shape, bool is_parameter,
                       int32_t index, AmError *error) {
    *array = (GatheredArray){.owner = owner, .shape = shape, .is_parameter = is_parameter, .index = index};
    if (!owner->processes || owner->processes->process == 0) {
        array->global = malloc((size_t)ir_shape_bytes(shape) + 1);
        return array->global ? AM_OK : am_fail_memory(error, ir_shape_bytes(shape));
    }
    array->offsets = calloc((size_t)owner->rank_count + 1, sizeof *array->offsets);
    if (!array->offsets) return am_fail_memory(error, owner->rank_count * 8);
    for (int32_t r = 0; r < owner->rank_count; r++) {
        const RankShard *shard = shard_of(array, r);
        const Rank *rank = &array->owner->ranks[r];
        array->offsets[r + 1] = array->offsets[r];
        if (shard->writes_part)
            array->offsets[r + 1] += kernel_align((int64_t)sizeof(PartHeader) +
                                                  ir_shape_bytes(&rank->program->values[shard->value].shape));
    }
    int64_t bytes = array->offsets[owner->rank_count];
    if (bytes == 0) return AM_OK;
    array->packed = malloc((size_t)bytes);
    return array->packed ? AM_OK : am_fail_memory(error, bytes);
}

void gathered_close(GatheredArray *array) {
    free(array->global);
    free(array->packed);
    free(array->offsets);
    *array = (GatheredArray){0};
}

AmStatus gathered_find_places(GatheredArray *arrays, int32_t count, ProcessGroup *processes, AmError *error) {
    if (count == 0) return AM_OK;
    if (!processes) {
        for (int32_t k = 0; k < count; k++) arrays[k].needs_no_other = true;
        return AM_OK;
    }
    char *elsewhere = malloc((size_t)count);
    ProcessPart *parts = calloc((size_t)processes->count, sizeof *parts);
    AmStatus status = elsewhere && parts ? AM_OK : am_fail_memory(error, count);
    for (int32_t k = 0; k < count && status == AM_OK; k++) elsewhere[k] = arrays[k].packed != NULL;
    if (status == AM_OK) status = process_group_gather(processes, elsewhere, count, count, parts, error);
    if (status == AM_OK && processes->process == 0) {
        for (int32_t p = 1; p < processes->count; p++)
            for (int32_t k = 0; k < count && k < parts[p].count; k++)
                elsewhere[k] |= ((const char *)parts[p].bytes)[k];
        process_group_release_parts(processes, parts);
    }
    if (status == AM_OK) status = process_group_broadcast(processes, elsewhere, count, error);
    for (int32_t k = 0; k < count && status == AM_OK; k++) arrays[k].needs_no_other = !elsewhere[k];
    free(parts);
    free(elsewhere);
    return status;
}

void gathered_take(GatheredArray *array, int32_t r) {
    Rank *rank = &array->owner->ranks[r];
    const RankShard *shard = shard_of(array, r);
    if (array->global && array->is_parameter) rank_get_parameter(rank, array->index, array->global);
    else if (array->global) rank_get_output(rank, array->index, array->global);
    if (array->global || !shard->writes_part) return;
    char *part = array->packed + array->offsets[r];
    PartHeader header = {.bytes = array->offsets[r + 1] - array->offsets[r],
                         .start_offset = shard->layout.start_offset,
                         .rank = shard->layout.rank};
    memcpy(header.dimensions, shard->layout.dimensions, sizeof header.dimensions);
    memcpy(header.strides, shard->layout.global_strides, sizeof header.strides);
    memcpy(part, &header, sizeof header);
    rank_read_value(rank, shard->value, part + sizeof header);
}

/* Returns whether the part lies within the array and is as long as it says; `bytes` are there. */
static bool part_fits(const PartHeader *header, const IrShape *shape, int64_t bytes) {
    int64_t elements = 1, last = header->start_offset, global = ir_shape_elements(shape);
    if (header->bytes > bytes || header->start_offset < 0 || header->start_offset > global) return false;
    if (header->rank < shape->rank || header->rank > IR_MAX_RANK) return false;
    for (int32_t d = 0; d < header->rank; d++) {
        int64_t extent = header->dimensions[d], stride = header->strides[d];
        if (extent < 0 || stride < 0 || (extent > 1 && stride > global / (extent - 1))) return false;
        if (extent > 0 && elements > global / extent) return false;
        elements *= extent;
        last += extent > 1 ? (extent - 1) * stride : 0;
    }
    int64_t expected = kernel_align((int64_t)sizeof *header + elements * dtype_bytes(shape->type));
    return header->bytes == expected && (elements == 0 || last < global);
}

/* Copies all shards that one process has sent to their places. */
static AmStatus place_parts(GatheredArray *array, const ProcessPart *sent, int32_t process, AmError *error) {
    const IrShape *shape = array->shape;
    int64_t strides[IR_MAX_RANK], bytes = dtype_bytes(shape->type);
    for (int64_t at = 0; at < sent->count;) {
        PartHeader header = {0};
        const char *part = (const char *)sent->bytes + at;
        if (sent->count - at >= (int64_t)sizeof header) memcpy(&header, part, sizeof header);
        if (!part_fits(&header, shape, sent->count - at))
            return am_fail(error, AM_ERROR_INTERNAL, "", "process %d sent a part that is not of this array",
                           (int)process);
        strided_row_major(strides, header.dimensions, (int32_t)header.rank);
        strided_copy(array->global + header.start_offset * bytes, header.strides, part + sizeof header,
                     strides, header.dimensions, (int32_t)header.rank, bytes);
        at += header.bytes;
    }
    return AM_OK;
}

AmStatus gathered_gather(GatheredArray *array, AmError *error) {
    ProcessGroup *processes = array->owner->processes;
    if (!processes || array->needs_no_other) return AM_OK;
    int32_t ranks = array->owner->rank_count;
    int64_t most = ir_shape_bytes(array->shape) + (int64_t)(sizeof(PartHeader) + 64) * ranks;
    if (processes->process != 0)
        return process_group_gather(processes, array->packed, array->offsets[ranks], most, NULL, error);
    ProcessPart *parts = calloc((size_t)processes->count, sizeof *parts);
    if (!parts) return am_fail_memory(error, (int64_t)sizeof *parts * processes->count);
    AmStatus status = process_group_gather(processes, NULL, 0, most, parts, error);
    for (int32_t p = 1; p < processes->count && status == AM_OK; p++)
        status = place_parts(array, &parts[p], p, error);
    process_group_release_parts(processes, parts);
    free(parts);
    return status;
}
