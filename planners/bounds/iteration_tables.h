/* The tables of a bound over pipelines of one number of micro-batches: the seconds that classes of work take
 * in one iteration on stages of each width (docs/planning.md, Bounds of pipelines). */
#ifndef PLANNERS_BOUNDS_ITERATION_TABLES_H
#define PLANNERS_BOUNDS_ITERATION_TABLES_H

#include "planners/bounds/bound_launches.h"
#include "planners/bounds/bound_pipelines.h"
#include "planners/bounds/cut_tables.h"
#include "planners/bounds/work_groups.h"

enum { BOUND_MOST_WIDTHS = 31, BOUND_MOST_MIXES = 6 };

/* The choices of weights that are tried. */
typedef struct CutMixes {
    int32_t count;
    CutMix mixes[BOUND_MOST_MIXES];
} CutMixes;

/* Data common to all numbers of micro-batches. */
typedef struct BoundPipelines {
    Arena *arena;
    const Cluster *cluster;
    const ClusterDeviceType *type;
    const BoundSpace *space;
    BoundGroups groups;
    int32_t widths[BOUND_MOST_WIDTHS]; /* devices of a stage, ascending; the last is all of them */
    int32_t width_count, most_stages;
    const CutMixes *mixes;  /* of the schedule */
    BoundLaunches launches; /* of the module as read */
} BoundPipelines;

typedef struct BoundIteration {
    const BoundPipelines *of;
    int32_t micro_batches;
    double of_one_stage;   /* seconds of a step in one stage, without communication */
    ClassSeconds *seconds; /* [class * width_count + width] */
    ClassSeconds *all;     /* [width]: of all classes */
    CutWork cut_work;
    CutTables *cuts;
    AmStatus status;
    AmError error;
    Arena arena;
} BoundIteration;

/* Makes the tables, in the iteration's arena. */
AmStatus bound_iteration_fill(BoundIteration *self, AmError *error);

#endif
