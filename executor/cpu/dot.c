/* dot: batched matrix products in any layout.
 *
 * The dimensions of each operand are batch, contracted or free; the result is
 * [batch, left free, right free]. Where the free and the contracted dimensions
 * of an operand each step through memory evenly and one of the two strides is
 * 1, BLAS reads it as it lies (transposed or not); otherwise it is packed to
 * [batch, free, contracted] first. f32, f64, c64 and c128 go to OpenBLAS, f16 and bf16 are
 * widened to f32 and the product rounded once, integers run in a plain loop
 * that wraps in 64 bits.
 */
#include <cblas.h>
#include <limits.h>
#include <string.h>

#include "executor/cpu/cpu.h"
#include "executor/cpu/strided.h"
#include "executor/cpu/wide.h"

/* One operand as matrices [free, contracted]. */
typedef struct Side {
    bool pack;
    int64_t packed_at; /* offset in the scratch memory */
    int32_t batch_rank, rank;
    int64_t dimensions[IR_MAX_RANK], strides[IR_MAX_RANK]; /* batch, free, contracted; as it lies */
    int64_t batch_strides[IR_MAX_RANK];                    /* of what is multiplied */
    int64_t free_stride, contracted_stride;                /* of what is multiplied */
} Side;

typedef struct DotKernel {
    Side left, right;
    Dtype type; /* in which it is multiplied: f32, f64, or integers as s64 */
    Dtype left_type, right_type, result_type;
    int32_t batch_rank;
    int64_t batch_dimensions[IR_MAX_RANK];
    int64_t batch, rows, columns, depth;
    int64_t result_at; /* scratch offset of the product before rounding; -1: written in place */
} DotKernel;

static bool contains(const int64_t *list, int32_t count, int64_t value) {
    for (int32_t k = 0; k < count; k++)
        if (list[k] == value) return true;
    return false;
}

/* The one stride with which the dimensions [first, end) are stepped through in
 * order, or -1. A product of sizes of 1 gives stride 1. */
static int64_t joint_stride(const Side *side, int32_t first, int32_t end) {
    int64_t stride = -1, expected = 0;
    for (int32_t d = end - 1; d >= first; d--) {
        if (side->dimensions[d] == 1) continue;
        if (stride < 0) stride = side->strides[d];
        else if (side->strides[d] != expected) return -1;
        expected = side->strides[d] * side->dimensions[d];
    }
    return stride < 0 ? 1 : stride;
}

/* Sorts an operand's dimensions into batch, free, contracted and decides whether it must be packed. */
static void lay_out(Side *side, const IrShape *shape, const int64_t *batch, int32_t batch_count,
                    const int64_t *contracting, int32_t contracting_count, bool must_pack) {
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, shape->dimensions, shape->rank);
    int32_t n = 0;
    for (int32_t k = 0; k < batch_count; k++, n++) {
        side->dimensions[n] = shape->dimensions[batch[k]];
        side->strides[n] = strides[batch[k]];
    }
    for (int32_t d = 0; d < shape->rank; d++) {
        if (contains(batch, batch_count, d) || contains(contracting, contracting_count, d)) continue;
        side->dimensions[n] = shape->dimensions[d];
        side->strides[n++] = strides[d];
    }
    int32_t free_end = n;
    for (int32_t k = 0; k < contracting_count; k++, n++) {
        side->dimensions[n] = shape->dimensions[contracting[k]];
        side->strides[n] = strides[contracting[k]];
    }
    side->rank = n;
    side->batch_rank = batch_count;
    int64_t rows = strided_elements(side->dimensions + batch_count, free_end - batch_count);
    int64_t depth = strided_elements(side->dimensions + free_end, n - free_end);
    side->free_stride = joint_stride(side, batch_count, free_end);
    side->contracted_stride = joint_stride(side, free_end, n);
    bool usable = side->free_stride > 0 && side->contracted_stride > 0 &&
                  (side->free_stride == 1 || side->contracted_stride == 1 || rows == 1 || depth == 1) &&
                  side->free_stride <= INT_MAX && side->contracted_stride <= INT_MAX;
    /* A matrix of one row or column may claim stride 1 along what it lacks. */
    if (usable && rows == 1 && side->contracted_stride != 1) side->free_stride = 1;
    if (usable && depth == 1 && side->free_stride != 1) side->contracted_stride = 1;
    side->pack = must_pack || !usable;
    memcpy(side->batch_strides, side->strides, sizeof(int64_t) * (size_t)batch_count);
    if (side->pack) {
        side->free_stride = depth;
        side->contracted_stride = 1;
        int64_t stride = rows * depth;
        for (int32_t d = batch_count - 1; d >= 0; d--) {
            side->batch_strides[d] = stride;
            stride *= side->dimensions[d];
        }
    }
}

