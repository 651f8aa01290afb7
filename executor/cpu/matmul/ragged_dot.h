/* The form of a ragged-dot, for every back end: ragged_dot.c describes its groups. */
#ifndef EXECUTOR_CPU_MATMUL_RAGGED_DOT_H
#define EXECUTOR_CPU_MATMUL_RAGGED_DOT_H

#include "executor/kernels.h"

typedef struct RaggedDot {
    bool contracts; /* the ragged dimension is contracted */
    int64_t groups, group_stride;
    /* The result's dimensions, and how far each moves on both sides. */
    int32_t result_rank, contracted_rank;
    int64_t result[IR_MAX_RANK], left[IR_MAX_RANK], right[IR_MAX_RANK];
    int64_t contracted[IR_MAX_RANK], contracted_left[IR_MAX_RANK], contracted_right[IR_MAX_RANK];
    int32_t ragged; /* among the result's or the contracted dimensions */
    Dtype left_type, right_type, result_type;
} RaggedDot;

/* Reads the form of a ragged-dot; *form is zeros. AM_ERROR_INPUT as kernel_call_refuse(). */
AmStatus ragged_dot_read(RaggedDot *form, const KernelCall *call, AmError *error);

#endif
