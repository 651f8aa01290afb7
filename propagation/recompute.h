/* Recomputation: forward values that the backward pass makes again instead of keeping.
 *
 * A module is rewritten, exactly: for a range of forward operators, what the
 * backward pass takes of them it takes of copies, made right before they are needed from what
 * enters the range, which alone is kept. So a range is what others call a checkpoint
 * segment, a layer for instance. The copies are of phase "recomputed"; as in a module that was
 * traced with jax.checkpoint, pipelines compute them on the stage of the forward operator.
 */
#ifndef PROPAGATION_RECOMPUTE_H
#define PROPAGATION_RECOMPUTE_H

#include "propagation/micro_batches.h"

/* Returns whether an operator in a range is made again; loops, conditionals, custom calls, random numbers
 * drawn from a hidden state and tuples are kept. */
bool recompute_covers(const PlanContext *whole, int32_t instruction);

/* The rewritten canonical module; the caller frees it. `*origins` [instruction]: that of `whole` which it is,
 * or copies (`*is_copy`); both in its arena. */
AmStatus recompute_emit(IrModule **module, int32_t **origins, bool **is_copy, const PlanContext *whole,
                        const RecomputedRanges *ranges, AmError *error);

#endif
