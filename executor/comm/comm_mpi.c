/* Collectives by MPI: ranks in any number of processes, on the host's memory.
 *
 * A prepared call consists of streams. A stream has the bytes (comm_stream.h) between this rank
 * and one other in one direction, cut into chunks. At most two of these are in flight. All
 * streams of a call progress concurrently; no message is awaited alone. A member of a reduction with
 * a chunk from every other member adds them in group order, in the 64-bit type, as comm_local does,
 * so that the results have the same bits; the next chunk arrives meanwhile. An all_reduce is a
 * reduction of one part by each member, whose chunks are sent to the others as soon as they are
 * reduced: each member sends 2 (n - 1) / n of the operands, for any size, from memory of two chunks
 * for each of the others.
 *
 * If a chunk of a stream is contiguous in memory, MPI sends from it and receives into it; otherwise
 * it is packed. Results may share the operands' memory in an all_reduce, so that a chunk of a
 * result is received only after the operand's chunk at the same place has been sent: gates order
 * the streams.
 *
 * A waiting rank polls, and checks for failures of other ranks or processes. After a failure MPI is
 * not called again (mpi_wire_end).
 */
#include "executor/comm/comm_mpi.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/integers.h"
#include "executor/array/scalar64.h"
#include "executor/comm/combine.h"
#include "executor/comm/comm_stream.h"

enum { MAX_RANKS = 1024, DEPTH = 2, MOST_CHUNK = 1 << 19, LEAST_CHUNK = 1 << 14, MOST_STAGED = 1 << 22 };

typedef struct MpiRank {
    Arena arena; /* of its calls */
} MpiRank;

typedef struct PeerStream {
    CommStream elements; /* the elements that it carries */
    int32_t process, tag;
    bool receives;
    bool reduced;        /* received chunks wait until all members' are there */
    bool staged;         /* chunks go through a buffer */
    int64_t buffer;      /* of DEPTH chunks, in the call's scratch memory */
    const int64_t *gate; /* only so many chunks may begin; NULL: all */
    /* While the call runs: chunks that have begun, were carried, and were used. */
    int64_t begun, carried, used;
    MpiRequest requests[DEPTH];
} PeerStream;

typedef struct MpiCall {
    PeerStream *streams; /* [stream_count] */
    int32_t stream_count;
    int64_t chunk_bytes;
    int64_t buffer_bytes;              /* of one chunk */
    CommStream own_sent, own_received; /* between this rank and itself */
    /* Reductions: by position the stream that brings a member's operands (NULL: this rank itself), and how
     * many chunks of how many are reduced. */
    PeerStream **members;
    const char **places; /* by position: the members' elements that are reduced at the moment */
    int64_t reduced, reduced_count;
} MpiCall;

static int64_t chunk_count(const MpiCall *self, const CommStream *stream) {
    return (stream->bytes + self->chunk_bytes - 1) / self->chunk_bytes;
}

static int64_t chunk_size(const MpiCall *self, const CommStream *stream, int64_t chunk) {
    return smaller_integer(self->chunk_bytes, stream->bytes - chunk * self->chunk_bytes);
}

/* ---- preparing ---- */

/* Adds a copy of the stream, unless it is empty. */
static void add_stream(MpiCall *self, const Comm *comm, CommCall *call, const PeerStream *stream,
                       int32_t peer, int32_t phase) {
    const CommShared *shared = comm->shared;
    if (stream->elements.bytes == 0) return;
    PeerStream *added = &self->streams[self->stream_count++];
    *added = *stream;
    added->process = peer / shared->count;
    added->tag = 2 * comm_mpi_pair(shared, stream->receives ? peer : comm->rank,
                                   stream->receives ? comm->rank : peer) +
                 phase;
    added->staged = stream->staged || stream->reduced;
    for (int64_t c = 0; c < chunk_count(self, &stream->elements) && !added->staged; c++) /* not one run */
        added->staged = !comm_stream_is_run(&stream->elements, c * self->chunk_bytes,
                                            chunk_size(self, &stream->elements, c));
    if (!added->staged) return;
    added->buffer = call->scratch_bytes;
    call->scratch_bytes += DEPTH * self->buffer_bytes;
}

