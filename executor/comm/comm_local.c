/* Collectives between threads of one process, on shared memory.
 *
 * The members of a group publish their calls and synchronize (rendezvous.h),
 * then each builds its own results by reading the others' operands, and all
 * synchronize again before any operand may change. In an all_reduce the members
 * write one another's results instead: member k reduces the k-th part of all bytes
 * from all operands and puts it into all results, which is correct in place, and
 * complete at the second rendezvous. A small one takes one rendezvous: its operands travel
 * in the members' letters, and each member reduces all of them.
 */
#include <stdlib.h>
#include <string.h>

#include "executor/array/strided.h"
#include "executor/comm/collective_compute.h"
#include "executor/comm/combine.h"
#include "executor/comm/comm.h"
#include "executor/comm/rendezvous.h"

typedef struct CommShared {
    Rendezvous *rendezvous;
    int32_t size;
    Arena arenas[]; /* [size]: of each rank's calls */
} CommShared;

/* The prepared data of a call for one member. */
typedef struct LocalCall {
    RendezvousGroup *group;
    bool by_letters; /* an all_reduce that takes one rendezvous */
    CollectiveScratch scratch;
} LocalCall;

static AmStatus join_ranks(Comm *comm, const int32_t *ranks, int32_t count, int32_t *name, AmError *error) {
    return rendezvous_join(comm->shared->rendezvous, ranks, count, name, error);
}

enum { PART_BYTES = 64 }; /* parts of an all_reduce end at multiples of this: members write other lines */

/* Reduces the part of all operands that the position of this rank gives, into the results of all members. */
static void all_reduce(const RendezvousGroup *group, const CommCall *call) {
    const LocalCall *local = call->prepared;
    int64_t all = 0, before = 0;
    for (int32_t k = 0; k < call->operand_count; k++) all += ir_shape_bytes(call->operand_shapes[k]);
    int64_t part = (all / group->count / PART_BYTES + 1) * PART_BYTES;
    int64_t start = part * call->position, stop = start + part;
    for (int32_t k = 0; k < call->operand_count && before < stop; k++) {
        const IrShape *shape = call->operand_shapes[k];
        int64_t bytes = ir_shape_bytes(shape), elements = collective_real_elements(shape);
        int64_t element = elements > 0 ? bytes / elements : 1;
        int64_t first = start > before ? (start - before + element - 1) / element : 0;
        int64_t end = (stop - before + element - 1) / element;
        before += bytes;
        if (end > elements) end = elements;
        if (first >= end) continue;
        Combine work = collective_combine(call, k, &local->scratch);
        work.result_count = group->count;
        for (int32_t m = 0; m < group->count; m++) {
            work.members[m] = collective_call(group, m)->operands[k];
            work.results[m] = collective_call(group, m)->results[k];
        }
        combine_run(&work, first, end - first);
    }
}

/* Beyond this the second copy costs more than the second rendezvous (bench_comm). */
enum { LETTER_BYTES = 1024 };

static int64_t in_letter(const IrShape *shape) {
    return (ir_shape_bytes(shape) + 15) / 16 * 16;
}

static int64_t letter_bytes(const CommCall *call) {
    int64_t bytes = 0;
    for (int32_t k = 0; k < call->operand_count; k++) bytes += in_letter(call->operand_shapes[k]);
    return bytes;
}

static AmStatus all_reduce_by_letters(Comm *comm, const CommCall *call, AmError *error) {
    const LocalCall *local = call->prepared;
    uint64_t round = rendezvous_round(local->group);
    char *own = rendezvous_letter(local->group, round, call->position);
    int64_t at = 0;
    for (int32_t k = 0; k < call->operand_count; k++) {
        if (in_letter(call->operand_shapes[k]) == 0) continue; /* there may be no letters at all */
        memcpy(own + at, call->operands[k], (size_t)ir_shape_bytes(call->operand_shapes[k]));
        at += in_letter(call->operand_shapes[k]);
    }
    TRY(rendezvous_wait(comm->shared->rendezvous, local->group, comm->rank, error));
    at = 0;
    for (int32_t k = 0; k < call->operand_count; k++) {
        if (in_letter(call->operand_shapes[k]) == 0) continue;
        Combine work = collective_combine(call, k, &local->scratch);
        work.result_count = 1;
        work.results[0] = call->results[k];
        for (int32_t m = 0; m < call->rank_count; m++)
            work.members[m] = rendezvous_letter(local->group, round, m) + at;
        combine_run(&work, 0, collective_real_elements(call->operand_shapes[k]));
        at += in_letter(call->operand_shapes[k]);
    }
    return AM_OK;
}

