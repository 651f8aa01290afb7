/* The device of a rank on a GPU: its context, its two streams, its memory and its failures.
 *
 * cuda_note() keeps the first failure of a step. cuda_fork() and cuda_join() order the communication stream
 * with the compute stream by events, and marks do so for single collectives.
 */
#include "executor/cuda/device.h"

#include <stdlib.h>

#include "executor/cuda/cuda.h"

#define SLICE_BYTES (INT64_C(256) << 20)

AmStatus cuda_rank_open(KernelDevice **device, const KernelOptions *options, AmError *error) {
    TRY(cuda_driver_open(error));
    CudaKernelDevice *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->base.back_end = &kernels_cuda;
    self->tf32 = options->tf32;
    self->warnings = options->warnings;
    self->slice_bytes = SLICE_BYTES;
    int32_t ordinal = options->index % cuda_device_count();
    AmStatus status = cuda_device_open(&self->device, ordinal, error);
    CUstream *streams[] = {&self->compute, &self->communication};
    CUevent *events[] = {&self->forked, &self->joined};
    for (int k = 0; k < 2 && status == AM_OK; k++)
        status =
            cuda_check(cuda.cuStreamCreate(streams[k], CU_STREAM_NON_BLOCKING), "making a stream", error);
    for (int k = 0; k < 2 && status == AM_OK; k++)
        status = cuda_check(cuda.cuEventCreate(events[k], CU_EVENT_DISABLE_TIMING), "making an event", error);
    if (status == AM_OK) *device = &self->base;
    else cuda_rank_close(&self->base);
    return status;
}

void cuda_rank_close(KernelDevice *device) {
    CudaKernelDevice *self = cuda_device_of(device);
    cuda_state_refusals(self);
    if (self->device.context) cuda_device_use(&self->device, NULL);
    if (self->compute) cuda.cuStreamSynchronize(self->compute);
    if (self->communication) cuda.cuStreamSynchronize(self->communication);
    while (self->kept) {
        CudaKept *kept = self->kept;
        self->kept = kept->next;
        kept->release(kept->object);
        free(kept);
    }
    if (self->forked) cuda.cuEventDestroy(self->forked);
    if (self->joined) cuda.cuEventDestroy(self->joined);
    if (self->compute) cuda.cuStreamDestroy(self->compute);
    if (self->communication) cuda.cuStreamDestroy(self->communication);
    cuda_device_close(&self->device);
    free(self);
}

void cuda_rank_use(CudaKernelDevice *device) {
    AmError failure = {0};
    if (cuda_device_use(&device->device, &failure) != AM_OK) cuda_note_failure(device, &failure);
}

AmStatus cuda_keep(CudaKernelDevice *device, void *object, void (*release)(void *object), AmError *error) {
    CudaKept *kept = malloc(sizeof *kept);
    if (!kept) {
        release(object);
        return am_fail_memory(error, (int64_t)sizeof *kept);
    }
    *kept = (CudaKept){object, release, device->kept};
    device->kept = kept;
    return AM_OK;
}

void cuda_note_failure(CudaKernelDevice *device, const AmError *failure) {
    if (device->records) device->record_failed = true;
    else if (device->failure.code == AM_OK) device->failure = *failure;
}

void cuda_note(CudaKernelDevice *device, CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return;
    AmError failure = {0};
    cuda_check(result, what, &failure);
    cuda_note_failure(device, &failure);
}

/* Makes `waiting` continue after the work issued to `issued` so far. */
static void order(CudaKernelDevice *device, CUstream issued, CUevent event, CUstream waiting) {
    static const char what[] = "ordering the streams";
    cuda_note(device, cuda.cuEventRecord(event, issued), what);
    cuda_note(device, cuda.cuStreamWaitEvent(waiting, event, 0), what);
}

void cuda_fork(CudaKernelDevice *device) {
    order(device, device->compute, device->forked, device->communication);
    device->communicates = true;
}

void cuda_join(CudaKernelDevice *device) {
    if (device->communicates) order(device, device->communication, device->joined, device->compute);
    device->communicates = false;
    device->section++;
}

AmStatus cuda_mark_open(CudaMark *mark, AmError *error) {
    *mark = (CudaMark){.section = -1};
    return cuda_check(cuda.cuEventCreate(&mark->event, CU_EVENT_DISABLE_TIMING), "making an event", error);
}

void cuda_mark_close(CudaMark *mark) {
    if (mark->event) cuda.cuEventDestroy(mark->event);
    mark->event = NULL;
}

void cuda_mark_set(CudaKernelDevice *device, CudaMark *mark) {
    cuda_note(device, cuda.cuEventRecord(mark->event, device->communication), "marking a collective");
    mark->section = device->section;
}

void cuda_mark_wait(CudaKernelDevice *device, const CudaMark *mark) {
    if (mark->section != device->section) return;
    cuda_note(device, cuda.cuStreamWaitEvent(device->compute, mark->event, 0), "waiting for a collective");
}
