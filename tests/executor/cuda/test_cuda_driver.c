/* The driver, its devices and a unit of device code, against the same arithmetic
 * on the CPU; refusals are one clear line. Skipped (77) in a build without CUDA and
 * on a machine without a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/cuda/driver.h"
#include "base/cuda/unit.h"
#include "tests/cuda/scale.cu.h"
#include "tests/cuda/stand_in/stand_in.h"

static void check(AmStatus status, const AmError *error) {
    if (status != AM_OK) fail_msg("%s", error->text);
}

static void test_kernel(void **state) {
    (void)state;
    enum { COUNT = 1000003, THREADS = 256 };
    static float values[COUNT];
    for (int i = 0; i < COUNT; i++) values[i] = (float)i - 5e5f;
    AmError error = {0};
    CudaDevice device;
    CudaUnit unit;
    CUfunction scale;
    CUdeviceptr memory;
    check(cuda_device_open(&device, 0, &error), &error);
    assert_true(device.architecture >= 50 && device.memory_bytes > 0 && device.multiprocessors > 0);
    check(cuda_unit_load(&unit, &device, cuda_text_scale, &error), &error);
    check(cuda_unit_function(&scale, &unit, "scale", &error), &error);
    check(cuda_memory_alloc(&memory, &device, sizeof values, &error), &error);
    check(cuda_check(cuda.cuMemcpyHtoD(memory, values, sizeof values), "copying to the device", &error),
          &error);
    long long count = COUNT;
    float factor = 1.5f;
    void *arguments[] = {&memory, &count, &factor};
    check(cuda_check(cuda.cuLaunchKernel(scale, (COUNT + THREADS - 1) / THREADS, 1, 1, THREADS, 1, 1, 0, NULL,
                                         arguments, NULL),
                     "starting a kernel", &error),
          &error);
    check(cuda_check(cuda.cuMemcpyDtoH(values, memory, sizeof values), "copying to the host", &error),
          &error);
    for (int i = 0; i < COUNT; i++) assert_true(values[i] == ((float)i - 5e5f) * 1.5f);
    assert_int_equal(cuda_unit_function(&scale, &unit, "absent", &error), AM_ERROR_INTERNAL);
    assert_non_null(strstr(error.text, "absent"));
    cuda_memory_free(memory);
    cuda_unit_unload(&unit);
    cuda_device_close(&device);
}

static void test_refusals(void **state) {
    (void)state;
    AmError error = {0};
    CudaDevice device;
    CUdeviceptr memory;
    assert_int_equal(cuda_device_open(&device, 4096, &error), AM_ERROR_RUNTIME);
    assert_non_null(strstr(error.text, "no GPU 4096"));
    error = (AmError){0};
    check(cuda_device_open(&device, 0, &error), &error);
    assert_int_equal(cuda_memory_alloc(&memory, &device, INT64_C(1) << 50, &error), AM_ERROR_RUNTIME);
    assert_non_null(strstr(error.text, "out of memory on GPU 0"));
    assert_true(memory == 0);
    cuda_device_close(&device);
}

int main(void) {
    AmError error = {0};
    dlopen("libcuda.so.1", RTLD_NOW);
    if (cuda_driver_open(&error) != AM_OK) {
        printf("%s: %s\n", stand_in() ? "the stand-in driver" : "skipped", error.text);
        return stand_in() ? 1 : SKIPPED;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernel), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
