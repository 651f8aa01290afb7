/* Memory for the trial of a library call.
 *
 * A library may accept a shape when it is asked for an algorithm and refuse it
 * when it is called. A trial calls it once, before anything depends on the
 * answer, on memory that the trial owns. The values there are arbitrary.
 */
#ifndef BASE_CUDA_TRIAL_H
#define BASE_CUDA_TRIAL_H

#include "base/cuda/driver.h"

#define CUDA_TRIAL_MOST_ARRAYS 8

typedef struct CudaTrial {
    CUdeviceptr memory;
    void *arrays[CUDA_TRIAL_MOST_ARRAYS]; /* aligned to 256 bytes */
} CudaTrial;

/* Allocates `count` arrays of `bytes` on the current device. False: the device
 * has no room for them, and there is no trial. */
bool cuda_trial_open(CudaTrial *trial, const int64_t *bytes, int32_t count);
/* Waits for the legacy default stream, where a trial runs, and frees the memory.
 * AM_ERROR_RUNTIME: the call failed on the device. */
AmStatus cuda_trial_close(CudaTrial *trial, AmError *error);

#endif
