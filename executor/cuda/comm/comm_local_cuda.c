/* Collectives between threads of one process, on the memory of its GPUs: any
 * number of ranks on one card, or on several that reach one another's memory.
 *
 * The method is that of executor/comm/comm_local.c. The results equal its results bit for bit. The threads
 * synchronize on the host (rendezvous.h) to signal that an event has been recorded; the work itself is
 * ordered on the device. A call: fork; record `ready`; synchronize; wait for all members' `ready`; first
 * phase: fold or fetch the own part from the members' operands; all_reduce: record `folded`; synchronize;
 * wait for all; second phase: fetch the others' parts from their results; record `read`; synchronize; wait
 * for all members' `read`, as they read this rank's memory; mark. A wait takes an event's latest record. A
 * member that is ahead may have recorded it anew: then the wait is for more than is needed, all of it already
 * issued, so nothing can wait in a circle. Addresses are exchanged once, when
 * the ranks start.
 */
#include <stdlib.h>
#include <string.h>

#include "executor/comm/rendezvous.h"
#include "executor/cuda/comm/exchange.h"

typedef struct LocalRank {
    CudaCommRank shared;
    CUevent ready, folded, read;
} LocalRank;

typedef struct CommShared {
    Rendezvous *rendezvous;
    int32_t size;
    LocalRank *ranks; /* [size] */
} CommShared;

static LocalRank *rank_of(Comm *comm) {
    return &comm->shared->ranks[comm->rank];
}

static AmStatus join(Comm *comm, const int32_t *ranks, int32_t count, int32_t *name, AmError *error) {
    return rendezvous_join(comm->shared->rendezvous, ranks, count, name, error);
}

static AmStatus prepare_call(Comm *comm, CommCall *call, AmError *error) {
    return cuda_comm_rank_add(&rank_of(comm)->shared, call, error);
}

/* Returns the start of slice k of `count` nearly equal ones. */
static int64_t slice_start(int64_t elements, int32_t k, int32_t count) {
    return elements / count * k + (elements % count < k ? elements % count : k);
}

static CudaPart slice(void *array, const IrShape *shape, int32_t k, int32_t count) {
    int64_t elements = ir_shape_elements(shape);
    int64_t first = slice_start(elements, k, count), end = slice_start(elements, k + 1, count);
    return cuda_part_contiguous((char *)array + first * dtype_bytes(shape->type), end - first);
}

/* The calls of the members of this rank's group, with their addresses. */
typedef struct Members {
    const RendezvousGroup *group;
    const CommCall *own;
} Members;

static const CommCall *member_call(const Members *members, int32_t m) {
    return members->group->brought[m];
}

/* Operand k's part that comes from member m, and where it goes. */
typedef void Fetch(const Members *members, int32_t k, int32_t m, CudaPart *from, CudaPart *to);

static void fetch_slice(const Members *members, int32_t k, int32_t m, CudaPart *from, CudaPart *to) {
    const CommCall *own = members->own;
    *from = slice(member_call(members, m)->results[k], own->result_shapes[k], m, members->group->count);
    *to = slice(own->results[k], own->result_shapes[k], m, members->group->count);
    if (m == own->position) from->elements = 0; /* it is there already */
}

static void fetch_gathered(const Members *members, int32_t k, int32_t m, CudaPart *from, CudaPart *to) {
    const CommCall *own = members->own, *other = member_call(members, m);
    const ProgramMovement *movement = &own->collective->movements[k];
    *from = cuda_part_contiguous(other->operands[k], ir_shape_elements(other->operand_shapes[k]));
    *to = cuda_part(own->results[k], own->result_shapes[k], movement->dimension,
                    comm_part_start(movement->parts, m), movement->parts[m]);
}

static void fetch_exchanged(const Members *members, int32_t k, int32_t m, CudaPart *from, CudaPart *to) {
    const CommCall *own = members->own, *other = member_call(members, m);
    const ProgramMovement *movement = &own->collective->movements[k];
    *from = cuda_part(other->operands[k], other->operand_shapes[k], movement->other,
                      comm_part_start(movement->other_parts, own->position),
                      movement->other_parts[own->position]);
    *to = cuda_part(own->results[k], own->result_shapes[k], movement->dimension,
                    comm_part_start(movement->parts, m), movement->parts[m]);
}

