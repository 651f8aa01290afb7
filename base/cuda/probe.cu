/* One kernel behind a plain C function: see probe.h. */
#include "base/cuda/probe.h"

extern "C" {
#include "base/status.h"
}

static __global__ void scale(float *values, int64_t count, float factor) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        values[i] *= factor;
}

extern "C" int32_t cuda_probe_device_count(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

static cudaError_t scale_on_device(float *device_values, float *values, int64_t count, float factor) {
    enum { THREADS = 256, MOST_BLOCKS = 1024 };
    size_t bytes = (size_t)count * sizeof *values;
    cudaError_t result = cudaMemcpy(device_values, values, bytes, cudaMemcpyHostToDevice);
    if (result != cudaSuccess) return result;
    int64_t blocks = (count + THREADS - 1) / THREADS;
    scale<<<(unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), THREADS>>>(device_values, count, factor);
    result = cudaGetLastError();
    if (result != cudaSuccess) return result;
    return cudaMemcpy(values, device_values, bytes, cudaMemcpyDeviceToHost);
}

extern "C" AmStatus cuda_probe_scale(float *values, int64_t count, float factor, AmError *error) {
    if (count <= 0) return AM_OK;
    float *device_values = NULL;
    cudaError_t result = cudaMalloc((void **)&device_values, (size_t)count * sizeof *values);
    if (result == cudaSuccess) result = scale_on_device(device_values, values, count, factor);
    cudaFree(device_values);
    if (result == cudaSuccess) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, "", "CUDA: %s", cudaGetErrorString(result));
}
