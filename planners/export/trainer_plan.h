/* Reads a plan as the degrees of a trainer of transformers, Megatron-LM or torchtitan.
 *
 * Such a trainer has one degree each of data, tensor and pipeline parallelism for the whole model. A plan
 * that no such degrees describe is refused with the reason.
 */
#ifndef PLANNERS_EXPORT_TRAINER_PLAN_H
#define PLANNERS_EXPORT_TRAINER_PLAN_H

#include <jansson.h>

#include "planners/targets/target.h"

typedef struct TrainerPlan {
    int32_t data, tensor, stages; /* degrees */
    int32_t parts;                /* stages times chunks */
    int32_t ranks;
    ScheduleKind schedule;   /* of several stages */
    int32_t zero_level;      /* 0 to 3, over the data axis */
    bool splits_sequence;    /* over the tensor axis, between the split operators */
    bool offloads_optimizer; /* of all stages */
    int32_t micro_batches;
    int64_t examples;            /* of a micro-batch on one data rank */
    int64_t batch;               /* examples of a step */
    const int32_t *layers;       /* [parts] how many; NULL: one stage */
    int32_t recomputed;          /* the first layers of each part, recomputed one by one; 0: none */
    bool recomputes_all;         /* those are all layers */
    uint32_t recomputed_modules; /* LayerModule: their parts that alone are recomputed; 0: whole layers */
} TrainerPlan;

/* Reads the degrees; arrays are in the arena. AM_ERROR_INFEASIBLE, with the reason and how to find a plan
 * that can be exported, where the target's trainer would not do the same. */
AmStatus trainer_plan_read(TrainerPlan *degrees, Arena *arena, Target target, const PlanContext *context,
                           const Plan *plan, AmError *error);
/* Returns [part]: the number of its layers; empty for a one-stage plan. The caller's reference. */
json_t *trainer_plan_layers(const TrainerPlan *degrees);

#endif
