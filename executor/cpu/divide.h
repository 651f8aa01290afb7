/* Copies and conversions divided over a rank's team. Results do not depend on the division. */
#ifndef EXECUTOR_CPU_DIVIDE_H
#define EXECUTOR_CPU_DIVIDE_H

#include "executor/cpu/team.h"

/* A copy of elements from box to box of equal dimensions; strides are in elements. */
typedef struct BoxCopy {
    void *out;
    const int64_t *out_strides;
    const void *in;
    const int64_t *in_strides, *dimensions;
    int32_t rank;
    int64_t element_bytes;
} BoxCopy;

/* The elements of an array that need not lie densely; strides are in elements. */
typedef struct ElementBox {
    void *data; /* divided_pack() only reads it */
    Dtype type;
    const int64_t *strides, *dimensions;
    int32_t rank;
} ElementBox;

/* Runs strided_copy() by the team. */
void divided_copy(KernelDevice *device, const BoxCopy *box);
/* Runs memcpy() and strided_fill() by the team. */
void divided_copy_bytes(KernelDevice *device, void *out, const void *in, int64_t bytes);
void divided_fill(KernelDevice *device, void *out, const void *value, int64_t count, int64_t element_bytes);
/* Converts dense elements of one type to another; real types only. */
void divided_convert(KernelDevice *device, void *out, Dtype to, const void *in, Dtype from, int64_t count);
/* Copies the elements of a box to dense ones of another type (`pack`), or back. Real types only. */
void divided_pack(KernelDevice *device, void *dense, Dtype to, const ElementBox *box);
void divided_unpack(KernelDevice *device, const ElementBox *box, const void *dense, Dtype from);

#endif
