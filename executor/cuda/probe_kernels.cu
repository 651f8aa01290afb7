/* Kernels with which probe_cuda.c measures memory and launches. */

/* Words that are numbers near one or smaller in f64, f32, f16 and bf16 alike, with random fractions:
 * products of zeros take less power, and so run faster, than those of real data. */
extern "C" __global__ void probe_fill(unsigned *words, long long count) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        unsigned value = (unsigned)i * 2654435761u;
        value ^= value >> 15;
        value *= 2246822519u;
        words[i] = 0x3c003c00u | ((value ^ value >> 13) & 0x03ff03ffu);
    }
}

/* y = a x + y; blocks stride over the array. */
extern "C" __global__ void probe_scale_add(float *y, const float *x, float a, long long count) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        y[i] = a * x[i] + y[i];
}

extern "C" __global__ void probe_nothing() {}
