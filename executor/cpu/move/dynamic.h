/* Sizes that the program reads or sets: checks common to every back end. */
#ifndef EXECUTOR_CPU_MOVE_DYNAMIC_H
#define EXECUTOR_CPU_MOVE_DYNAMIC_H

#include "executor/kernels.h"

/* Finds the size that a get-dimension-size gives. AM_ERROR_INPUT as kernel_call_refuse(). */
AmStatus dynamic_read_size(int64_t *size, const KernelCall *call, AmError *error);

/* Checks that a set-dimension-size or dynamic-reshape changes no size, so that its result has the elements
 * of operand 0. AM_ERROR_INPUT as kernel_call_refuse(). */
AmStatus dynamic_check_static(const KernelCall *call, AmError *error);

#endif
