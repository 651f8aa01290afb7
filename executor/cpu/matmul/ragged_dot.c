/* ragged-dot: products of matrices in groups whose sizes are known as the program
 * runs; the groups lie one after another along the ragged dimension of the left
 * side.
 *
 * Ragged and free: row r of group g is multiplied with matrix g of the right side,
 * result [batch, left free, right free]; rows after the last group are 0. Ragged
 * and contracted: every group adds up its own part of the sum, result [group,
 * batch, left free, right free]. One element at a time, in double or in integers
 * that wrap.
 */
#include "executor/cpu/matmul/ragged_dot.h"

#include <string.h>

#include "base/int_list.h"
#include "executor/array/scalar64.h"
#include "executor/array/strided.h"
#include "executor/cpu/cpu.h"
#include "ir/hlo.pb-c.h"

static int64_t offset_of(const int64_t *index, const int64_t *strides, int32_t rank) {
    int64_t at = 0;
    for (int32_t d = 0; d < rank; d++) at += index[d] * strides[d];
    return at;
}

/* Finds the bounds of group g, cut at the end. */
static void find_group(const KernelCall *call, int64_t g, int64_t length, int64_t *start, int64_t *end) {
    const void *sizes = call->operands[2];
    Dtype type = call->operand_shapes[2]->type;
    *start = *end = 0;
    for (int64_t k = 0; k <= g; k++) {
        int64_t size = scalar64_index(sizes, type, k);
        if (size < 0) size = 0;
        *start = *end;
        *end = size > length - *end ? length : *end + size;
    }
}

/* Returns the group that row r is in, or -1. */
static int64_t group_of(const KernelCall *call, int64_t groups, int64_t row, int64_t length) {
    for (int64_t g = 0; g < groups; g++) {
        int64_t start, end;
        find_group(call, g, length, &start, &end);
        if (row >= start && row < end) return g;
    }
    return -1;
}

static Scalar64 sum_products(const KernelCall *call, int64_t left_at, int64_t right_at, int64_t start,
                             int64_t end) {
    const RaggedDot *kernel = call->compiled;
    Scalar64Kind kind = scalar64_kind(kernel->result_type);
    Scalar64 sum = {.as_unsigned = 0}, x, y;
    int64_t index[IR_MAX_RANK] = {0};
    if (strided_elements(kernel->contracted, kernel->contracted_rank) == 0) return sum;
    do {
        if (kernel->contracts && (index[kernel->ragged] < start || index[kernel->ragged] >= end)) continue;
        int64_t a = left_at + offset_of(index, kernel->contracted_left, kernel->contracted_rank);
        int64_t b = right_at + offset_of(index, kernel->contracted_right, kernel->contracted_rank);
        scalar64_load(&x, (const char *)call->operands[0] + a * dtype_bytes(kernel->left_type),
                      kernel->left_type, 1, 1);
        scalar64_load(&y, (const char *)call->operands[1] + b * dtype_bytes(kernel->right_type),
                      kernel->right_type, 1, 1);
        scalar64_fold(&x, &y, kind, SBP_MULTIPLY, 1);
        scalar64_fold(&sum, &x, kind, SBP_ADD, 1);
    } while (strided_next(index, kernel->contracted, kernel->contracted_rank));
    return sum;
}

static void run_ragged_dot(const KernelCall *call) {
    const RaggedDot *kernel = call->compiled;
    int64_t elements = strided_elements(kernel->result, kernel->result_rank), index[IR_MAX_RANK] = {0};
    int64_t bytes = dtype_bytes(kernel->result_type);
    for (int64_t at = 0; at < elements; at++) {
        int64_t left_at = offset_of(index, kernel->left, kernel->result_rank), start = 0, end = 0;
        int64_t right_at = offset_of(index, kernel->right, kernel->result_rank), group = 0;
        if (kernel->contracts) {
            find_group(call, index[0], kernel->contracted[kernel->ragged], &start, &end);
        } else {
            group = group_of(call, kernel->groups, index[kernel->ragged], kernel->result[kernel->ragged]);
            right_at += group * kernel->group_stride;
        }
        Scalar64 sum = {.as_unsigned = 0};
        if (group >= 0) sum = sum_products(call, left_at, right_at, start, end);
        scalar64_store((char *)call->results[0] + at * bytes, kernel->result_type, &sum,
                       scalar64_kind(kernel->result_type), 1, 1);
        strided_next(index, kernel->result, kernel->result_rank);
    }
}

/* Adds a dimension of the result, with its strides on both sides. */
static void add_dimension(RaggedDot *kernel, int64_t size, int64_t left, int64_t right) {
    kernel->result[kernel->result_rank] = size;
    kernel->left[kernel->result_rank] = left;
    kernel->right[kernel->result_rank++] = right;
}

