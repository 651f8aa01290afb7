/* values[i] *= factor for i < count, one thread an element; of test_cuda_driver.c. */
extern "C" __global__ void scale(float *values, long long count, float factor) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] *= factor;
}
