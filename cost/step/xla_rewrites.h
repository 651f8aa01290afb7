/* The operators of a program after the passes of XLA's back end for CPUs that come before fusion.
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
/* Changes a merged program where XLA's partitioner, or the passes after it, run other operators. `bytes` and
 * `workspace`, both [value]: bytes that the result has where it is no shard, and that the operator has beside
 * it; 0 elsewhere.
 *
 * - A reshape that joins dimensions gathers its operand if one but the first is split.
 * - A convolution with groups that some devices split runs unsplit on each, unless each group has one
 *   feature or all devices split the groups alone.
 * - A gathered array has a copy in another layout, unless its first dimension is the gathered one.
 * - A product without contracted dimensions is a multiplication.
 * - A partial value that a loop carries, and that is scattered after it to update a stored shard, is a shard
 * in the loop already. */
AmStatus xla_partition(Program *merged, const bool *is_output, int64_t *bytes, int64_t *workspace,
                       AmError *error);
/* Returns the bytes of the global array of a value. */
int64_t xla_global_bytes(const Program *program, int32_t value);
/* Sets fusion[value], for all values of the program, to the last node of the library fusion that computes it;
 * -1: none does. `order`: the nodes, producers first. `is_output`: values that are alive at the end. */
AmStatus xla_library_fusions(int32_t *fusion, const Program *program, const int32_t *order,
                             int32_t order_count, const bool *is_output, AmError *error);
/* Returns whether XLA splits a reduction into several, of at most 32 elements each (TreeReductionRewriter):
 * one that is in no library fusion and is longer in a dimension. The first of them needs its operand in
 * memory. */
bool xla_is_split_reduction(const Program *program, const ProgramInstruction *instruction);

#endif