/* Packs an operand to [batch, free, contracted] in the type of the product. */
static const void *pack(const Side *side, const void *data, Dtype from, Dtype to, char *scratch) {
    if (!side->pack) return data;
    char *out = scratch + side->packed_at;
    int64_t elements = strided_elements(side->dimensions, side->rank), bytes = dtype_bytes(to);
    if (from == to) {
        int64_t strides[IR_MAX_RANK];
        strided_row_major(strides, side->dimensions, side->rank);
        strided_copy(out, strides, data, side->strides, side->dimensions, side->rank, bytes);
        return out;
    }
    uint64_t narrow[WIDE_RUN];
    Wide wide[WIDE_RUN];
    for (int64_t at = 0; at < elements; at += WIDE_RUN) {
        int64_t n = elements - at < WIDE_RUN ? elements - at : WIDE_RUN;
        strided_load(narrow, data, side->strides, side->dimensions, side->rank, at, n, dtype_bytes(from));
        wide_load(wide, narrow, from, n, 1);
        wide_store(out + at * bytes, to, wide, wide_kind(from), n, 1);
    }
    return out;
}

static int leading(const Side *side) {
    int64_t stride = side->contracted_stride == 1 ? side->free_stride : side->contracted_stride;
    return (int)stride;
}

static int at_least(int value, int64_t least) {
    return value < least ? (int)least : value < 1 ? 1 : value;
}

static void multiply_integers(const DotKernel *kernel, int64_t *out, const int64_t *left,
                              const int64_t *right) {
    for (int64_t i = 0; i < kernel->rows; i++)
        for (int64_t j = 0; j < kernel->columns; j++) {
            uint64_t sum = 0;
            const int64_t *x = left + i * kernel->left.free_stride,
                          *y = right + j * kernel->right.free_stride;
            for (int64_t k = 0; k < kernel->depth; k++)
                sum += (uint64_t)x[k * kernel->left.contracted_stride] *
                       (uint64_t)y[k * kernel->right.contracted_stride];
            out[i * kernel->columns + j] = (int64_t)sum;
        }
}

/* One product out[rows, columns] = left[rows, depth] right[columns, depth]^T. */
static void multiply(const DotKernel *kernel, void *out, const void *left, const void *right) {
    if (kernel->type == DTYPE_S64) {
        multiply_integers(kernel, out, left, right);
        return;
    }
    bool left_plain = kernel->left.contracted_stride == 1, right_plain = kernel->right.contracted_stride == 1;
    enum CBLAS_TRANSPOSE left_as = left_plain ? CblasNoTrans : CblasTrans;
    enum CBLAS_TRANSPOSE right_as = right_plain ? CblasTrans : CblasNoTrans;
    int rows = (int)kernel->rows, columns = (int)kernel->columns, depth = (int)kernel->depth;
    int left_leading = at_least(leading(&kernel->left), left_plain ? depth : rows);
    int right_leading = at_least(leading(&kernel->right), right_plain ? depth : columns);
    static const double one[2] = {1, 0}, zero[2];
    static const float single_one[2] = {1, 0}, single_zero[2];
    if (kernel->type == DTYPE_C64)
        cblas_cgemm(CblasRowMajor, left_as, right_as, rows, columns, depth, single_one, left, left_leading,
                    right, right_leading, single_zero, out, columns);
    else if (kernel->type == DTYPE_C128)
        cblas_zgemm(CblasRowMajor, left_as, right_as, rows, columns, depth, one, left, left_leading, right,
                    right_leading, zero, out, columns);
    else if (kernel->type == DTYPE_F32)
        cblas_sgemm(CblasRowMajor, left_as, right_as, rows, columns, depth, 1.0f, left, left_leading, right,
                    right_leading, 0.0f, out, columns);
    else
        cblas_dgemm(CblasRowMajor, left_as, right_as, rows, columns, depth, 1.0, left, left_leading, right,
                    right_leading, 0.0, out, columns);
}

