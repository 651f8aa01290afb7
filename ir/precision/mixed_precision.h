/* Mixed precision: a training step of f32 becomes one whose products compute in bf16.
 *
 *     y = f32[8,16] dot(x, w)      w16 = bf16[4,16] convert(w)
 *                                  y   = bf16[8,16] dot(x16, w16)
 *
 * 1. Matrix products and convolutions outside the optimizer have operands and results of bf16.
 * 2. Operators with FACT_16BIT_SAFE are bf16 if they are between products and follow from products, weights
 *    and constants alone, through such operators and moves.
 * 3. Moves have the type of their operand, or that of their readers if all of these read bf16.
 * 4. Everything else stays f32: reductions, exponentials, statistics, losses, the optimizer.
 * Parameters and outputs keep their types. Each weight is converted at most once.
 */
#ifndef IR_PRECISION_MIXED_PRECISION_H
#define IR_PRECISION_MIXED_PRECISION_H

#include "ir/analysis/roles.h"

typedef struct IrPrecisionCounts {
    int32_t products; /* in bf16 */
    int32_t kept;     /* products of f32 that stay: those of the optimizer */
    int32_t computed; /* other operators that compute in bf16 */
    int32_t casts;    /* conversions that were inserted */
} IrPrecisionCounts;

/* Makes the module in mixed precision, as if it had been read from `read->source`; ir_module_free() releases
 * it. `canonical` is the canonical module of `read`, `roles` its roles. AM_ERROR_INPUT: no product of f32 is
 * outside the optimizer. */
AmStatus ir_mixed_precision(IrModule **mixed, IrPrecisionCounts *counts, const IrModule *read,
                            const IrModule *canonical, const IrRoles *roles, AmError *error);

#endif
