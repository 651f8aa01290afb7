/* Gathers of stored weights begin before their users' iteration, so that a device computes while they are
 * under way.
 */
#ifndef LOWERING_PASSES_GATHER_AHEAD_H
#define LOWERING_PASSES_GATHER_AHEAD_H

#include "lowering/passes/instruction_order.h"

/* The limit of bytes that are gathered and not yet used: this many, or this fraction of all
 * gathered bytes if that is more (a layer of a large model), but at most another fraction of all.
 * One gather may always be ahead, if it and the one before it are together at most the larger of
 * the first two. */
#define GATHER_AHEAD_BYTES     ((int64_t)128 << 20)
#define GATHER_AHEAD_PART      64
#define GATHER_AHEAD_MOST_PART 8

/* Changes an order of groups (program_order(); `leader` [instruction] as there) in which `late`
 * instructions come directly before the first group that uses them: such gathers, with their
 * sources, move before the users of earlier ones. The order does not depend on the shard of a rank.
 */
AmStatus program_gather_ahead(int32_t *order, Arena *arena, const Program *program, const ProgramGraph *graph,
                              const int32_t *leader, const bool *late, AmError *error);

#endif
