/* The bound over pipelines of one number of micro-batches: tables of what classes of work take, and the bound
 * by windows of places for a number of stages. See bound_pipelines.c and docs/planning.md. */
#ifndef PLANNERS_BOUND_ITERATION_H
#define PLANNERS_BOUND_ITERATION_H

#include "planners/bounds/bound_cuts.h"
#include "planners/bounds/bound_launches.h"
#include "planners/bounds/bound_pipelines.h"
#include "planners/bounds/pipeline_paths.h"

enum {
    BOUND_MOST_STAGES = 64,
    BOUND_MOST_WIDTHS = 31,
    BOUND_MOST_DEVICES = 256,
    BOUND_MOST_MIXES = 7,
    BOUND_WINDOW_KINDS = 2
};

/* The mixes tried for a schedule; the last one is PATH_WORK's. */
typedef struct PathMixes {
    int32_t count;
    PathMix mixes[BOUND_MOST_MIXES];
} PathMixes;

/* The mixes tried for all cuts and widths at once. */
typedef struct CutMixes {
    int32_t count;
    CutMix mixes[BOUND_MOST_MIXES];
} CutMixes;

/* Data common to all numbers of micro-batches. */
typedef struct BoundPipelines {
    Arena *arena;
    const PlanContext *whole;
    const Cluster *cluster;
    const ClusterDeviceType *type;
    const BoundSpace *space;
    BoundGroups groups;
    Windows windows[BOUND_WINDOW_KINDS];
    int32_t widths[BOUND_MOST_WIDTHS]; /* devices */
    const PathMixes *mixes;            /* of every schedule that the space has */
    const CutMixes *cut_mixes;
    int32_t width_count, most_stages;
    BoundLaunches launches; /* of the module as read */
} BoundPipelines;

/* The tables of a number of micro-batches M: what classes take by width. */
typedef struct BoundIteration {
    const BoundPipelines *of;
    int32_t micro_batches;
    double of_one_stage;   /* computing alone */
    ClassSeconds *seconds; /* [class * width_count + width] */
    ClassSeconds all[BOUND_MOST_WIDTHS];
    CutWork cut_work;
    CutTables *cuts;
    AmStatus status;
    AmError error;
    Arena arena;
} BoundIteration;

/* Makes the tables, in the iteration's arena. */
AmStatus bound_iteration_fill(BoundIteration *self, AmError *error);
/* At least the seconds of any pipeline of so many stages, by windows; at most `enough`. 0 without memory. */
double bound_iteration_windows(const BoundIteration *iteration, int32_t stages, double enough);

#endif
