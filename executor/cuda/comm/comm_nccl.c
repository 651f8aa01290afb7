/* Collectives by NCCL: one GPU per rank, ranks in any number of processes.
 *
 * Every group of ranks (the devices along one or several mesh axes) has a
 * communicator, made when the ranks start, in the same order everywhere. Its
 * first step is a number that one rank makes and all members need
 * (nccl_groups.h). Calls with several operands are issued as one group. Shards
 * that are not contiguous in memory are packed and unpacked (pieces.h). Uneven
 * shards travel by sends and receives, and a reduction to uneven shards is one
 * reduction for each member. NCCL chooses the order of its sums.
 *
 * Every wait has a limit in time (AUTOMAP_NCCL_TIMEOUT, seconds, default 120; ten
 * times that for a step): communicators are non-blocking and polled. await()
 * watches a step: an error of a communicator, a rank that failed elsewhere, or the
 * end of that time aborts the communicators, which releases the device; the runner
 * names the rank. An abort frees the device at once, but returns only when no
 * graph contains the communicator's collectives, and kernels of another
 * communicator may delay it. So each abort has a thread of its own, and graphs are
 * released before communicators.
 *
 * Communicators never block, for reasons in NCCL's sources (src/group.cc and
 * src/init.cc of 2.18 to 2.30) and its guide (section Fault Tolerance). `blocking`
 * is constant for a communicator. An abort is safe only for a non-blocking one that
 * no thread calls. A blocking group that connects can block the rank's thread for
 * ever if a peer has ended. The cost: NCCL starts a thread that launches the group,
 * and ncclGroupEnd() returns ncclInProgress. Up to 2.22 only groups that connect
 * have one, from 2.23 on all. The thread enqueues on the stream, so settle() polls
 * ncclCommGetAsyncError() before other work goes there. A capture includes work of
 * any thread on its stream, and its mode THREAD_LOCAL restricts only the thread
 * that captures. A replayed graph starts no thread.
 */
#include "executor/cuda/comm/nccl_groups.h"

#include <assert.h>
#include <math.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cuda/library.h"
#include "base/system/clock.h"
#include "executor/comm/rendezvous.h"
#include "executor/cuda/comm/exchange.h"
#include "executor/cuda/comm/pieces.h"
#include "executor/cuda/cuda.h"

#define NCCL_FUNCTIONS(X)     \
    X(ncclGetVersion)         \
    X(ncclGetUniqueId)        \
    X(ncclGetErrorString)     \
    X(ncclCommInitRankConfig) \
    X(ncclCommGetAsyncError)  \
    X(ncclCommAbort)          \
    X(ncclGroupStart)         \
    X(ncclGroupEnd)           \
    X(ncclAllReduce)          \
    X(ncclAllGather)          \
    X(ncclReduceScatter)      \
    X(ncclReduce)             \
    X(ncclSend)               \
    X(ncclRecv)

static struct { NCCL_FUNCTIONS(CUDA_MEMBER) } nccl;
#define SYMBOL(function) CUDA_SYMBOL_IN(nccl, function)
static const CudaSymbol symbols[] = {NCCL_FUNCTIONS(SYMBOL)};
static const char *const names[] = {"libnccl.so.2", NULL};
static CudaLibrary library = {
    .title = "NCCL", .names = names, .symbols = symbols, .symbol_count = sizeof symbols / sizeof *symbols};

typedef struct NcclGroup {
    int32_t *ranks; /* [count] */
    int32_t count, position;
    ncclComm_t communicator; /* NULL before start(); not to be touched after an abort */
} NcclGroup;

typedef struct NcclRank {
    CudaCommRank shared;
    pthread_mutex_t mutex; /* guards the communicators, which any thread may abort */
    bool aborted;
    int32_t abort_count; /* threads that abort a communicator and have not ended */
    NcclGroup *groups;   /* in the order of join() */
    int32_t group_count, group_capacity;
} NcclRank;

