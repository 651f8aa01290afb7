/* Recomputation: forward values that the backward pass computes again instead of keeping them.
 *
 * A module is rewritten, exactly: for a range of forward operators, the backward pass uses copies,
 * computed directly before their use from the inputs of the range and from the operators of the range
 * whose values are saved. A range is what is elsewhere called a checkpoint segment, for instance a
 * layer. Without saved values this is full recomputation, else selective. The copies have phase
 * "recomputed"; as in a module traced with jax.checkpoint, pipelines compute them on the stage of
 * the forward operator.
 */
#ifndef LOWERING_MICRO_BATCH_RECOMPUTE_H
#define LOWERING_MICRO_BATCH_RECOMPUTE_H

#include "lowering/micro_batch/micro_batches.h"

/* Creates the rewritten canonical module; the caller frees it. `*origins` [instruction]: that of `primary`
 * which it is, or copies (`*is_copy`); both in its arena. */
AmStatus recompute_emit(IrModule **module, int32_t **origins, bool **is_copy, const PlanContext *primary,
                        const PlanRecomputation *recomputed, AmError *error);

/* Sets range_of[entry instruction]: the range in which it is recomputed; -1 if its value is saved, or if a
 * forward operator outside uses it, so that it is kept. */
AmStatus recompute_ranges(int32_t *range_of, Arena *arena, const PlanContext *primary,
                          const PlanRecomputation *recomputed, AmError *error);

/* Returns whether an operator in a range is recomputed; loops, conditionals, custom calls, random
 * numbers drawn from a hidden state and tuples are kept. */
bool recompute_covers(const PlanContext *primary, int32_t i);

#endif
