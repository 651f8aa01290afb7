/* Common code of the collectives of one rank on a GPU: its device, its kernels for moving and
 * reducing parts, and its calls in the order of preparation. Collectives are issued to the
 * communication stream; each leaves a mark there (device.h), for which the compute stream waits.
 */
#ifndef EXECUTOR_CUDA_COMM_COMM_RANK_H
#define EXECUTOR_CUDA_COMM_COMM_RANK_H

#include "executor/comm/comm.h"
#include "executor/cuda/comm/movement.h"

/* CommCall.prepared. Kept until the rank is closed, longer than the call. */
typedef struct CudaCommCall {
    const CommCall *call;
    CudaPhase first, second;        /* the back end's own, made by start() */
    struct CudaTransfer *transfers; /* [operand_count] pieces.h; or NULL; C heap */
    CudaMark done;
    struct CudaCommCall *next;
} CudaCommCall;

typedef struct CudaCommRank {
    CudaKernelDevice *device;
    CudaMovement movement;
    CudaCommCall *calls, **end; /* in order */
} CudaCommRank;

/* Compiles the kernels and makes the device current. close() once, also after a
 * failure; it may be called on a zeroed one. */
AmStatus cuda_comm_rank_open(CudaCommRank *rank, KernelDevice *device, AmError *error);
void cuda_comm_rank_close(CudaCommRank *rank);

/* Puts the call at the end of the rank's and sets call->prepared. */
AmStatus cuda_comm_rank_add(CudaCommRank *rank, CommCall *call, AmError *error);

/* Orders the streams before and after what run() issues. */
void cuda_comm_rank_fork(CudaCommRank *rank);
void cuda_comm_rank_mark(CudaCommRank *rank, const CommCall *call);
/* Issues a host copy (comm_is_host_copy) to the communication stream, with fork and mark. */
void cuda_comm_rank_copy_host(CudaCommRank *rank, const CommCall *call);
/* Implements CommBackEnd.wait(). */
void cuda_comm_rank_wait(CudaCommRank *rank, const CommCall *call);

#endif
