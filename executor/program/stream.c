/* Transfers inside joined loops of a pipeline: values are packed into slots of a channel and read from
 * there. Both ranks identify a channel between them by the number of the transfer.
 *
 * A channel's slots are memory of the host. If the arrays are on a device, they pass through a copy
 * on the host, which is complete: pieces are packed from it and unpacked to it.
 */
#include "executor/program/stream.h"

#include "executor/array/strided.h"

static int64_t piece_bytes(const ProgramPiece *piece, const IrShape *shape) {
    return strided_elements(piece->extent, shape->rank) * dtype_bytes(shape->type);
}

/* Returns the pieces that go to peers, or come from them. */
static const ProgramPiece *pieces_of(const ProgramTransfer *transfer, bool puts, int32_t *count) {
    *count = puts ? transfer->send_count : transfer->receive_count;
    return puts ? transfer->sends : transfer->receives;
}

static const IrShape *shape_of(const Stream *stream, bool puts) {
    return puts ? stream->call->operand_shapes[0] : stream->call->result_shapes[0];
}

static AmStatus open_end(StreamEnd *end, const Stream *stream, const Comm *comm, int32_t peer, bool puts,
                         AmError *error) {
    const StreamList *list = comm->streams;
    int32_t sender = puts ? comm->rank : peer, receiver = puts ? peer : comm->rank;
    int64_t key = stream->call->transfer->number;
    int32_t count;
    const ProgramPiece *pieces = pieces_of(stream->call->transfer, puts, &count);
    int64_t bytes = 0;
    for (int32_t k = 0; k < count; k++)
        if (pieces[k].peer == peer) bytes += piece_bytes(&pieces[k], shape_of(stream, puts));
    *end = (StreamEnd){.peer = peer, .puts = puts};
    for (int32_t k = 0; k < list->channels->count && !end->channel; k++) {
        Channel *channel = list->channels->channels[k];
        if (channel->sender == sender && channel->receiver == receiver && channel->key == key)
            end->channel = channel;
    }
    if (!end->channel)
        TRY(channels_add(list->channels, sender, receiver, bytes, stream->call->transfer->slots,
                         &end->channel, error));
    end->channel->key = key;
    if (end->channel->bytes == bytes) return AM_OK;
    return am_fail(error, AM_ERROR_INTERNAL, "", "ranks %d and %d do not mean the same transfer", sender,
                   receiver);
}

/* Returns whether the received pieces cover the result. */
static bool fills_result(const Stream *stream) {
    const ProgramTransfer *transfer = stream->call->transfer;
    int64_t bytes = 0;
    for (int32_t k = 0; k < transfer->receive_count; k++)
        bytes += piece_bytes(&transfer->receives[k], shape_of(stream, false));
    return bytes == ir_shape_bytes(shape_of(stream, false));
}

/* Makes the host's copies of sent and received arrays, if a device has them. */
static AmStatus make_copies(Stream *stream, Arena *arena, AmError *error) {
    if (stream->comm->device->back_end == &kernels_cpu) return AM_OK;
    int64_t bytes[2] = {stream->puts ? ir_shape_bytes(shape_of(stream, true)) : 0,
                        stream->gets ? ir_shape_bytes(shape_of(stream, false)) : 0};
    int64_t most = bytes[0] > bytes[1] ? bytes[0] : bytes[1];
    stream->copy = arena_alloc(arena, (size_t)most + 1);
    if (!stream->copy) return am_fail_memory(error, most);
    stream->fills_result = stream->gets && fills_result(stream);
    return AM_OK;
}

