/* The passes over a lowered program that have no header of their own, in the order in which they run. */
#ifndef LOWERING_PASSES_PASSES_H
#define LOWERING_PASSES_PASSES_H

#include "lowering/program/program.h"

/* Moves a transpose of the sum over devices of a product before the sum. */
AmStatus program_transpose_before_reducing(Program *program, AmError *error);
/* Merges independent collectives of one kind, group, reduction and type. */
AmStatus program_merge_collectives(Program *program, AmError *error);
/* Transposes beside dots into the dots; before program_fuse(). */
AmStatus program_absorb_transposes(Program *program, AmError *error);
/* Fuses: sums into the products that make their terms, element-wise chains into fusions, steps in order.
 * Deterministic, linear but for the ordering heap. */
AmStatus program_fuse(Program *program, AmError *error);
/* Finds row groups among the steps; program_fuse() calls it where execution.fuses_rows is set. */
AmStatus program_find_row_groups(Program *program, AmError *error);
/* Returns whether a step of a group of `rows` rows reads an operand only in the rows that it computes. */
bool program_reads_by_rows(const Program *program, const ProgramStep *step, int32_t operand, int64_t rows);
/* Plans offsets for all values: parameters first, temporaries best-fit by lifetime. A step may write over an
 * input that dies there: if it reads it element by element, changes a part of it (dynamic-update-slice, whose
 * result may then be operand 0's own memory), adds a product to it, or carries it in a loop. Regions must
 * have been planned before. */
AmStatus program_plan_buffers(Program *program, AmError *error);

#endif