typedef struct CommShared {
    Rendezvous *rendezvous; /* of this process's ranks */
    int32_t first, count;   /* they are first .. first + count - 1 */
    NcclRank *ranks;        /* [count] */
    NcclGroupList groups;   /* of all ranks, with their numbers; filled by start() */
    atomic_bool failed;
    double seconds; /* limit for starting */
    ProcessGroup *processes;
} CommShared;

enum { STEP_FACTOR = 10 };

static NcclRank *rank_of(const Comm *comm) {
    return &comm->shared->ranks[comm->rank - comm->shared->first];
}

static AmStatus check_nccl(ncclResult_t result, const char *what, AmError *error) {
    if (result == ncclSuccess || result == ncclInProgress) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, "", "NCCL: %s: %s", what, nccl.ncclGetErrorString(result));
}

static void sleep_briefly(double waited) {
    double seconds = waited < 1e-3 ? 0 : waited < 1 ? 2e-5 : 1e-3;
    if (seconds > 0) nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

typedef struct Abort {
    NcclRank *rank;
    ncclComm_t communicator;
} Abort;

static void *run_abort(void *argument) {
    Abort one = *(Abort *)argument;
    free(argument);
    nccl.ncclCommAbort(one.communicator);
    pthread_mutex_lock(&one.rank->mutex);
    one.rank->abort_count--;
    pthread_mutex_unlock(&one.rank->mutex);
    return NULL;
}

/* Under the mutex. Without a thread the abort is this one's, and may take its time. */
static void begin_abort(NcclRank *rank, ncclComm_t communicator) {
    pthread_t thread;
    Abort *one = malloc(sizeof *one);
    if (one) *one = (Abort){rank, communicator};
    if (one && pthread_create(&thread, NULL, run_abort, one) == 0) {
        pthread_detach(thread);
        rank->abort_count++;
        return;
    }
    free(one);
    nccl.ncclCommAbort(communicator);
}

/* Ends the work of the rank's communicators, from any thread. */
static void abort_rank(NcclRank *rank) {
    pthread_mutex_lock(&rank->mutex);
    for (int32_t g = 0; g < rank->group_count && !rank->aborted; g++)
        if (rank->groups[g].communicator) begin_abort(rank, rank->groups[g].communicator);
    rank->aborted = true;
    pthread_mutex_unlock(&rank->mutex);
}

/* Returns whether all aborts have ended, within the time limit. */
static bool await_aborts(CommShared *shared) {
    double begun = clock_seconds(), waited = 0;
    for (int32_t r = 0; r < shared->count;) {
        pthread_mutex_lock(&shared->ranks[r].mutex);
        bool ended = shared->ranks[r].abort_count == 0;
        pthread_mutex_unlock(&shared->ranks[r].mutex);
        if (ended) r++;
        else if (waited > shared->seconds) return false;
        else sleep_briefly(waited = clock_seconds() - begun);
    }
    return true;
}

/* Returns the state of a communicator, under the mutex; an aborted one is a failure elsewhere. */
static AmStatus state_of(const Comm *comm, const NcclGroup *group, ncclResult_t *state, const char *what,
                         AmError *error) {
    if (rank_of(comm)->aborted || !group->communicator || atomic_load(&comm->shared->failed))
        return am_fail(error, AM_ERROR_RUNTIME, "", "rank %d was stopped because another rank failed",
                       comm->rank);
    *state = ncclSuccess;
    ncclResult_t result = nccl.ncclCommGetAsyncError(group->communicator, state);
    TRY(check_nccl(result, what, error));
    return check_nccl(*state, what, error);
}

/* Polls until the communicator is ready for the next call. */
static AmStatus settle(const Comm *comm, const NcclGroup *group, const char *what, AmError *error) {
    NcclRank *rank = rank_of(comm);
    double begun = clock_seconds(), waited = 0;
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        pthread_mutex_lock(&rank->mutex);
        AmStatus status = state_of(comm, group, &state, what, error);
        pthread_mutex_unlock(&rank->mutex);
        TRY(status);
        if (state != ncclInProgress) break;
        waited = clock_seconds() - begun;
        if (waited > comm->shared->seconds)
            return am_fail(error, AM_ERROR_RUNTIME, "",
                           "NCCL: %s has not ended after %g seconds (a group of %d ranks)", what,
                           comm->shared->seconds, group->count);
        sleep_briefly(waited);
    }
    return AM_OK;
}

