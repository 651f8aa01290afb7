/* Common declarations of the stand-in for libcudnn. */
#ifndef TESTS_CUDA_CUDNN_PARTS_H
#define TESTS_CUDA_CUDNN_PARTS_H

#include <cudnn.h>

#include "tests/cuda/stand_in/elements.h"
#include "tests/cuda/stand_in/stand_in.h"

#define EXPORT __attribute__((visibility("default")))
#define ENTER(function)                                     \
    do {                                                    \
        const StandIn *entered_ = stand_in();               \
        if (!entered_) return CUDNN_STATUS_NOT_INITIALIZED; \
        int code_ = entered_->enter(#function);             \
        if (code_) return (cudnnStatus_t)code_;             \
    } while (0)

typedef enum Tag { TAG_HANDLE = 0xd4401, TAG_TENSOR, TAG_FILTER, TAG_WINDOW, TAG_GRAPH } Tag;

struct cudnnContext {
    Tag tag;
    cudaStream_t stream;
};

static inline ElementType element_of(cudnnDataType_t type) {
    return type == CUDNN_DATA_DOUBLE     ? ELEMENT_F64
           : type == CUDNN_DATA_BFLOAT16 ? ELEMENT_BF16
           : type == CUDNN_DATA_HALF     ? ELEMENT_F16
                                         : ELEMENT_F32;
}

#endif
