/* The CUDA driver: its functions, its errors, its devices and their memory.
 *
 * All calls go through the table `cuda`, which cuda_driver_open() fills from
 * libcuda.so.1: cuda.cuMemAlloc(&memory, bytes). Each device has one context in
 * a process, the primary one, which ranks (threads) on the same card share. A
 * thread makes a device current by cuda_device_use() before it calls anything
 * that works on one. A function that a file needs is a line in CUDA_FUNCTIONS.
 */
#ifndef BASE_CUDA_DRIVER_H
#define BASE_CUDA_DRIVER_H

#include <cuda.h>
#include <stdint.h>

#include "base/cuda/library.h"
#include "base/status.h"

#define CUDA_FUNCTIONS(X)        \
    X(cuInit)                    \
    X(cuGetErrorName)            \
    X(cuGetErrorString)          \
    X(cuDeviceGetCount)          \
    X(cuDeviceGet)               \
    X(cuDeviceGetName)           \
    X(cuDeviceTotalMem)          \
    X(cuDeviceGetAttribute)      \
    X(cuDeviceCanAccessPeer)     \
    X(cuDevicePrimaryCtxRetain)  \
    X(cuDevicePrimaryCtxRelease) \
    X(cuCtxSetCurrent)           \
    X(cuCtxGetCurrent)           \
    X(cuCtxEnablePeerAccess)     \
    X(cuCtxSynchronize)          \
    X(cuModuleGetLoadingMode)    \
    X(cuModuleLoadDataEx)        \
    X(cuModuleUnload)            \
    X(cuModuleGetFunction)       \
    X(cuLaunchKernel)            \
    X(cuLaunchHostFunc)          \
    X(cuFuncGetAttribute)        \
    X(cuFuncSetAttribute)        \
    X(cuMemGetInfo)              \
    X(cuMemAlloc)                \
    X(cuMemFree)                 \
    X(cuMemAllocHost)            \
    X(cuMemFreeHost)             \
    X(cuMemcpyHtoD)              \
    X(cuMemcpyDtoH)              \
    X(cuMemcpyDtoD)              \
    X(cuMemcpyHtoDAsync)         \
    X(cuMemcpyDtoHAsync)         \
    X(cuMemcpyDtoDAsync)         \
    X(cuMemcpyPeerAsync)         \
    X(cuMemsetD8)                \
    X(cuMemsetD8Async)           \
    X(cuMemsetD32Async)          \
    X(cuStreamCreate)            \
    X(cuStreamDestroy)           \
    X(cuStreamSynchronize)       \
    X(cuStreamQuery)             \
    X(cuStreamWaitEvent)         \
    X(cuStreamBeginCapture)      \
    X(cuStreamEndCapture)        \
    X(cuStreamIsCapturing)       \
    X(cuEventCreate)             \
    X(cuEventDestroy)            \
    X(cuEventRecord)             \
    X(cuEventSynchronize)        \
    X(cuEventQuery)              \
    X(cuEventElapsedTime)        \
    X(cuGraphInstantiate)        \
    X(cuGraphDestroy)            \
    X(cuGraphGetNodes)           \
    X(cuGraphExecDestroy)        \
    X(cuGraphUpload)             \
    X(cuGraphLaunch)

typedef struct CudaFunctions {
    CUDA_FUNCTIONS(CUDA_MEMBER)
} CudaFunctions;

/* Valid after cuda_driver_open() or cuda_device_open() has succeeded. */
extern CudaFunctions cuda;

/* Opens the driver, once. May be called by several threads. AM_ERROR_RUNTIME: no
 * driver, too old a driver, or no device, in one line. */
AmStatus cuda_driver_open(AmError *error);

/* Returns the newest CUDA version that the driver serves, as 1000 * major + 10 * minor; 0 without a driver.
 * Needs no device. */
int32_t cuda_driver_version(void);

/* Fails with AM_ERROR_RUNTIME unless the call succeeded: `what` was done ("copying to the device") and the
 * driver's words for what went wrong. */
AmStatus cuda_check(CUresult result, const char *what, AmError *error);

typedef struct CudaDevice {
    int32_t ordinal;
    CUdevice device;
    CUcontext context;    /* the primary one */
    int32_t architecture; /* 10 * major + minor: 80, 90 */
    char name[128];
    int64_t memory_bytes;
    int32_t multiprocessors;
} CudaDevice;

/* Returns how many devices there are; 0 without a usable driver. */
int32_t cuda_device_count(void);

/* Opens a device and makes it current in this thread. Each open is to be closed.
 * AM_ERROR_RUNTIME as cuda_driver_open(), or there is no device of that ordinal. */
AmStatus cuda_device_open(CudaDevice *device, int32_t ordinal, AmError *error);
void cuda_device_close(CudaDevice *device); /* may be called on a zeroed one */

/* Makes the device current in this thread. */
AmStatus cuda_device_use(const CudaDevice *device, AmError *error);

/* Allocates device memory of at least one byte, aligned to 256 bytes, its content unknown; the device is
 * current. AM_ERROR_RUNTIME has the bytes that were requested and free. */
AmStatus cuda_memory_alloc(CUdeviceptr *memory, const CudaDevice *device, int64_t bytes, AmError *error);
void cuda_memory_free(CUdeviceptr memory); /* 0 is fine */

#endif
