/* The order in which a dot writes the dimensions of its result, as matrices of the library.
 *
 * cuda_dot_order() finds the strides with which cuBLASLt writes the result in its own order.
 * cuda_dot_slices() divides the result by its first batch dimensions for all other orders.
 */
#include "executor/cuda/library/cublas_dot_order.h"

#include "executor/array/strided.h"
#include "executor/cuda/device.h"

#define COPY_ALIGNMENT 16 /* bytes; a pack may move so many at a time */

/* The result's dimensions in the natural order: sizes, and strides in the array. */
typedef struct Result {
    int32_t rank, batch_count, free_counts[2];
    int64_t sizes[IR_MAX_RANK], strides[IR_MAX_RANK];
    int64_t natural[IR_MAX_RANK]; /* of each dimension of the array: its number in the natural order */
} Result;

int64_t cuda_joint_stride(const int64_t *sizes, const int64_t *strides, int32_t rank) {
    int64_t stride = -1, expected = 0;
    for (int32_t d = rank - 1; d >= 0; d--) {
        if (sizes[d] == 1) continue;
        if (stride < 0) stride = strides[d];
        else if (strides[d] != expected) return -1;
        expected = strides[d] * sizes[d];
    }
    return stride < 0 ? 1 : stride;
}

static Result describe_result(const KernelCall *call) {
    const IrAttributes *attributes = call->attributes;
    const IrDot *dot = attributes->dot;
    const IrShape *shape = call->result_shapes[0];
    Result result = {.rank = shape->rank, .batch_count = dot->batch_count};
    int64_t given[IR_MAX_RANK];
    for (int32_t k = 0; k < 2; k++)
        result.free_counts[k] = call->operand_shapes[k]->rank - dot->batch_count - dot->contracting_count;
    strided_row_major(given, shape->dimensions, shape->rank);
    for (int32_t d = 0; d < shape->rank; d++) {
        int64_t natural = attributes->dimension_count > 0 ? attributes->dimensions[d] : d;
        result.natural[d] = natural;
        result.strides[natural] = given[d];
        result.sizes[natural] = shape->dimensions[d];
    }
    return result;
}

/* Sorts an operand's free dimensions by their strides in the result, the largest first. */
static void sort_free(int32_t *free, const int64_t *strides, int32_t count) {
    for (int32_t k = 0; k < count; k++) {
        int32_t at = k;
        for (; at > 0 && strides[free[at - 1]] < strides[k]; at--) free[at] = free[at - 1];
        free[at] = k;
    }
}

/* Returns the stride of an operand's free dimensions in the result, or -1; their elements. */
static int64_t free_stride(int64_t *elements, const Result *result, const CudaDotOrder *order,
                           int32_t operand) {
    int32_t first = result->batch_count + (operand == 0 ? 0 : result->free_counts[0]);
    int64_t sizes[IR_MAX_RANK], strides[IR_MAX_RANK];
    for (int32_t k = 0; k < result->free_counts[operand]; k++) {
        sizes[k] = result->sizes[first + order->free[operand][k]];
        strides[k] = result->strides[first + order->free[operand][k]];
    }
    *elements = strided_elements(sizes, result->free_counts[operand]);
    return cuda_joint_stride(sizes, strides, result->free_counts[operand]);
}

bool cuda_dot_order(CudaDotOrder *order, const KernelCall *call) {
    Result result = describe_result(call);
    int64_t elements[2], strides[2];
    *order = (CudaDotOrder){0};
    for (int32_t k = 0; k < 2; k++) {
        int32_t first = result.batch_count + (k == 0 ? 0 : result.free_counts[0]);
        sort_free(order->free[k], result.strides + first, result.free_counts[k]);
        strides[k] = free_stride(&elements[k], &result, order, k);
    }
    for (int32_t d = 0; d < result.batch_count; d++) order->batch_strides[d] = result.strides[d];
    for (int32_t rows = 0; rows < 2; rows++) {
        int64_t width = elements[1 - rows];
        order->rows_of = rows;
        order->row_stride = elements[rows] == 1 ? width : strides[rows];
        if ((width == 1 || strides[1 - rows] == 1) && order->row_stride >= width) return true;
    }
    return false;
}

/* Fixes batch dimensions that come first in the result until a slice has at most `most` bytes. Slices begin
 * at multiples of COPY_ALIGNMENT. */
static void fix_batches(CudaDotOrder *order, const Result *result, int64_t element_bytes, int64_t most) {
    int64_t elements = strided_elements(result->sizes, result->rank);
    for (int32_t d = 0; d < result->rank && elements * element_bytes > most; d++) {
        int64_t natural = result->natural[d];
        if (natural >= result->batch_count || result->strides[natural] * element_bytes % COPY_ALIGNMENT != 0)
            return;
        order->fixed[natural] = true;
        order->fixed_batch[order->fixed_count] = (int32_t)natural;
        order->fixed_strides[order->fixed_count++] = result->strides[natural];
        elements /= result->sizes[natural];
    }
}

bool cuda_dot_slices(CudaDotOrder *order, const KernelCall *call) {
    Result result = describe_result(call);
    bool is_natural = true;
    for (int32_t d = 0; d < result.rank; d++) is_natural = is_natural && result.natural[d] == d;
    if (is_natural) return false;
    *order = (CudaDotOrder){.sliced = true};
    for (int32_t k = 0; k < 2; k++)
        for (int32_t d = 0; d < result.free_counts[k]; d++) order->free[k][d] = d;
    fix_batches(order, &result, dtype_bytes(call->result_shapes[0]->type),
                cuda_device_of(call->device)->slice_bytes);
    int64_t sizes[IR_MAX_RANK], strides[IR_MAX_RANK];
    for (int32_t d = 0; d < result.rank; d++) sizes[d] = order->fixed[d] ? 1 : result.sizes[d];
    strided_row_major(strides, sizes, result.rank);
    for (int32_t d = 0; d < result.batch_count; d++) order->batch_strides[d] = strides[d];
    order->row_stride =
        strided_elements(sizes + result.batch_count + result.free_counts[0], result.free_counts[1]);
    for (int32_t d = 0; d < result.rank; d++)
        cuda_pack_add(&order->copy, sizes[result.natural[d]], strides[result.natural[d]]);
    return true;
}
