/* Collectives: one interface for several back ends. executor/comm/comm_local.c, ranks as threads of one
 * process, is the first; comm_mpi.c joins processes on the host; for CUDA there are
 * executor/cuda/comm/comm_local_cuda.c and comm_nccl.c.
 *
 * Every rank holds a Comm. Before the first training step each collective of the program becomes a CommCall
 * (shapes and group resolved). Then the runner binds addresses, every rank's thread calls start(), and every
 * step runs the call. Results do not depend on timing: reductions are in group order, floating ones
 * accumulate in double and are rounded once (except NCCL, which chooses its own order). When one rank fails,
 * the others are released: their collectives return AM_ERROR_RUNTIME instead of waiting.
 *
 * On an asynchronous device run() only issues the collective: it runs after all work issued to the
 * device before, and concurrently with later work until wait(). The runner (overlap.c) waits before
 * the first step that accesses the memory of the call.
 */
#ifndef EXECUTOR_COMM_COMM_H
#define EXECUTOR_COMM_COMM_H

#include "executor/comm/rendezvous.h"
#include "executor/kernels.h"
#include "executor/processes/process_group.h"

typedef struct Comm Comm;

/* One collective, or transfer to and from ranks of other stages, of one rank. Operand and
 * result k may share memory only in an all_reduce. */
typedef struct CommCall {
    const ProgramCollective *collective; /* NULL: it is a transfer */
    const ProgramTransfer *transfer;     /* NULL: it is a collective */
    const int32_t *ranks;                /* [rank_count]: the group, or those that a transfer joins */
    int32_t rank_count;
    int32_t group;    /* the back end's name of it */
    int32_t position; /* of this rank in it; -1 for a transfer without other ranks */
    int32_t operand_count, result_count;
    const IrShape **operand_shapes, **result_shapes; /* local */
    void **operands, **results;
    int64_t scratch_bytes; /* size of `scratch`, which the call needs while it is under way */
    void *scratch;         /* aligned to 64; calls of one rank share it */
    void *prepared;        /* the back end's own */
} CommCall;

typedef struct CommBackEnd {
    const char *name; /* "local" */
    /* Opens comms[count], those of the ranks first .. first + count - 1 of
     * `size`, which are this process's; devices[count] are theirs. `processes`:
     * those that the ranks are in, NULL where this one has them all. Rank `first`
     * may use its operations in start() and barrier(). close() once, with the same
     * array, when no thread uses them any more. */
    AmStatus (*open)(Comm *comms, int32_t first, int32_t count, int32_t size, KernelDevice *const *devices,
                     ProcessGroup *processes, AmError *error);
    void (*close)(Comm *comms);
    /* Names the group of these ranks (the caller is one of them); the same ranks, the same name. */
    AmStatus (*join)(Comm *comm, const int32_t *ranks, int32_t count, int32_t *group, AmError *error);
    /* After the call's join(), which host copies do not need, addresses not being bound yet: fills
     * scratch_bytes and prepared. AM_ERROR_INPUT where the back end cannot do it. NULL: nothing to do. */
    AmStatus (*prepare)(Comm *comm, CommCall *call, AmError *error);
    /* Called by each rank in a thread of its own, after its last join() and with all addresses
     * bound; NULL: no action. */
    AmStatus (*start)(Comm *comm, AmError *error);
    AmStatus (*run)(Comm *comm, const CommCall *call, AmError *error);
    /* Orders work issued to the device from now on after this call and all before it. NULL: run()
     * is synchronous. */
    void (*wait)(Comm *comm, const CommCall *call);
    /* Waits until the collectives that were issued are done, or cannot be done any
     * more; to be called before the device is synchronized. NULL: that does it. */
    AmStatus (*await)(Comm *comm, AmError *error);
    bool has_channels;                     /* ranks may have transfers with slots (stream.h) */
    const struct ChannelBackEnd *channels; /* the transport to other processes; NULL: none */
    bool waits_on_ranks; /* run() waits for other ranks, so it cannot be recorded (KernelBackEnd.begin) */
    AmStatus (*barrier)(Comm *comm, AmError *error); /* of all ranks */
    /* Releases all ranks from waiting; may be called by any rank, any number of times. */
    void (*abort)(Comm *comm);
} CommBackEnd;

