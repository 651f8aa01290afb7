/* Operators that only move elements, as strided boxes: broadcast, transpose,
 * slice, pad, concatenate, reverse, reshape and copy, constants, iota,
 * dynamic-slice and dynamic-update-slice.
 *
 * Each is prepared as a list of boxes (offset and strides on both sides); pad
 * first fills its result, the dynamic operators add offsets that they read.
 */
#include <string.h>

#include "executor/array/scalar64.h"
#include "executor/array/strided.h"
#include "executor/cpu/cpu.h"
#include "executor/cpu/divide.h"

typedef struct Box {
    int32_t operand, rank;
    int64_t out_at, in_at; /* offsets in elements */
    int64_t dimensions[IR_MAX_RANK], out_strides[IR_MAX_RANK], in_strides[IR_MAX_RANK];
} Box;

typedef struct MoveKernel {
    int32_t count;
    int64_t element_bytes, result_bytes;
    Box *boxes;
} MoveKernel;

static void copy_box(const KernelCall *call, const MoveKernel *kernel, const Box *box) {
    const BoxCopy copy = {.out = (char *)call->results[0] + box->out_at * kernel->element_bytes,
                          .out_strides = box->out_strides,
                          .in =
                              (const char *)call->operands[box->operand] + box->in_at * kernel->element_bytes,
                          .in_strides = box->in_strides,
                          .dimensions = box->dimensions,
                          .rank = box->rank,
                          .element_bytes = kernel->element_bytes};
    divided_copy(call->device, &copy);
}

static void run_boxes(const KernelCall *call) {
    const MoveKernel *kernel = call->compiled;
    for (int32_t k = 0; k < kernel->count; k++) copy_box(call, kernel, &kernel->boxes[k]);
}

/* Makes a kernel of `count` boxes whose result is dense; the caller fills the rest in. */
static AmStatus new_kernel(MoveKernel **kernel, KernelCall *call, Arena *arena, int32_t count,
                           AmError *error) {
    const IrShape *shape = call->result_shapes[0];
    *kernel = ARENA_ARRAY(arena, MoveKernel, 1);
    if (!*kernel) return am_fail_memory(error, (int64_t)sizeof **kernel);
    (*kernel)->boxes = ARENA_ARRAY(arena, Box, count + 1);
    if (!(*kernel)->boxes) return am_fail_memory(error, (int64_t)sizeof(Box) * count);
    (*kernel)->count = count;
    (*kernel)->element_bytes = dtype_bytes(shape->type);
    (*kernel)->result_bytes = ir_shape_bytes(shape);
    for (int32_t k = 0; k < count; k++) {
        Box *box = &(*kernel)->boxes[k];
        box->rank = shape->rank;
        for (int32_t d = 0; d < shape->rank; d++) box->dimensions[d] = shape->dimensions[d];
        strided_row_major(box->out_strides, shape->dimensions, shape->rank);
    }
    call->compiled = *kernel;
    call->run = run_boxes;
    return AM_OK;
}

AmStatus cpu_prepare_broadcast(KernelCall *call, Arena *arena, AmError *error) {
    MoveKernel *kernel;
    TRY(new_kernel(&kernel, call, arena, 1, error));
    const IrShape *operand = call->operand_shapes[0];
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, operand->dimensions, operand->rank);
    for (int32_t d = 0; d < operand->rank; d++)
        kernel->boxes->in_strides[call->attributes->dimensions[d]] = strides[d];
    return AM_OK;
}

AmStatus cpu_prepare_transpose(KernelCall *call, Arena *arena, AmError *error) {
    MoveKernel *kernel;
    TRY(new_kernel(&kernel, call, arena, 1, error));
    const IrShape *operand = call->operand_shapes[0];
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, operand->dimensions, operand->rank);
    for (int32_t d = 0; d < operand->rank; d++)
        kernel->boxes->in_strides[d] = strides[call->attributes->dimensions[d]];
    return AM_OK;
}

/* Makes a kernel of one box with the strides of the operand. */
static AmStatus new_operand_box(Box **box, KernelCall *call, Arena *arena, AmError *error) {
    const IrShape *operand = call->operand_shapes[0];
    MoveKernel *kernel;
    TRY(new_kernel(&kernel, call, arena, 1, error));
    *box = kernel->boxes;
    strided_row_major((*box)->in_strides, operand->dimensions, operand->rank);
    return AM_OK;
}

