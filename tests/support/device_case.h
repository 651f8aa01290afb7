/* Common code of the tests of base/cuda: a device, a stream and arrays on both sides. */
#ifndef TESTS_SUPPORT_DEVICE_CASE_H
#define TESTS_SUPPORT_DEVICE_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cuda/driver.h"
#include "base/dtype.h"
#include "base/random.h"
#include "tests/cuda/stand_in/stand_in.h"

typedef struct DeviceCase {
    CudaDevice device;
    CUstream stream;
    AmError error;
} DeviceCase;

/* Values of some type on the device, and their values as doubles on the host. */
typedef struct DeviceArray {
    Dtype type;
    int64_t count;
    double *values;
    CUdeviceptr memory;
} DeviceArray;

static inline void device_check(AmStatus status, const DeviceCase *self) {
    if (status != AM_OK) fail_msg("%s", self->error.text);
}

/* How many shapes the library refused. A real one may lack a type, an epilogue or an algorithm, and the
 * product then has kernels of its own: that is reported. */
typedef struct DeviceRefusals {
    int32_t tried, refused;
} DeviceRefusals;

/* Returns whether a shape was made; one that the library refused is counted and its line printed. */
static inline bool device_makes(DeviceRefusals *self, AmStatus status, DeviceCase *device, const char *name) {
    self->tried++;
    if (status != AM_ERROR_INPUT) {
        device_check(status, device);
        return true;
    }
    self->refused++;
    print_message("refused: %s: %s\n", name, device->error.text);
    device->error = (AmError){0};
    return false;
}

/* Prints the count. A stand-in refuses nothing, unless STAND_IN_FAIL has it refuse. */
static inline void device_report(const DeviceRefusals *self) {
    print_message("%d of %d shapes refused by the library\n", self->refused, self->tried);
    if (stand_in() && !getenv("STAND_IN_FAIL")) assert_int_equal(self->refused, 0);
}

static inline void device_open(DeviceCase *self) {
    *self = (DeviceCase){0};
    device_check(cuda_device_open(&self->device, 0, &self->error), self);
    device_check(
        cuda_check(cuda.cuStreamCreate(&self->stream, CU_STREAM_NON_BLOCKING), "a stream", &self->error),
        self);
}

static inline void device_close(DeviceCase *self) {
    cuda.cuStreamDestroy(self->stream);
    cuda_device_close(&self->device);
}

static inline void device_store(void *to, Dtype type, int64_t at, double value) {
    switch (type) {
    case DTYPE_F64: ((double *)to)[at] = value; break;
    case DTYPE_BF16: ((uint16_t *)to)[at] = dtype_float_to_bf16((float)value); break;
    case DTYPE_F16: ((uint16_t *)to)[at] = dtype_float_to_f16((float)value); break;
    default: ((float *)to)[at] = (float)value;
    }
}

static inline double device_load(const void *from, Dtype type, int64_t at) {
    switch (type) {
    case DTYPE_F64: return ((const double *)from)[at];
    case DTYPE_BF16: return dtype_bf16_to_float(((const uint16_t *)from)[at]);
    case DTYPE_F16: return dtype_f16_to_float(((const uint16_t *)from)[at]);
    default: return ((const float *)from)[at];
    }
}

/* Copies the host's values to the device. */
static inline void device_put(DeviceCase *self, DeviceArray *array) {
    size_t bytes = (size_t)(array->count * dtype_bytes(array->type));
    void *raw = calloc(bytes + 8, 1);
    for (int64_t k = 0; k < array->count; k++) device_store(raw, array->type, k, array->values[k]);
    device_check(cuda_check(cuda.cuMemcpyHtoD(array->memory, raw, bytes), "copying", &self->error), self);
    device_check(cuda_check(cuda.cuStreamSynchronize(CU_STREAM_LEGACY), "copying", &self->error), self);
    free(raw);
}

/* Reads the device's values into `values`, after all work. */
static inline void device_get(DeviceCase *self, DeviceArray *array) {
    size_t bytes = (size_t)(array->count * dtype_bytes(array->type));
    void *raw = calloc(bytes + 8, 1);
    device_check(cuda_check(cuda.cuStreamSynchronize(self->stream), "running", &self->error), self);
    device_check(cuda_check(cuda.cuMemcpyDtoH(raw, array->memory, bytes), "copying", &self->error), self);
    for (int64_t k = 0; k < array->count; k++) array->values[k] = device_load(raw, array->type, k);
    free(raw);
}

/* `count` whole numbers in [-3, 3]; without a random generator, -7 everywhere. */
static inline DeviceArray device_array(DeviceCase *self, Dtype type, int64_t count, Random *random) {
    DeviceArray array = {.type = type, .count = count, .values = calloc((size_t)count + 1, sizeof(double))};
    device_check(cuda_memory_alloc(&array.memory, &self->device, count * dtype_bytes(type), &self->error),
                 self);
    for (int64_t k = 0; k < count; k++)
        array.values[k] = random ? (double)((int64_t)random_below(random, 7) - 3) : -7;
    device_put(self, &array);
    return array;
}

static inline void *device_address(const DeviceArray *array) {
    return (void *)(uintptr_t)array->memory;
}

static inline void device_release(DeviceArray *array) {
    cuda_memory_free(array->memory);
    free(array->values);
}

#endif
