/* The smallest use of a GPU: counts devices and runs one kernel.
 *
 * It shows that the toolkit, the driver and the device work together before
 * anything depends on them. Both calls are safe on a machine without a GPU.
 */
#ifndef BASE_CUDA_PROBE_H
#define BASE_CUDA_PROBE_H

#include <stdint.h>

#include "automap.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Number of usable devices; 0 without a driver or device. */
int32_t cuda_probe_device_count(void);

/* values[i] *= factor for i < count, on the current device: copies host memory
 * there, runs a kernel and copies back. AM_ERROR_RUNTIME names what CUDA said. */
AmStatus cuda_probe_scale(float *values, int64_t count, float factor, AmError *error);

#ifdef __cplusplus
}
#endif
#endif
