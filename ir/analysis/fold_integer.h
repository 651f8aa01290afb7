/* Operators on known integers: sums of counters, comparisons of a loop's conditions, starts of slices. */
#ifndef IR_ANALYSIS_FOLD_INTEGER_H
#define IR_ANALYSIS_FOLD_INTEGER_H

#include "ir/module.h"

/* Returns whether a value of the type can be `number`; of 64-bit types only below 2^62 in absolute value. */
bool ir_integer_fits(Dtype type, int64_t number);

/* Computes an operator on scalars. `type`: integer or pred, of the result; `comparison`: of IR_COMPARE, or
 * NULL; `operands`: as many as the opcode has. Returns false, and leaves *result undefined, for other
 * opcodes, an unknown comparison, a division by a number below 1, and a result that does not fit the type. */
bool ir_fold_integer(int64_t *result, IrOpcode opcode, const char *comparison, Dtype type,
                     const int64_t *operands);

#endif