struct Comm {
    const CommBackEnd *back_end;
    int32_t rank, size;
    KernelDevice *device;
    struct StreamList *streams; /* for transfers with slots (stream.h); NULL: there can be none */
    struct CommShared *shared;  /* the back end's own, of this process's ranks */
};

/* The functions of a rank's back end of the same names; none where the back end has none. */
static inline AmStatus comm_start(Comm *comm, AmError *error) {
    return comm->back_end->start ? comm->back_end->start(comm, error) : AM_OK;
}
static inline AmStatus comm_run(Comm *comm, const CommCall *call, AmError *error) {
    return comm->back_end->run(comm, call, error);
}
static inline void comm_wait(Comm *comm, const CommCall *call) {
    if (comm->back_end->wait) comm->back_end->wait(comm, call);
}
/* `comm` NULL: a program without ranks has nothing to await. */
static inline AmStatus comm_await(Comm *comm, AmError *error) {
    return comm && comm->back_end->await ? comm->back_end->await(comm, error) : AM_OK;
}
static inline AmStatus comm_barrier(Comm *comm, AmError *error) {
    return comm->back_end->barrier(comm, error);
}
static inline void comm_abort(Comm *comm) {
    comm->back_end->abort(comm);
}

/* Makes a step's collective or transfer ready: shapes and group. Addresses are bound by comm_bind():
 * `addresses` [value] are those of the program's values. */
AmStatus comm_prepare(CommCall **call, Arena *arena, Comm *comm, const Program *program,
                      const ProgramInstruction *instruction, AmError *error);
void comm_bind(CommCall *call, const ProgramInstruction *instruction, void *const *addresses, void *scratch);

/* Finds the sender's piece for piece k of `receiver_rank`'s received pieces in a transfer: pieces
 * between two ranks have the same order in both lists. AM_ERROR_INTERNAL: the lists disagree. */
AmStatus comm_find_sent(const ProgramPiece **piece, const CommCall *sender, const CommCall *receiver,
                        int32_t receiver_rank, int32_t k, AmError *error);

/* Returns the address of a piece of a row-major array of that shape; fills the array's strides[rank], in
 * elements. */
char *comm_piece_place(void *array, const IrShape *shape, const ProgramPiece *piece, int64_t *strides);

/* Returns whether a call copies between this rank's device and its host, without other ranks. */
static inline bool comm_is_host_copy(const CommCall *call) {
    return program_is_host_copy(call->collective);
}
/* Copies, where a device's memory is the host's. */
void comm_copy_host(const CommCall *call);

/* Returns "all_reduce", ... or "transfer". */
const char *comm_call_name(const CommCall *call);

/* Chooses the back end of collectives for the processes of a run (NULL: a single one); `name` NULL: the
 * default for them. AM_ERROR_USAGE lists the suitable ones. */
AmStatus comm_back_end_choose(const CommBackEnd **back_end, const char *name, const KernelBackEnd *kernels,
                              const ProcessGroup *processes, AmError *error);

/* Returns the number of the first row in part k of a dimension that is cut into parts. */
static inline int64_t comm_part_start(const int64_t *parts, int32_t k) {
    int64_t start = 0;
    for (int32_t j = 0; j < k; j++) start += parts[j];
    return start;
}

extern const CommBackEnd comm_local;      /* threads of one process, on the host's memory */
extern const CommBackEnd comm_mpi;        /* ranks of any number of processes, on the host's memory */
extern const CommBackEnd comm_local_cuda; /* threads of one process, on the memory of its GPUs */
extern const CommBackEnd comm_nccl;       /* one GPU per rank, any number of processes */

#endif