/* Under the mutex. */
static AmStatus add_group(const Comm *comm, const int32_t *ranks, int32_t count, int32_t *name,
                          AmError *error) {
    NcclRank *rank = rank_of(comm);
    NcclGroup group = {.count = count, .position = -1};
    for (int32_t g = 0; g < rank->group_count; g++)
        if (nccl_same_ranks(rank->groups[g].ranks, rank->groups[g].count, ranks, count)) {
            *name = g;
            return AM_OK;
        }
    for (int32_t m = 0; m < count; m++)
        if (ranks[m] == comm->rank) group.position = m;
    if (rank->group_count == rank->group_capacity) {
        int32_t capacity = rank->group_capacity > 0 ? 2 * rank->group_capacity : 8;
        NcclGroup *groups = realloc(rank->groups, sizeof *groups * (size_t)capacity);
        if (!groups) return am_fail_memory(error, (int64_t)sizeof *groups * capacity);
        rank->groups = groups;
        rank->group_capacity = capacity;
    }
    group.ranks = malloc(sizeof(int32_t) * (size_t)count);
    if (!group.ranks) return am_fail_memory(error, count * 4);
    memcpy(group.ranks, ranks, sizeof(int32_t) * (size_t)count);
    *name = rank->group_count;
    rank->groups[rank->group_count++] = group;
    return AM_OK;
}

static AmStatus join(Comm *comm, const int32_t *ranks, int32_t count, int32_t *name, AmError *error) {
    NcclRank *rank = rank_of(comm);
    pthread_mutex_lock(&rank->mutex);
    AmStatus status = add_group(comm, ranks, count, name, error);
    pthread_mutex_unlock(&rank->mutex);
    return status;
}

/* ncclBfloat16, which NCCL's headers of CUDA 12 declare for C++ alone. */
#define NCCL_BFLOAT16 ((ncclDataType_t)9)

static const struct {
    Dtype type;
    ncclDataType_t name;
} types[] = {
    {DTYPE_PRED, ncclUint8},     {DTYPE_S8, ncclInt8},     {DTYPE_U8, ncclUint8},    {DTYPE_S32, ncclInt32},
    {DTYPE_U32, ncclUint32},     {DTYPE_S64, ncclInt64},   {DTYPE_U64, ncclUint64},  {DTYPE_F16, ncclFloat16},
    {DTYPE_BF16, NCCL_BFLOAT16}, {DTYPE_F32, ncclFloat32}, {DTYPE_F64, ncclFloat64},
};

static bool find_type(Dtype type, ncclDataType_t *name) {
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        if (types[k].type == type) {
            *name = types[k].name;
            return true;
        }
    return false;
}

/* Finds NCCL's reduction. A pred is 0 or 1: its "or", and a sum that is not 0, is the maximum. */
static bool find_reduction(SbpReduction reduction, Dtype type, ncclRedOp_t *name) {
    static const struct {
        ncclRedOp_t number, pred;
    } rows[SBP_REDUCTION_COUNT] = {
        [SBP_ADD] = {ncclSum, ncclMax},    [SBP_MAX] = {ncclMax, ncclMax},
        [SBP_MIN] = {ncclMin, ncclMin},    [SBP_MULTIPLY] = {ncclProd, ncclMin},
        [SBP_AND] = {ncclNumOps, ncclMin}, [SBP_OR] = {ncclNumOps, ncclMax},
    };
    *name = type == DTYPE_PRED ? rows[reduction].pred : rows[reduction].number;
    return *name != ncclNumOps;
}

