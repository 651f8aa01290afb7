/* Many arrays in one allocation on the device: registered first, then placed. */
#include "dqn/cuda/memory_cuda.h"

#include <assert.h>

#define ALIGNMENT 256

void memory_reserve(DeviceMemory *memory, CUdeviceptr *place, int64_t bytes) {
    assert(memory->count < MEMORY_MOST_ARRAYS);
    memory->places[memory->count] = place;
    memory->offsets[memory->count++] = memory->bytes;
    memory->bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

AmStatus memory_allocate(DeviceMemory *memory, const CudaDevice *device, CUstream stream, AmError *error) {
    TRY(cuda_memory_alloc(&memory->base, device, memory->bytes, error));
    for (int32_t i = 0; i < memory->count; i++)
        *memory->places[i] = memory->base + (CUdeviceptr)memory->offsets[i];
    return memory_clear(memory, stream, error);
}

AmStatus memory_clear(const DeviceMemory *memory, CUstream stream, AmError *error) {
    return cuda_check(cuda.cuMemsetD8Async(memory->base, 0, (size_t)memory->bytes, stream),
                      "clearing device memory", error);
}

void memory_free(DeviceMemory *memory) {
    cuda_memory_free(memory->base);
    *memory = (DeviceMemory){0};
}
