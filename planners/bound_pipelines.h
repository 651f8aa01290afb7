/* How good a plan of any number of stages can be at best: a lower bound of the step over every plan of a
 * space, visited or not (method, section 6). The cases and their arguments are in docs/optimality.md.
 */
#ifndef PLANNERS_BOUND_PIPELINES_H
#define PLANNERS_BOUND_PIPELINES_H

#include "base/stop.h"
#include "planners/bound.h"
#include "planners/bound_work.h"

/* The plans that are bounded: of one stage with one micro-batch, any lists on any mesh; else any
 * cuts, widths (powers of two, or divisors of the devices), lists, ZeRO and recomputation. */
typedef struct BoundSpace {
    int32_t micro_batches; /* 0: any */
    int32_t most_stages;
    /* GPipe's steps are bounded with those of 1F1B, and both with those of ZB-H1. */
    ScheduleKind schedule;
    StopSignal stop; /* what is not yet bounded then counts as nothing */
} BoundSpace;

/* Over every plan of any number of stages, with any devices, meshes, lists, cuts, micro-batches,
 * schedule and recomputation: whoever does it, each operator has to be computed, and split into parts it
 * takes no fewer seconds in all than whole. With several device types each operator counts at the least of
 * its times, each in shares of what all operators take on that type. `whole` is the context as it was read.
 * The model gap is NAN. */
AmStatus plan_bound_of_work(PlanBound *bound, const PlanContext *whole, const Cluster *cluster,
                            AmError *error);

/* Over every plan of the space, of one stage or several: stages have to fill, and compute their parts of each
 * micro-batch on their shares of the devices. Where that cannot be told, as the above. */
AmStatus plan_bound_pipelines(PlanBound *bound, const PlanContext *whole, const Cluster *cluster,
                              const BoundSpace *space, AmError *error);

/* Over the pipelines of so many stages that do a list of work, whose borders are known; INFINITY: there are
 * none. The cluster's devices are of one type, no more than 256. */
AmStatus plan_bound_of_items(double *seconds, const BoundWork *work, const Cluster *cluster,
                             int32_t micro_batches, int32_t stages, ScheduleKind schedule, AmError *error);

#endif