static AmStatus prepare_call(Comm *comm, CommCall *call, AmError *error) {
    const ProgramCollective *collective = call->collective;
    ncclDataType_t type;
    ncclRedOp_t reduction;
    if (call->transfer) {
        TRY(cuda_comm_rank_add(&rank_of(comm)->shared, call, error));
        call->scratch_bytes = cuda_exchange_scratch(call);
        return AM_OK;
    }
    if (collective->kind == PROGRAM_ALL_REDUCE || collective->kind == PROGRAM_REDUCE_SCATTER)
        for (int32_t k = 0; k < call->operand_count; k++) {
            Dtype of_operand = call->operand_shapes[k]->type;
            if (!find_type(of_operand, &type) ||
                !find_reduction(collective->reduction, of_operand, &reduction))
                return am_fail(error, AM_ERROR_INPUT, "",
                               "NCCL has no reduction '%s' of %s (%s): use --comm local",
                               sbp_reduction_name(collective->reduction), dtype_name(of_operand),
                               program_collective_name(collective->kind));
        }
    TRY(cuda_comm_rank_add(&rank_of(comm)->shared, call, error));
    if (comm_is_host_copy(call)) return AM_OK;
    CudaCommCall *prepared = call->prepared;
    prepared->transfers = calloc((size_t)call->operand_count + 1, sizeof *prepared->transfers);
    if (!prepared->transfers) return am_fail_memory(error, call->operand_count * 16);
    call->scratch_bytes = cuda_transfers_plan(prepared->transfers, call);
    return AM_OK;
}

static AmStatus make_number(void *bytes, AmError *error) {
    return check_nccl(nccl.ncclGetUniqueId(bytes), "starting a group of ranks", error);
}

static AmStatus connect_group(Comm *comm, NcclGroup *group, AmError *error) {
    static const char what[] = "connecting to the other ranks";
    NcclRank *rank = rank_of(comm);
    ncclUniqueId number;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    TRY(nccl_groups_number(&comm->shared->groups, group->ranks, group->count, &number, error));
    pthread_mutex_lock(&rank->mutex);
    ncclResult_t result = rank->aborted ? ncclSuccess
                                        : nccl.ncclCommInitRankConfig(&group->communicator, group->count,
                                                                      number, group->position, &config);
    pthread_mutex_unlock(&rank->mutex);
    TRY(check_nccl(result, what, error));
    return settle(comm, group, what, error);
}

static AmStatus start(Comm *comm, AmError *error) {
    CommShared *shared = comm->shared;
    NcclRank *rank = rank_of(comm);
    TRY(cuda_device_use(&rank->shared.device->device, error));
    TRY(rendezvous_barrier(shared->rendezvous, comm->rank, error));
    if (comm->rank == shared->first) {
        /* The first of this process's ranks shares the numbers of groups when all have joined. */
        static_assert(sizeof(ncclUniqueId) == NCCL_GROUP_NUMBER_BYTES, "the number of an NCCL group");
        for (int32_t r = 0; r < shared->count; r++)
            for (int32_t g = 0; g < shared->ranks[r].group_count; g++)
                TRY(nccl_groups_add(&shared->groups, shared->ranks[r].groups[g].ranks,
                                    shared->ranks[r].groups[g].count, error));
        TRY(nccl_groups_share(&shared->groups, shared->processes, make_number, error));
    }
    TRY(rendezvous_barrier(shared->rendezvous, comm->rank, error));
    for (int32_t g = 0; g < rank->group_count; g++) TRY(connect_group(comm, &rank->groups[g], error));
    for (CudaCommCall *prepared = rank->shared.calls; prepared; prepared = prepared->next)
        TRY(prepared->call->transfer
                ? cuda_exchange_upload(prepared, &rank->shared, comm->rank, error)
                : cuda_transfers_upload(prepared, &rank->shared, prepared->transfers, error));
    return AM_OK;
}

/* One operand of a call that is being issued. */
typedef struct Transfer {
    const CommCall *call;
    int32_t k;
    char *source, *target;
    int64_t element_bytes;
    ncclDataType_t type;
    ncclRedOp_t reduction;
    ncclComm_t communicator;
    cudaStream_t stream;
} Transfer;

