/* FLOPs of one instruction, as XLA's cost analysis counts them: dot and
 * convolution 2 per multiply-add (valid positions only for convolution),
 * element-wise 1 per element, reduce one operation per input element less
 * results, data movement 0. Bytes are operands plus result, counted by callers.
 */
#ifndef IR_FLOPS_H
#define IR_FLOPS_H

#include "ir/module.h"

/* For given operand and result shapes, which may be those of a shard. */
double ir_flops(const IrModule *module, const IrInstruction *instruction, const IrShape *operands,
                const IrShape *result);

#endif
