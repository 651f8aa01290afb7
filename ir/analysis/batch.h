/* The batch dimension: the dimension of each parameter that counts independent examples. */
#ifndef IR_ANALYSIS_BATCH_H
#define IR_ANALYSIS_BATCH_H

#include "ir/analysis/flow_graph.h"

/* Sets is_data[number] for every candidate parameter that has a dimension in the batch class. `looked_at`
 * [graph->count] marks the instructions that count, `is_weight` the parameters (by number) whose dimensions
 * are no batch, `is_candidate` those that may be data. Arrays come from `arena`. */
AmStatus ir_find_batch(bool *is_data, Arena *arena, const IrFlowGraph *graph, const bool *looked_at,
                       const bool *is_weight, const bool *is_candidate, AmError *error);

#endif
