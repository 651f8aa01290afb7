/* Copies and conversions divided over a rank's team. Results do not depend on the division. */
#ifndef EXECUTOR_CPU_DIVIDE_H
#define EXECUTOR_CPU_DIVIDE_H

#include "executor/cpu/team.h"

/* Runs strided_copy() by the team. */
void divided_copy(KernelDevice *device, void *out, const int64_t *out_strides, const void *in,
                  const int64_t *in_strides, const int64_t *dimensions, int32_t rank, int64_t element_bytes);
/* Runs memcpy() and strided_fill() by the team. */
void divided_copy_bytes(KernelDevice *device, void *out, const void *in, int64_t bytes);
void divided_fill(KernelDevice *device, void *out, const void *value, int64_t count, int64_t element_bytes);
/* Converts dense elements of one type to another; real types only. */
void divided_convert(KernelDevice *device, void *out, Dtype to, const void *in, Dtype from, int64_t count);
/* Copies the elements of a box (`from`, `strides`) to dense ones of another type (`pack`), or back.
 * Real types only. */
void divided_pack(KernelDevice *device, void *dense, Dtype to, const void *box, Dtype from,
                  const int64_t *strides, const int64_t *dimensions, int32_t rank);
void divided_unpack(KernelDevice *device, void *box, Dtype to, const int64_t *strides, const void *dense,
                    Dtype from, const int64_t *dimensions, int32_t rank);

#endif
