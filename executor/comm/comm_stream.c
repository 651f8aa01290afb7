/* The bytes from one rank to another in a collective or transfer, as a stream of boxes of arrays.
 *
 * An all_reduce takes all its operands as one row of bytes, each operand at a multiple of 64. Each of n
 * members reduces 1/n of the row. So every member sends and receives 2 (n - 1) / n of it, the least possible,
 * for any number and sizes of operands.
 */
#include "executor/comm/comm_stream.h"

#include <string.h>

#include "base/integers.h"
#include "executor/array/strided.h"

enum { ALIGNMENT = 16, PART_ALIGNMENT = 64, WHOLE_BYTES = 4096 };

static AmStatus add_box(CommStream *stream, const CommBox *box, AmError *error) {
    if (box->bytes == 0) return AM_OK;
    ARENA_RESERVE(stream->arena, stream->boxes, stream->box_count, stream->box_capacity);
    if (stream->arena->failed) return am_fail_memory(error, (int64_t)sizeof *box * stream->box_capacity);
    CommBox *added = &stream->boxes[stream->box_count++];
    *added = *box;
    added->start = multiple_above(stream->bytes, ALIGNMENT);
    stream->bytes = added->start + box->bytes;
    return AM_OK;
}

/* Bytes [at, at + bytes) of an array. */
static AmStatus add_run(CommStream *stream, int32_t array, Dtype type, int64_t at, int64_t bytes,
                        AmError *error) {
    CommBox box = {.array = array, .type = type, .bytes = bytes, .at = at, .row_bytes = bytes};
    return add_box(stream, &box, error);
}

/* Elements start .. start + extent - 1 of an array of this shape, in every dimension. */
static AmStatus add_part(CommStream *stream, int32_t array, const IrShape *shape, const int64_t *start,
                         const int64_t *extent, AmError *error) {
    int64_t sizes[IR_MAX_RANK], steps[IR_MAX_RANK], element = dtype_bytes(shape->type);
    CommBox box = {.array = array, .type = shape->type, .bytes = element, .row_bytes = element};
    strided_row_major(steps, shape->dimensions, shape->rank);
    for (int32_t d = 0; d < shape->rank; d++) {
        sizes[d] = extent[d];
        steps[d] *= element;
        box.at += start[d] * steps[d];
        box.bytes *= extent[d];
    }
    if (box.bytes == 0) return AM_OK;
    box.rank = strided_coalesce(sizes, steps, NULL, shape->rank);
    if (box.rank > 0 && steps[box.rank - 1] == element) box.row_bytes *= sizes[--box.rank];
    box.sizes = ARENA_ARRAY(stream->arena, int64_t, 2 * box.rank + 1);
    if (!box.sizes) return am_fail_memory(error, box.rank * 16);
    box.steps = box.sizes + box.rank;
    memcpy(box.sizes, sizes, sizeof *sizes * (size_t)box.rank);
    memcpy(box.steps, steps, sizeof *steps * (size_t)box.rank);
    return add_box(stream, &box, error);
}

/* Positions [start, start + extent) of one dimension, and all of the others. */
typedef struct Slab {
    int32_t dimension;
    int64_t start, extent;
} Slab;

static AmStatus add_slab(CommStream *stream, int32_t array, const IrShape *shape, Slab slab, AmError *error) {
    int64_t starts[IR_MAX_RANK] = {0}, extents[IR_MAX_RANK];
    memcpy(extents, shape->dimensions, sizeof *extents * (size_t)shape->rank);
    starts[slab.dimension] = slab.start;
    extents[slab.dimension] = slab.extent;
    return add_part(stream, array, shape, starts, extents, error);
}

static AmStatus add_whole(CommStream *stream, int32_t array, const IrShape *shape, AmError *error) {
    return add_run(stream, array, shape->type, 0, ir_shape_bytes(shape), error);
}

static int64_t row_bytes(const CommCall *call) {
    int64_t bytes = 0;
    for (int32_t k = 0; k < call->operand_count; k++)
        bytes += multiple_above(ir_shape_bytes(call->operand_shapes[k]), PART_ALIGNMENT);
    return bytes;
}

bool comm_reduces_whole(const CommCall *call) {
    return call->rank_count > 1 && row_bytes(call) <= WHOLE_BYTES;
}

AmStatus comm_stream_reduced(CommStream *stream, Arena *arena, const CommCall *call, int32_t position,
                             bool of_results, AmError *error) {
    int64_t bytes = row_bytes(call),
            part = multiple_above((bytes + call->rank_count - 1) / call->rank_count, 64);
    int64_t first = position * part, end = first + part, at = 0;
    if (comm_reduces_whole(call)) {
        first = 0;
        end = bytes;
    }
    *stream = (CommStream){.arena = arena, .of_results = of_results};
    for (int32_t k = 0; k < call->operand_count; k++) {
        int64_t own = ir_shape_bytes(call->operand_shapes[k]);
        int64_t from = first > at ? first - at : 0, to = end - at < own ? end - at : own;
        if (from < to) TRY(add_run(stream, k, call->operand_shapes[k]->type, from, to - from, error));
        at += multiple_above(own, PART_ALIGNMENT);
    }
    return AM_OK;
}

AmStatus comm_stream_pieces(CommStream *stream, Arena *arena, const CommCall *call, int32_t peer,
                            bool of_results, AmError *error) {
    const ProgramTransfer *transfer = call->transfer;
    const ProgramPiece *pieces = of_results ? transfer->receives : transfer->sends;
    int32_t count = of_results ? transfer->receive_count : transfer->send_count;
    *stream = (CommStream){.arena = arena, .of_results = of_results};
    for (int32_t k = 0; k < count; k++)
        if (pieces[k].peer == peer)
            TRY(add_part(stream, 0, of_results ? call->result_shapes[0] : call->operand_shapes[0],
                         pieces[k].start, pieces[k].extent, error));
    return AM_OK;
}

