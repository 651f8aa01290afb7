/* Operators on sizes that are known beforehand: the size of a dimension as a
 * number, and copies by the operators that would change a size (executor/cpu/move/dynamic.h). */
#include "executor/cpu/move/dynamic.h"
#include "executor/cuda/codegen/source_text.h"

AmStatus cuda_source_dimension_size(CudaSource *source, const KernelCall *call, AmError *error) {
    int64_t size;
    Text body = {0};
    TRY(dynamic_read_size(&size, call, error));
    cuda_append_signature(&body, call, source, NULL, false);
    text_append(&body, "    out0[0] = (%s)%lldll;\n}\n", cuda_memory_type(call->result_shapes[0]->type),
                (long long)size);
    return cuda_source_launch(source, "dimension_size", &body, 1, 1, error);
}

AmStatus cuda_source_same_elements(CudaSource *source, const KernelCall *call, AmError *error) {
    TRY(dynamic_check_static(call, error));
    if (ir_shape_elements(call->result_shapes[0]) == 0) return AM_OK;
    return cuda_source_copy_operand(source, call, error);
}
