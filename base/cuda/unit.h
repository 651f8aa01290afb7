/* A unit of device code: text in, a loaded module with its kernels out.
 *
 * The text is CUDA C++ with extern "C" kernels and no includes: generated, or a
 * .cu file that the build embeds (cuda_text_<name> in "<path>.cu.h"). NVRTC
 * compiles it for the device, or the cache on disk has it (nvrtc.h).
 */
#ifndef BASE_CUDA_UNIT_H
#define BASE_CUDA_UNIT_H

#include "base/cuda/driver.h"
#include "base/status.h"

typedef struct CudaUnit {
    CUmodule module;
    bool cached; /* its machine code was on disk */
} CudaUnit;

/* Compiles and loads; the device is current in this thread. Errors are those of
 * cuda_compile(), and AM_ERROR_RUNTIME with the driver's words where it refuses
 * the machine code. On failure nothing is to be unloaded. */
AmStatus cuda_unit_load(CudaUnit *unit, const CudaDevice *device, const char *text, AmError *error);

/* Finds a kernel by its name; valid until the unit is unloaded. AM_ERROR_INTERNAL: the text has no such
 * kernel. */
AmStatus cuda_unit_function(CUfunction *function, const CudaUnit *unit, const char *name, AmError *error);

void cuda_unit_unload(CudaUnit *unit); /* may be called on a zeroed one */

#endif
