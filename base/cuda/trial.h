/* Memory for the trial of a library call.
 *
 * A library may offer an algorithm for a shape and refuse to run it. A trial runs
 * it once, before other decisions depend on it, on memory of its own with zeros.
 */
#ifndef BASE_CUDA_TRIAL_H
#define BASE_CUDA_TRIAL_H

#include "base/cuda/driver.h"

#define CUDA_TRIAL_MOST_ARRAYS 16

typedef struct CudaTrial {
    CUdeviceptr memory;
    void *arrays[CUDA_TRIAL_MOST_ARRAYS]; /* aligned to 256 bytes */
} CudaTrial;

/* Allocates `count` arrays of `bytes` on the current device and clears them. False:
 * the device has no room for them, and the caller omits the trial. */
bool cuda_trial_open(CudaTrial *trial, const int64_t *bytes, int32_t count);
/* Waits for the legacy default stream, where a trial runs, and frees the memory.
 * AM_ERROR_RUNTIME: the call failed on the device. */
AmStatus cuda_trial_close(CudaTrial *trial, AmError *error);

#endif
