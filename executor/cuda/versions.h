/* The versions of CUDA's libraries that this machine has. */
#ifndef EXECUTOR_CUDA_VERSIONS_H
#define EXECUTOR_CUDA_VERSIONS_H

#include "base/text.h"

/* Writes "driver 13.0, nvrtc 13.0, cublaslt 13.1.0, cudnn not found, nccl 2.28.9". Opens each library, which
 * needs no GPU. */
void cuda_versions(Text *text);

#endif
