/* Transfers inside joined loops (lowering/interleave/interleave.h): stages are in different iterations, so
 * that a value is packed into a slot of a channel and read from there, without a rendezvous. The data
 * from one rank to another in one transfer is one message, its pieces in the order of the plan.
 */
#ifndef EXECUTOR_PROGRAM_STREAM_H
#define EXECUTOR_PROGRAM_STREAM_H

#include "executor/comm/channel.h"
#include "executor/comm/comm.h"

/* The part of a transfer that involves one other rank. */
typedef struct StreamEnd {
    Channel *channel;
    int32_t peer;
    bool puts;
} StreamEnd;

/* One transfer of one rank. */
typedef struct Stream {
    CommCall *call;
    StreamEnd *ends; /* [end_count] */
    int32_t end_count;
    bool puts, gets;
    Comm *comm;        /* of the rank */
    void *copy;        /* of the array, on the host; NULL: the array is there */
    bool fills_result; /* the received pieces cover the result */
    int64_t iteration; /* set by the actor that runs it, before it does */
} Stream;

/* The streams of a rank, in the order of its program. */
typedef struct StreamList {
    ChannelSet *channels; /* of the process */
    Stream **streams;
    int32_t count, capacity;
} StreamList;

/* Makes a transfer with slots ready; finds or adds the channels to its peers. Addresses come by comm_bind()
 * of stream->call. AM_ERROR_USAGE: the ranks' collectives have no channels. */
AmStatus stream_prepare(Stream **stream, Arena *arena, Comm *comm, const Program *program,
                        const ProgramInstruction *instruction, AmError *error);

/* Sends its outgoing values and receives its incoming ones, inside the actor's firing. */
AmStatus stream_run(Stream *stream, AmError *error);

#endif
