/* Returns whether the tests of the CUDA back end can run here: on a GPU, or on the stand-in driver. */
#ifndef TESTS_SUPPORT_GPU_PRESENT_H
#define TESTS_SUPPORT_GPU_PRESENT_H

#include <stdbool.h>
#include <stdio.h>

#include "base/cuda/driver.h"

/* Opens the driver. False: it has printed the reason for which the program is skipped. */
static inline bool gpu_is_present(void) {
    AmError error = {0};
    if (cuda_driver_open(&error) == AM_OK) return true;
    printf("skipped: %s\n", error.text);
    return false;
}

#endif
