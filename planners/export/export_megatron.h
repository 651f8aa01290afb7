/* Exports a plan as the arguments of Megatron-LM's training programs, such as
 * --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel.
 */
#ifndef PLANNERS_EXPORT_EXPORT_MEGATRON_H
#define PLANNERS_EXPORT_EXPORT_MEGATRON_H

#include <jansson.h>

#include "base/text.h"
#include "propagation/plan/plan.h"

/* Writes {"format": "automap-megatron-1", "world_size", "arguments": {"--tensor-model-parallel-size": 8,
 * ...; true: no value}, "layers": [of each stage or chunk]}; the caller's reference. AM_ERROR_INFEASIBLE,
 * with the reason and how to find a plan that can be exported, where Megatron-LM would not do the same. */
AmStatus export_megatron(json_t **root, const PlanContext *context, const Plan *plan, AmError *error);
/* Prints the arguments of a command line, one a line. */
void export_megatron_print(Text *text, const json_t *root);

#endif