/* Copies the pieces that this rank receives from the senders' memory. */
static AmStatus transfer(Comm *comm, RendezvousGroup *group, const CommCall *call, AmError *error) {
    for (int32_t k = 0; k < call->transfer->receive_count; k++) {
        int32_t peer = call->transfer->receives[k].peer, position = 0;
        while (peer != comm->rank && call->ranks[position] != peer) position++;
        const CommCall *sender = peer == comm->rank ? call : collective_call(group, position);
        const ProgramPiece *to = &call->transfer->receives[k], *from;
        const IrShape *shape = call->result_shapes[0];
        int64_t in_strides[IR_MAX_RANK], out_strides[IR_MAX_RANK];
        TRY(comm_find_sent(&from, sender, call, comm->rank, k, error));
        const char *source =
            comm_piece_place(sender->operands[0], sender->operand_shapes[0], from, in_strides);
        char *target = comm_piece_place(call->results[0], shape, to, out_strides);
        strided_copy(target, out_strides, source, in_strides, to->extent, shape->rank,
                     dtype_bytes(shape->type));
    }
    return AM_OK;
}

static AmStatus prepare_call(Comm *comm, CommCall *call, AmError *error) {
    CommShared *shared = comm->shared;
    Arena *arena = &shared->arenas[comm->rank];
    LocalCall *self = ARENA_ARRAY(arena, LocalCall, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    call->prepared = self;
    if (call->position < 0 || comm_is_host_copy(call)) return AM_OK;
    self->group = rendezvous_group(shared->rendezvous, call->group);
    self->scratch.members = ARENA_ARRAY(arena, const char *, call->rank_count);
    self->scratch.results = ARENA_ARRAY(arena, char *, call->rank_count);
    if (arena->failed) return am_fail_memory(error, call->rank_count * 16);
    if (!self->group) return am_fail(error, AM_ERROR_INTERNAL, "", "a collective of an unknown group");
    bool is_small = letter_bytes(call) <= LETTER_BYTES;
    if (!call->collective || call->collective->kind != PROGRAM_ALL_REDUCE || !is_small) return AM_OK;
    self->by_letters = true;
    return rendezvous_reserve_letters(shared->rendezvous, self->group, letter_bytes(call), error);
}

static AmStatus run_call(Comm *comm, const CommCall *call, AmError *error) {
    Rendezvous *rendezvous = comm->shared->rendezvous;
    const LocalCall *local = call->prepared;
    if (comm_is_host_copy(call)) {
        comm_copy_host(call);
        return AM_OK;
    }
    if (call->position < 0) return transfer(comm, NULL, call, error);
    if (local->by_letters) return all_reduce_by_letters(comm, call, error);
    local->group->brought[call->position] = call;
    TRY(rendezvous_wait(rendezvous, local->group, comm->rank, error));
    if (call->transfer) TRY(transfer(comm, local->group, call, error));
    else if (call->collective->kind == PROGRAM_ALL_REDUCE) all_reduce(local->group, call);
    else collective_compute(local->group, call, &local->scratch);
    return rendezvous_wait(rendezvous, local->group, comm->rank, error);
}

static AmStatus barrier(Comm *comm, AmError *error) {
    return rendezvous_barrier(comm->shared->rendezvous, comm->rank, error);
}

static void abort_all(Comm *comm) {
    rendezvous_abort(comm->shared->rendezvous);
}

static AmStatus open_comms(Comm *comms, int32_t first, int32_t count, int32_t size,
                           KernelDevice *const *devices, ProcessGroup *processes, AmError *error) {
    (void)processes;
    if (first != 0 || count != size)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "local collectives join the %d ranks of one process; the plan has %d", count, size);
    size_t bytes = sizeof(CommShared) + sizeof(Arena) * (size_t)size;
    CommShared *shared = calloc(1, bytes);
    if (!shared) return am_fail_memory(error, (int64_t)bytes);
    shared->size = size;
    AmStatus status = rendezvous_open(&shared->rendezvous, 0, size, error);
    if (status != AM_OK) {
        free(shared);
        return status;
    }
    for (int32_t r = 0; r < size; r++)
        comms[r] =
            (Comm){.back_end = &comm_local, .rank = r, .size = size, .device = devices[r], .shared = shared};
    return AM_OK;
}

static void close_comms(Comm *comms) {
    CommShared *shared = comms[0].shared;
    rendezvous_close(shared->rendezvous);
    for (int32_t r = 0; r < shared->size; r++) arena_free(&shared->arenas[r]);
    free(shared);
}

const CommBackEnd comm_local = {
    .name = "local",
    .open = open_comms,
    .close = close_comms,
    .join = join_ranks,
    .prepare = prepare_call,
    .start = barrier, /* letters are of one size when all have prepared their calls */
    .run = run_call,
    .has_channels = true,
    .waits_on_ranks = true,
    .barrier = barrier,
    .abort = abort_all,
};
