/* Streams: see stream.h. Both ranks know a channel between them by the number of the transfer. */
#include "executor/stream.h"

#include "executor/cpu/strided.h"

static int64_t piece_bytes(const ProgramPiece *piece, const IrShape *shape) {
    return strided_elements(piece->extent, shape->rank) * dtype_bytes(shape->type);
}

/* The pieces that go to peers, or come from them. */
static const ProgramPiece *pieces_of(const ProgramTransfer *transfer, bool puts, int32_t *count) {
    *count = puts ? transfer->send_count : transfer->receive_count;
    return puts ? transfer->sends : transfer->receives;
}

static const IrShape *shape_of(const Stream *stream, bool puts) {
    return puts ? stream->call->operand_shapes[0] : stream->call->result_shapes[0];
}

static int64_t message_bytes(const Stream *stream, int32_t peer, bool puts) {
    int32_t count;
    const ProgramPiece *pieces = pieces_of(stream->call->transfer, puts, &count);
    int64_t bytes = 0;
    for (int32_t k = 0; k < count; k++)
        if (pieces[k].peer == peer) bytes += piece_bytes(&pieces[k], shape_of(stream, puts));
    return bytes;
}

static Channel *find_channel(const ChannelSet *set, int32_t sender, int32_t receiver, int64_t key) {
    for (int32_t k = 0; k < set->count; k++) {
        Channel *channel = set->channels[k];
        if (channel->sender == sender && channel->receiver == receiver && channel->key == key) return channel;
    }
    return NULL;
}

static AmStatus open_end(StreamEnd *end, const Stream *stream, const Comm *comm, int32_t peer, bool puts,
                         AmError *error) {
    const StreamList *list = comm->streams;
    int32_t sender = puts ? comm->rank : peer, receiver = puts ? peer : comm->rank;
    int64_t key = stream->call->transfer->number;
    int64_t bytes = message_bytes(stream, peer, puts);
    *end = (StreamEnd){
        .channel = find_channel(list->channels, sender, receiver, key), .peer = peer, .puts = puts};
    if (!end->channel)
        TRY(channels_add(list->channels, sender, receiver, bytes, stream->call->transfer->slots,
                         &end->channel, error));
    end->channel->key = key;
    if (end->channel->bytes == bytes) return AM_OK;
    return am_fail(error, AM_ERROR_INTERNAL, "", "ranks %d and %d do not mean the same transfer", sender,
                   receiver);
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
                       "of the schedules of pipelines only gpipe runs on other devices than cpu");
    *stream = (Stream){.ends = ends};
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

AmStatus stream_run(Stream *stream, AmError *error) {
    for (int32_t e = 0; e < stream->end_count; e++) {
        const StreamEnd *end = &stream->ends[e];
        if (end->puts) {
            copy_pieces(stream, end, stream->call->operands[0], channel_put(end->channel, stream->turn));
            TRY(channel_put_end(end->channel, stream->turn, error));
        } else {
            copy_pieces(stream, end, stream->call->results[0],
                        (char *)channel_get(end->channel, stream->turn));
            TRY(channel_get_end(end->channel, stream->turn, error));
        }
    }
    return AM_OK;
}
