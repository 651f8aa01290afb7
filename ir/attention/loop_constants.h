/* Loop constants: values that a loop carries unchanged and that depend on no parameter, such as a mask of
 * positions that is made before a loop over layers. */
#ifndef IR_ATTENTION_LOOP_CONSTANTS_H
#define IR_ATTENTION_LOOP_CONSTANTS_H

#include "ir/attention/attention.h"

/* Fills `*same` [instruction], in the arena, as IrAttentions.same. Computations that `is_body` marks
 * count. */
AmStatus ir_find_loop_constants(int32_t **same, Arena *arena, const IrModule *canonical, const bool *is_body,
                                AmError *error);

#endif