static ncclResult_t all_reduce(const Transfer *transfer) {
    int64_t elements = ir_shape_elements(transfer->call->operand_shapes[transfer->k]);
    if (elements == 0) return ncclSuccess;
    return nccl.ncclAllReduce(transfer->source, transfer->target, (size_t)elements, transfer->type,
                              transfer->reduction, transfer->communicator, transfer->stream);
}

/* Sends each member its piece, or the whole operand if `sent` is NULL. Both sides omit an empty piece. */
static ncclResult_t send_pieces(const Transfer *transfer, const CudaPieces *sent) {
    bool is_packed = transfer->source != transfer->call->operands[transfer->k];
    ncclResult_t result = ncclSuccess;
    for (int32_t m = 0; m < transfer->call->collective->group_count && result == ncclSuccess; m++) {
        int64_t elements = sent ? cuda_piece_elements(sent, m)
                                : ir_shape_elements(transfer->call->operand_shapes[transfer->k]);
        int64_t offset = sent ? cuda_piece_offset(sent, m, is_packed) : 0;
        if (elements > 0)
            result = nccl.ncclSend(transfer->source + offset * transfer->element_bytes,
                                   (size_t)(elements * transfer->element_bytes), ncclInt8, m,
                                   transfer->communicator, transfer->stream);
    }
    return result;
}

static ncclResult_t receive_pieces(const Transfer *transfer, const CudaPieces *received) {
    bool is_packed = transfer->target != transfer->call->results[transfer->k];
    ncclResult_t result = ncclSuccess;
    for (int32_t m = 0; m < received->count && result == ncclSuccess; m++) {
        int64_t elements = cuda_piece_elements(received, m);
        int64_t offset = cuda_piece_offset(received, m, is_packed);
        if (elements > 0)
            result = nccl.ncclRecv(transfer->target + offset * transfer->element_bytes,
                                   (size_t)(elements * transfer->element_bytes), ncclInt8, m,
                                   transfer->communicator, transfer->stream);
    }
    return result;
}

static ncclResult_t all_gather(const Transfer *transfer) {
    CudaPieces received;
    cuda_pieces_received(&received, transfer->call, transfer->k);
    size_t bytes =
        (size_t)(cuda_piece_elements(&received, transfer->call->position) * transfer->element_bytes);
    if (!cuda_pieces_are_even(&received)) {
        ncclResult_t result = send_pieces(transfer, NULL);
        return result == ncclSuccess ? receive_pieces(transfer, &received) : result;
    }
    if (bytes == 0) return ncclSuccess;
    return nccl.ncclAllGather(transfer->source, transfer->target, bytes, ncclInt8, transfer->communicator,
                              transfer->stream);
}

static ncclResult_t reduce_scatter(const Transfer *transfer) {
    CudaPieces sent;
    cuda_pieces_sent(&sent, transfer->call, transfer->k);
    size_t own = (size_t)cuda_piece_elements(&sent, transfer->call->position);
    if (cuda_pieces_are_even(&sent))
        return own == 0
                   ? ncclSuccess
                   : nccl.ncclReduceScatter(transfer->source, transfer->target, own, transfer->type,
                                            transfer->reduction, transfer->communicator, transfer->stream);
    const char *from = transfer->source;
    ncclResult_t result = ncclSuccess;
    for (int32_t m = 0; m < sent.count && result == ncclSuccess; m++) {
        int64_t elements = cuda_piece_elements(&sent, m);
        if (elements > 0)
            result = nccl.ncclReduce(from, transfer->target, (size_t)elements, transfer->type,
                                     transfer->reduction, m, transfer->communicator, transfer->stream);
        from += elements * transfer->element_bytes;
    }
    return result;
}

/* Exchanges pieces of every rank with every other rank, for all_to_all and halo_exchange. */
static ncclResult_t exchange_pieces(const Transfer *transfer) {
    CudaPieces sent, received;
    cuda_pieces_sent(&sent, transfer->call, transfer->k);
    cuda_pieces_received(&received, transfer->call, transfer->k);
    ncclResult_t result = send_pieces(transfer, &sent);
    return result == ncclSuccess ? receive_pieces(transfer, &received) : result;
}

