/* Exports a plan as a configuration of torchtitan: fields of its ParallelismConfig, such as
 * tensor_parallel_degree, and the modules of each pipeline stage.
 */
#ifndef PLANNERS_EXPORT_EXPORT_TORCHTITAN_H
#define PLANNERS_EXPORT_EXPORT_TORCHTITAN_H

#include <jansson.h>

#include "base/text.h"
#include "propagation/plan/plan.h"

/* Writes {"format": "automap-torchtitan-1", "torchtitan": version, "world_size", "parallelism": {field of
 * ParallelismConfig: value}, "examples": {"micro_batch": of one data rank, "step"}, "layers": [of each stage
 * or chunk]}; the caller's reference. AM_ERROR_INFEASIBLE, with the reason and how to find a plan that can
 * be exported, where torchtitan would not do the same. */
AmStatus export_torchtitan(json_t **root, const PlanContext *context, const Plan *plan, AmError *error);
/* Prints an export as a Python module with a function that sets the fields of a Trainer.Config. */
void export_torchtitan_print(Text *text, const json_t *root);

#endif
