/* Phases of the entry's instructions from data flow; see ir/roles.h. */
#ifndef IR_PHASES_H
#define IR_PHASES_H

#include "ir/dataflow.h"
#include "ir/roles.h"

/* Fills roles->phases [flow->count], allocated here; the other members of
 * `roles` are input. `forward` marks the ancestors of the loss, parameters
 * included. */
AmStatus ir_find_phases(IrRoles *roles, Arena *arena, const IrDataflow *flow, const bool *forward,
                        AmError *error);

#endif
