/* A lower bound on a step: what its products alone take.
 *
 * Dots and convolutions are split only by a candidate of their factors that an axis's list holds (what
 * completion decides later concerns element-wise operators, views and reductions), and no device does more
 * than one of them at a time. So with w(p) the devices that the lists may split product p among,
 *
 *     step >= sum over products p of times(p) * (launch + FLOPs(p) / w(p) / best rate from that size on)
 *
 * where the best rate covers pieces of any larger size, because an efficiency curve may be so steep that a
 * larger product takes less time.
 */
#ifndef PLANNERS_PRODUCT_BOUND_H
#define PLANNERS_PRODUCT_BOUND_H

#include "planners/problem.h"

typedef struct ProductBound ProductBound;

/* Which candidates an axis's list may hold: [axis][candidate]. */
typedef struct AllowedCandidates {
    bool may[GENOME_AXES][UINT8_MAX + 1];
} AllowedCandidates;

/* In the arena. Where operators are priced by measurements, or exceptions decide about single instructions,
 * the bound is 0. AM_ERROR_INTERNAL without memory. */
AmStatus product_bound_create(ProductBound **bound, Arena *arena, const Problem *problem, AmError *error);

/* Seconds that every plan takes whose lists hold none but these candidates. */
double product_bound_seconds(const ProductBound *bound, const AllowedCandidates *allowed);

#endif