AmStatus cpu_prepare_slice(KernelCall *call, Arena *arena, AmError *error) {
    const IrShape *operand = call->operand_shapes[0];
    const IrAttributes *attributes = call->attributes;
    Box *box;
    TRY(new_operand_box(&box, call, arena, error));
    for (int32_t d = 0; d < operand->rank; d++) {
        box->in_at += attributes->slice_start[d] * box->in_strides[d];
        if (attributes->slice_stride) box->in_strides[d] *= attributes->slice_stride[d];
    }
    return AM_OK;
}

AmStatus cpu_prepare_reverse(KernelCall *call, Arena *arena, AmError *error) {
    const IrShape *operand = call->operand_shapes[0];
    const IrAttributes *attributes = call->attributes;
    Box *box;
    TRY(new_operand_box(&box, call, arena, error));
    for (int32_t k = 0; k < attributes->dimension_count; k++) {
        int64_t d = attributes->dimensions[k];
        if (operand->dimensions[d] == 0) continue;
        box->in_at += (operand->dimensions[d] - 1) * box->in_strides[d];
        box->in_strides[d] = -box->in_strides[d];
    }
    return AM_OK;
}

AmStatus cpu_prepare_concatenate(KernelCall *call, Arena *arena, AmError *error) {
    MoveKernel *kernel;
    TRY(new_kernel(&kernel, call, arena, call->operand_count, error));
    int64_t dimension = call->attributes->dimensions[0], start = 0;
    for (int32_t k = 0; k < call->operand_count; k++) {
        const IrShape *operand = call->operand_shapes[k];
        Box *box = &kernel->boxes[k];
        box->operand = k;
        box->dimensions[dimension] = operand->dimensions[dimension];
        box->out_at = start * box->out_strides[dimension];
        strided_row_major(box->in_strides, operand->dimensions, operand->rank);
        start += operand->dimensions[dimension];
    }
    return AM_OK;
}

static void run_pad(const KernelCall *call) {
    const MoveKernel *kernel = call->compiled;
    divided_fill(call->device, call->results[0], call->operands[1],
                 kernel->result_bytes / kernel->element_bytes, kernel->element_bytes);
    run_boxes(call);
}

/* Prepares a pad. Operand element i gets place low + i*(interior + 1); elements outside of the result are
 * dropped. */
AmStatus cpu_prepare_pad(KernelCall *call, Arena *arena, AmError *error) {
    MoveKernel *kernel;
    TRY(new_kernel(&kernel, call, arena, 1, error));
    const IrShape *operand = call->operand_shapes[0];
    Box *box = kernel->boxes;
    strided_row_major(box->in_strides, operand->dimensions, operand->rank);
    for (int32_t d = 0; d < operand->rank; d++) {
        const IrPadding *padding = &call->attributes->padding[d];
        int64_t step = padding->interior + 1, size = operand->dimensions[d];
        int64_t first = padding->low < 0 ? (-padding->low + step - 1) / step : 0;
        int64_t room = box->dimensions[d] - padding->low; /* positions from low on */
        int64_t end = room <= 0 ? 0 : (room + step - 1) / step;
        if (end > size) end = size;
        int64_t out_first = padding->low + first * step;
        box->dimensions[d] = end > first ? end - first : 0;
        box->in_at += first * box->in_strides[d];
        box->out_at += out_first * box->out_strides[d];
        box->out_strides[d] *= step;
    }
    call->run = run_pad;
    return AM_OK;
}

static void run_reshape(const KernelCall *call) {
    const MoveKernel *kernel = call->compiled;
    if (call->results[0] != call->operands[0])
        divided_copy_bytes(call->device, call->results[0], call->operands[0], kernel->result_bytes);
}

AmStatus cpu_prepare_reshape(KernelCall *call, Arena *arena, AmError *error) {
    MoveKernel *kernel;
    TRY(new_kernel(&kernel, call, arena, 0, error));
    if (ir_shape_bytes(call->operand_shapes[0]) != kernel->result_bytes)
        return kernel_call_refuse(call, "operand and result differ in size", error);
    call->run = run_reshape;
    return AM_OK;
}

static void run_constant(const KernelCall *call) {
    const MoveKernel *kernel = call->compiled;
    memcpy(call->results[0], call->instruction->compute.literal->data, (size_t)kernel->result_bytes);
}

AmStatus cpu_prepare_constant(KernelCall *call, Arena *arena, AmError *error) {
    MoveKernel *kernel;
    TRY(new_kernel(&kernel, call, arena, 0, error));
    const IrLiteral *literal = call->instruction->compute.literal;
    if (!literal || !literal->data || literal->bytes < kernel->result_bytes)
        return kernel_call_refuse(call, "the constant's value is not in the file (written {...})", error);
    call->run = run_constant;
    return AM_OK;
}

