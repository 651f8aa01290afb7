/* A lower bound of the step over every plan of any number of stages. docs/planning.md, Bounds of pipelines,
 * has the argument, bound.h the other bounds.
 *
 * Four terms: the spine of a pass is its longest path of products. Place k is product k of the forward spine;
 * stages have consecutive places. A class is a set of groups of operators with equal work, which the bound
 * counts instead of listing them. A path is a chain of iterations through the stages that a step cannot
 * shorten. The parts, in the order of the computation:
 *
 *   work_items.h, work_borders.c   items of work, their places, and the borders that may divide them
 *   work_groups.h                  items of one group are on one stage; groups of equal work are one class
 *   bound_pipelines.c              seconds of each class in one iteration, by the width of its stage
 *   pipeline_paths.h               how often a path contains the iterations of each stage
 *   cut_search.h                   the least cost of all cuts and widths, for the best weights of the paths
 */
#ifndef PLANNERS_BOUNDS_BOUND_PIPELINES_H
#define PLANNERS_BOUNDS_BOUND_PIPELINES_H

#include "base/system/stop.h"
#include "planners/bounds/bound.h"
#include "planners/bounds/bound_launches.h"
#include "planners/bounds/work_items.h"

enum { BOUND_MOST_DEVICES = 256 };

/* The plans that are bounded: one-stage plans with one micro-batch, any axis priorities on any mesh; else any
 * cuts, widths (powers of two, or divisors of the devices), axis priorities, ZeRO and recomputation. */
typedef struct BoundSpace {
    int32_t micro_batches; /* 0: any */
    int32_t least_stages;  /* two or more: without one-stage plans; 0: any number */
    int32_t most_stages;
    ScheduleKind schedule; /* of bound_schedule_of() */
    double enough;         /* seconds: a bound of pipelines that is not above them need not be the best one */
    BoundMemory memory;
    StopSignal stop; /* unbounded cases count as 0 after it */
} BoundSpace;

/* The schedules that fill their stages anew in every step, bits by ScheduleKind. */
#define BOUND_FILLED (1U << SCHEDULE_GPIPE | 1U << SCHEDULE_1F1B | 1U << SCHEDULE_ZB_H1)

/* Returns the schedule whose bound holds for every schedule of a set (bits by ScheduleKind). Paths of 1F1B
 * hold for GPipe, those of ZB-H1 for both, and those of ZB-H2 for all three. Stages of several chunks have no
 * consecutive work. */
ScheduleKind bound_schedule_of(uint32_t schedules);

/* Finds a bound over every plan of the space by work and kernel launches, without pipelines. */
AmStatus plan_bound_quickly(PlanBound *bound, const PlanContext *primary, const Cluster *cluster,
                            const BoundSpace *space, AmError *error);

/* Finds a bound over every plan of the space, with one or more stages: stages have to fill, and compute
 * their parts of each micro-batch on their devices. If it cannot be computed, plan_bound_quickly(). */
AmStatus plan_bound_pipelines(PlanBound *bound, const PlanContext *primary, const Cluster *cluster,
                              const BoundSpace *space, AmError *error);

/* Bounds of the plans in one stage and in several. */
typedef struct PipelineBound {
    double one_stage;      /* without communication */
    double several_stages; /* INFINITY: no widths add up to all devices, or no stages fit */
} PipelineBound;

/* Bounds plans of a list of work, whose borders are known, over `count` numbers of micro-batches, which
 * replace that of the space. The cluster has at most BOUND_MOST_DEVICES. Both bounds are 0 where devices of
 * several types have too many choices for a stage. */
AmStatus plan_bound_items(PipelineBound *bound, const BoundWork *work, const Cluster *cluster,
                          const BoundSpace *space, const BoundLaunches *launches,
                          const int32_t *micro_batches, int32_t count, AmError *error);

/* Finds a bound of one-stage plans by their work and by the launches of each device, with any shares; 0
 * without a claim. */
AmStatus plan_bound_alone(double *seconds, const PlanContext *primary, const Cluster *cluster,
                          int32_t micro_batches, AmError *error);

#endif
