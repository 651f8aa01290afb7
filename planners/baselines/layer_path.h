/* Layers by the paths of their weights: the first number of a path counts them. */
#ifndef PLANNERS_BASELINES_LAYER_PATH_H
#define PLANNERS_BASELINES_LAYER_PATH_H

#include "propagation/plan/plan.h"

/* "params['layer'][12]['kernel']": bytes before the number, after it, and up to the end of the
 * layer's name. */
typedef struct LayerPath {
    const char *path;
    int32_t before, after, end; /* all the path's length where it has no number */
    int64_t number;             /* -1: none */
} LayerPath;

LayerPath layer_path(const char *path);
/* Returns whether two paths are in layers of one stack. */
bool layer_path_is_same(const LayerPath *a, const LayerPath *b);

/* Returns the path of the weight that a live forward operator of the entry uses, perhaps converted,
 * broadcast or reshaped, or "". layer_first_weight(): of the first such operator from an instruction on.
 * `primary`: the module as read. */
const char *layer_weight_of(const PlanContext *primary, int32_t instruction);
const char *layer_first_weight(const PlanContext *primary, int32_t instruction);
/* Returns the first live forward operator from an instruction of the entry on that its user has named, or
 * -1. */
int32_t layer_first_operator(const PlanContext *primary, int32_t instruction);

#endif
