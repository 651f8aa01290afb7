/* From a kernel call to its source: checks the types, then the family's part. */
#include "executor/cuda/source_text.h"

AmStatus cuda_source_refuse(const KernelCall *call, const char *reason, AmError *error) {
    return kernel_refuse(call->program, call->instruction->origin, call->instruction->opcode, reason, error);
}

static AmStatus refuse_type(const KernelCall *call, AmError *error) {
    if (call->instruction) return cuda_source_refuse(call, "no arithmetic on this element type", error);
    const ProgramFusionOp *op = call->fusion->op_count > 0 ? &call->fusion->ops[0] : NULL;
    return kernel_refuse(call->program, op ? op->origin : -1, op ? op->opcode : IR_UNKNOWN,
                         "no arithmetic on this element type", error);
}

AmStatus cuda_source_make(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error) {
    if (call->instruction && !cuda_source_covers(call->instruction->opcode))
        return cuda_source_refuse(call, "it is not a generated kernel", error);
    for (int32_t k = 0; k < call->operand_count + call->result_count; k++) {
        const IrShape *shape =
            k < call->operand_count ? call->operand_shapes[k] : call->result_shapes[k - call->operand_count];
        if (!cuda_memory_type(shape->type)) return refuse_type(call, error);
    }
    bool reduces = call->instruction && call->instruction->opcode == IR_REDUCE;
    TRY((reduces ? cuda_source_reduce : cuda_source_elements)(source, arena, call, error));
    if (source->blocks > CUDA_MOST_BLOCKS)
        return am_fail(error, AM_ERROR_INPUT, "", "a kernel of %lld blocks is more than a grid holds",
                       (long long)source->blocks);
    return AM_OK;
}
