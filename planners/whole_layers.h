/* Plans whose stages hold whole layers, as systems want them that count layers. */
#ifndef PLANNERS_WHOLE_LAYERS_H
#define PLANNERS_WHOLE_LAYERS_H

#include "propagation/plan.h"

/* The plan with every cut at a place nearest to its own where no layer (layer_path.h) has weights on both
 * sides, and a layer between any two cuts; all else as it was, in the arena. *moved_count: how many cuts are
 * elsewhere than before. AM_ERROR_INFEASIBLE: the module has too few layers. */
AmStatus plan_with_whole_layers(Plan **moved, int32_t *moved_count, Arena *arena, const PlanContext *whole,
                                const Plan *plan, bool evenly, AmError *error);

#endif
