/* Phases of the entry's instructions, from data flow: forward, backward or update (IrPhase of
 * ir/analysis/roles.h). */
#ifndef IR_ANALYSIS_PHASES_H
#define IR_ANALYSIS_PHASES_H

#include "ir/analysis/flow_graph.h"
#include "ir/analysis/roles.h"

/* Fills roles->phases and roles->repeats [graph->count], allocated in `arena`; the other members of
 * `roles` are input. `forward` [graph->count] marks the ancestors of the loss,
 * parameters included. */
AmStatus ir_find_phases(IrRoles *roles, Arena *arena, Arena *scratch, const IrFlowGraph *graph,
                        const bool *forward, AmError *error);

#endif
