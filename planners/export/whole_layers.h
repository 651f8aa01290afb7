/* Moves the cuts of a pipeline to boundaries of layers. Megatron-LM and torchtitan divide a model into stages
 * of whole layers, while the search also cuts inside a layer.
 */
#ifndef PLANNERS_EXPORT_WHOLE_LAYERS_H
#define PLANNERS_EXPORT_WHOLE_LAYERS_H

#include "propagation/plan/plan.h"

/* Moves every cut to the nearest place where no layer (layer_path.h) has weights on both sides, with a layer
 * between any two cuts. The plan is otherwise unchanged, in the arena. *moved_count: the number of moved
 * cuts. AM_ERROR_INFEASIBLE: the module has too few layers. */
AmStatus plan_with_whole_layers(Plan **moved, int32_t *moved_count, Arena *arena, const PlanContext *primary,
                                const Plan *plan, bool evenly, AmError *error);

#endif
