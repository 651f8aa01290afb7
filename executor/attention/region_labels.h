/* Labels of the dimensions of a region: dimensions that every instruction steps through as one have one
 * label.
 *
 * A reshape may join or divide dimensions: a dimension has a list of labels, outermost first, whose
 * sizes multiply to its own. In
 *
 *   x = f32[2,8,64] parameter(0)  y = f32[2,4,2,64] reshape(x)  z = f32[2,4,2,64] exponential(y)
 *
 * the dimensions of y and z have the labels a, b, c, d, and those of x have a, (b, c), d. Dimensions of size
 * 1 have no label.
 */
#ifndef EXECUTOR_ATTENTION_REGION_LABELS_H
#define EXECUTOR_ATTENTION_REGION_LABELS_H

#include "lowering/program/program.h"

typedef struct ValueLabels {
    int32_t count;
    const int32_t *list; /* [count], row-major: those of dimension 0 first */
    const int32_t *ends; /* [rank]: where the labels of each dimension end in `list` */
} ValueLabels;

typedef struct RegionLabels {
    int32_t count;
    const int64_t *sizes; /* [label] */
    const bool *is_fixed; /* [label]: some instruction needs all of it */
    ValueLabels *values;  /* [value] */
} RegionLabels;

/* Finds the labels of all values of the region, in the arena. AM_ERROR_INPUT: an operator is none of dot,
 * reduce, broadcast, transpose, reshape, iota, constant and the element-wise ones, or a value has no
 * elements. */
AmStatus region_labels_find(RegionLabels *labels, Arena *arena, const Program *region, AmError *error);

/* Returns whether a dimension of the value has the label. */
bool region_labels_has(const RegionLabels *labels, int32_t value, int32_t label);

#endif
