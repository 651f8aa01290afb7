/* The least payment of a pipeline over all cuts, and over all widths of its stages in any order: a
 * bound of its step (docs/planning.md, Bounds of pipelines, 6).
 *
 * A state describes the stages so far: their number, and the number of their devices. Each kind of
 * path has a height at each state: 0 at the first, monotone, and at the last state all kinds have 1
 * together. A path that stays on a stage has as weight the increase of its height there, so that
 * the weights of every pipeline add up to 1 and its step is at least the mean of its paths. The
 * seconds of stage s in an iteration then count
 *
 *     once at the last state's height, above at the increase on earlier stages, more at the increase here
 *
 * (pipeline_paths.h), which depend on its state, its width and its places alone. The least over all
 * cuts is therefore a shortest path over states and places. An item that a border may divide counts
 * with its least payment anywhere, if the stage of its first place ends before it does.
 */
#ifndef PLANNERS_BOUNDS_BOUND_CUTS_H
#define PLANNERS_BOUNDS_BOUND_CUTS_H

#include "base/status.h"
#include "planners/bounds/bound_groups.h"
#include "planners/bounds/pipeline_paths.h"

/* The seconds of a class in one iteration on stages of one width. */
typedef struct ClassSeconds {
    double of[PATH_PASSES][BOUND_ORDERS];
} ClassSeconds;

/* The weight of each path; adds up to 1. */
typedef struct PathMix {
    double share[PATH_KINDS];
} PathMix;

/* A choice of heights: those by which each stage would have counted as much, if all work were alike and
 * `once` and `above` as large parts of its passing as stages take that work which passes them least. */
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

/* The bound for a number of stages with a choice of heights, improved by `moves` steps, or until it
 * is `enough`. 0: the problem is too large, or memory is exhausted; INFINITY: no widths add up to
 * all devices. */
double cut_tables_bound(const CutTables *tables, int32_t stages, const CutMix *mix, int32_t moves,
                        double enough);

#endif