static void fetch_halo(const Members *members, int32_t k, int32_t m, CudaPart *from, CudaPart *to) {
    const CommCall *own = members->own, *other = member_call(members, m);
    const ProgramMovement *movement = &own->collective->movements[k];
    int64_t start, part, extent = program_halo_piece(movement, m, own->position, &start, &part);
    *from =
        cuda_part(other->operands[k], other->operand_shapes[k], movement->dimension, start - part, extent);
    *to = cuda_part(own->results[k], own->result_shapes[k], movement->dimension,
                    start - movement->range_start[own->position], extent);
}

static AmStatus make_moves(CudaPhase *phase, CudaCommRank *rank, const Members *members, Fetch *fetch,
                           AmError *error) {
    const CommCall *own = members->own;
    int32_t count = own->operand_count * members->group->count, n = 0;
    CudaMove *moves = malloc(sizeof *moves * (size_t)(count > 0 ? count : 1));
    if (!moves) return am_fail_memory(error, (int64_t)sizeof *moves * count);
    for (int32_t k = 0; k < own->operand_count; k++)
        for (int32_t m = 0; m < members->group->count; m++) {
            CudaPart from, to;
            fetch(members, k, m, &from, &to);
            if (from.elements > 0)
                moves[n++] = cuda_move(&from, &to, dtype_bytes(own->result_shapes[k]->type));
        }
    AmStatus status = cuda_phase_of_moves(phase, &rank->movement, &rank->device->device, moves, n, error);
    free(moves);
    return status;
}

/* Returns the part of its own operand k that this rank folds. */
static CudaPart folded_part(const CommCall *own, int32_t k, int32_t count) {
    const IrShape *shape = own->operand_shapes[k];
    if (own->collective->kind == PROGRAM_ALL_REDUCE)
        return slice(own->operands[k], shape, own->position, count);
    const ProgramMovement *movement = &own->collective->movements[k];
    return cuda_part(own->operands[k], shape, movement->dimension,
                     comm_part_start(movement->parts, own->position), movement->parts[own->position]);
}

static AmStatus make_folds(CudaPhase *phase, CudaCommRank *rank, const Members *members, AmError *error) {
    const CommCall *own = members->own;
    int32_t count = own->operand_count, size = members->group->count;
    CudaMemberFold *folds = malloc(sizeof *folds * (size_t)(count + 1));
    const void **operands = malloc(sizeof *operands * (size_t)(count * size + 1));
    AmStatus status;
    if (!folds || !operands) {
        status = am_fail_memory(error, (int64_t)sizeof *operands * count * size);
        goto fail;
    }
    for (int32_t k = 0; k < count; k++) {
        Dtype type = own->operand_shapes[k]->type;
        CudaPart part = folded_part(own, k, size);
        int64_t offset = part.address - (char *)own->operands[k];
        bool whole = own->collective->kind == PROGRAM_ALL_REDUCE; /* the result has the operand's places */
        int64_t numbers = dtype_is_complex(type) ? 2 : 1;         /* numbers per element */
        folds[k] = (CudaMemberFold){.result = (char *)own->results[k] + (whole ? offset : 0),
                                    .elements = part.elements * numbers,
                                    .start = offset / dtype_bytes(dtype_real_part(type)),
                                    .slab = {part.slab.row * numbers, part.slab.pitch * numbers},
                                    .member_count = size,
                                    .reduction = own->collective->reduction};
        for (int32_t m = 0; m < size; m++) operands[k * size + m] = member_call(members, m)->operands[k];
    }
    status = cuda_phase_of_folds(phase, &rank->movement, &rank->device->device,
                                 count > 0 ? dtype_real_part(own->operand_shapes[0]->type) : DTYPE_F32, folds,
                                 count, operands, error);
fail:
    free(folds);
    free(operands);
    return status;
}

/* Returns the call of a rank that takes part in this one's transfer, or its own. */
static const CommCall *sender_of(void *user, int32_t peer) {
    const Members *members = user;
    for (int32_t m = 0; members->group && m < members->group->count; m++)
        if (members->group->ranks[m] == peer) return member_call(members, m);
    return members->own;
}

