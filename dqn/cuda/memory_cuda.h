/* One allocation on the device for many arrays: first all arrays are registered, then all get their
 * offsets. Values that several kernels write are initially zero. */
#ifndef DQN_CUDA_MEMORY_CUDA_H
#define DQN_CUDA_MEMORY_CUDA_H

#include "base/cuda/driver.h"

#define MEMORY_MOST_ARRAYS 128

typedef struct DeviceMemory {
    CUdeviceptr base;
    int64_t bytes;
    int32_t count;
    CUdeviceptr *places[MEMORY_MOST_ARRAYS]; /* filled by memory_allocate() */
    int64_t offsets[MEMORY_MOST_ARRAYS];     /* multiples of 256 */
} DeviceMemory;

/* Asks for an array; `place` stays valid until memory_allocate(). */
void memory_reserve(DeviceMemory *memory, CUdeviceptr *place, int64_t bytes);

/* Allocates and zeroes on `stream`. AM_ERROR_RUNTIME contains the requested size. */
AmStatus memory_allocate(DeviceMemory *memory, const CudaDevice *device, CUstream stream, AmError *error);

/* Zeroes all arrays. */
AmStatus memory_clear(const DeviceMemory *memory, CUstream stream, AmError *error);

void memory_free(DeviceMemory *memory); /* may be called on a zeroed one */

#endif
