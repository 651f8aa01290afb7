/* The least cost of a pipeline over all cuts, and over all widths of its stages in any order: a bound of its
 * step (docs/planning.md, Bounds of pipelines, 5).
 *
 * A step takes at least as long as each of its paths (pipeline_paths.h), and so as any mean of them. A state
 * is the number of the stages so far and that of their devices. Each kind of path has a potential at each
 * state: 0 at the first, monotone, and all kinds together 1 at the last. The path that stays on a stage has
 * as weight the increase of its potential on that stage, so that the weights of every pipeline add up to 1. A
 * second of work of stage s in an iteration then has the weight
 *
 *     once * (potential of the last state) + above * (increase on earlier stages) + more * (increase here)
 *
 * which depends on its state, its width and its places alone. The least weighted sum over all cuts is
 * therefore a shortest path over states and places. An item that a border may divide counts with its least
 * cost anywhere, if the stage of its first place ends before it does.
 */
#ifndef PLANNERS_BOUNDS_CUT_TABLES_H
#define PLANNERS_BOUNDS_CUT_TABLES_H

#include "base/status.h"
#include "planners/bounds/pipeline_paths.h"
#include "planners/bounds/work_groups.h"

/* The seconds of a class in one iteration on stages of one width. */
typedef struct ClassSeconds {
    double of[PATH_PASSES][BOUND_ORDERS];
} ClassSeconds;

/* Returns the seconds of every pass and order, each times its weight: weights [PATH_PASSES *
 * BOUND_ORDERS]. */
static inline double class_seconds_weighed(const double *weights, const ClassSeconds *seconds) {
    double sum = 0;
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        for (int32_t order = 0; order < BOUND_ORDERS; order++)
            sum += weights[pass * BOUND_ORDERS + order] * seconds->of[pass][order];
    return sum;
}

/* The share of each kind of path in the mean; adds up to 1. */
typedef struct PathMix {
    double share[PATH_KINDS];
} PathMix;

/* A choice of potentials: those by which each stage would have equal weighted work, if all work were alike.
 * `once` and `above` are factors on work that passes a stage. They are below 1, since a part of the work lies
 * on borders. */
typedef struct CutMix {
    PathMix paths;
    double once, above;
} CutMix;

typedef struct CutWork {
    int32_t micro_batches, devices, places; /* places of borders in [0, places - 1) */
    int32_t width_count, class_count, placed_count;
    const int32_t *widths;
    const ClassSeconds *seconds; /* [class * width_count + width] */
    const Placed *placed;
} CutWork;

/* Tables of a work; in an arena, with that. */
typedef struct CutTables CutTables;

AmStatus cut_tables_create(CutTables **tables, Arena *arena, const CutWork *work, AmError *error);

/* Returns the bound in seconds for a number of stages with a choice of potentials, improved by that many
 * steps of subgradient ascent, or until it is `enough`. 0: the problem is too large, or memory is exhausted;
 * INFINITY: no widths add up to all devices. */
double cut_tables_bound(const CutTables *tables, int32_t stages, const CutMix *mix, int32_t ascent_steps,
                        double enough);

#endif
