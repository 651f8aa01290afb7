/* Sums over devices begin early and are waited for late, and while products wait for a collective others are
 * computed, so that a device computes while it communicates.
 */
#ifndef LOWERING_PASSES_REDUCE_EARLY_H
#define LOWERING_PASSES_REDUCE_EARLY_H

#include "lowering/program/program.h"

/* The number of sums that begin before the result of one is used by an instruction that is not
 * urgent; for sums of at most this many bytes, or of this fraction of all reduced bytes if that is
 * more (a layer of a large model), since their operands and results occupy memory meanwhile. */
#define REDUCE_EARLY_UNDER_WAY 2
#define REDUCE_EARLY_BYTES     ((int64_t)128 << 20)
#define REDUCE_EARLY_PART      64

/* Returns whether the instruction is an all_reduce or a reduce_scatter. */
bool program_reduces(const ProgramInstruction *instruction);
/* Returns whether the instruction is such a sum of at most that size, or gathers a value reduced in
 * this way (gathers_late), and may be awaited late. */
bool program_reduces_beside(const Program *program, const ProgramInstruction *instruction);

/* Orders the instructions of a program that is neither fused nor has buffers. Which order does not
 * depend on what part of a tensor a rank has, so that all ranks find the same. */
AmStatus program_reduce_early(Program *program, AmError *error);

#endif
