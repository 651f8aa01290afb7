/* What a pipeline pays at the least, wherever it is cut, and whatever widths its stages have in whatever
 * order: a bound of its step (docs/optimality.md, Pipelines, 6).
 *
 * A state is what the stages so far are: how many, on how many devices together. Each kind of path has a
 * height at each state: 0 at the first, never less at a later one, and at the last state all kinds have 1
 * together. A path that stays on a stage counts by as much as its height rises there, so that the counts of
 * every pipeline add up to 1 and its step is at least the mean of its paths. What stage s takes in a turn
 * then counts
 *
 *     once at the last state's height, above at what heights rose on the stages before, more at the rise
 *
 * (pipeline_paths.h), which is known by its state, its width and its places alone. So the least over all cuts
 * is a shortest path over states and places. An item that a border may divide counts where the stage of its
 * first place ends before it does: the least that it pays anywhere, across a border.
 */
#ifndef PLANNERS_BOUND_CUTS_H
#define PLANNERS_BOUND_CUTS_H

#include "base/status.h"
#include "planners/bound_groups.h"
#include "planners/pipeline_paths.h"

/* What stages of one width take for a class in one turn. */
typedef struct ClassSeconds {
    double of[PATH_PASSES][BOUND_ORDERS];
} ClassSeconds;

/* What is counted of each path; adds up to 1. */
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

/* The bound for a number of stages with a choice of heights, and with those that so many `moves` then find,
 * or the first that is `enough`. 0: there is too much to be looked at, or no memory; INFINITY: no widths add
 * up to all devices. */
double cut_tables_bound(const CutTables *tables, int32_t stages, const CutMix *mix, int32_t moves,
                        double enough);

#endif
