/* The context of a sample of a module's layers (ir/layers/sample_layers.h), on which a search costs as much
 * as its distinct layers. Plans of the sample are moved to the module.
 */
#ifndef PROPAGATION_PLAN_PLAN_SAMPLE_H
#define PROPAGATION_PLAN_PLAN_SAMPLE_H

#include "ir/layers/sample_layers.h"
#include "propagation/plan/plan.h"

typedef struct PlanSample {
    PlanContext *context;       /* its `primary` is NULL, as that of a module that was read */
    const PlanContext *primary; /* the module's, which must outlive it */
    const IrLayerSample *record;
} PlanSample;

/* Makes a sample. `primary` has `primary` NULL. `sample->context` is NULL where the module has no long run of
 * equal layers. */
AmStatus plan_sample_make(PlanSample *sample, const PlanContext *primary, AmError *error);
void plan_sample_free(PlanSample *sample);

/* Makes the stages [plan->stage_count], in the arena, of a plan of the sample for the module, but for axis
 * priorities and overrides: ranges and recomputation of a layer hold for all layers that it stands for, each
 * for itself. A stage that begins with a layer begins with the first one for which that stands.
 * AM_ERROR_INFEASIBLE: a stage would have no layer, or is in chunks. */
AmStatus plan_sample_cut(PlanStage *stages, Arena *arena, const PlanSample *sample, const Plan *plan,
                         AmError *error);
/* Adds axis priorities and overrides by the instructions of `context`, the module with the micro-batches and
 * the recomputation of the plan. */
AmStatus plan_sample_decide(PlanStage *stages, Arena *arena, const PlanSample *sample, const Plan *plan,
                            const PlanContext *context, AmError *error);

#endif
