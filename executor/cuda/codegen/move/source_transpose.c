/* transpose and slice: packs of one operand, in tiles or in words (pack.h). */
#include "executor/array/strided.h"
#include "executor/cuda/codegen/move/pack.h"
#include "executor/cuda/codegen/source_text.h"

AmStatus cuda_source_transpose(CudaSource *source, const KernelCall *call, AmError *error) {
    const IrShape *operand = call->operand_shapes[0], *result = call->result_shapes[0];
    int64_t strides[IR_MAX_RANK];
    CudaPack pack = {0};
    strided_row_major(strides, operand->dimensions, operand->rank);
    for (int32_t d = 0; d < result->rank; d++)
        cuda_pack_add(&pack, result->dimensions[d], strides[call->attributes->dimensions[d]]);
    return cuda_source_move(source, "transpose", &pack, result->type, error);
}

AmStatus cuda_source_slice(CudaSource *source, const KernelCall *call, AmError *error) {
    const IrShape *operand = call->operand_shapes[0], *result = call->result_shapes[0];
    const IrAttributes *attributes = call->attributes;
    int64_t strides[IR_MAX_RANK];
    CudaPack pack = {0};
    strided_row_major(strides, operand->dimensions, operand->rank);
    for (int32_t d = 0; d < result->rank; d++) {
        pack.offset += attributes->slice_start[d] * strides[d];
        cuda_pack_add(&pack, result->dimensions[d],
                      strides[d] * (attributes->slice_stride ? attributes->slice_stride[d] : 1));
    }
    return cuda_source_move(source, "slice", &pack, result->type, error);
}
