/* Finds backward instructions that compute a forward value once more. */
#ifndef IR_ANALYSIS_RECOMPUTED_H
#define IR_ANALYSIS_RECOMPUTED_H

#include "ir/analysis/flow_graph.h"
#include "ir/analysis/roles.h"

/* Turns the phase of backward instructions that repeat a forward value, and of what only they move or
 * make without parameters, into recomputed. phases, repeats and free: [graph->count]; free: follows no
 * parameter; repeats: the forward instruction that gives the same value, -1 for what repeats none. */
AmStatus ir_find_recomputed(IrPhase *phases, int32_t *repeats, Arena *scratch, const IrFlowGraph *graph,
                            const bool *free, AmError *error);

#endif