static AmStatus make_phases(CudaCommCall *prepared, CudaCommRank *rank, const Members *members,
                            AmError *error) {
    switch (members->own->collective->kind) {
    case PROGRAM_ALL_REDUCE:
        TRY(make_folds(&prepared->first, rank, members, error));
        return make_moves(&prepared->second, rank, members, fetch_slice, error);
    case PROGRAM_REDUCE_SCATTER: return make_folds(&prepared->first, rank, members, error);
    case PROGRAM_ALL_GATHER: return make_moves(&prepared->first, rank, members, fetch_gathered, error);
    case PROGRAM_ALL_TO_ALL: return make_moves(&prepared->first, rank, members, fetch_exchanged, error);
    case PROGRAM_HALO_EXCHANGE: return make_moves(&prepared->first, rank, members, fetch_halo, error);
    default: return AM_OK;
    }
}

/* Reads the memory of all cards that other ranks are on. */
static AmStatus reach_peers(Comm *comm, AmError *error) {
    const CudaDevice *own = &rank_of(comm)->shared.device->device;
    for (int32_t r = 0; r < comm->size; r++) {
        const CudaDevice *peer = &comm->shared->ranks[r].shared.device->device;
        int reaches = 0;
        if (peer->ordinal == own->ordinal) continue;
        TRY(cuda_check(cuda.cuDeviceCanAccessPeer(&reaches, own->device, peer->device),
                       "asking for access between GPUs", error));
        if (!reaches)
            return am_fail(
                error, AM_ERROR_RUNTIME, "",
                "GPU %d cannot read the memory of GPU %d, as local collectives must: use --comm nccl",
                own->ordinal, peer->ordinal);
        CUresult result = cuda.cuCtxEnablePeerAccess(peer->context, 0);
        if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
            TRY(cuda_check(result, "giving a GPU access to another", error));
    }
    return AM_OK;
}

static AmStatus start(Comm *comm, AmError *error) {
    Rendezvous *rendezvous = comm->shared->rendezvous;
    CudaCommRank *rank = &rank_of(comm)->shared;
    TRY(cuda_device_use(&rank->device->device, error));
    TRY(reach_peers(comm, error));
    for (CudaCommCall *prepared = rank->calls; prepared; prepared = prepared->next) {
        if (comm_is_host_copy(prepared->call)) continue;
        bool takes_part = prepared->call->position >= 0;
        RendezvousGroup *group = takes_part ? rendezvous_group(rendezvous, prepared->call->group) : NULL;
        Members members = {group, prepared->call};
        if (!takes_part) {
            TRY(cuda_exchange_fetch(&prepared->first, rank, prepared->call, comm->rank, sender_of, &members,
                                    error));
            continue;
        }
        group->brought[prepared->call->position] = prepared->call;
        TRY(rendezvous_wait(rendezvous, group, comm->rank, error));
        if (prepared->call->transfer)
            TRY(cuda_exchange_fetch(&prepared->first, rank, prepared->call, comm->rank, sender_of, &members,
                                    error));
        else TRY(make_phases(prepared, rank, &members, error));
        TRY(rendezvous_wait(rendezvous, group, comm->rank, error));
    }
    return AM_OK;
}

/* Notifies the group that the work issued to this rank's communication stream ends with `own`, and
 * makes the stream wait for all members' event. */
static AmStatus synchronize_on_device(Comm *comm, RendezvousGroup *group, size_t event_offset,
                                      AmError *error) {
    static const char what[] = "ordering the ranks' streams";
    CUstream stream = rank_of(comm)->shared.device->communication;
    CUevent *own = (CUevent *)((char *)rank_of(comm) + event_offset);
    TRY(cuda_check(cuda.cuEventRecord(*own, stream), what, error));
    TRY(rendezvous_wait(comm->shared->rendezvous, group, comm->rank, error));
    for (int32_t m = 0; m < group->count; m++) {
        if (group->ranks[m] == comm->rank) continue;
        const char *member = (const char *)&comm->shared->ranks[group->ranks[m]];
        TRY(cuda_check(cuda.cuStreamWaitEvent(stream, *(const CUevent *)(member + event_offset), 0), what,
                       error));
    }
    return AM_OK;
}

