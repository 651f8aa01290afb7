/* The form of a batch normalization, for the kernels of every device.
 *
 * x is [outer, features, inner]: the dimensions before the feature's, the feature's, and those after it. The
 * three operators have operands (x, scale, offset), (x, scale, offset, mean, variance) and (x, scale, mean,
 * variance, gradient).
 */
#ifndef EXECUTOR_BATCH_NORM_FORM_H
#define EXECUTOR_BATCH_NORM_FORM_H

#include "executor/kernels.h"

typedef struct BatchNormForm {
    int64_t outer, features, inner;
    Dtype type;
    double epsilon;
    bool has_gradient; /* operand 4 is shaped like x */
} BatchNormForm;

/* Reads the form of a call with so many operands and results. The first result and the operands of the mask
 * `like_x` are shaped like x, the others have one number per feature. Refuses other shapes, and types that
 * are not floating. */
AmStatus batch_norm_form_read(BatchNormForm *form, const KernelCall *call, int32_t operands, uint32_t like_x,
                              int32_t results, AmError *error);

#endif