AmStatus stream_prepare(Stream **result, Arena *arena, Comm *comm, const Program *program,
                        const ProgramInstruction *instruction, AmError *error) {
    const ProgramTransfer *transfer = instruction->transfer;
    int32_t most = transfer->send_count + transfer->receive_count;
    StreamList *list = comm->streams;
    Stream *stream = ARENA_ARRAY(arena, Stream, 1);
    StreamEnd *ends = ARENA_ARRAY(arena, StreamEnd, most + 1);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof *ends * most);
    if (!list || !list->channels)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "of the schedules of pipelines only gpipe runs with --comm %s", comm->back_end->name);
    *stream = (Stream){.ends = ends, .comm = comm};
    TRY(comm_prepare(&stream->call, arena, comm, program, instruction, error));
    for (int32_t pass = 0; pass < 2; pass++) {
        int32_t count;
        const ProgramPiece *pieces = pieces_of(transfer, pass == 0, &count);
        for (int32_t k = 0; k < count; k++) {
            bool is_known = false;
            for (int32_t e = 0; e < stream->end_count; e++)
                is_known |= ends[e].peer == pieces[k].peer && ends[e].puts == (pass == 0);
            if (is_known) continue;
            TRY(open_end(&ends[stream->end_count], stream, comm, pieces[k].peer, pass == 0, error));
            stream->end_count++;
        }
        if (pass == 0) stream->puts = count > 0;
        else stream->gets = count > 0;
    }
    TRY(make_copies(stream, arena, error));
    ARENA_RESERVE(arena, list->streams, list->count, list->capacity);
    if (arena->failed) return am_fail_memory(error, list->count);
    list->streams[list->count++] = stream;
    *result = stream;
    return AM_OK;
}

/* Copies between the array and the message; `puts` is the direction. */
static void copy_pieces(const Stream *stream, const StreamEnd *end, void *array, char *message) {
    const IrShape *shape = shape_of(stream, end->puts);
    int64_t strides[IR_MAX_RANK], packed[IR_MAX_RANK];
    int32_t count;
    const ProgramPiece *pieces = pieces_of(stream->call->transfer, end->puts, &count);
    for (int32_t k = 0; k < count; k++) {
        const ProgramPiece *piece = &pieces[k];
        if (piece->peer != end->peer) continue;
        char *place = comm_piece_place(array, shape, piece, strides);
        strided_row_major(packed, piece->extent, shape->rank);
        strided_copy(end->puts ? message : place, end->puts ? packed : strides, end->puts ? place : message,
                     end->puts ? strides : packed, piece->extent, shape->rank, dtype_bytes(shape->type));
        message += piece_bytes(piece, shape);
    }
}

/* Sends from the array, or from the host's copy of it. */
static AmStatus put_message(const Stream *stream, AmError *error) {
    void *array = stream->call->operands[0];
    if (stream->copy) {
        device_copy_out(stream->comm->device, stream->copy, array, ir_shape_bytes(shape_of(stream, true)));
        array = stream->copy;
    }
    for (int32_t e = 0; e < stream->end_count; e++) {
        const StreamEnd *end = &stream->ends[e];
        if (!end->puts) continue;
        copy_pieces(stream, end, array, channel_put(end->channel, stream->iteration));
        TRY(channel_put_end(end->channel, stream->iteration, error));
    }
    return AM_OK;
}

/* Receives a message; elements without a piece keep their value. */
static AmStatus get_message(const Stream *stream, AmError *error) {
    KernelDevice *device = stream->comm->device;
    void *array = stream->call->results[0], *to = stream->copy ? stream->copy : array;
    int64_t bytes = ir_shape_bytes(shape_of(stream, false));
    if (stream->copy && !stream->fills_result) device_copy_out(device, to, array, bytes);
    for (int32_t e = 0; e < stream->end_count; e++) {
        const StreamEnd *end = &stream->ends[e];
        if (end->puts) continue;
        copy_pieces(stream, end, to, (char *)channel_get(end->channel, stream->iteration));
        TRY(channel_get_end(end->channel, stream->iteration, error));
    }
    if (stream->copy) device_copy_in(device, array, to, bytes);
    return AM_OK;
}

AmStatus stream_run(Stream *stream, AmError *error) {
    const CommBackEnd *back_end = stream->comm->back_end;
    if (stream->copy && back_end->await) TRY(back_end->await(stream->comm, error));
    if (stream->puts) TRY(put_message(stream, error));
    return stream->gets ? get_message(stream, error) : AM_OK;
}
