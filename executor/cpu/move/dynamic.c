/* Operators on arrays whose sizes are found out while the program runs, as far as
 * the sizes are known beforehand: get-dimension-size, and set-dimension-size and
 * dynamic-reshape where they change nothing. Arrays here have one size, so
 * anything else is refused.
 */
#include "executor/cpu/move/dynamic.h"

#include "executor/array/scalar64.h"
#include "executor/cpu/cpu.h"

AmStatus dynamic_read_size(int64_t *size, const KernelCall *call, AmError *error) {
    const IrAttributes *attributes = call->attributes;
    if (attributes->dimension_count != 1 || attributes->dimensions[0] < 0 ||
        attributes->dimensions[0] >= call->operand_shapes[0]->rank ||
        !dtype_is_integer(call->result_shapes[0]->type))
        return kernel_call_refuse(call, "it names no dimension", error);
    if (call->instruction->compute.shard) return kernel_call_refuse(call, "not of a part of an array", error);
    *size = call->operand_shapes[0]->dimensions[attributes->dimensions[0]];
    return AM_OK;
}

static void run_get_dimension_size(const KernelCall *call) {
    const IrShape *operand = call->operand_shapes[0];
    Scalar64 size = {.as_signed = operand->dimensions[call->attributes->dimensions[0]]};
    scalar64_store(call->results[0], call->result_shapes[0]->type, &size, SCALAR64_SIGNED, 1, 1);
}

AmStatus cpu_prepare_get_dimension_size(KernelCall *call, Arena *arena, AmError *error) {
    int64_t size;
    (void)arena;
    TRY(dynamic_read_size(&size, call, error));
    call->run = run_get_dimension_size;
    return AM_OK;
}

/* Returns whether operand k of the instruction in the file is the constant `value`. */
static bool is_constant(const KernelCall *call, int32_t k, int64_t value) {
    const IrModule *module = call->program->module;
    int32_t origin = call->instruction->origin;
    if (origin < 0 || origin >= module->instruction_count || k >= module->instructions[origin].operand_count)
        return false;
    const IrInstruction *size = &module->instructions[module->instructions[origin].operands[k]];
    return size->opcode == IR_CONSTANT && size->literal && size->literal->data && size->shape.rank == 0 &&
           dtype_is_integer(size->shape.type) && size->literal->bytes >= dtype_bytes(size->shape.type) &&
           scalar64_index(size->literal->data, size->shape.type, 0) == value;
}

AmStatus dynamic_check_static(const KernelCall *call, AmError *error) {
    const IrShape *result = call->result_shapes[0];
    if (call->instruction->opcode == IR_SET_DIMENSION_SIZE) {
        const IrAttributes *attributes = call->attributes;
        const IrShape *operand = call->operand_shapes[0];
        if (attributes->dimension_count != 1 || attributes->dimensions[0] < 0 ||
            attributes->dimensions[0] >= operand->rank || !ir_shape_equal(operand, call->result_shapes[0]))
            return kernel_call_refuse(call, "it names no dimension", error);
        if (!is_constant(call, 1, operand->dimensions[attributes->dimensions[0]]))
            return kernel_call_refuse(call, "sizes that change while the program runs are not supported",
                                      error);
        return AM_OK;
    }
    bool is_static = call->operand_count == 1 + result->rank &&
                     ir_shape_elements(call->operand_shapes[0]) == ir_shape_elements(result) &&
                     call->operand_shapes[0]->type == result->type;
    for (int32_t d = 0; is_static && d < result->rank; d++)
        is_static = is_constant(call, 1 + d, result->dimensions[d]);
    if (!is_static)
        return kernel_call_refuse(call, "sizes that change while the program runs are not supported", error);
    return AM_OK;
}

AmStatus cpu_prepare_dynamic(KernelCall *call, Arena *arena, AmError *error) {
    TRY(dynamic_check_static(call, error));
    return cpu_prepare_reshape(call, arena, error);
}
