/* Names of repeated layers, written as ranges: "params['layer'][{0..5,12}]['kernel']". */
#ifndef PLANNERS_EXPLAIN_LAYER_NAMES_H
#define PLANNERS_EXPLAIN_LAYER_NAMES_H

#include "planners/baselines/layer_path.h"

/* Paths that differ in the number of the layer only. */
typedef struct LayerName {
    LayerPath path;   /* of the first of them */
    int64_t *numbers; /* different ones, ascending */
    int32_t count, capacity;
} LayerName;

/* Adds the layer number of another path of the same stack; memory is the arena's. A path without a number
 * adds nothing. */
void layer_name_add(Arena *arena, LayerName *name, int64_t number);
/* Appends the first path up to byte `end`, with the numbers in place of its own. */
void layer_name_append(Text *text, const LayerName *name, int32_t end);

#endif
