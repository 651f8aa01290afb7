/* What XLA's back end for CPUs makes of the operators of a program before it fuses them.
 *
 * Equal operators on equal operands are one (HloCSE). A sum, or a greatest or least value, over at least 4096
 * floats is a fusion that a library (YNNPACK) runs:
 *
 *     m = sum(x) / n    d = x - m    v = sum(d * d)
 *     fusions: {sum}, {multiply, sum};  d has a buffer if others read it
 *
 * Upwards it takes in operators whose readers are all inside, downwards those that alone read its result.
 * They compute each element by itself or repeat elements. Other fusions take no part of it in, and all its
 * other operands have buffers. The sources of the rules are XLA's LibraryRewriter and YnnMatcher.
 */
#ifndef COST_STEP_XLA_REWRITES_H
#define COST_STEP_XLA_REWRITES_H

#include "lowering/program/program.h"

/* Copies a program into `*merged`, with the values, regions and arena of `program`, so that readers of equal
 * values read the first one. Dimensions of size 1 make no difference. Outputs are kept. */
AmStatus xla_merge_equal(Program *merged, const Program *program, const bool *is_output, AmError *error);
/* Sets fusion[value], for all values of the program, to the last node of the library fusion that computes it;
 * -1: none does. `order`: the nodes, producers first. `is_output`: values that are alive at the end. */
AmStatus xla_library_fusions(int32_t *fusion, const Program *program, const int32_t *order,
                             int32_t order_count, const bool *is_output, AmError *error);
/* Returns whether XLA splits a reduction into several, of at most 32 elements each (TreeReductionRewriter):
 * one that is in no library fusion and is longer in a dimension. The first of them needs its operand in
 * memory. */
bool xla_is_split_reduction(const Program *program, const ProgramInstruction *instruction);

#endif