static void run_iota(const KernelCall *call) {
    const IrShape *shape = call->result_shapes[0];
    int64_t dimension = call->attributes->dimensions[0], inner = 1, at = 0;
    int64_t bytes = dtype_bytes(shape->type), elements = ir_shape_elements(shape);
    const ProgramShard *shard = call->instruction->compute.shard;
    int64_t start = shard ? shard->start[dimension] : 0;
    for (int32_t d = (int32_t)dimension + 1; d < shape->rank; d++) inner *= shape->dimensions[d];
    char *out = call->results[0];
    for (int64_t group = 0; at < elements; at += inner, group++) {
        Scalar64 value = {.as_signed = start + group % shape->dimensions[dimension]};
        if (dtype_is_complex(shape->type)) memset(out + at * bytes, 0, (size_t)bytes);
        scalar64_store(out + at * bytes, dtype_real_part(shape->type), &value, SCALAR64_SIGNED, 1, 1);
        strided_fill(out + at * bytes, out + at * bytes, inner, bytes);
    }
}

AmStatus cpu_prepare_iota(KernelCall *call, Arena *arena, AmError *error) {
    (void)arena;
    if (!scalar64_supports(dtype_real_part(call->result_shapes[0]->type)))
        return kernel_call_refuse(call, "not on this type", error);
    call->run = run_iota;
    return AM_OK;
}

/* Returns the offset of the clamped starts of the dynamic operators: scalars from operand `first` on. */
static int64_t dynamic_offset(const KernelCall *call, int32_t first, const IrShape *array,
                              const int64_t *sizes, const int64_t *strides) {
    int64_t at = 0;
    for (int32_t d = 0; d < array->rank; d++) {
        int64_t start = scalar64_index(call->operands[first + d], call->operand_shapes[first + d]->type, 0);
        int64_t most = array->dimensions[d] - sizes[d];
        if (start > most) start = most;
        if (start < 0) start = 0;
        at += start * strides[d];
    }
    return at;
}

static void run_dynamic_slice(const KernelCall *call) {
    const MoveKernel *kernel = call->compiled;
    Box box = kernel->boxes[0];
    box.in_at = dynamic_offset(call, 1, call->operand_shapes[0], box.dimensions, box.in_strides);
    copy_box(call, kernel, &box);
}

static bool has_scalar_indices(const KernelCall *call, int32_t first) {
    if (call->operand_count - first != call->operand_shapes[0]->rank) return false;
    for (int32_t k = first; k < call->operand_count; k++)
        if (call->operand_shapes[k]->rank != 0 || !dtype_is_integer(call->operand_shapes[k]->type))
            return false;
    return true;
}

AmStatus cpu_prepare_dynamic_slice(KernelCall *call, Arena *arena, AmError *error) {
    MoveKernel *kernel;
    TRY(new_kernel(&kernel, call, arena, 1, error));
    if (!has_scalar_indices(call, 1)) return kernel_call_refuse(call, "not with these indices", error);
    if (call->instruction->compute.shard) return cpu_prepare_dynamic_part(call, arena, error);
    strided_row_major(kernel->boxes->in_strides, call->operand_shapes[0]->dimensions,
                      call->operand_shapes[0]->rank);
    call->run = run_dynamic_slice;
    return AM_OK;
}

static void run_dynamic_update_slice(const KernelCall *call) {
    const MoveKernel *kernel = call->compiled;
    Box box = kernel->boxes[0];
    box.out_at = dynamic_offset(call, 2, call->result_shapes[0], box.dimensions, box.out_strides);
    run_reshape(call);
    copy_box(call, kernel, &box);
}

AmStatus cpu_prepare_dynamic_update_slice(KernelCall *call, Arena *arena, AmError *error) {
    MoveKernel *kernel;
    TRY(new_kernel(&kernel, call, arena, 1, error));
    if (!has_scalar_indices(call, 2)) return kernel_call_refuse(call, "not with these indices", error);
    if (call->instruction->compute.shard) return cpu_prepare_dynamic_part(call, arena, error);
    const IrShape *update = call->operand_shapes[1];
    Box *box = kernel->boxes;
    box->operand = 1;
    for (int32_t d = 0; d < update->rank; d++) box->dimensions[d] = update->dimensions[d];
    strided_row_major(box->in_strides, update->dimensions, update->rank);
    call->run = run_dynamic_update_slice;
    return AM_OK;
}
