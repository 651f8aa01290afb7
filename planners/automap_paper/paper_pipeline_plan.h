/* A pipeline as Auto-MAP cuts it as an ordinary plan: every stage shares its micro-batch among its devices.
 */
#ifndef PLANNERS_AUTOMAP_PAPER_PAPER_PIPELINE_PLAN_H
#define PLANNERS_AUTOMAP_PAPER_PAPER_PIPELINE_PLAN_H

#include "cost/step/memory.h"
#include "planners/single_stage/single_stage_search.h"

/* The beginning of stage s + 1: instructions of the module as read, and devices of the cluster. */
typedef struct PaperStageCuts {
    int32_t count;
    const int32_t *instructions, *devices;
    int32_t storage; /* values that the devices of a stage keep in shards: 0 none, 1 the optimizer's state, 2
                        and gradients, 3 and weights (ZeRO 1 to 3) */
} PaperStageCuts;

/* Writes and simulates the plan; `context` is that of the micro-batches. `fit`: whether it fits. The schedule
 * is that of the request, else 1F1B, or GPipe where the module does not allow that. In the arena. */
AmStatus paper_pipeline_plan(Plan **plan, MemoryFit *fit, Arena *arena, const PlanContext *context,
                             const Cluster *cluster, const SearchScope *scope, const PaperStageCuts *cuts,
                             AmError *error);

#endif
