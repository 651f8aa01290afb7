/* The common code of the collectives of one rank on a GPU: its device, its kernels for moves and reductions,
 * and its calls in the order of preparation. */
#include "executor/cuda/comm/comm_rank.h"

#include <stdlib.h>

AmStatus cuda_comm_rank_open(CudaCommRank *rank, KernelDevice *device, AmError *error) {
    *rank = (CudaCommRank){.device = cuda_device_of(device)};
    rank->end = &rank->calls;
    TRY(cuda_device_use(&rank->device->device, error));
    return cuda_movement_open(&rank->movement, &rank->device->device, error);
}

void cuda_comm_rank_close(CudaCommRank *rank) {
    if (!rank->device) return;
    cuda_device_use(&rank->device->device, NULL);
    while (rank->calls) {
        CudaCommCall *next = rank->calls->next;
        cuda_mark_close(&rank->calls->done);
        free(rank->calls->transfers);
        free(rank->calls);
        rank->calls = next;
    }
    cuda_movement_close(&rank->movement);
    *rank = (CudaCommRank){0};
}

AmStatus cuda_comm_rank_add(CudaCommRank *rank, CommCall *call, AmError *error) {
    CudaCommCall *prepared = calloc(1, sizeof *prepared);
    if (!prepared) return am_fail_memory(error, (int64_t)sizeof *prepared);
    prepared->call = call;
    *rank->end = prepared;
    rank->end = &prepared->next;
    call->prepared = prepared;
    TRY(cuda_device_use(&rank->device->device, error));
    return cuda_mark_open(&prepared->done, error);
}

void cuda_comm_rank_fork(CudaCommRank *rank) {
    cuda_rank_use(rank->device);
    cuda_fork(rank->device);
}

void cuda_comm_rank_mark(CudaCommRank *rank, const CommCall *call) {
    cuda_mark_set(rank->device, &((CudaCommCall *)call->prepared)->done);
}

void cuda_comm_rank_wait(CudaCommRank *rank, const CommCall *call) {
    cuda_mark_wait(rank->device, &((CudaCommCall *)call->prepared)->done);
}
