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

void cuda_comm_rank_copy_host(CudaCommRank *rank, const CommCall *call) {
    CudaKernelDevice *device = rank->device;
    bool loads = call->result_count > 0;
    int32_t count = loads ? call->result_count : call->operand_count / 2;
    cuda_comm_rank_fork(rank);
    for (int32_t k = 0; k < count; k++) {
        size_t bytes = (size_t)ir_shape_bytes(call->operand_shapes[k]);
        if (bytes == 0) continue;
        CUresult result = loads ? cuda.cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)call->results[k],
                                                         call->operands[k], bytes, device->communication)
                                : cuda.cuMemcpyDtoHAsync(call->operands[count + k],
                                                         (CUdeviceptr)(uintptr_t)call->operands[k], bytes,
                                                         device->communication);
        cuda_note(device, result, "copying between the host and the device");
    }
    cuda_comm_rank_mark(rank, call);
}