static void run_dot(const KernelCall *call) {
    const DotKernel *kernel = call->compiled;
    int64_t elements = kernel->batch * kernel->rows * kernel->columns;
    if (elements == 0) return;
    if (kernel->depth == 0) {
        char *sum = call->results[0];
        const Wide zero[2] = {{.floating = 0}}; /* f8e8m0fnu has none: it becomes a NaN */
        Dtype part = dtype_real_part(kernel->result_type);
        wide_store(sum, part, zero, wide_kind(part), part == kernel->result_type ? 1 : 2, 1);
        strided_fill(sum, sum, elements, dtype_bytes(kernel->result_type));
        return;
    }
    char *scratch = call->scratch;
    const char *left = pack(&kernel->left, call->operands[0], kernel->left_type, kernel->type, scratch);
    const char *right = pack(&kernel->right, call->operands[1], kernel->right_type, kernel->type, scratch);
    char *out = kernel->result_at < 0 ? call->results[0] : scratch + kernel->result_at;
    int64_t bytes = dtype_bytes(kernel->type), index[IR_MAX_RANK] = {0};
    for (int64_t b = 0; b < kernel->batch; b++) {
        int64_t left_at = 0, right_at = 0;
        for (int32_t d = 0; d < kernel->batch_rank; d++) {
            left_at += index[d] * kernel->left.batch_strides[d];
            right_at += index[d] * kernel->right.batch_strides[d];
        }
        multiply(kernel, out + b * kernel->rows * kernel->columns * bytes, left + left_at * bytes,
                 right + right_at * bytes);
        strided_next(index, kernel->batch_dimensions, kernel->batch_rank);
    }
    if (kernel->result_at < 0) return;
    Wide wide[WIDE_RUN];
    for (int64_t at = 0; at < elements; at += WIDE_RUN) {
        int64_t n = elements - at < WIDE_RUN ? elements - at : WIDE_RUN;
        wide_load(wide, out + at * bytes, kernel->type, n, 1);
        wide_store((char *)call->results[0] + at * dtype_bytes(kernel->result_type), kernel->result_type,
                   wide, wide_kind(kernel->type), n, 1);
    }
}

static Dtype product_type(Dtype left, Dtype right, Dtype result) {
    if (dtype_is_complex(result)) return left == result && right == result ? result : DTYPE_INVALID;
    if (!wide_supports(left) || !wide_supports(right) || !wide_supports(result)) return DTYPE_INVALID;
    if (left == DTYPE_F64 || right == DTYPE_F64 || result == DTYPE_F64) return DTYPE_F64;
    return dtype_is_floating(result) ? DTYPE_F32 : DTYPE_S64;
}

AmStatus cpu_prepare_dot(KernelCall *call, Arena *arena, AmError *error) {
    const IrDot *dot = call->instruction->attributes->dot;
    const IrShape *left = call->operand_shapes[0], *right = call->operand_shapes[1];
    DotKernel *kernel = ARENA_ARRAY(arena, DotKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    kernel->left_type = left->type;
    kernel->right_type = right->type;
    kernel->result_type = call->result_shapes[0]->type;
    kernel->type = product_type(left->type, right->type, kernel->result_type);
    if (!dot || kernel->type == DTYPE_INVALID) return kernel_call_refuse(call, "not on these types", error);
    lay_out(&kernel->left, left, dot->lhs_batch, dot->batch_count, dot->lhs_contracting,
            dot->contracting_count, left->type != kernel->type);
    lay_out(&kernel->right, right, dot->rhs_batch, dot->batch_count, dot->rhs_contracting,
            dot->contracting_count, right->type != kernel->type);
    const Side *side = &kernel->left;
    int32_t free_end = side->rank - dot->contracting_count;
    kernel->batch_rank = dot->batch_count;
    memcpy(kernel->batch_dimensions, side->dimensions, sizeof(int64_t) * (size_t)dot->batch_count);
    kernel->batch = strided_elements(side->dimensions, dot->batch_count);
    kernel->rows = strided_elements(side->dimensions + dot->batch_count, free_end - dot->batch_count);
    kernel->depth = strided_elements(side->dimensions + free_end, dot->contracting_count);
    kernel->columns = strided_elements(kernel->right.dimensions + dot->batch_count,
                                       kernel->right.rank - dot->batch_count - dot->contracting_count);
    if (kernel->rows > INT_MAX || kernel->columns > INT_MAX || kernel->depth > INT_MAX)
        return kernel_call_refuse(call, "a dimension is above 2^31", error);
    int64_t scratch = 0, bytes = dtype_bytes(kernel->type);
    kernel->left.packed_at = scratch;
    if (kernel->left.pack) scratch += kernel_align(ir_shape_elements(left) * bytes);
    kernel->right.packed_at = scratch;
    if (kernel->right.pack) scratch += kernel_align(ir_shape_elements(right) * bytes);
    kernel->result_at = -1;
    if (kernel->result_type != kernel->type) {
        kernel->result_at = scratch;
        scratch += kernel_align(ir_shape_elements(call->result_shapes[0]) * bytes);
    }
    call->scratch_bytes = scratch;
    call->compiled = kernel;
    call->run = run_dot;
    return AM_OK;
}