/* Adds a result stream of an all_reduce: the sums that this rank made, to `position`, or those of that
 * member, from it. */
static AmStatus add_result_streams(MpiCall *self, Comm *comm, CommCall *call, int32_t position,
                                   PeerStream *given, AmError *error) {
    Arena *arena = &comm->shared->ranks[comm->rank - comm->shared->first].arena;
    PeerStream out = {.gate = &self->reduced},
               in = {.receives = true, .gate = given ? &given->carried : NULL};
    TRY(comm_stream_reduced(&out.elements, arena, call, call->position, true, error));
    TRY(comm_stream_reduced(&in.elements, arena, call, position, true, error));
    add_stream(self, comm, call, &out, call->ranks[position], 1);
    add_stream(self, comm, call, &in, call->ranks[position], 1);
    return AM_OK;
}

static AmStatus add_collective_streams(MpiCall *self, Comm *comm, CommCall *call, AmError *error) {
    Arena *arena = &comm->shared->ranks[comm->rank - comm->shared->first].arena;
    ProgramCollectiveKind kind = call->collective->kind;
    bool reduces = kind == PROGRAM_ALL_REDUCE || kind == PROGRAM_REDUCE_SCATTER;
    bool whole = kind == PROGRAM_ALL_REDUCE && comm_reduces_whole(call);
    TRY(comm_stream_sent(&self->own_sent, arena, call, call->position, error));
    TRY(comm_stream_received(&self->own_received, arena, call, call->position, error));
    if (reduces) {
        self->members = ARENA_ARRAY(arena, PeerStream *, call->rank_count);
        self->places = ARENA_ARRAY(arena, const char *, call->rank_count);
        if (arena->failed) return am_fail_memory(error, call->rank_count * 16);
        self->reduced_count = chunk_count(self, &self->own_received);
    }
    for (int32_t p = 0; p < call->rank_count; p++) {
        PeerStream out = {.staged = whole}, in = {.receives = true, .reduced = reduces};
        if (p == call->position) continue;
        TRY(comm_stream_sent(&out.elements, arena, call, p, error));
        TRY(comm_stream_received(&in.elements, arena, call, p, error));
        PeerStream *given = out.elements.bytes > 0 ? &self->streams[self->stream_count] : NULL;
        add_stream(self, comm, call, &out, call->ranks[p], 0);
        if (reduces && in.elements.bytes > 0) self->members[p] = &self->streams[self->stream_count];
        add_stream(self, comm, call, &in, call->ranks[p], 0);
        if (kind == PROGRAM_ALL_REDUCE && !whole) TRY(add_result_streams(self, comm, call, p, given, error));
    }
    return AM_OK;
}

static AmStatus add_transfer_streams(MpiCall *self, Comm *comm, CommCall *call, AmError *error) {
    Arena *arena = &comm->shared->ranks[comm->rank - comm->shared->first].arena;
    TRY(comm_stream_pieces(&self->own_sent, arena, call, comm->rank, false, error));
    TRY(comm_stream_pieces(&self->own_received, arena, call, comm->rank, true, error));
    if (call->position < 0) return AM_OK;
    for (int32_t p = 0; p < call->rank_count; p++) {
        PeerStream out = {0}, in = {.receives = true};
        if (p == call->position) continue;
        TRY(comm_stream_pieces(&out.elements, arena, call, call->ranks[p], false, error));
        TRY(comm_stream_pieces(&in.elements, arena, call, call->ranks[p], true, error));
        add_stream(self, comm, call, &out, call->ranks[p], 0);
        add_stream(self, comm, call, &in, call->ranks[p], 0);
    }
    return AM_OK;
}

