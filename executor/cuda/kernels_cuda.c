/* The CUDA back end: which part prepares which operator, memory, copies and the
 * end of a step.
 *
 * Copies are issued to the compute stream, so they are ordered with the kernels;
 * those from and to the host are waited for, as the host's memory is ordinary.
 */
#include <stdio.h>
#include <string.h>

#include "base/system/clock.h"
#include "executor/cuda/coverage.h"
#include "executor/refused.h"

static bool holds_numbers(const IrShape *const *shapes, int32_t count) {
    for (int32_t k = 0; k < count; k++)
        if (dtype_bytes(shapes[k]->type) == 0) return false;
    return true;
}

static AmStatus prepare_kernel(KernelCall *call, Arena *arena, AmError *error) {
    if (call->fusion) return cuda_prepare_generated(call, arena, error);
    IrOpcode opcode = call->instruction->opcode;
    const char *reason = refused_reason(opcode) ? refused_reason(opcode) : cuda_lacks(opcode);
    if (reason) return kernel_call_refuse(call, reason, error);
    /* A token is not an array: after-all makes one, add-dependency returns its first operand. */
    if (opcode == IR_ADD_DEPENDENCY) call->operand_count = 1;
    if (opcode != IR_AFTER_ALL && (!holds_numbers(call->operand_shapes, call->operand_count) ||
                                   !holds_numbers(call->result_shapes, call->result_count)))
        return kernel_call_refuse(call, "an operand or result is no array of numbers", error);
    return cuda_coverage_prepare(opcode)(call, arena, error);
}

/* Prepares a kernel. A refusal names the remedy if the CPU has a kernel. */
static AmStatus prepare_or_suggest_cpu(KernelCall *call, Arena *arena, AmError *error) {
    TRY(cuda_device_use(&cuda_device_of(call->device)->device, error));
    KernelCall on_cpu = *call;
    AmStatus status = prepare_kernel(call, arena, error);
    if (status != AM_ERROR_INPUT || !error) return status;
    on_cpu.device = &kernel_device_cpu;
    if (kernels_cpu.prepare(&on_cpu, arena, NULL) != AM_OK) return status;
    size_t length = strlen(error->text);
    snprintf(error->text + length, sizeof error->text - length, "; --device cpu runs it");
    return status;
}

static AmStatus finish(KernelDevice *device, AmError *error) {
    CudaKernelDevice *self = cuda_device_of(device);
    double begin = clock_seconds();
    TRY(cuda_device_use(&self->device, error));
    TRY(cuda_finish_generated(self, error));
    device->compile_seconds += clock_seconds() - begin;
    return AM_OK;
}

static AmStatus allocate(KernelDevice *device, void **memory, int64_t bytes, AmError *error) {
    CudaKernelDevice *self = cuda_device_of(device);
    CUdeviceptr address;
    TRY(cuda_device_use(&self->device, error));
    TRY(cuda_memory_alloc(&address, &self->device, bytes, error));
    CUresult result = cuda.cuMemsetD8Async(address, 0, (size_t)bytes, self->compute);
    AmStatus status = cuda_check(result, "clearing device memory", error);
    if (status == AM_OK) *memory = (void *)(uintptr_t)address;
    else cuda_memory_free(address);
    return status;
}

static void release(KernelDevice *device, void *memory) {
    CudaKernelDevice *self = cuda_device_of(device);
    cuda_rank_use(self);
    cuda.cuStreamSynchronize(self->compute);
    cuda.cuStreamSynchronize(self->communication);
    cuda_memory_free((CUdeviceptr)(uintptr_t)memory);
}

/* Allocates pinned memory: other memory is copied through a buffer, and not beside kernels. */
static AmStatus allocate_host(KernelDevice *device, void **memory, int64_t bytes, AmError *error) {
    CudaKernelDevice *self = cuda_device_of(device);
    void *pinned;
    TRY(cuda_device_use(&self->device, error));
    TRY(cuda_check(cuda.cuMemAllocHost(&pinned, (size_t)bytes), "allocating pinned memory", error));
    memset(pinned, 0, (size_t)bytes);
    *memory = pinned;
    return AM_OK;
}

static void release_host(KernelDevice *device, void *memory) {
    CudaKernelDevice *self = cuda_device_of(device);
    cuda_rank_use(self);
    cuda.cuStreamSynchronize(self->communication);
    cuda.cuMemFreeHost(memory);
}

static CUdeviceptr address_of(const void *memory) {
    return (CUdeviceptr)(uintptr_t)memory;
}

static void copy_in(KernelDevice *device, void *to, const void *host, int64_t bytes) {
    static const char what[] = "copying to the device";
    CudaKernelDevice *self = cuda_device_of(device);
    if (bytes <= 0) return;
    cuda_rank_use(self);
    cuda_note(self, cuda.cuMemcpyHtoDAsync(address_of(to), host, (size_t)bytes, self->compute), what);
    cuda_note(self, cuda.cuStreamSynchronize(self->compute), what);
}

/* Zeros where it fails, so that a loop whose condition cannot be read ends. */
static void copy_out(KernelDevice *device, void *host, const void *from, int64_t bytes) {
    static const char what[] = "copying from the device";
    CudaKernelDevice *self = cuda_device_of(device);
    if (bytes <= 0) return;
    cuda_rank_use(self);
    cuda_note(self, cuda.cuMemcpyDtoHAsync(host, address_of(from), (size_t)bytes, self->compute), what);
    cuda_note(self, cuda.cuStreamSynchronize(self->compute), what);
    if (self->failure.code != AM_OK) memset(host, 0, (size_t)bytes);
}

static void copy_within(KernelDevice *device, void *to, const void *from, int64_t bytes) {
    CudaKernelDevice *self = cuda_device_of(device);
    if (bytes <= 0 || to == from) return;
    cuda_note(self, cuda.cuMemcpyDtoDAsync(address_of(to), address_of(from), (size_t)bytes, self->compute),
              "copying within the device");
}

static AmStatus synchronize(KernelDevice *device, AmError *error) {
    CudaKernelDevice *self = cuda_device_of(device);
    cuda_rank_use(self);
    cuda_join(self);
    cuda_note(self, cuda.cuStreamSynchronize(self->compute), "running the step");
    if (self->failure.code == AM_OK) return AM_OK;
    AmStatus status = am_fail(error, self->failure.code, "", "GPU %d (%s): %s", self->device.ordinal,
                              self->device.name, self->failure.text);
    self->failure = (AmError){0};
    return status;
}

const KernelBackEnd kernels_cuda = {
    .name = "cuda",
    .open = cuda_rank_open,
    .close = cuda_rank_close,
    .prepare = prepare_or_suggest_cpu,
    .join_rows = cuda_join_rows,
    .finish = finish,
    .allocate = allocate,
    .release = release,
    .allocate_host = allocate_host,
    .release_host = release_host,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy_within = copy_within,
    .begin = cuda_begin_recording,
    .end = cuda_end_recording,
    .synchronize = synchronize,
};
