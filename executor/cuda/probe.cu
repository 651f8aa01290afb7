/* What probe_cuda.c measures memory and launches with. */

/* y = a x + y; blocks stride over the array. */
extern "C" __global__ void probe_scale_add(float *y, const float *x, float a, long long count) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        y[i] = a * x[i] + y[i];
}

extern "C" __global__ void probe_nothing() {}