static AmStatus prepare_call(Comm *comm, CommCall *call, AmError *error) {
    Arena *arena = &comm->shared->ranks[comm->rank - comm->shared->first].arena;
    if (comm_is_host_copy(call)) return AM_OK;
    MpiCall *self = ARENA_ARRAY(arena, MpiCall, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    /* All members have the same chunk: they know the call, but not the shapes of the others. */
    int64_t others = call->rank_count > 1 ? call->rank_count - 1 : 1;
    int64_t bytes = MOST_STAGED / (2 * DEPTH * others) / 64 * 64;
    self->chunk_bytes = bytes > MOST_CHUNK ? MOST_CHUNK : bytes < LEAST_CHUNK ? LEAST_CHUNK : bytes;
    /* The most that a stream of this call can hold. */
    int64_t given = 0, taken = 0;
    for (int32_t k = 0; k < call->operand_count; k++)
        given += kernel_align(ir_shape_bytes(call->operand_shapes[k]));
    for (int32_t k = 0; k < call->result_count; k++)
        taken += kernel_align(ir_shape_bytes(call->result_shapes[k]));
    self->buffer_bytes = kernel_align(smaller_integer(self->chunk_bytes, given > taken ? given : taken));
    self->streams = ARENA_ARRAY(arena, PeerStream, 4 * call->rank_count + 1);
    if (!self->streams) return am_fail_memory(error, (int64_t)sizeof(PeerStream) * 4 * call->rank_count);
    call->prepared = self;
    call->scratch_bytes = 0;
    return call->transfer ? add_transfer_streams(self, comm, call, error)
                          : add_collective_streams(self, comm, call, error);
}

/* ---- running ---- */

/* Returns the memory of a chunk for MPI: in the arrays, or in the stream's buffer. */
static char *chunk_place(const MpiCall *self, const CommCall *call, const PeerStream *stream, int64_t chunk) {
    int32_t box = 0;
    int64_t run;
    if (stream->staged) return (char *)call->scratch + stream->buffer + chunk % DEPTH * self->buffer_bytes;
    return comm_stream_place(&stream->elements, call, chunk * self->chunk_bytes, &run, &box);
}

static AmStatus begin_chunk(const MpiCall *self, const CommCall *call, PeerStream *stream, AmError *error) {
    int64_t chunk = stream->begun++, bytes = chunk_size(self, &stream->elements, chunk);
    MpiRequest *request = &stream->requests[chunk % DEPTH];
    char *place = chunk_place(self, call, stream, chunk);
    if (stream->receives) return mpi_wire_receive(request, place, bytes, stream->process, stream->tag, error);
    if (stream->staged) comm_stream_pack(&stream->elements, call, chunk * self->chunk_bytes, bytes, 0, place);
    return mpi_wire_send(request, place, bytes, stream->process, stream->tag, error);
}

/* Starts and completes operations; sets `moved` if there was progress. */
static AmStatus move_stream(const MpiCall *self, const CommCall *call, PeerStream *stream, bool *moved,
                            AmError *error) {
    int64_t count = chunk_count(self, &stream->elements);
    for (bool done = true; done && stream->carried < stream->begun;) {
        TRY(mpi_wire_test(&stream->requests[stream->carried % DEPTH], &done, error));
        if (!done) break;
        stream->carried++;
        *moved = true;
        if (!stream->reduced) {
            int64_t chunk = stream->used++;
            if (stream->receives && stream->staged)
                comm_stream_unpack(&stream->elements, call, chunk * self->chunk_bytes,
                                   chunk_size(self, &stream->elements, chunk),
                                   chunk_place(self, call, stream, chunk));
        }
    }
    int64_t open = stream->gate ? smaller_integer(count, *stream->gate) : count;
    while (stream->begun < open && stream->begun - stream->used < DEPTH) {
        TRY(begin_chunk(self, call, stream, error));
        *moved = true;
    }
    return AM_OK;
}

/* Bytes [at, at + bytes) of the reduced stream, which are in box b of this chunk: over all members in
 * group order. */
static void reduce_run(const MpiCall *self, const CommCall *call, int64_t chunk, int32_t b, int64_t at,
                       int64_t bytes) {
    uint64_t packed[SCALAR64_RUN];
    const CommBox *box = &self->own_sent.boxes[b];
    Dtype type = dtype_is_complex(box->type) ? dtype_real_part(box->type) : box->type;
    int64_t element = dtype_bytes(type), ignored, part;
    for (int64_t end = at + bytes; at < end; at += part) {
        int32_t result = b;
        part = smaller_integer(end - at, SCALAR64_RUN * element);
        char *target = comm_stream_place(&self->own_received, call, at, &ignored, &result);
        for (int32_t p = 0; p < call->rank_count; p++) {
            self->places[p] = (const char *)packed;
            if (self->members[p])
                self->places[p] =
                    chunk_place(self, call, self->members[p], chunk) + at - chunk * self->chunk_bytes;
            else comm_stream_pack(&self->own_sent, call, at, part, b, (char *)packed);
        }
        Combine work = {.reduction = call->collective->reduction,
                        .type = type,
                        .members = self->places,
                        .member_count = call->rank_count,
                        .results = &target,
                        .result_count = 1};
        combine_run(&work, 0, part / element);
    }
}

/* Reduces the next chunk, if it has arrived from all members. */
static void reduce_chunk(MpiCall *self, const CommCall *call, bool *moved) {
    int64_t chunk = self->reduced, begin = chunk * self->chunk_bytes;
    if (chunk == self->reduced_count) return;
    for (int32_t p = 0; p < call->rank_count; p++)
        if (self->members[p] && self->members[p]->carried <= chunk) return;
    int64_t end = begin + chunk_size(self, &self->own_received, chunk);
    for (int32_t b = 0; b < self->own_sent.box_count; b++) {
        const CommBox *box = &self->own_sent.boxes[b];
        int64_t from = box->start > begin ? box->start : begin,
                to = smaller_integer(box->start + box->bytes, end);
        if (from < to) reduce_run(self, call, chunk, b, from, to - from);
    }
    for (int32_t p = 0; p < call->rank_count; p++)
        if (self->members[p]) self->members[p]->used++;
    self->reduced++;
    *moved = true;
}

static bool is_complete(const MpiCall *self) {
    if (self->reduced < self->reduced_count) return false;
    for (int32_t k = 0; k < self->stream_count; k++)
        if (self->streams[k].used < chunk_count(self, &self->streams[k].elements)) return false;
    return true;
}

AmStatus comm_mpi_fail_released(int32_t rank, AmError *error) {
    return am_fail(error, AM_ERROR_RUNTIME, "", "rank %d was stopped because another rank failed", rank);
}

bool comm_mpi_has_failed(CommShared *shared) {
    return atomic_load(&shared->failed) || process_group_check(shared->processes, NULL) != AM_OK;
}

/* Pauses between two polls: yields the processor, then sleeps for longer intervals. */
static AmStatus rest(CommShared *shared, int32_t rank, int64_t *idle, AmError *error) {
    bool has_failed = ++*idle % 128 == 0 ? comm_mpi_has_failed(shared) : atomic_load(&shared->failed);
    if (has_failed) return comm_mpi_fail_released(rank, error);
    if (*idle < 1000) sched_yield();
    else nanosleep(&(struct timespec){.tv_nsec = *idle < 5000 ? 20000 : 100000}, NULL);
    return AM_OK;
}

static AmStatus run_call(Comm *comm, const CommCall *call, AmError *error) {
    if (comm_is_host_copy(call)) {
        comm_copy_host(call);
        return AM_OK;
    }
    MpiCall *self = call->prepared;
    int64_t idle = 0;
    bool begins = true;
    self->reduced = 0;
    for (int32_t k = 0; k < self->stream_count; k++)
        self->streams[k].begun = self->streams[k].carried = self->streams[k].used = 0;
    for (;;) {
        bool moved = false;
        for (int32_t k = 0; k < self->stream_count; k++)
            TRY(move_stream(self, call, &self->streams[k], &moved, error));
        if (self->members) reduce_chunk(self, call, &moved);
        else if (begins) comm_stream_copy(&self->own_sent, &self->own_received, call);
        begins = false;
        if (is_complete(self)) return AM_OK;
        if (moved) idle = 0;
        else TRY(rest(comm->shared, comm->rank, &idle, error));
    }
}

/* ---- all ranks ---- */

static AmStatus join_ranks(Comm *comm, const int32_t *ranks, int32_t count, int32_t *name, AmError *error) {
    (void)comm, (void)ranks, (void)count, (void)error;
    *name = 0;
    return AM_OK;
}

static AmStatus finish_message(CommShared *shared, int32_t rank, MpiRequest *request, AmError *error) {
    int64_t idle = 0;
    for (bool done = false;;) {
        TRY(mpi_wire_test(request, &done, error));
        if (done) return AM_OK;
        TRY(rest(shared, rank, &idle, error));
    }
}

/* Waits at a barrier in log2 n rounds: in round k every process notifies the process 2^k after it that all
 * 2^k before have arrived. */
AmStatus comm_mpi_barrier(CommShared *shared, int32_t rank, AmError *error) {
    int32_t process = shared->processes->process, count = shared->processes->count;
    int32_t tag = comm_mpi_barrier_tag(shared);
    for (int32_t distance = 1; distance < count; distance *= 2) {
        MpiRequest in = {0}, out = {0};
        char byte = 0, its;
        TRY(mpi_wire_receive(&in, &its, 1, (process + count - distance) % count, tag, error));
        TRY(mpi_wire_send(&out, &byte, 1, (process + distance) % count, tag, error));
        TRY(finish_message(shared, rank, &in, error));
        TRY(finish_message(shared, rank, &out, error));
    }
    return AM_OK;
}

static AmStatus barrier(Comm *comm, AmError *error) {
    CommShared *shared = comm->shared;
    TRY(rendezvous_barrier(shared->rendezvous, comm->rank, error));
    if (comm->rank == shared->first) TRY(comm_mpi_barrier(shared, comm->rank, error));
    return rendezvous_barrier(shared->rendezvous, comm->rank, error);
}

static void abort_all(Comm *comm) {
    atomic_store(&comm->shared->failed, true);
    rendezvous_abort(comm->shared->rendezvous);
}

static void free_shared(CommShared *shared) {
    for (int32_t r = 0; shared->ranks && r < shared->count; r++) arena_free(&shared->ranks[r].arena);
    rendezvous_close(shared->rendezvous);
    free(shared->ranks);
    free(shared);
}

static AmStatus open_comms(Comm *comms, int32_t first, int32_t count, int32_t size,
                           KernelDevice *const *devices, ProcessGroup *processes, AmError *error) {
    if (!processes)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "collectives 'mpi' join processes that mpirun starts; here is one alone");
    TRY(mpi_wire_start(processes->process, processes->count, error));
    if (count > MAX_RANKS || 2 * count * count > mpi_wire_most_tag())
        return am_fail(error, AM_ERROR_RUNTIME, "", "%d ranks in one process are more than %s can tell apart",
                       count, mpi_wire_name());
    CommShared *shared = calloc(1, sizeof *shared);
    if (!shared) return am_fail_memory(error, (int64_t)sizeof *shared);
    *shared = (CommShared){.processes = processes, .first = first, .count = count};
    atomic_init(&shared->failed, false);
    shared->ranks = calloc((size_t)count, sizeof *shared->ranks);
    AmStatus status = shared->ranks ? rendezvous_open(&shared->rendezvous, first, count, error)
                                    : am_fail_memory(error, (int64_t)sizeof *shared->ranks * count);
    if (status != AM_OK) {
        free_shared(shared);
        return status;
    }
    for (int32_t r = 0; r < count; r++)
        comms[r] = (Comm){
            .back_end = &comm_mpi, .rank = first + r, .size = size, .device = devices[r], .shared = shared};
    return AM_OK;
}

static void close_comms(Comm *comms) {
    free_shared(comms[0].shared);
}

const CommBackEnd comm_mpi = {
    .name = "mpi",
    .open = open_comms,
    .close = close_comms,
    .join = join_ranks,
    .prepare = prepare_call,
    .run = run_call,
    .has_channels = true,
    .channels = &channel_mpi,
    .waits_on_ranks = true,
    .barrier = barrier,
    .abort = abort_all,
};