static AmStatus run_call(Comm *comm, const CommCall *call, AmError *error) {
    CudaCommRank *rank = &rank_of(comm)->shared;
    const CudaCommCall *prepared = call->prepared;
    RendezvousGroup *group = NULL;
    if (comm_is_host_copy(call)) {
        cuda_comm_rank_copy_host(rank, call);
        return AM_OK;
    }
    cuda_comm_rank_fork(rank);
    if (call->position < 0) { /* a transfer without other ranks */
        cuda_phase_run(&prepared->first, rank->device);
        cuda_comm_rank_mark(rank, call);
        return AM_OK;
    }
    group = rendezvous_group(comm->shared->rendezvous, call->group);
    if (!group) return am_fail(error, AM_ERROR_INTERNAL, "", "a collective of an unknown group");
    TRY(synchronize_on_device(comm, group, offsetof(LocalRank, ready), error));
    cuda_phase_run(&prepared->first, rank->device);
    if (call->collective && call->collective->kind == PROGRAM_ALL_REDUCE) {
        TRY(synchronize_on_device(comm, group, offsetof(LocalRank, folded), error));
        cuda_phase_run(&prepared->second, rank->device);
    }
    TRY(synchronize_on_device(comm, group, offsetof(LocalRank, read), error));
    cuda_comm_rank_mark(rank, call);
    return AM_OK;
}

static void wait_for(Comm *comm, const CommCall *call) {
    cuda_comm_rank_wait(&rank_of(comm)->shared, call);
}

static AmStatus barrier(Comm *comm, AmError *error) {
    return rendezvous_barrier(comm->shared->rendezvous, comm->rank, error);
}

static void abort_all(Comm *comm) {
    rendezvous_abort(comm->shared->rendezvous);
}

static AmStatus open_rank(LocalRank *rank, KernelDevice *device, AmError *error) {
    CUevent *events[] = {&rank->ready, &rank->folded, &rank->read};
    TRY(cuda_comm_rank_open(&rank->shared, device, error));
    for (size_t k = 0; k < sizeof events / sizeof *events; k++)
        TRY(cuda_check(cuda.cuEventCreate(events[k], CU_EVENT_DISABLE_TIMING), "making an event", error));
    return AM_OK;
}

static void free_shared(CommShared *shared) {
    for (int32_t r = 0; shared->ranks && r < shared->size; r++) {
        LocalRank *rank = &shared->ranks[r];
        CUevent events[] = {rank->ready, rank->folded, rank->read};
        if (rank->shared.device) cuda_device_use(&rank->shared.device->device, NULL);
        for (size_t k = 0; k < sizeof events / sizeof *events; k++)
            if (events[k]) cuda.cuEventDestroy(events[k]);
        cuda_comm_rank_close(&rank->shared);
    }
    rendezvous_close(shared->rendezvous);
    free(shared->ranks);
    free(shared);
}

static AmStatus open_comms(Comm *comms, int32_t first, int32_t count, int32_t size,
                           KernelDevice *const *devices, ProcessGroup *processes, AmError *error) {
    (void)processes;
    AmStatus status;
    if (first != 0 || count != size)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "local collectives join the %d ranks of one process; the plan has %d", count, size);
    CommShared *shared = calloc(1, sizeof *shared);
    if (!shared) return am_fail_memory(error, (int64_t)sizeof *shared);
    shared->size = size;
    shared->ranks = calloc((size_t)size + 1, sizeof *shared->ranks);
    if (!shared->ranks) {
        status = am_fail_memory(error, (int64_t)sizeof *shared->ranks * size);
        goto fail;
    }
    TRY_OR_FAIL(rendezvous_open(&shared->rendezvous, 0, size, error));
    for (int32_t r = 0; r < size; r++) {
        TRY_OR_FAIL(open_rank(&shared->ranks[r], devices[r], error));
        comms[r] = (Comm){
            .back_end = &comm_local_cuda, .rank = r, .size = size, .device = devices[r], .shared = shared};
    }
    return AM_OK;
fail:
    free_shared(shared);
    return status;
}

static void close_comms(Comm *comms) {
    free_shared(comms[0].shared);
}

const CommBackEnd comm_local_cuda = {
    .name = "local",
    .open = open_comms,
    .close = close_comms,
    .join = join,
    .prepare = prepare_call,
    .start = start,
    .run = run_call,
    .wait = wait_for,
    .has_channels = true,
    .waits_on_ranks = true,
    .barrier = barrier,
    .abort = abort_all,
};
