/* How good a plan of any number of stages can be at best: a lower bound of the step over every plan of a
 * space, visited or not (docs/method.md, section 7). The cases and their arguments are in docs/planning.md.
 *
 * Four terms: the spine of a pass is its longest path of products. Place k is product k of the forward spine;
 * stages have consecutive places. A class is a set of groups of operators with equal work, which the bound
 * counts instead of listing them. A path is a chain of iterations through the stages that a step cannot
 * shorten. bound_work.h has items and places, bound_groups.h classes, pipeline_paths.h paths.
 */
#ifndef PLANNERS_BOUNDS_BOUND_PIPELINES_H
#define PLANNERS_BOUNDS_BOUND_PIPELINES_H

#include "base/system/stop.h"
#include "planners/bounds/bound.h"
#include "planners/bounds/bound_work.h"

/* The plans that are bounded: one-stage plans with one micro-batch, any axis priorities on any mesh; else any
 * cuts, widths (powers of two, or divisors of the devices), axis priorities, ZeRO and recomputation. */
typedef struct BoundSpace {
    int32_t micro_batches; /* 0: any */
    int32_t most_stages;
    /* GPipe's steps are bounded with those of 1F1B, and both with those of ZB-H1. */
    ScheduleKind schedule;
    StopSignal stop; /* unbounded cases count as 0 after it */
} BoundSpace;

/* A bound over every plan of any number of stages, with any devices, meshes, axis priorities, cuts,
 * micro-batches, schedule and recomputation: each operator must be computed, and its shards take at
 * least as many seconds in total as the whole. With several device types each operator counts with
 * the least of its times, each as a fraction of the time of all operators on that type. `whole` is
 * the context as read. The model gap is NAN. */
AmStatus plan_bound_of_work(PlanBound *bound, const PlanContext *whole, const Cluster *cluster,
                            AmError *error);

/* A bound over every plan of the space by the work above and by kernel launches, without pipelines. */
AmStatus plan_bound_quickly(PlanBound *bound, const PlanContext *whole, const Cluster *cluster,
                            const BoundSpace *space, AmError *error);

/* A bound over every plan of the space, with one or more stages: stages have to fill, and compute
 * their parts of each micro-batch on their devices. If it cannot be computed, the bound above. */
AmStatus plan_bound_pipelines(PlanBound *bound, const PlanContext *whole, const Cluster *cluster,
                              const BoundSpace *space, AmError *error);

/* A bound over the pipelines of that many stages with a list of work, whose borders are known;
 * INFINITY: no such pipeline. The cluster's devices are of one type, at most 256. */
AmStatus plan_bound_of_items(double *seconds, const BoundWork *work, const Cluster *cluster,
                             int32_t micro_batches, int32_t stages, ScheduleKind schedule, AmError *error);

#endif