/* Returns false if the dimension numbers do not fit the shapes. */
static bool describe_dimensions(RaggedDot *kernel, const KernelCall *call,
                                const Hlo__RaggedDotDimensionNumbers *numbers) {
    const Hlo__DotDimensionNumbers *dot = numbers->dot_dimension_numbers;
    const IrShape *left = call->operand_shapes[0], *right = call->operand_shapes[1];
    int64_t left_strides[IR_MAX_RANK], right_strides[IR_MAX_RANK], ragged = numbers->lhs_ragged_dimensions[0];
    strided_row_major(left_strides, left->dimensions, left->rank);
    strided_row_major(right_strides, right->dimensions, right->rank);
    size_t contracting = dot->n_lhs_contracting_dimensions, batches = dot->n_lhs_batch_dimensions;
    if (dot->n_rhs_contracting_dimensions != contracting || dot->n_rhs_batch_dimensions != batches ||
        ragged < 0 || ragged >= left->rank || int_list_contains(dot->lhs_batch_dimensions, batches, ragged))
        return false;
    kernel->contracts = int_list_contains(dot->lhs_contracting_dimensions, contracting, ragged);
    if (numbers->n_rhs_group_dimensions != (kernel->contracts ? 0 : 1)) return false;
    int64_t group = kernel->contracts ? -1 : numbers->rhs_group_dimensions[0];
    if (!kernel->contracts && (group < 0 || group >= right->rank)) return false;
    kernel->groups = call->operand_shapes[2]->dimensions[0];
    if (!kernel->contracts && right->dimensions[group] != kernel->groups) return false;
    if (group >= 0) kernel->group_stride = right_strides[group];
    if (kernel->contracts) add_dimension(kernel, kernel->groups, 0, 0);
    for (size_t k = 0; k < batches; k++) {
        int64_t a = dot->lhs_batch_dimensions[k], b = dot->rhs_batch_dimensions[k];
        if (a < 0 || a >= left->rank || b < 0 || b >= right->rank || kernel->result_rank >= IR_MAX_RANK ||
            left->dimensions[a] != right->dimensions[b])
            return false;
        add_dimension(kernel, left->dimensions[a], left_strides[a], right_strides[b]);
    }
    for (size_t k = 0; k < contracting; k++) {
        int64_t a = dot->lhs_contracting_dimensions[k], b = dot->rhs_contracting_dimensions[k];
        if (a < 0 || a >= left->rank || b < 0 || b >= right->rank || kernel->contracted_rank >= IR_MAX_RANK ||
            left->dimensions[a] != right->dimensions[b])
            return false;
        if (a == ragged) kernel->ragged = kernel->contracted_rank;
        kernel->contracted[kernel->contracted_rank] = left->dimensions[a];
        kernel->contracted_left[kernel->contracted_rank] = left_strides[a];
        kernel->contracted_right[kernel->contracted_rank++] = right_strides[b];
    }
    for (int32_t d = 0; d < left->rank; d++) {
        if (int_list_contains(dot->lhs_batch_dimensions, batches, d) ||
            int_list_contains(dot->lhs_contracting_dimensions, contracting, d))
            continue;
        if (kernel->result_rank >= IR_MAX_RANK) return false;
        if (d == ragged) kernel->ragged = kernel->result_rank;
        add_dimension(kernel, left->dimensions[d], left_strides[d], 0);
    }
    for (int32_t d = 0; d < right->rank; d++) {
        if (int_list_contains(dot->rhs_batch_dimensions, batches, d) || d == group ||
            int_list_contains(dot->rhs_contracting_dimensions, contracting, d))
            continue;
        if (kernel->result_rank >= IR_MAX_RANK) return false;
        add_dimension(kernel, right->dimensions[d], 0, right_strides[d]);
    }
    const IrShape *result = call->result_shapes[0];
    bool fits = result->rank == kernel->result_rank;
    for (int32_t d = 0; fits && d < result->rank; d++) fits = result->dimensions[d] == kernel->result[d];
    return fits;
}

AmStatus ragged_dot_read(RaggedDot *kernel, const KernelCall *call, AmError *error) {
    const IrModule *module = call->program->module;
    int32_t origin = call->instruction->origin;
    const Hlo__HloInstructionProto *message =
        origin >= 0 && origin < module->instruction_count ? module->instructions[origin].message : NULL;
    const Hlo__RaggedDotDimensionNumbers *numbers = message ? message->ragged_dot_dimension_numbers : NULL;
    if (!numbers || !numbers->dot_dimension_numbers || numbers->n_lhs_ragged_dimensions != 1 ||
        call->operand_count != 3 || call->operand_shapes[2]->rank != 1 ||
        !dtype_is_integer(call->operand_shapes[2]->type))
        return kernel_call_refuse(call, "only with one ragged dimension and one list of group sizes", error);
    kernel->left_type = call->operand_shapes[0]->type;
    kernel->right_type = call->operand_shapes[1]->type;
    kernel->result_type = call->result_shapes[0]->type;
    if (!scalar64_supports(kernel->left_type) || !scalar64_supports(kernel->right_type) ||
        !scalar64_supports(kernel->result_type) ||
        dtype_is_floating(kernel->left_type) != dtype_is_floating(kernel->result_type) ||
        dtype_is_floating(kernel->right_type) != dtype_is_floating(kernel->result_type))
        return kernel_call_refuse(call, "not on these types", error);
    if (!describe_dimensions(kernel, call, numbers))
        return kernel_call_refuse(call, "its dimension numbers do not fit its shapes", error);
    return AM_OK;
}

AmStatus cpu_prepare_ragged_dot(KernelCall *call, Arena *arena, AmError *error) {
    RaggedDot *kernel = ARENA_ARRAY(arena, RaggedDot, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    TRY(ragged_dot_read(kernel, call, error));
    call->compiled = kernel;
    call->run = run_ragged_dot;
    return AM_OK;
}
