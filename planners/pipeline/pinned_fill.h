/* pinned_fill_find(): stages of the numbers of devices that pins need, on all devices of the cluster. A
 * search with few evaluations makes the tables of these stages first. */
#ifndef PLANNERS_PIPELINE_PINNED_FILL_H
#define PLANNERS_PIPELINE_PINNED_FILL_H

#include "planners/pipeline/stage_model.h"

/* Marks the classes of places [class_count] of the fewest stages that have all devices and, for each number
 * of replicate() and split(), a width that it divides; `*stages` is their number. NULL and 0 without such
 * pins, and where no stages are so. In the arena. */
AmStatus pinned_fill_find(bool **classes, int32_t *stages, Arena *arena, const StageModel *model,
                          AmError *error);

#endif
