/* Recomputation: forward values that the backward pass computes again instead of keeping them.
 *
 * A module is rewritten, exactly: for a range of forward operators, the backward pass uses copies,
 * computed directly before their use from the inputs of the range, which alone are kept. A range is
 * what is elsewhere called a checkpoint segment, for instance a layer. The copies have phase
 * "recomputed"; as in a module traced with jax.checkpoint, pipelines compute them on the stage of
 * the forward operator.
 */
#ifndef LOWERING_MICRO_BATCH_RECOMPUTE_H
#define LOWERING_MICRO_BATCH_RECOMPUTE_H

#include "lowering/micro_batch/micro_batches.h"

/* The rewritten canonical module; the caller frees it. `*origins` [instruction]: that of `whole` which it is,
 * or copies (`*is_copy`); both in its arena. */
AmStatus recompute_emit(IrModule **module, int32_t **origins, bool **is_copy, const PlanContext *whole,
                        const RecomputedRanges *ranges, AmError *error);

#endif
