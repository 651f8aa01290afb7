/* Arrays of zeros in one allocation, for the trial of a library call. */
#include "base/cuda/trial.h"

#define ALIGNMENT 256

static int64_t align(int64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

bool cuda_trial_open(CudaTrial *trial, const int64_t *bytes, int32_t count) {
    int64_t sum = 0;
    *trial = (CudaTrial){0};
    for (int32_t k = 0; k < count; k++) sum += align(bytes[k]);
    if (sum > 0 && cuda.cuMemAlloc(&trial->memory, (size_t)sum) != CUDA_SUCCESS) return false;
    if (sum > 0 && cuda.cuMemsetD8Async(trial->memory, 0, (size_t)sum, NULL) != CUDA_SUCCESS) {
        cuda_memory_free(trial->memory);
        return false;
    }
    sum = 0;
    for (int32_t k = 0; k < count; k++) {
        trial->arrays[k] = (void *)(uintptr_t)(trial->memory + (CUdeviceptr)sum);
        sum += align(bytes[k]);
    }
    return true;
}

AmStatus cuda_trial_close(CudaTrial *trial, AmError *error) {
    CUresult result = cuda.cuStreamSynchronize(NULL);
    cuda_memory_free(trial->memory);
    *trial = (CudaTrial){0};
    return cuda_check(result, "running a library's product once", error);
}
