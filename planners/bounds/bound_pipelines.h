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
#include "planners/bounds/bound_launches.h"
#include "planners/bounds/bound_work.h"

enum { BOUND_MOST_DEVICES = 256 };

/* The plans that are bounded: one-stage plans with one micro-batch, any axis priorities on any mesh; else any
 * cuts, widths (powers of two, or divisors of the devices), axis priorities, ZeRO and recomputation. */
typedef struct BoundSpace {
    int32_t micro_batches; /* 0: any */
    int32_t least_stages;  /* of pipelines; 0: two */
    int32_t most_stages;
    /* GPipe's steps are bounded with those of 1F1B, and both with those of ZB-H1. */
    ScheduleKind schedule;
    double enough; /* seconds: where the bound of several stages is not above them, it need not be the best */
    StopSignal stop; /* unbounded cases count as 0 after it */
} BoundSpace;

/* A bound over every plan of the space by work and kernel launches, without pipelines. */
AmStatus plan_bound_quickly(PlanBound *bound, const PlanContext *whole, const Cluster *cluster,
                            const BoundSpace *space, AmError *error);

/* A bound over every plan of the space, with one or more stages: stages have to fill, and compute
 * their parts of each micro-batch on their devices. If it cannot be computed, plan_bound_quickly(). */
AmStatus plan_bound_pipelines(PlanBound *bound, const PlanContext *whole, const Cluster *cluster,
                              const BoundSpace *space, AmError *error);

/* Bounds of the plans in one stage and in several. */
typedef struct PipelineBound {
    double one_stage;      /* without communication */
    double several_stages; /* INFINITY: no widths add up to all devices */
} PipelineBound;

/* Bounds plans of a list of work, whose borders are known, over `count` numbers of micro-batches, which
 * replace that of the space. The cluster's devices are of one type, at most BOUND_MOST_DEVICES. */
AmStatus plan_bound_items(PipelineBound *bound, const BoundWork *work, const Cluster *cluster,
                          const BoundSpace *space, const BoundLaunches *launches,
                          const int32_t *micro_batches, int32_t count, AmError *error);

#endif
