/* Makes the source of a kernel call.
 *
 * A table of families has the writer of each opcode: element-wise operators, moves, windows, sorts and
 * others, each a file of this folder. cuda_source_make() checks types and sizes first, for all families.
 */
#include "executor/cuda/codegen/source_text.h"

static const struct {
    IrOpcode opcode;
    CudaSourceWriter *write;
} writers[] = {
    {IR_BATCH_NORM_GRAD, cuda_source_batch_norm_gradient},
    {IR_BATCH_NORM_INFERENCE, cuda_source_batch_norm_inference},
    {IR_BATCH_NORM_TRAINING, cuda_source_batch_norm_training},
    {IR_BITCAST_CONVERT, cuda_source_bitcast_convert},
    {IR_CHOLESKY, cuda_source_cholesky},
    {IR_CONCATENATE, cuda_source_concatenate},
    {IR_CONSTANT, cuda_source_constant},
    {IR_CUSTOM_CALL, cuda_source_topk},
    {IR_DYNAMIC_RESHAPE, cuda_source_same_elements},
    {IR_DYNAMIC_SLICE, cuda_source_dynamic_slice},
    {IR_DYNAMIC_UPDATE_SLICE, cuda_source_dynamic_update_slice},
    {IR_GATHER, cuda_source_gather},
    {IR_GET_DIMENSION_SIZE, cuda_source_dimension_size},
    {IR_PAD, cuda_source_pad},
    {IR_RAGGED_DOT, cuda_source_ragged_dot},
    {IR_REDUCE, cuda_source_reduce},
    {IR_REDUCE_WINDOW, cuda_source_reduce_window},
    {IR_RNG, cuda_source_rng},
    {IR_RNG_BIT_GENERATOR, cuda_source_random_bits},
    {IR_SCATTER, cuda_source_scatter},
    {IR_SELECT_AND_SCATTER, cuda_source_select_and_scatter},
    {IR_SET_DIMENSION_SIZE, cuda_source_same_elements},
    {IR_SLICE, cuda_source_slice},
    {IR_SORT, cuda_source_sort},
    {IR_TOPK, cuda_source_topk},
    {IR_TRANSPOSE, cuda_source_transpose},
    {IR_TRIANGULAR_SOLVE, cuda_source_triangular_solve},
};

static CudaSourceWriter *writer_of(IrOpcode opcode) {
    for (size_t k = 0; k < sizeof writers / sizeof *writers; k++)
        if (writers[k].opcode == opcode) return writers[k].write;
    return cuda_source_is_element_wise(opcode) ? cuda_source_elements : NULL;
}

bool cuda_source_covers(IrOpcode opcode) {
    return opcode != IR_CUSTOM_CALL && writer_of(opcode) != NULL; /* only the custom call TopK is a kernel */
}

AmStatus cuda_source_make(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error) {
    static const char no_numbers[] = "it is on no array of numbers";
    CudaSourceWriter *write = call->instruction ? writer_of(call->instruction->opcode) : cuda_source_elements;
    if (!write) return kernel_call_refuse(call, "it is not a generated kernel", error);
    for (int32_t k = 0; k < call->operand_count; k++)
        if (dtype_bytes(call->operand_shapes[k]->type) == 0)
            return kernel_call_refuse(call, no_numbers, error);
    for (int32_t k = 0; k < call->result_count; k++)
        if (dtype_bytes(call->result_shapes[k]->type) == 0)
            return kernel_call_refuse(call, no_numbers, error);
    *source = (CudaSource){.arena = arena, .parameters = call->operand_count + call->result_count};
    if (source->parameters > CUDA_MOST_PARAMETERS)
        return kernel_call_refuse(call, "it reads and writes more than 512 arrays", error);
    return write(source, call, error);
}
