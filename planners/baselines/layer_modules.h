/* The parts of a transformer layer that trainers recompute selectively.
 *
 * A layer is norm, products of queries, keys and values, core attention, output product, norm, MLP.
 * Its parts:
 *
 * - core attention: from the product of queries and keys up to that with the values, which is saved. Fused
 *   attention has no such part, since it keeps no scores.
 * - norms: from the layer's input up to its first product, and from the sum after the output product up to
 *   the MLP.
 * - MLP: from its first products up to its last one.
 * - light operators: all but attention's products and the first, third, ... product with a weight, which
 *   torchtitan's SelectiveAC saves.
 */
#ifndef PLANNERS_BASELINES_LAYER_MODULES_H
#define PLANNERS_BASELINES_LAYER_MODULES_H

#include "planners/baselines/layer_spans.h"
#include "planners/targets/target.h"

/* Sets recompute->saved for ranges of whole layers, so that they recompute these modules (bits by
 * LayerModule) alone. The arena owns the list. AM_ERROR_INFEASIBLE: a layer lacks one of them. */
AmStatus layer_modules_save(PlanRecomputation *recompute, Arena *arena, const PlanContext *primary,
                            const LayerSpans *spans, uint32_t modules, AmError *error);

#endif