/* Issues all operands as one group; under the mutex, which is never held for long. */
static ncclResult_t issue(const Comm *comm, const CommCall *call, const NcclGroup *group) {
    static ncclResult_t (*const kinds[])(const Transfer *) = {
        [PROGRAM_ALL_REDUCE] = all_reduce,         [PROGRAM_ALL_GATHER] = all_gather,
        [PROGRAM_REDUCE_SCATTER] = reduce_scatter, [PROGRAM_ALL_TO_ALL] = exchange_pieces,
        [PROGRAM_HALO_EXCHANGE] = exchange_pieces,
    };
    const CudaCommCall *prepared = call->prepared;
    ncclResult_t result = nccl.ncclGroupStart();
    if (result != ncclSuccess) return result;
    for (int32_t k = 0; k < call->operand_count && result == ncclSuccess; k++) {
        Dtype type = call->operand_shapes[k]->type;
        Transfer transfer = {.call = call,
                             .k = k,
                             .source = cuda_transfer_source(&prepared->transfers[k], call, k),
                             .target = cuda_transfer_target(&prepared->transfers[k], call, k),
                             .element_bytes = dtype_bytes(type),
                             .type = ncclInt8,
                             .communicator = group->communicator,
                             .stream = rank_of(comm)->shared.device->communication};
        find_type(type, &transfer.type);
        find_reduction(call->collective->reduction, type, &transfer.reduction);
        result = kinds[call->collective->kind](&transfer);
        if (result == ncclInProgress) result = ncclSuccess;
    }
    ncclResult_t ended = nccl.ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

static int32_t member_of(const NcclGroup *group, int32_t rank) {
    int32_t member = 0;
    while (group->ranks[member] != rank) member++;
    return member;
}

/* Issues all pieces of a transfer as one group of sends and receives; under the mutex. */
static ncclResult_t issue_transfer(const Comm *comm, const CommCall *call, const NcclGroup *group) {
    const ProgramTransfer *transfer = call->transfer;
    cudaStream_t stream = rank_of(comm)->shared.device->communication;
    ncclResult_t result = nccl.ncclGroupStart();
    if (result != ncclSuccess) return result;
    for (int32_t k = 0; k < transfer->send_count && result == ncclSuccess; k++) {
        CudaRun run = cuda_exchange_sent(call, k);
        if (transfer->sends[k].peer == comm->rank || run.bytes == 0) continue;
        result = nccl.ncclSend(run.address, (size_t)run.bytes, ncclInt8,
                               member_of(group, transfer->sends[k].peer), group->communicator, stream);
        if (result == ncclInProgress) result = ncclSuccess;
    }
    for (int32_t k = 0; k < transfer->receive_count && result == ncclSuccess; k++) {
        CudaRun run = cuda_exchange_received(call, k);
        if (transfer->receives[k].peer == comm->rank || run.bytes == 0) continue;
        result = nccl.ncclRecv(run.address, (size_t)run.bytes, ncclInt8,
                               member_of(group, transfer->receives[k].peer), group->communicator, stream);
        if (result == ncclInProgress) result = ncclSuccess;
    }
    ncclResult_t ended = nccl.ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

static AmStatus run_call(Comm *comm, const CommCall *call, AmError *error) {
    NcclRank *rank = rank_of(comm);
    const CudaCommCall *prepared = call->prepared;
    const char *what = comm_call_name(call);
    ncclResult_t state;
    if (comm_is_host_copy(call)) {
        cuda_comm_rank_copy_host(&rank->shared, call);
        return AM_OK;
    }
    cuda_comm_rank_fork(&rank->shared);
    cuda_phase_run(&prepared->first, rank->shared.device);
    if (call->position < 0) { /* a transfer without other ranks */
        cuda_comm_rank_mark(&rank->shared, call);
        return AM_OK;
    }
    pthread_mutex_lock(&rank->mutex);
    const NcclGroup *group = &rank->groups[call->group];
    AmStatus status = state_of(comm, group, &state, what, error);
    if (status == AM_OK)
        status = check_nccl(call->transfer ? issue_transfer(comm, call, group) : issue(comm, call, group),
                            what, error);
    pthread_mutex_unlock(&rank->mutex);
    TRY(status);
    TRY(settle(comm, group, what, error));
    cuda_phase_run(&prepared->second, rank->shared.device);
    cuda_comm_rank_mark(&rank->shared, call);
    return AM_OK;
}

static void wait_for(Comm *comm, const CommCall *call) {
    cuda_comm_rank_wait(&rank_of(comm)->shared, call);
}

/* Returns whether both streams are done, or have failed, which synchronize() reports. */
static bool device_is_done(const CudaKernelDevice *device) {
    return cuda.cuStreamQuery(device->compute) != CUDA_ERROR_NOT_READY &&
           cuda.cuStreamQuery(device->communication) != CUDA_ERROR_NOT_READY;
}

static AmStatus check_groups(Comm *comm, AmError *error) {
    NcclRank *rank = rank_of(comm);
    AmStatus status = AM_OK;
    ncclResult_t state;
    pthread_mutex_lock(&rank->mutex);
    for (int32_t g = 0; g < rank->group_count && status == AM_OK; g++)
        status = state_of(comm, &rank->groups[g], &state, "a step's collectives", error);
    pthread_mutex_unlock(&rank->mutex);
    return status;
}

static AmStatus await_step(Comm *comm, AmError *error) {
    NcclRank *rank = rank_of(comm);
    double limit = STEP_FACTOR * comm->shared->seconds, begun = clock_seconds(), waited = 0;
    AmStatus status = AM_OK;
    cuda_rank_use(rank->shared.device);
    while (status == AM_OK && !device_is_done(rank->shared.device)) {
        waited = clock_seconds() - begun;
        status = check_groups(comm, error);
        if (status == AM_OK && waited > limit)
            status = am_fail(error, AM_ERROR_RUNTIME, "",
                             "NCCL: the collectives of a step have not ended after %g seconds", limit);
        sleep_briefly(waited);
    }
    if (status == AM_OK) status = check_groups(comm, error);
    if (status != AM_OK) abort_rank(rank);
    return status;
}

static AmStatus barrier(Comm *comm, AmError *error) {
    CommShared *shared = comm->shared;
    TRY(rendezvous_barrier(shared->rendezvous, comm->rank, error));
    if (!shared->processes) return AM_OK;
    if (comm->rank == shared->first) TRY(process_group_barrier(shared->processes, error));
    return rendezvous_barrier(shared->rendezvous, comm->rank, error);
}

static void abort_all(Comm *comm) {
    CommShared *shared = comm->shared;
    atomic_store(&shared->failed, true);
    rendezvous_abort(shared->rendezvous);
    for (int32_t r = 0; r < shared->count; r++) abort_rank(&shared->ranks[r]);
}

/* Several ranks on one GPU: from version 2.30 on, where the user asks for it. */
static AmStatus check_devices(KernelDevice *const *devices, int32_t first, int32_t count, AmError *error) {
    const char *enabled = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    int version = 0;
    nccl.ncclGetVersion(&version);
    bool may_share = version >= 23000 && enabled && strcmp(enabled, "1") == 0;
    CUmoduleLoadingMode mode;
    bool at_once = cuda.cuModuleGetLoadingMode(&mode) == CUDA_SUCCESS && mode == CU_MODULE_EAGER_LOADING;
    for (int32_t r = 0; r < count; r++)
        for (int32_t q = 0; q < r; q++) {
            int32_t ordinal = cuda_device_of(devices[r])->device.ordinal;
            if (cuda_device_of(devices[q])->device.ordinal != ordinal) continue;
            if (!may_share)
                return am_fail(
                    error, AM_ERROR_RUNTIME, "",
                    "ranks %d and %d are both on GPU %d, which NCCL %d.%d.%d does not allow: use --comm "
                    "local, or NCCL 2.30 or later with NCCL_MULTI_RANK_GPU_ENABLE=1",
                    first + q, first + r, ordinal, version / 10000, version % 10000 / 100, version % 100);
            if (!at_once) /* the driver loads kernels at their first launch */
                return am_fail(error, AM_ERROR_RUNTIME, "",
                               "ranks %d and %d are both on GPU %d, where kernels that are loaded late can "
                               "wait for ever: set CUDA_MODULE_LOADING=EAGER, or use --comm local",
                               first + q, first + r, ordinal);
        }
    return AM_OK;
}

static AmStatus read_limit(double *seconds, AmError *error) {
    const char *text = getenv("AUTOMAP_NCCL_TIMEOUT");
    char *end = NULL;
    *seconds = 120;
    if (!text || !*text) return AM_OK;
    *seconds = strtod(text, &end);
    if (*end == '\0' && isfinite(*seconds) && *seconds > 0) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "AUTOMAP_NCCL_TIMEOUT is a number of seconds above 0, not '%s'",
                   text);
}

/* No work is pending, and an abort, unlike an orderly end, waits for no other rank. A library that
 * does not end keeps the memory that it may use. */
static void free_shared(CommShared *shared) {
    for (int32_t r = 0; shared->ranks && r < shared->count; r++)
        if (shared->ranks[r].shared.device) cuda_release_records(shared->ranks[r].shared.device);
    for (int32_t r = 0; shared->ranks && r < shared->count; r++) abort_rank(&shared->ranks[r]);
    if (shared->ranks && !await_aborts(shared)) return;
    for (int32_t r = 0; shared->ranks && r < shared->count; r++) {
        NcclRank *rank = &shared->ranks[r];
        for (int32_t g = 0; g < rank->group_count; g++) free(rank->groups[g].ranks);
        free(rank->groups);
        cuda_comm_rank_close(&rank->shared);
        pthread_mutex_destroy(&rank->mutex);
    }
    nccl_groups_free(&shared->groups);
    rendezvous_close(shared->rendezvous);
    free(shared->ranks);
    free(shared);
}

static AmStatus open_comms(Comm *comms, int32_t first, int32_t count, int32_t size,
                           KernelDevice *const *devices, ProcessGroup *processes, AmError *error) {
    AmStatus status;
    double seconds;
    TRY(read_limit(&seconds, error));
    TRY(cuda_library_open(&library, error));
    TRY(check_devices(devices, first, count, error));
    CommShared *shared = calloc(1, sizeof *shared);
    if (!shared) return am_fail_memory(error, (int64_t)sizeof *shared);
    *shared = (CommShared){.first = first, .count = count, .seconds = seconds, .processes = processes};
    atomic_init(&shared->failed, false);
    shared->ranks = calloc((size_t)count + 1, sizeof *shared->ranks);
    if (!shared->ranks) {
        status = am_fail_memory(error, (int64_t)sizeof *shared->ranks * count);
        goto fail;
    }
    for (int32_t r = 0; r < count; r++) pthread_mutex_init(&shared->ranks[r].mutex, NULL);
    TRY_OR_FAIL(rendezvous_open(&shared->rendezvous, first, count, error));
    for (int32_t r = 0; r < count; r++) {
        TRY_OR_FAIL(cuda_comm_rank_open(&shared->ranks[r].shared, devices[r], error));
        comms[r] = (Comm){
            .back_end = &comm_nccl, .rank = first + r, .size = size, .device = devices[r], .shared = shared};
    }
    return AM_OK;
fail:
    free_shared(shared);
    return status;
}

static void close_comms(Comm *comms) {
    free_shared(comms[0].shared);
}

const CommBackEnd comm_nccl = {
    .name = "nccl",
    .open = open_comms,
    .close = close_comms,
    .join = join,
    .prepare = prepare_call,
    .start = start,
    .run = run_call,
    .wait = wait_for,
    .await = await_step,
    .barrier = barrier,
    .abort = abort_all,
};
