/* Reads the shapes of a batch normalization as [outer, features, inner], and checks those of its operands. */
#include "executor/batch_norm_form.h"

#include "executor/array/strided.h"

AmStatus batch_norm_form_read(BatchNormForm *form, const KernelCall *call, int32_t operands, uint32_t like_x,
                              int32_t results, AmError *error) {
    const IrShape *x = call->operand_shapes[0];
    const IrOptions *options = call->attributes->options;
    int64_t d = options->feature_index;
    if (!dtype_is_floating(x->type)) return kernel_call_refuse(call, "not on this type", error);
    if (call->operand_count != operands || call->result_count != results || d < 0 || d >= x->rank)
        return kernel_call_refuse(call, "not with these operands", error);
    const IrShape vector = {.type = x->type, .rank = 1, .dimensions = x->dimensions + d};
    for (int32_t k = 0; k < operands; k++)
        if (!ir_shape_equal(call->operand_shapes[k], like_x >> k & 1 ? x : &vector))
            return kernel_call_refuse(call, "its operands do not fit together", error);
    for (int32_t k = 0; k < results; k++)
        if (!ir_shape_equal(call->result_shapes[k], k == 0 ? x : &vector))
            return kernel_call_refuse(call, "its results have other shapes", error);
    *form = (BatchNormForm){.outer = strided_elements(x->dimensions, (int32_t)d),
                            .features = x->dimensions[d],
                            .inner = strided_elements(x->dimensions + d + 1, x->rank - (int32_t)d - 1),
                            .type = x->type,
                            .epsilon = options->epsilon,
                            .has_gradient = like_x >> 4 & 1};
    return AM_OK;
}
