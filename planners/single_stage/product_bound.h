/* A lower bound on a step: the time of its products alone.
 *
 * Dots and convolutions are split only by a class set of their factors in an axis priority: later
 * decisions of the assignment concern element-wise operators, views and reductions. No device runs
 * more than one product at a time. With w(p) the devices among which the axis priorities may split
 * product p,
 *
 *     step >= sum over products p of times(p) * (launch + FLOPs(p) / w(p) / best rate from that size on)
 *
 * where the best rate covers pieces of any larger size, because an efficiency curve may be so steep
 * that a larger product takes less time.
 */
#ifndef PLANNERS_SINGLE_STAGE_PRODUCT_BOUND_H
#define PLANNERS_SINGLE_STAGE_PRODUCT_BOUND_H

#include "planners/problem/problem.h"

typedef struct ProductBound ProductBound;

/* Which class sets an axis priority may hold: [axis][class set]. */
typedef struct AllowedClassSets {
    bool may[AXIS_PLAN_AXES][UINT8_MAX + 1];
} AllowedClassSets;

/* Allocates in the arena. If operators are priced by measurements, or overrides decide about single
 * instructions, the bound is 0. AM_ERROR_INTERNAL if memory is exhausted. */
AmStatus product_bound_create(ProductBound **bound, Arena *arena, const StageProblem *problem,
                              AmError *error);

/* Returns the seconds that every plan takes whose axis priorities hold none but these class sets. */
double product_bound_seconds(const ProductBound *bound, const AllowedClassSets *allowed);

#endif
