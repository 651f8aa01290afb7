/* Topological order of a list of instructions, ties by a given position. */
#ifndef IR_TOPOLOGICAL_ORDER_H
#define IR_TOPOLOGICAL_ORDER_H

#include "ir/module.h"

/* Sorts by Kahn's algorithm with a heap that yields the smallest position first. Operands and control
 * predecessors are indices into instructions[0..count) after `base` is subtracted. `positions` may be NULL:
 * the index itself. `order` [count] receives indices; scratch memory comes from `scratch`. Returns the number
 * of instructions ordered: less than `count` if there is a cycle, -1 if memory ran out. */
int32_t ir_topological_order(int32_t *order, const IrInstruction *instructions, int32_t count, int32_t base,
                             const int64_t *positions, Arena *scratch);

#endif