AmStatus comm_stream_sent(CommStream *stream, Arena *arena, const CommCall *call, int32_t position,
                          AmError *error) {
    *stream = (CommStream){.arena = arena, .of_results = false};
    if (call->collective->kind == PROGRAM_ALL_REDUCE)
        return comm_stream_reduced(stream, arena, call, position, false, error);
    for (int32_t k = 0; k < call->operand_count; k++) {
        const IrShape *shape = call->operand_shapes[k];
        const ProgramMovement *movement = &call->collective->movements[k];
        int32_t d = movement->dimension;
        int64_t start, extent, own_start;
        switch (call->collective->kind) {
        case PROGRAM_REDUCE_SCATTER:
            TRY(add_slab(stream, k, shape,
                         (Slab){d, comm_part_start(movement->parts, position), movement->parts[position]},
                         error));
            break;
        case PROGRAM_ALL_TO_ALL:
            TRY(add_slab(stream, k, shape,
                         (Slab){movement->other, comm_part_start(movement->other_parts, position),
                                movement->other_parts[position]},
                         error));
            break;
        case PROGRAM_HALO_EXCHANGE:
            extent = program_halo_piece(movement, call->position, position, &start, &own_start);
            if (extent > 0) TRY(add_slab(stream, k, shape, (Slab){d, start - own_start, extent}, error));
            break;
        default: TRY(add_whole(stream, k, shape, error)); break;
        }
    }
    return AM_OK;
}

AmStatus comm_stream_received(CommStream *stream, Arena *arena, const CommCall *call, int32_t position,
                              AmError *error) {
    *stream = (CommStream){.arena = arena, .of_results = true};
    if (call->collective->kind == PROGRAM_ALL_REDUCE)
        return comm_stream_reduced(stream, arena, call, call->position, true, error);
    for (int32_t k = 0; k < call->operand_count; k++) {
        const IrShape *shape = call->result_shapes[k];
        const ProgramMovement *movement = &call->collective->movements[k];
        int32_t d = movement->dimension;
        int64_t start, extent, its_start;
        switch (call->collective->kind) {
        case PROGRAM_REDUCE_SCATTER: TRY(add_whole(stream, k, shape, error)); break;
        case PROGRAM_HALO_EXCHANGE:
            extent = program_halo_piece(movement, position, call->position, &start, &its_start);
            start -= movement->range_start[call->position];
            if (extent > 0) TRY(add_slab(stream, k, shape, (Slab){d, start, extent}, error));
            break;
        default:
            TRY(add_slab(stream, k, shape,
                         (Slab){d, comm_part_start(movement->parts, position), movement->parts[position]},
                         error));
            break;
        }
    }
    return AM_OK;
}

/* Finds the box of byte `at`, or the last one before it, and how many bytes follow in one run. False: the
 * bytes are padding. */
static bool find_run(const CommStream *stream, int64_t at, int64_t *run, int32_t *box) {
    while (*box + 1 < stream->box_count && stream->boxes[*box + 1].start <= at) ++*box;
    const CommBox *its = &stream->boxes[*box];
    int64_t in_box = at - its->start;
    *run = in_box < its->bytes ? its->row_bytes - in_box % its->row_bytes : its[1].start - at;
    return in_box < its->bytes;
}

bool comm_stream_is_run(const CommStream *stream, int64_t at, int64_t count) {
    int64_t run;
    int32_t box = 0;
    return find_run(stream, at, &run, &box) && run >= count;
}

char *comm_stream_place(const CommStream *stream, const CommCall *call, int64_t at, int64_t *run,
                        int32_t *box) {
    if (!find_run(stream, at, run, box)) return NULL;
    const CommBox *its = &stream->boxes[*box];
    int64_t row = (at - its->start) / its->row_bytes, in_row = (at - its->start) % its->row_bytes;
    char *place = (stream->of_results ? call->results : call->operands)[its->array];
    place += its->at + in_row;
    for (int32_t d = its->rank - 1; d >= 0; d--) {
        place += row % its->sizes[d] * its->steps[d];
        row /= its->sizes[d];
    }
    return place;
}

void comm_stream_pack(const CommStream *stream, const CommCall *call, int64_t at, int64_t count, int32_t box,
                      char *to) {
    for (int64_t done = 0, run; done < count; done += run) {
        const char *place = comm_stream_place(stream, call, at + done, &run, &box);
        if (run > count - done) run = count - done;
        if (place) memcpy(to + done, place, (size_t)run);
        else memset(to + done, 0, (size_t)run);
    }
}

void comm_stream_unpack(const CommStream *stream, const CommCall *call, int64_t at, int64_t count,
                        const char *from) {
    int32_t box = 0;
    for (int64_t done = 0, run; done < count; done += run) {
        char *place = comm_stream_place(stream, call, at + done, &run, &box);
        if (run > count - done) run = count - done;
        if (place) memcpy(place, from + done, (size_t)run);
    }
}

void comm_stream_copy(const CommStream *from, const CommStream *to, const CommCall *call) {
    int32_t from_box = 0, to_box = 0;
    for (int64_t at = 0, run, to_run; at < from->bytes; at += run) {
        const char *source = comm_stream_place(from, call, at, &run, &from_box);
        char *target = comm_stream_place(to, call, at, &to_run, &to_box);
        if (to_run < run) run = to_run;
        if (source && target) memcpy(target, source, (size_t)run);
    }
}
