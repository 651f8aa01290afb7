/* What the CPU network is made of: OpenBLAS' product in the network's number
 * type, on one thread, and relu. */
#ifndef DQN_CPU_PRODUCT_CPU_H
#define DQN_CPU_PRODUCT_CPU_H

#include <cblas.h>

#include "dqn/network.h"

#ifdef DQN_DOUBLE
#define GEMM cblas_dgemm
#else
#define GEMM cblas_sgemm
#endif

static inline void use_one_thread(void) {
    if (openblas_get_num_threads() != 1) openblas_set_num_threads(1);
}

static inline void relu(Real *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) values[i] = values[i] > 0 ? values[i] : 0;
}

#endif
